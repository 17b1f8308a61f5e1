"""The index of errors: a page for each code, whose example raises the error that it shows and whose correction runs.

`TW_UPDATE_PAGES=1` writes what the programs print into the pages.
"""

from __future__ import annotations

import ast
import linecache
import os
import platform
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, agrees, blocks, run_python
from tilewright.errors import TilewrightError

PAGES = ROOT / "docs" / "reference" / "errors"
PACKAGE = ROOT / "tilewright"
NO_PROGRAM = {
    "TW0000": "the base class",
    "TW0305": "every operation has a rule",
    "TW0601": "reserved",
    "TW0904": "needs a device that fails",
}


def _codes() -> dict[str, str]:
    """The class that each code belongs to, read from the source of the package."""
    classes: list[tuple[str, str]] = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if 'code = "TW' in text:
            classes += _codes_of(ast.parse(text))
    counts = Counter(code for code, _ in classes)
    assert max(counts.values()) == 1, counts
    return dict(classes)


def _codes_of(module: ast.Module) -> list[tuple[str, str]]:
    return [
        (statement.value.value, node.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "code"
        if isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    ]


CODES = _codes()


def test_each_code_has_a_page_and_a_row_of_the_index() -> None:
    assert {page.stem for page in PAGES.glob("TW*.md")} == set(CODES)
    rows = re.findall(
        r"^\| \[(TW\d{4})\]\((TW\d{4})\.md\) \| `(\w+)` \| \S.*\. \|$", (PAGES / "index.md").read_text(), re.M
    )
    assert [(code, CODES[code]) for code in sorted(CODES)] == [(code, name) for code, _, name in rows]
    assert all(code == file for code, file, _ in rows)


@pytest.mark.parametrize("code", sorted(CODES))
def test_the_page_has_all_sections(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text()
    assert text.startswith(f"# {code} {CODES[code]}\n\n")
    sections = ["When it is raised", *([] if code in NO_PROGRAM else ["Example"]), "Correction"]
    assert re.findall(r"^## (.*)$", text, re.M) == sections


@pytest.mark.parametrize("code", sorted(CODES))
def test_programs_of_the_page(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _skip_where_it_would_not_fail(code)
    monkeypatch.chdir(tmp_path)
    page = PAGES / f"{code}.md"
    programs = list(blocks(page.read_text()))
    if code not in NO_PROGRAM:
        example = programs.pop(0)
        _compare(page, example, _raised(example, code))
        assert programs, "the page lacks a program that runs"
    for program in programs:
        _compare(page, program, _run(program))


def test_reserved_codes_are_raised_nowhere() -> None:
    reserved = {CODES[code] for code, reason in NO_PROGRAM.items() if reason == "reserved"}
    uses = re.compile(rf"\b({'|'.join(sorted(reserved))})\b")
    used = {
        name for path in PACKAGE.rglob("*.py") for name in uses.findall(path.read_text()) if path.name != "errors.py"
    }
    assert not used, "these need a program on their page"


def _skip_where_it_would_not_fail(code: str) -> None:
    if code == "TW0503" and platform.machine() != "x86_64":
        pytest.skip("the example names another architecture than x86-64")
    if code == "TW0504" and Path("/dev/nvidia0").exists():
        pytest.skip("the example runs on this machine's GPU")


def _run(program: Block) -> str:
    # The programs of pages share a file name, and Python keeps the lines of a file by its name.
    Path("example.py").write_text(program.text)
    linecache.clearcache()
    whole_file = Block(program.kind, program.text, 0, program.expected)
    return run_python(whole_file, {"__name__": "example"}, Path("example.py"))


def _raised(program: Block, code: str) -> str:
    with pytest.raises(TilewrightError) as caught:
        _run(program)
    assert caught.value.code == code
    return f"{caught.value}\n"


def _compare(page: Path, program: Block, printed: str) -> None:
    if program.expected is None:
        assert not printed, f"line {program.first_line}: printed\n{printed}"
        return
    if agrees(program.expected, printed):
        return
    if os.environ.get("TW_UPDATE_PAGES"):
        shown = f"```python\n{program.text}```\n\n```text\n"
        text = page.read_text()
        assert shown in text
        page.write_text(text.replace(f"{shown}{program.expected}```", f"{shown}{printed}```"))
        return
    pytest.fail(f"line {program.first_line}: printed\n{printed}")

"""The tutorial runs as it stands: its Python blocks in one namespace, its commands as commands, and what they print is
what the page says, where `...` stands for anything."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    first_line: int
    expected: str | None


def blocks(page: str) -> Iterator[Block]:
    """The code blocks, each with the text block that follows it at once."""
    found = list(_FENCE.finditer(page))
    for number, match in enumerate(found):
        if match[1] == "text":
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        expected = None
        if following is not None and following[1] == "text" and not page[match.end() : following.start()].strip():
            expected = following[2]
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 1, expected)


def run_python(block: Block, namespace: dict[str, Any]) -> str:
    # Empty lines in front give the code the page's line numbers, which tracebacks and tile kernels read.
    code = compile("\n" * block.first_line + block.text, str(TUTORIAL), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def run_shell(block: Block, folder: Path) -> str:
    printed = ""
    environment = os.environ | {"TW_CACHE_DIR": str(folder / "cache")}
    for line in block.text.splitlines():
        verb, *arguments = shlex.split(line)
        assert verb == "tilewright"
        command = [sys.executable, "-m", "tilewright.cli", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"`{line}`: {done.stderr}"
        printed += done.stdout
    return printed


def agrees(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    shown = 0
    for block in blocks(TUTORIAL.read_text()):
        printed = run_python(block, namespace) if block.kind == "python" else run_shell(block, tmp_path)
        if block.expected is not None:
            assert agrees(block.expected, printed), f"line {block.first_line}: printed\n{printed}"
            shown += 1
    assert shown >= 10


def test_a_difference_is_noticed() -> None:
    assert agrees("a ... c\n", "a b c\n")
    assert not agrees("a ... c\n", "a b d\n")

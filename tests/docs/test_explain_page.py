"""The page on explanations: its commands and its Python run and print what it says; `...` stands for anything."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, agrees, blocks, run_python, run_shell

PAGES = ("explain", "cli")
_COMMAND = re.compile(r"^\$ (tilewright explain .*)$", re.MULTILINE)


def test_the_page(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, Any] = {"__name__": "explain"}
    shown = 0
    page = ROOT / "docs" / "how-to" / "explain.md"
    for block in blocks(page.read_text()):
        commands = Block("sh", "\n".join(_COMMAND.findall(block.text)), block.first_line, None)
        printed = run_python(block, namespace, page) if block.kind == "python" else run_shell(commands, tmp_path)
        if block.expected is not None:
            assert agrees(block.expected, printed), f"line {block.first_line}: printed\n{printed}"
            shown += 1
    assert shown == 4
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_names_files_that_exist(page: str) -> None:
    commands = _COMMAND.findall((ROOT / "docs" / "how-to" / f"{page}.md").read_text())
    assert commands
    for command in commands:
        assert (ROOT / shlex.split(command)[2].split("::")[0]).is_file()

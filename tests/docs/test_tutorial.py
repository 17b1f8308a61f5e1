"""The tutorial runs as it stands: its Python blocks in one namespace, its commands as commands, and what they print is
what the page says, where `...` stands for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, agrees, blocks, run_python, run_shell

TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    shown = 0
    for block in blocks(TUTORIAL.read_text()):
        printed = run_python(block, namespace, TUTORIAL) if block.kind == "python" else run_shell(block, tmp_path)
        if block.expected is not None:
            assert agrees(block.expected, printed), f"line {block.first_line}: printed\n{printed}"
            shown += 1
    assert shown >= 10


def test_a_difference_is_noticed() -> None:
    assert agrees("a ... c\n", "a b c\n")
    assert not agrees("a ... c\n", "a b d\n")

"""The page on schedules: its Python runs and prints what it says; `...` stands for anything."""

from __future__ import annotations

from typing import Any

from tests.docs.blocks import ROOT, agrees, blocks, run_python


def test_the_page() -> None:
    page = ROOT / "docs" / "how-to" / "schedules.md"
    namespace: dict[str, Any] = {"__name__": "schedules"}
    shown = 0
    for block in blocks(page.read_text()):
        printed = run_python(block, namespace, page)
        assert block.expected is not None
        assert agrees(block.expected, printed), f"line {block.first_line}: printed\n{printed}"
        shown += 1
    assert shown == 7

"""The pages on layouts: their Python runs and prints what they say; `...` stands for anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.blocks import ROOT, agrees, blocks, run_python

PAGES = {"how-to": 2, "internals": 1}


@pytest.mark.parametrize("folder", PAGES)
def test_the_page(folder: str) -> None:
    page = ROOT / "docs" / folder / "layouts.md"
    namespace: dict[str, Any] = {"__name__": "layouts"}
    shown = 0
    for block in blocks(page.read_text()):
        printed = run_python(block, namespace, page)
        assert block.expected is not None
        assert agrees(block.expected, printed), f"line {block.first_line}: printed\n{printed}"
        shown += 1
    assert shown == PAGES[folder]

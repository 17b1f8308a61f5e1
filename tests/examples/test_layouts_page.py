"""The pages on layouts: their Python runs and prints what they say; `...` stands for anything."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from test_tutorial import ROOT, agrees, blocks

PAGES = {"how-to": 2, "internals": 1}


@pytest.mark.parametrize("folder", PAGES)
def test_the_page(folder: str) -> None:
    page = ROOT / "docs" / folder / "layouts.md"
    namespace: dict[str, Any] = {"__name__": "layouts"}
    shown = 0
    for block in blocks(page.read_text()):
        # Empty lines in front give the code the page's line numbers, from which kernels are read.
        code = compile("\n" * block.first_line + block.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert block.expected is not None
        assert agrees(block.expected, printed.getvalue()), f"line {block.first_line}: printed\n{printed.getvalue()}"
        shown += 1
    assert shown == PAGES[folder]

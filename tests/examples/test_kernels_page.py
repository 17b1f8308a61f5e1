"""The page on the language of tile kernels: its Python runs and prints what it says."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from test_tutorial import ROOT, agrees, blocks


def test_the_page() -> None:
    page = ROOT / "docs" / "reference" / "kernels.md"
    namespace: dict[str, Any] = {"__name__": "kernels"}
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
    assert shown == 3

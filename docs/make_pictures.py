"""Pictures of layouts for the concept pages. The build of the site draws them, so they are those of the code."""

from __future__ import annotations

from pathlib import Path

import tilewright as tw
from tilewright.layout.access import MemoryPorts
from tilewright.layout.svg import draw_svg


def pictures() -> dict[str, str]:
    """The text of each picture, by the name of its file."""
    banks = MemoryPorts()
    rows = tw.layouts.row_major((8, 64))
    swizzled = tw.layouts.shared_matrix((8, 64), 16)
    columns = range(16)
    return {
        "accumulator": draw_svg(tw.layouts.wgmma_accumulator((64, 8)), rows=range(16)),
        "row_major": draw_svg(rows, ports=banks, item_bytes=2, columns=columns),
        "swizzled": draw_svg(swizzled, ports=banks, item_bytes=2, columns=columns),
        "panels": draw_svg(tw.layouts.panels((4, 16), dim=1, width=8)),
        "register_block": draw_svg(tw.layouts.register_block((6, 16), 8)),
        "cores": draw_svg(tw.layouts.Layout.parse("(4, 8) : [2@core.y 2@mem*2 | 4@core.x 2@mem]")),
    }


def write(folder: Path) -> None:
    """Draw all pictures into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (folder / f"{name}.svg").write_text(text)

"""Operands of asynchronous MMAs in shared memory, filled by tensor copies."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tilewright.dialects import tile
from tilewright.layout import Layout
from tilewright.passes.warps.copied_windows import Window, matrix_landing, window_behind
from tilewright.passes.warps.tensor_windows import boxes_of


def tensor_operand(side: SSAValue, loop: tile.ForOp, is_left: bool) -> tuple[Window, Layout]:
    """The window that an operand of a loop's matmul is, and the layout of the buffer that it is copied to.

    Raises:
        Refused: it is none, is not copied by boxes or not multiplied in place.
    """
    window = window_behind(side, loop.body.block, is_left)
    buffer = matrix_landing(window, 1 if is_left else 0)
    boxes_of(window.map, tile.ref_type(window.load.source), buffer)
    return window, buffer

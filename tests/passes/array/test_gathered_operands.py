"""Gathers along several axes of a reshape, which bubble up: only what is taken is computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_bubble_up_slices import ArrayBubbleUpSlicesPass

PASS = ArrayBubbleUpSlicesPass()


@pytest.mark.parametrize("second", ["32", "64"])
@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [
        ("2x4x6", (0, 1), "2x6"),
        ("8x3x2", (1, 2), "2x8"),
        ("4x2x1x6", (1, 0), "2x1x6"),
        ("6x8", (0, 1), "2"),
        ("8x1x6", (1, 2), "2x8"),
        ("2x1x4x6", (0, 2), "2x1x6"),
        ("4x3x4", (2, 0), "2x3"),
    ],
)
def test_gathers_along_axes_that_count_one_of_an_operand(
    shape: str, axes: tuple[int, int], result: str, second: str
) -> None:
    text = f"""
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>, %j: tensor<2xi{second}>) -> tensor<{result}xf32> {{
      %e = array.map(%x) {{fn = "exp"}} : tensor<8x6xf32>
      %y = array.reshape(%e) : tensor<{shape}xf32>
      %z = array.gather(%y, %i, %j) {{axes = array<i64: {axes[0]}, {axes[1]}>}} : tensor<{result}xf32>
      func.return %z : tensor<{result}xf32>
    }}
    """
    x = np.arange(48, dtype=np.float32).reshape(8, 6) / 48
    for first, last in (([0, 1], [2, 0]), ([1, 3], [-2, 99]), ([-3, 5], [5, 1])):
        inputs = [x, np.array(first, np.int32), np.array(last, f"int{second}")]
        unit = check_meaning(PASS, text, inputs=inputs)
        maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp) and op.fn == "exp"]
        assert array_type(maps[0].results[0]).size < 48

"""Gathers along several axes of a reshape, or along that of slices, which bubble up: only what is taken is computed."""

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


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("dtype", ["i32", "ui8"])
def test_gathers_along_the_axis_of_slices_are_one_of_the_array_that_they_are_of(step: int, dtype: str) -> None:
    """Rows from 300 on, with a step, then the first ones: as rolled, of more rows than indices of 8 bits count."""
    rows, last = len(range(300, 400, step)), 310
    text = f"""
    func.func @main(%x: tensor<400x6xf32>, %i: tensor<7x{dtype}>) -> tensor<7x6xf32> {{
      %e = array.map(%x) {{fn = "negative"}} : tensor<400x6xf32>
      %a = array.slice(%e) {{starts = array<i64: 300, 0>, limits = array<i64: 400, 6>,
        strides = array<i64: {step}, 1>}} : tensor<{rows}x6xf32>
      %b = array.slice(%e) {{starts = array<i64: 0, 0>, limits = array<i64: {last}, 6>, strides = array<i64: 1, 1>}}
        : tensor<{last}x6xf32>
      %r = array.concat(%a, %b) {{axis = 0 : index}} : tensor<{rows + last}x6xf32>
      %z = array.gather(%r, %i) {{axes = array<i64: 0>}} : tensor<7x6xf32>
      func.return %z : tensor<7x6xf32>
    }}
    """
    indices = [0, rows - 1, rows, 255, 100, 5, 33]
    if dtype == "i32":
        indices[-2:] = [-4, 9999]
    inputs = [
        np.arange(2400, dtype=np.float32).reshape(400, 6),
        np.array(indices, np.int32 if dtype == "i32" else np.uint8),
    ]
    unit = check_meaning(PASS, text, inputs=inputs)
    assert sum(isinstance(op, array.GatherOp) for op in unit.main.body.block.ops) == 1
    maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp) and op.fn == "negative"]
    assert [array_type(op.results[0]).size for op in maps] == [42]

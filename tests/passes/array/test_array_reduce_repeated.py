"""Reductions of what a broadcast repeats, as reductions of the array itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_reduce_repeated import ArrayReduceRepeatedPass

PASS = ArrayReduceRepeatedPass()


def reduced(axes: str, result: str, fn: str = "add", dtype: str = "i32") -> str:
    """A reduction of (5, 3, 4), which is repeated to (5, 2, 3, 7, 4) and of which the last two dims are one then."""
    return f"""
    func.func @main(%x: tensor<5x3x4x{dtype}>) -> tensor<{result}{dtype}> {{
      %w = array.broadcast(%x) {{axes = array<i64: 0, 2, 4>}} : tensor<5x2x3x7x4x{dtype}>
      %y = array.reshape(%w) : tensor<5x2x3x28x{dtype}>
      %z = array.reduce(%y) {{fn = "{fn}", axes = array<i64: {axes}>}} : tensor<{result}{dtype}>
      func.return %z : tensor<{result}{dtype}>
    }}
    """


@pytest.mark.parametrize(
    ("axes", "result"),
    [
        ("1", "5x3x28x"),  # repeats alone: nothing is added up
        ("3", "5x2x3x"),  # repeats and a dim that a reshape counts together
        ("1, 3", "5x3x"),
        ("0, 1", "3x28x"),
        ("0, 3", "2x3x"),  # a repeat that is left
        ("0, 1, 2, 3", ""),
    ],
)
@pytest.mark.parametrize("fn", ["add", "maximum", "minimum"])
def test_the_array_is_reduced_once(axes: str, result: str, fn: str) -> None:
    unit = check_meaning(PASS, reduced(axes, result, fn))
    ops = list(unit.main.body.block.ops)
    sizes = [array_type(op.operands[0]).size for op in ops if isinstance(op, array.ReduceOp)]
    assert sizes in ([60], [])
    assert any(isinstance(op, array.MapOp) for op in ops) == (fn == "add")


@pytest.mark.parametrize(("fn", "dtype"), [("add", "f32"), ("add", "bf16"), ("multiply", "i32")])
@pytest.mark.parametrize(("axes", "result"), [("2", "5x2x28x"), ("0", "2x3x28x"), ("0, 2", "2x28x")])
def test_dims_of_the_array_are_reduced_before_others_are_repeated(axes: str, result: str, fn: str, dtype: str) -> None:
    unit = check_meaning(PASS, reduced(axes, result, fn, dtype))
    ops = list(unit.main.body.block.ops)
    assert [array_type(op.operands[0]).size for op in ops if isinstance(op, array.ReduceOp)] == [60]
    assert not any(isinstance(op, array.MapOp) for op in ops)


@pytest.mark.parametrize(
    "text",
    [
        reduced("1, 3", "5x3x", dtype="bf16"),  # the product would be rounded again
        reduced("1, 3", "5x3x", fn="multiply"),
    ],
)
def test_others_stay(text: str) -> None:
    check_unchanged(PASS, text)


def test_reshapes_that_mix_dims_stay() -> None:
    check_unchanged(
        PASS,
        """
    func.func @main(%x: tensor<6xi32>) -> tensor<4xi32> {
      %w = array.broadcast(%x) {axes = array<i64: 1>} : tensor<2x6xi32>
      %y = array.reshape(%w) : tensor<4x3xi32>
      %z = array.reduce(%y) {fn = "add", axes = array<i64: 1>} : tensor<4xi32>
      func.return %z : tensor<4xi32>
    }
    """,
    )


@pytest.mark.parametrize(("dtype", "fn"), [("f32", "add"), ("bf16", "maximum"), ("i1", "bitwise_or")])
def test_reductions_of_one_element_are_reshapes(dtype: str, fn: str) -> None:
    text = f"""
    func.func @main(%x: tensor<5x1x4x1x{dtype}>) -> tensor<5x4x{dtype}> {{
      %z = array.reduce(%x) {{fn = "{fn}", axes = array<i64: 1, 3>}} : tensor<5x4x{dtype}>
      func.return %z : tensor<5x4x{dtype}>
    }}
    """
    unit = check_meaning(PASS, text)
    assert not any(isinstance(op, array.ReduceOp) for op in unit.main.body.block.ops)


def test_a_dim_of_one_element_is_repeated() -> None:
    text = """
    func.func @main(%x: tensor<5x1xf32>) -> tensor<5xf32> {
      %w = array.broadcast(%x) {axes = array<i64: 0, 1>} : tensor<5x9xf32>
      %z = array.reduce(%w) {fn = "add", axes = array<i64: 1>} : tensor<5xf32>
      func.return %z : tensor<5xf32>
    }
    """
    check_meaning(PASS, text, inputs=[np.arange(5, dtype=np.float32).reshape(5, 1)])
    unit = applied(PASS, text)
    assert any(isinstance(op, array.MapOp) for op in unit.main.body.block.ops)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: tw.sum(tw.tile(x, (1, 8)), axis=1), lambda x: np.tile(x, (1, 8)).sum(1)),
        (lambda x: tw.mean(tw.tile(x, (3, 2)), axis=0), lambda x: np.tile(x, (3, 2)).mean(0)),
        (lambda x: tw.max(tw.repeat(x, 4, axis=0)), lambda x: np.repeat(x, 4, axis=0).max()),
        (lambda x: tw.sum(tw.tile(x.T, (1, 2))), lambda x: np.tile(x.T, (1, 2)).sum()),
        (lambda x: tw.sum(tw.repeat(x, 2, axis=0), axis=1), lambda x: np.repeat(x, 2, axis=0).sum(1)),
        (lambda x: tw.max(tw.exp(tw.tile(x.T, (2, 1))), axis=1), lambda x: np.exp(np.tile(x.T, (2, 1))).max(1)),
    ],
)
def test_reductions_of_tiled_arrays(function: Callable[..., Any], expected: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).standard_normal((30, 70)).astype(np.float32)
    found = np.asarray(tw.jit(function, target="cpu")(x))
    np.testing.assert_allclose(found, expected(x.astype(np.float64)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("axes", ["0", "2", "0, 1", "1, 3", "0, 2, 3"])
def test_what_transposes_leave_is_transposed_after_the_reduction(order: tuple[int, ...], axes: str) -> None:
    wide = [(2, 3, 4, 5)[d] for d in order]
    reduced = [int(axis) for axis in axes.split(",")]
    turned = "x".join(map(str, wide))
    result = "".join(f"{size}x" for d, size in enumerate(wide) if d not in reduced)
    text = f"""
    func.func @main(%x: tensor<3x5xi32>) -> tensor<{result}i32> {{
      %many = array.broadcast(%x) {{axes = array<i64: 1, 3>}} : tensor<2x3x4x5xi32>
      %turned = array.transpose(%many) {{permutation = array<i64: {", ".join(map(str, order))}>}} : tensor<{turned}xi32>
      %z = array.reduce(%turned) {{fn = "add", axes = array<i64: {axes}>}} : tensor<{result}i32>
      func.return %z : tensor<{result}i32>
    }}
    """
    check_meaning(PASS, text)
    sums = [op for op in applied(PASS, text).main.body.block.ops if isinstance(op, array.ReduceOp)]
    assert all(array_type(op.operands[0]).shape == (3, 5) for op in sums)


def stacked(axes: str, result: str, fn: str = "add", dtype: str = "i32", rows: int = 400) -> str:
    """A reduction of an array and a transposed one that are stacked as the innermost dim."""
    return f"""
    func.func @main(%x: tensor<{rows}x100x{dtype}>, %y: tensor<100x{rows}x{dtype}>) -> tensor<{result}{dtype}> {{
      %t = array.transpose(%y) {{permutation = array<i64: 1, 0>}} : tensor<{rows}x100x{dtype}>
      %a = array.reshape(%x) : tensor<{rows}x100x1x{dtype}>
      %b = array.reshape(%t) : tensor<{rows}x100x1x{dtype}>
      %j = array.concat(%a, %b) {{axis = 2 : index}} : tensor<{rows}x100x2x{dtype}>
      %z = array.reduce(%j) {{fn = "{fn}", axes = array<i64: {axes}>}} : tensor<{result}{dtype}>
      func.return %z : tensor<{result}{dtype}>
    }}
    """


@pytest.mark.parametrize("fn", ["add", "maximum", "minimum"])
@pytest.mark.parametrize(("axes", "result", "sums"), [("0, 1, 2", "", 2), ("1, 2", "400x", 2), ("2", "400x100x", 0)])
def test_what_is_stacked_is_reduced_operand_by_operand(axes: str, result: str, sums: int, fn: str) -> None:
    arrays = [np.arange(40000, dtype=np.int32).reshape(shape) % 1013 for shape in ((400, 100), (100, 400))]
    unit = check_meaning(PASS, stacked(axes, result, fn), inputs=arrays)
    reduces = [op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp)]
    assert [array_type(op.operands[0]).shape for op in reduces] == [(400, 100)] * sums
    assert sum(isinstance(op, array.MapOp) for op in unit.main.body.block.ops) == 1


@pytest.mark.parametrize(
    "text",
    [
        stacked("0, 1", "2x"),  # the operands stay apart
        stacked("1, 2", "400x", dtype="bf16"),  # each would be rounded
        stacked("1, 2", "20x", rows=20),  # few elements
    ],
)
def test_other_concatenations_are_reduced_as_they_are(text: str) -> None:
    check_unchanged(PASS, text)

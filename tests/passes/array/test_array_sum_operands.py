"""Sums of contractions as contractions of sums."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import applied, check_meaning, check_unchanged, run
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_sum_operands import ArraySumOperandsPass

PASS = ArraySumOperandsPass()


def summed(axes: str, result: str, dtype: str = "i32", fn: str = "add", more: str = "", precision: str = "") -> str:
    """A sum of a contraction of (2, 5, 4, 3) by (4, 2, 6), whose dims are batch, two of rows and columns."""
    returned = "%z" if not more else "%z, %y"
    types = f"tensor<{result}{dtype}>" + (f", tensor<2x5x3x6x{dtype}>" if more else "")
    return f"""
    func.func @main(%x: tensor<2x5x4x3x{dtype}>, %w: tensor<4x2x6x{dtype}>) -> ({types}) {{
      %y = array.contract(%x, %w) {{left_batch = array<i64: 0>, right_batch = array<i64: 1>,
        left_contract = array<i64: 2>, right_contract = array<i64: 0>{precision}}} : tensor<2x5x3x6x{dtype}>
      %z = array.reduce(%y) {{fn = "{fn}", axes = array<i64: {axes}>}} : tensor<{result}{dtype}>
      func.return {returned} : {types}
    }}
    """


@pytest.mark.parametrize(
    ("axes", "result"),
    [("1", "2x3x6x"), ("2", "2x5x6x"), ("3", "2x5x3x"), ("1, 2", "2x6x"), ("1, 3", "2x3x"), ("1, 2, 3", "2x")],
)
def test_operands_are_summed_first(axes: str, result: str) -> None:
    unit = applied(PASS, summed(axes, result))
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-9, 9, shape, np.int32) for shape in ((2, 5, 4, 3), (4, 2, 6)))
    expected = np.einsum("abkc,kad->abcd", x, w).sum(tuple(int(n) for n in axes.split(",")))
    np.testing.assert_array_equal(run(unit, [x, w])[0], expected)
    (contraction,) = [op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp)]
    assert array_type(contraction.results[0]).shape == expected.shape


@pytest.mark.parametrize(
    "text",
    [
        summed("0", "5x3x6x"),
        summed("0, 1", "3x6x"),
        summed("1", "2x3x6x", fn="maximum"),
        summed("1", "2x3x6x", more="returned too"),
        summed("1", "2x3x6x", dtype="bf16"),
        summed("1", "2x3x6x", dtype="f32", precision=', precision = "tf32"'),
    ],
    ids=["batches", "batches and rows", "maximum", "used twice", "rounded", "rounded operands"],
)
def test_others_stay(text: str) -> None:
    check_unchanged(PASS, text)


def test_operands_of_a_narrower_type_stay() -> None:
    """Sums of bytes would not fit."""
    text = """
    func.func @main(%x: tensor<5x4xi8>, %w: tensor<4x6xi8>) -> tensor<6xi32> {
      %y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<5x6xi32>
      %z = array.reduce(%y) {fn = "add", axes = array<i64: 0>} : tensor<6xi32>
      func.return %z : tensor<6xi32>
    }
    """
    check_unchanged(PASS, text)


def test_a_mean_of_a_linear_layer() -> None:
    generator = np.random.default_rng(1)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((7, 49, 32), (32, 20)))
    found = tw.jit(lambda x, w: tw.mean(x @ w, axis=1), target="cpu")(x, w)
    expected = (x.astype(np.float64) @ w).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_transposed_operands_are_summed_in_the_order_of_memory() -> None:
    text = """
    func.func @main(%x: tensor<5x4x3xi32>, %w: tensor<3x7x4x5xi32>) -> tensor<5x4xi32> {
      %t = array.transpose(%w) {permutation = array<i64: 3, 2, 1, 0>} : tensor<5x4x7x3xi32>
      %y = array.contract(%x, %t) {left_batch = array<i64: 0, 1>, right_batch = array<i64: 0, 1>,
        left_contract = array<i64: 2>, right_contract = array<i64: 3>} : tensor<5x4x7xi32>
      %z = array.reduce(%y) {fn = "add", axes = array<i64: 2>} : tensor<5x4xi32>
      func.return %z : tensor<5x4xi32>
    }
    """
    unit = check_meaning(PASS, text)
    (total,) = [op for op in unit.main.walk() if isinstance(op, array.ReduceOp)]
    assert array_type(total.operands[0]).shape == (3, 7, 4, 5)

"""Elementwise operations on what broadcasts repeat, computed once."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_sink_broadcasts import ArraySinkBroadcastsPass

PASS = ArraySinkBroadcastsPass()


def sizes_of_maps(text: str) -> list[int]:
    unit = check_meaning(PASS, text)
    return [array_type(op.results[0]).size for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]


def test_functions_of_rows_and_columns_repeated_along_other_dims() -> None:
    text = """
    func.func @main(%x: tensor<5x1xf32>, %y: tensor<3xf32>) -> tensor<4x5x2x3xf32> {
      %a = array.broadcast(%x) {axes = array<i64: 1, 3>} : tensor<4x5x2x3xf32>
      %b = array.broadcast(%y) {axes = array<i64: 3>} : tensor<4x5x2x3xf32>
      %two = array.constant() {value = 2.0 : f64, resource = ""} : tensor<4x5x2x3xf32>
      %c = array.map(%a, %b) {fn = "add"} : tensor<4x5x2x3xf32>
      %d = array.map(%c, %two) {fn = "multiply"} : tensor<4x5x2x3xf32>
      %e = array.map(%d) {fn = "exp"} : tensor<4x5x2x3xf32>
      func.return %e : tensor<4x5x2x3xf32>
    }
    """
    assert sizes_of_maps(text) == [15, 15, 15]


def test_functions_of_a_repeated_scalar() -> None:
    text = """
    func.func @main(%x: tensor<1xf32>) -> tensor<4x5xf32> {
      %a = array.broadcast(%x) {axes = array<i64: 1>} : tensor<4x5xf32>
      %e = array.map(%a) {fn = "exp"} : tensor<4x5xf32>
      func.return %e : tensor<4x5xf32>
    }
    """
    assert sizes_of_maps(text) == [1]


def square_and_sum(axis: int) -> str:
    size = (5, 4)[axis]
    return f"""
    func.func @main(%x: tensor<5xf32>) -> tensor<{size}xf32> {{
      %a = array.broadcast(%x) {{axes = array<i64: 1>}} : tensor<4x5xf32>
      %e = array.map(%a) {{fn = "square"}} : tensor<4x5xf32>
      %z = array.reduce(%e) {{fn = "add", axes = array<i64: {axis}>}} : tensor<{size}xf32>
      func.return %z : tensor<{size}xf32>
    }}
    """


@pytest.mark.parametrize("axis", [0, 1])
def test_cheap_operands_of_reductions_of_what_is_repeated(axis: int) -> None:
    assert sizes_of_maps(square_and_sum(axis)) == [5]


def transposed_square(shape: str, order: str) -> str:
    return f"""
    func.func @main(%x: tensor<5xf32>) -> tensor<{shape}xf32> {{
      %a = array.broadcast(%x) {{axes = array<i64: 2>}} : tensor<3x4x5xf32>
      %e = array.map(%a) {{fn = "square"}} : tensor<3x4x5xf32>
      %z = array.transpose(%e) {{permutation = array<i64: {order}>}} : tensor<{shape}xf32>
      func.return %z : tensor<{shape}xf32>
    }}
    """


def test_cheap_operands_of_transposes_of_what_is_repeated() -> None:
    assert sizes_of_maps(transposed_square("5x3x4", "2, 0, 1")) == [5]
    check_unchanged(PASS, transposed_square("4x3x5", "1, 0, 2"))  # the loop that stores the rows computes them


def test_tiled_arrays_in_another_shape() -> None:
    text = """
    func.func @main(%x: tensor<5x3xf32>) -> tensor<10x3xf32> {
      %a = array.broadcast(%x) {axes = array<i64: 1, 2>} : tensor<2x5x3xf32>
      %r = array.reshape(%a) : tensor<10x3xf32>
      %e = array.map(%r) {fn = "exp"} : tensor<10x3xf32>
      func.return %e : tensor<10x3xf32>
    }
    """
    assert sizes_of_maps(text) == [15]


@pytest.mark.parametrize("fn", ["exp", "negative"])
def test_what_is_not_repeated_or_cheap_stays(fn: str) -> None:
    """A function of an array that is not repeated, and a cheap one of one that is."""
    shape, axes = ("4x5x", "0, 1") if fn == "exp" else ("5x", "1")
    text = f"""
    func.func @main(%x: tensor<{shape}f32>) -> tensor<4x5xf32> {{
      %a = array.broadcast(%x) {{axes = array<i64: {axes}>}} : tensor<4x5xf32>
      %e = array.map(%a) {{fn = "{fn}"}} : tensor<4x5xf32>
      func.return %e : tensor<4x5xf32>
    }}
    """
    check_unchanged(PASS, text)


def test_variances_along_a_repeated_dim() -> None:
    x = np.random.default_rng(0).standard_normal((37, 3)).astype(np.float32)

    def spread(x: tw.Array) -> tw.Array:
        return tw.var(tw.broadcast_to(x[None], (8, *x.shape)), axis=0) + tw.exp(tw.tile(x, (2, 1)))[:37]

    np.testing.assert_allclose(tw.jit(spread)(x), np.exp(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes", "kept", "maps"),
    [("10x3", "0, 1", "", 15), ("10x3", "0", "3x", 15), ("10x3", "1", "10x", 15), ("15x2", "0", "2x", None)],
)
def test_cheap_operands_of_reductions_of_tiled_arrays(shape: str, axes: str, kept: str, maps: int | None) -> None:
    """Also where the reshape merges the repeats with a dim of the array; not where a dim is reduced in part."""
    text = f"""
    func.func @main(%x: tensor<5x3xf32>) -> tensor<{kept}f32> {{
      %a = array.broadcast(%x) {{axes = array<i64: 1, 2>}} : tensor<2x5x3xf32>
      %r = array.reshape(%a) : tensor<{shape}xf32>
      %n = array.map(%r) {{fn = "negative"}} : tensor<{shape}xf32>
      %m = array.reduce(%n) {{fn = "maximum", axes = array<i64: {axes}>}} : tensor<{kept}f32>
      func.return %m : tensor<{kept}f32>
    }}
    """
    if maps is None:
        check_unchanged(PASS, text)
    else:
        assert sizes_of_maps(text) == [maps]

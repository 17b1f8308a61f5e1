"""Transposes that sink below elementwise operations and reductions, and those that stay."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_sink_transposes import ArraySinkTransposesPass

PASS = ArraySinkTransposesPass()

SOFTMAX = """
    func.func @main(%x: tensor<3x4x5xf32>, %w: tensor<{other}>) -> tensor<{result}> {{
      %t = array.transpose(%x) {{permutation = array<i64: 2, 0, 1>}} : tensor<5x3x4xf32>
      %b = array.broadcast(%w) {{axes = array<i64: {axes}>}} : tensor<5x3x4xf32>
      %half = array.constant() {{value = 0.5 : f64, resource = ""}} : tensor<5x3x4xf32>
      %s = array.map(%t, %half) {{fn = "multiply"}} : tensor<5x3x4xf32>
      %v = array.map(%s, %b) {{fn = "add"}} : tensor<5x3x4xf32>
      %m = array.reduce(%v) {{fn = "maximum", axes = array<i64: {reduced}>}} : tensor<{kept}xf32>
      %h = array.broadcast(%m) {{axes = array<i64: {kept_axes}>}} : tensor<5x3x4xf32>
      %d = array.map(%v, %h) {{fn = "subtract"}} : tensor<5x3x4xf32>
      {end}
      func.return %z : tensor<{result}>
    }}
"""
BACK = "%z = array.transpose(%d) {permutation = array<i64: 1, 2, 0>} : tensor<3x4x5xf32>"


def softmax(reduced: str, kept: str, kept_axes: str, end: str = BACK, result: str = "3x4x5xf32", **rest: str) -> str:
    parameters = {"other": "4xf32", "axes": "2"} | rest
    return SOFTMAX.format(reduced=reduced, kept=kept, kept_axes=kept_axes, end=end, result=result, **parameters)


@pytest.mark.parametrize(
    ("reduced", "kept", "kept_axes"),
    [("0", "3x4", "1, 2"), ("1", "5x4", "0, 2"), ("2", "5x3", "0, 1"), ("1, 2", "5", "0"), ("0, 2", "3", "1")],
)
@pytest.mark.parametrize(
    ("other", "axes"), [("4xf32", "2"), ("5xf32", "0"), ("5x1x4xf32", "0, 1, 2"), ("5x3xf32", "0, 1")]
)
def test_what_leaves_by_a_transpose_back(reduced: str, kept: str, kept_axes: str, other: str, axes: str) -> None:
    unit = check_meaning(PASS, softmax(reduced, kept, kept_axes, other=other, axes=axes))
    ops = list(unit.main.body.block.ops)
    maps = [op for op in ops if isinstance(op, array.MapOp)]
    assert all(array_type(op.results[0]).shape == (3, 4, 5) for op in maps)
    turns = [op for op in ops if isinstance(op, array.TransposeOp)]
    assert all(array_type(op.results[0]).size < 60 for op in turns)


@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [("60", "0", ""), ("15x4", "0", "4"), ("15x4", "1", "15"), ("5x12", "1", "5"), ("5x3x2x2", "0, 2, 3", "3")],
)
@pytest.mark.parametrize("elementwise", [False, True])
def test_reductions_of_what_a_reshape_counts(shape: str, axes: str, result: str, elementwise: bool) -> None:
    """Of all dims that become one: in the order of the array as it is stored."""
    between = """%w = array.broadcast(%s) {axes = array<i64>} : tensor<SHAPExf32>
      %v = array.map(%r, %w) {fn = "multiply"} : tensor<SHAPExf32>"""
    text = f"""
    func.func @main(%x: tensor<3x4x5xf32>, %s: tensor<f32>) -> tensor<{result + "x" if result else ""}f32> {{
      %t = array.transpose(%x) {{permutation = array<i64: 2, 0, 1>}} : tensor<5x3x4xf32>
      %e = array.map(%t) {{fn = "exp"}} : tensor<5x3x4xf32>
      %r = array.reshape(%e) : tensor<{shape}xf32>
      {between.replace("SHAPE", shape) if elementwise else ""}
      %z = array.reduce({"%v" if elementwise else "%r"}) {{fn = "maximum", axes = array<i64: {axes}>}}
        : tensor<{result + "x" if result else ""}f32>
      func.return %z : tensor<{result + "x" if result else ""}f32>
    }}
    """
    unit = check_meaning(PASS, text)
    maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert {array_type(op.results[0]).shape for op in maps} == {(3, 4, 5)}


@pytest.mark.parametrize(
    ("order", "axis", "moves"),
    [("1, 0", 1, True), ("1, 0", 0, True), ("2, 0, 1", 1, True), ("2, 0, 1", 0, True), ("1, 2, 0", 0, False)],
)
@pytest.mark.parametrize("places", [False, True])
def test_lines_of_transposed_arrays(order: str, axis: int, moves: bool, places: bool) -> None:
    """Scanned, and searched for their largest elements, in the order of memory: as runs of it, or side by side where
    so many are."""
    sizes = (20, 30) if order == "1, 0" else (6, 7, 20) if moves else (6, 20, 4)
    turned = [sizes[int(each)] for each in order.split(",")]
    kept = [size for n, size in enumerate(turned) if n != axis]
    shape, source, left = ("x".join(map(str, each)) for each in (turned, sizes, kept))
    result = f"{left}xi64" if places else f"{shape}xf32"
    op = f'array.arg_reduce(%v) {{fn = "maximum", axis = {axis} : index}}'
    if not places:
        op = f'array.scan(%v) {{fn = "maximum", axis = {axis} : index, reverse = true}}'
    text = f"""
    func.func @main(%x: tensor<{source}xf32>) -> tensor<{result}> {{
      %t = array.transpose(%x) {{permutation = array<i64: {order}>}} : tensor<{shape}xf32>
      %v = array.map(%t) {{fn = "negative"}} : tensor<{shape}xf32>
      %z = {op} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """
    if not moves:
        check_unchanged(PASS, text)
        return
    unit = check_meaning(PASS, text)
    worked = [op for op in unit.main.body.block.ops if isinstance(op, array.ScanOp | array.ArgReduceOp)]
    assert [array_type(op.operands[0]).shape for op in worked] == [sizes]


def test_reductions_of_a_part_of_what_a_dim_counts_stay() -> None:
    check_unchanged(
        PASS,
        """
    func.func @main(%x: tensor<4x6xf32>) -> tensor<3x4xf32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<6x4xf32>
      %e = array.map(%t) {fn = "exp"} : tensor<6x4xf32>
      %r = array.reshape(%e) : tensor<2x3x4xf32>
      %z = array.reduce(%r) {fn = "maximum", axes = array<i64: 0>} : tensor<3x4xf32>
      func.return %z : tensor<3x4xf32>
    }
    """,
    )


def test_what_leaves_by_reductions() -> None:
    end = """%e = array.map(%d) {fn = "exp"} : tensor<5x3x4xf32>
      %n = array.reduce(%e) {fn = "maximum", axes = array<i64: 0, 1, 2>} : tensor<f32>
      %k = array.reduce(%d) {fn = "minimum", axes = array<i64: 1>} : tensor<5x4xf32>
      %l = array.broadcast(%n) {axes = array<i64>} : tensor<5x4xf32>
      %z = array.map(%k, %l) {fn = "subtract"} : tensor<5x4xf32>"""
    unit = check_meaning(PASS, softmax("2", "5x3", "0, 1", end, "5x4xf32"))
    sizes = [array_type(op.results[0]).size for op in unit.main.body.block.ops if isinstance(op, array.TransposeOp)]
    assert sizes
    assert max(sizes) <= 20


@pytest.mark.parametrize(
    "end",
    [
        '%z = array.map(%d) {fn = "exp"} : tensor<5x3x4xf32>',  # a result
        "%z = array.transpose(%d) {permutation = array<i64: 0, 2, 1>} : tensor<5x4x3xf32>",  # another order
        "%z = array.reverse(%d) {axes = array<i64: 0>} : tensor<5x3x4xf32>",
    ],
)
def test_what_leaves_otherwise_stays(end: str) -> None:
    result = "5x4x3xf32" if "5x4x3" in end else "5x3x4xf32"
    check_unchanged(PASS, softmax("2", "5x3", "0, 1", end, result))


def test_straight_arrays_next_to_transposed_ones_stay() -> None:
    check_unchanged(
        PASS,
        softmax("2", "5x3", "0, 1")
        .replace("%w: tensor<4xf32>", "%w: tensor<5x3x4xf32>")
        .replace("array.broadcast(%w) {axes = array<i64: 2>}", "array.reverse(%w) {axes = array<i64: 1>}"),
    )


@pytest.mark.parametrize("shape", [(700, 96), (8, 14, 14, 32), (3, 50, 70)])
def test_softmax_and_norms_of_transposed_arrays(shape: tuple[int, ...]) -> None:
    """As of images with channels last, of which a program makes images with channels first."""
    order = (0, len(shape) - 1, *range(1, len(shape) - 1)) if len(shape) > 2 else (1, 0)
    back = tuple(order.index(axis) for axis in range(len(shape)))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    turned = x.astype(np.float64).transpose(order)
    axis = 1 if len(shape) > 2 else 0

    def ours(x: tw.Array) -> tuple[tw.Array, tw.Array]:
        v = tw.permute_dims(x, order)
        centred = v - tw.mean(v, axis=axis, keepdims=True)
        spread = tw.sqrt(tw.mean(centred * centred, axis=axis, keepdims=True))
        return tw.permute_dims(tw.nn.softmax(v, axis=axis), back), tw.permute_dims(centred / spread, back)

    shifted = np.exp(turned - turned.max(axis, keepdims=True))
    centred = turned - turned.mean(axis, keepdims=True)
    expected = shifted / shifted.sum(axis, keepdims=True), centred / np.sqrt((centred**2).mean(axis, keepdims=True))
    for found, each in zip(tw.jit(ours)(x), expected, strict=True):
        np.testing.assert_allclose(found, each.transpose(back), rtol=2e-5, atol=2e-6)


def test_slices_of_few_elements_leave_what_is_computed() -> None:
    """A variance takes the first element of each row."""
    text = """
    func.func @main(%x: tensor<96x64xf32>) -> tensor<64x1xf32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
      %first = array.slice(%t) {starts = array<i64: 0, 0>, limits = array<i64: 64, 1>, strides = array<i64: 1, 1>}
        : tensor<64x1xf32>
      %s = array.reduce(%t) {fn = "maximum", axes = array<i64: 1>} : tensor<64xf32>
      %column = array.reshape(%s) : tensor<64x1xf32>
      %z = array.map(%first, %column) {fn = "minimum"} : tensor<64x1xf32>
      func.return %z : tensor<64x1xf32>
    }
    """
    unit = check_meaning(PASS, text)
    assert not [op for op in unit.main.walk() if isinstance(op, array.TransposeOp)]
    many = text.replace("64, 1>, strides", "64, 48>, strides").replace("64x1x", "64x48x")
    spread = "array.broadcast(%s) {axes = array<i64: 0>}"
    check_unchanged(PASS, many.replace("array.reshape(%s)", spread))


@pytest.mark.parametrize("shape", [(3000, 64), (300, 170)])
def test_variances_of_transposed_arrays(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = tw.jit(lambda x: tw.var(x.T, axis=1))(x)
    np.testing.assert_allclose(found, x.astype(np.float64).T.var(1), rtol=1e-5)

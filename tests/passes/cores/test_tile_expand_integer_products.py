"""Matmuls of integers, which `tile-expand-integer-products` makes of digits that are exact in floats: any bits, any
depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, run
from tilewright.cost.cores.tiles import digits_of
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.cores.tile_expand_integer_products import TileExpandIntegerProductsPass

PASS = TileExpandIntegerProductsPass()


def kernel(rows: int, columns: int, depth: int, dtype: str, result: str = "", start: str = "%start") -> str:
    x, y = f"tensor<{rows}x{depth}x{dtype}>", f"tensor<{depth}x{columns}x{dtype}>"
    z = f"tensor<{rows}x{columns}x{result or dtype}>"
    whole = "map = affine_map<(d0, d1) -> (d0, d1)>"
    zero = "0.0 : f64" if (result or dtype).startswith(("f", "bf")) else "7 : index"
    return f"""
    func.func @main(%x: {x}, %y: {y}) -> {z} {{
      %z = array.call(%x, %y) {{callee = "product"}} : {z}
      func.return %z : {z}
    }}
    tile.kernel() {{sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %y: !tile.ref<{y}>, %out: !tile.ref<{z}>):
      %a = tile.load(%x) {{{whole}}} : {x}
      %b = tile.load(%y) {{{whole}}} : {y}
      %start = tile.full() {{value = {zero}}} : {z}
      %c = tile.dot(%a, %b, {start}) {{}} : {z}
      tile.store(%c, %out) {{{whole}}}
      tile.yield()
    }}
    """


def drawn(shape: tuple[int, int], dtype: Any, seed: int) -> np.ndarray:
    """Numbers of all bits, the ends of the type among them."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)
    x[0, 0], x[-1, -1] = info.min, info.max
    return x


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 3, 7), (4, 6, 65), (3, 2, 300)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "result"), [("i32", ""), ("ui32", ""), ("i8", "i32"), ("ui8", "i32"), ("i16", "i32")], ids=str
)
def test_digits_wrap_around_as_integers_do(size: tuple[int, int, int], dtype: str, result: str) -> None:
    rows, columns, depth = size
    numpy = np.dtype(dtype.replace("ui", "uint") if dtype.startswith("ui") else dtype.replace("i", "int"))
    a, b = drawn((rows, depth), numpy, 1), drawn((depth, columns), numpy, 2)
    unit = check_meaning(PASS, kernel(*size, dtype, result), "wormhole", inputs=[a, b])
    total = np.uint32 if dtype == "ui32" else np.int32
    with np.errstate(over="ignore"):
        expected = (a.astype(total) @ b.astype(total)) + total(7)
    np.testing.assert_array_equal(run(unit, [a, b])[0], expected)
    dots = [op for op in unit.module.walk() if isinstance(op, tile.DotOp)]
    assert {array_type(op.left).dtype.name for op in dots} == {"bf16"}
    assert {array_type(op.result).dtype.name for op in dots} == {"f32"}


@pytest.mark.parametrize("depth", [1, 64, 65, 66, 1000, 4096, 65536, 500_000])
def test_sums_of_digits_are_exact_in_f32(depth: int) -> None:
    bits, count = digits_of(depth)
    assert count * bits >= 32
    assert count * depth * (2**bits - 1) ** 2 <= 2**24
    wider = bits + 1
    assert wider > 8 or -(-32 // wider) * depth * (2**wider - 1) ** 2 > 2**24, "digits are as wide as that allows"


def test_the_largest_digits_of_a_depth_are_exact() -> None:
    depth = 64
    a, b = (np.full(shape, -1, np.int32) for shape in ((2, depth), (depth, 2)))
    (got,) = run(check_meaning(PASS, kernel(2, 2, depth, "i32"), "wormhole", inputs=[a, b]), [a, b])
    np.testing.assert_array_equal(got, depth + 7)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_of_floats_are_left(dtype: str) -> None:
    check_unchanged(PASS, kernel(5, 3, 7, dtype, "f32"), "wormhole")


def test_two_products_each_have_their_own_digits() -> None:
    text = kernel(4, 4, 4, "i32").replace(
        "tile.store(%c,",
        "%d = tile.dot(%c, %b, %c) {} : tensor<4x4xi32>\n      tile.store(%d,",
    )
    a, b = drawn((4, 4), np.int32, 3), drawn((4, 4), np.int32, 4)
    (got,) = run(check_meaning(PASS, text, "wormhole", inputs=[a, b]), [a, b])
    first = a @ b + np.int32(7)
    np.testing.assert_array_equal(got, first @ b + first)

"""The largest elements of rows, which `tile-expand-top-k` takes from a sort, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, run
from tilewright.passes.cores.tile_expand_top_k import TileExpandTopKPass

PASS = TileExpandTopKPass()


def kernel(shape: tuple[int, ...], k: int, dtype: str) -> str:
    rows = "".join(f"{size}x" for size in shape[:-1])
    x, y, i = f"tensor<{rows}{shape[-1]}x{dtype}>", f"tensor<{rows}{k}x{dtype}>", f"tensor<{rows}{k}xi64>"
    dims = ", ".join(f"d{n}" for n in range(len(shape)))
    whole = f"map = affine_map<({dims}) -> ({dims})>"
    return f"""
    func.func @main(%x: {x}) -> ({y}, {i}) {{
      %y, %i = array.call(%x) {{callee = "largest"}} : {y}, {i}
      func.return %y, %i : {y}, {i}
    }}
    tile.kernel() {{sym_name = "largest", grid = array<i64>, effects = ["in", "out", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>, %places: !tile.ref<{i}>):
      %a = tile.load(%x) {{{whole}}} : {x}
      %b, %c = tile.top_k(%a) {{k = {k} : index}} : {y}, {i}
      tile.store(%b, %out) {{{whole}}}
      tile.store(%c, %places) {{{whole}}}
      tile.yield()
    }}
    """


TYPES: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "ui8": np.uint8}


@pytest.mark.parametrize(("shape", "k"), [((5, 9), 1), ((5, 9), 4), ((5, 9), 9), ((7,), 3), ((2, 3, 6), 2)], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_first_of_equal_elements_comes_first(dtype: str, shape: tuple[int, ...], k: int) -> None:
    x = np.random.default_rng(k).integers(0, 5, shape).astype(TYPES[dtype])
    values, places = run(check_meaning(PASS, kernel(shape, k, dtype), "wormhole", inputs=[x]), [x])
    order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_special_values_are_where_they_were_before() -> None:
    """By the definition of the operation itself: NaN, infinities and zeros of both signs."""
    x = np.array([[0.0, np.nan, -0.0, np.inf, -np.inf, np.nan, 1.0], [-0.0, 0.0, -1.0, 0.0, -0.0, -2.0, -np.inf]])
    check_meaning(PASS, kernel((2, 7), 5, "f32"), "wormhole", inputs=[x.astype(np.float32)])


def test_other_orders_are_left() -> None:
    text = kernel((5, 9), 9, "f32").replace(
        "tile.top_k(%a) {k = 9 : index}", "tile.sort(%a, %n) {axis = 1 : index, descending = true}"
    )
    place = "%n = tile.iota() {map = affine_map<(d0, d1) -> (d1)>} : tensor<5x9xi64>\n      %b, %c"
    check_unchanged(PASS, text.replace("%b, %c", place, 1), "wormhole")

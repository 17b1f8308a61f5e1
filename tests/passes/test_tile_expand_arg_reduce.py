"""Positions of extremes, which `tile-expand-arg-reduce` finds by two reductions, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged, run
from tilewright.dialects import tile
from tilewright.passes.tile_expand_arg_reduce import TileExpandArgReducePass

PASS = TileExpandArgReducePass()


def kernel(shape: tuple[int, ...], axis: int, fn: str, dtype: str, result: str = "i64") -> str:
    kept = [size for dim, size in enumerate(shape) if dim != axis]
    x = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    y = f"tensor<{''.join(f'{size}x' for size in kept)}{result}>"
    dims, rest = (", ".join(f"d{n}" for n in range(rank)) for rank in (len(shape), len(kept)))
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "best"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "best", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>):
      %a = tile.load(%x) {{map = affine_map<({dims}) -> ({dims})>}} : {x}
      %b = tile.arg_reduce(%a) {{fn = "{fn}", axis = {axis} : index}} : {y}
      tile.store(%b, %out) {{map = affine_map<({rest}) -> ({rest})>}}
      tile.yield()
    }}
    """


TYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "i32": np.int32,
    "ui8": np.uint8,
    "i64": np.int64,
}


@pytest.mark.parametrize(("shape", "axis"), [((5, 7), 0), ((5, 7), 1), ((9,), 0), ((3, 1, 4), 1), ((2, 3, 5), 2)])
@pytest.mark.parametrize("fn", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_first_of_equal_extremes_is_found(dtype: str, fn: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(axis).integers(0, 4, shape).astype(TYPES[dtype])
    unit = check_meaning(PASS, kernel(shape, axis, fn, dtype), inputs=[x])
    assert not any(isinstance(op, tile.ArgReduceOp) for op in unit.module.walk())
    numpy = np.argmax if fn == "maximum" else np.argmin
    np.testing.assert_array_equal(run(unit, [x])[0], numpy(x.astype(np.float64), axis=axis))


@pytest.mark.parametrize("fn", ["maximum", "minimum"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf], ids=str)
def test_nan_is_the_extreme_and_infinities_are_numbers(special: float, fn: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    x[0, 3] = x[1, 1] = x[1, 4] = x[2, :] = special
    x[3, 2], x[3, 4] = np.inf, np.nan
    (got,) = run(applied(PASS, kernel((6, 5), 1, fn, "f32")), [x])
    np.testing.assert_array_equal(got, (np.argmax if fn == "maximum" else np.argmin)(x, axis=1))


def test_the_ends_of_a_type_are_found() -> None:
    info = np.iinfo(np.int64)
    x = np.array([[info.min, info.max, info.max], [info.min, info.min, 0]])
    for fn, numpy in (("maximum", np.argmax), ("minimum", np.argmin)):
        (got,) = run(applied(PASS, kernel((2, 3), 1, fn, "i64")), [x])
        np.testing.assert_array_equal(got, numpy(x, axis=1))


def test_integers_have_no_nan() -> None:
    unit = applied(PASS, kernel((5, 7), 1, "maximum", "i32"))
    assert "isnan" not in str(unit.module)
    assert "isnan" in str(applied(PASS, kernel((5, 7), 1, "maximum", "f32")).module)


def test_positions_in_loops_are_expanded_there() -> None:
    text = kernel((5, 7), 1, "maximum", "f32")
    op = next(line for line in text.splitlines() if "arg_reduce" in line).strip()
    loop = f"""%z = tile.full() {{value = 0 : index}} : tensor<5xi64>
      %b = tile.for(%z) {{trips = 2 : index}} do {{
      ^bb1(%t: index, %s: tensor<5xi64>):
        {op.replace("%b", "%c")}
        %d = tile.map(%s, %c) {{fn = "add"}} : tensor<5xi64>
        tile.yield(%d)
      }} : tensor<5xi64>"""
    check_meaning(PASS, text.replace(op, loop))


def test_other_reductions_are_left() -> None:
    text = kernel((5, 7), 1, "maximum", "f32", "f32")
    text = text.replace("tile.arg_reduce", "tile.reduce").replace("axis = 1 : index", "axes = array<i64: 1>")
    check_unchanged(PASS, text)

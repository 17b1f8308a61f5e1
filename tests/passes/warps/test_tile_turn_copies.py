"""Transposes: one layout for the load and one for the store, and no more operations than that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, emulated
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.passes.warps.tile_turn_copies import TileTurnCopiesPass

Tensor = np.ndarray[Any, Any]


def compiled(function: Callable[..., Any], *arrays: Any) -> Any:
    return built(tw.jit(function).lower(*arrays), "cuda:sm_90a")


def count(program: Any, kind: type) -> int:
    return sum(isinstance(op, kind) for kernel in program.unit.kernels() for op in kernel.walk())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64", "bool"])
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (5, 130), (3, 40, 17)], ids=str)
def test_transposes(dtype: str, shape: tuple[int, ...]) -> None:
    kind = dtypes.by_name(dtype).numpy
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(kind)
    program = compiled(lambda x: x.mT, x)
    np.testing.assert_array_equal(emulated(program, [x])[0], x.swapaxes(-1, -2))


def test_elements_are_exchanged_in_shared_memory_and_stored_in_vectors() -> None:
    program = compiled(lambda x: x.T, tw.ShapeDtype((512, 512), tw.f32))
    assert count(program, scheduled.AllocOp) == 1
    (text,) = program.ptx.values()
    assert "st.global.v4" in text
    assert "ld.global.v4" in text
    assert "st.global.b32" not in text


def test_what_lies_as_it_lay_is_left_alone() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for function in (lambda x: x[1:3], lambda x: tw.concat((x, x)), lambda x: tw.broadcast_to(x, (3, 4, 6))):
        program = compiled(function, x)
        assert count(program, scheduled.AllocOp) == 0
        assert count(program, tile.BitcastOp) == 0
        np.testing.assert_array_equal(emulated(program, [x])[0], tw.jit(function, target="interp")(x))


# ---- which tiles ----------------------------------------------------------------------------------------------------

PASS = TileTurnCopiesPass()


def copy(loaded: str, stored: str, between: str = "", value: str = "%a", dtype: str = "f32") -> str:
    """A kernel that stores a tile of 8 x 8 of an array by other indices than those by which it loads it."""
    x, part = f"tensor<8x8x{dtype}>", f"tensor<8x8x{dtype}>"
    return f"""
    func.func @main(%x: {x}) -> {x} {{
      %y = array.call(%x) {{callee = "k"}} : {x}
      func.return %y : {x}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{x}>):
      %a = tile.load(%x) {{map = affine_map<(d0, d1) -> ({loaded})>}} : {part}
      {between.replace("TILE", part)}
      tile.store({value}, %out) {{map = affine_map<(d0, d1) -> ({stored})>}}
      tile.yield()
    }}
    """


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(
    ("loaded", "stored"), [("d1, d0", "d0, d1"), ("d0, d1", "d1, d0"), ("7 - d1, d0", "d0, 7 - d1")]
)
def test_tiles_that_are_turned_on_the_way_get_two_layouts(loaded: str, stored: str, dtype: str) -> None:
    unit = check_meaning(PASS, copy(loaded, stored, dtype=dtype), "sm_90a")
    assert sum(isinstance(op, tile.BitcastOp) for op in unit.module.walk()) == 1


LEFT = {
    "the same order": copy("d0, d1", "d0, d1"),
    "turned twice": copy("d1, d0", "d1, d0"),
    "reversed along one dim": copy("d0, 7 - d1", "d0, d1"),
    "computed on the way": copy("d1, d0", "d0, d1", '%b = tile.map(%a) {fn = "negative"} : TILE', "%b"),
    "transposed on the way": copy(
        "d1, d0", "d0, d1", "%b = tile.transpose(%a) {permutation = array<i64: 1, 0>} : TILE", "%b"
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_tiles_keep_one_layout(name: str) -> None:
    check_unchanged(PASS, LEFT[name], "sm_90a")


def test_each_store_is_turned_by_itself() -> None:
    """One of the two is as the load is."""
    text = copy("d1, d0", "d0, d1").replace(
        "tile.store(%a", "tile.store(%a, %out) {map = affine_map<(d0, d1) -> (d1, d0)>}\n      tile.store(%a", 1
    )
    unit = check_meaning(PASS, text, "sm_90a")
    stores = [op for op in unit.module.walk() if isinstance(op, tile.StoreOp)]
    assert [isinstance(op.value.owner, tile.BitcastOp) for op in stores] == [False, True]

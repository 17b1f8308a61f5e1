"""Exclusive ors of bools, which `tile-expand-parities` counts, and those of other types, which it leaves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, run
from tilewright.passes.cores.tile_expand_parities import TileExpandParitiesPass

PASS = TileExpandParitiesPass()


def kernel(op: str, shape: tuple[int, ...], result: tuple[int, ...], dtype: str = "i1") -> str:
    """A kernel of one operation on a whole array."""
    x, y = (f"tensor<{''.join(f'{size}x' for size in each)}{dtype}>" for each in (shape, result))
    dims, kept = (", ".join(f"d{n}" for n in range(len(each))) for each in (shape, result))
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "parity"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "parity", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>):
      %a = tile.load(%x) {{map = affine_map<({dims}) -> ({dims})>}} : {x}
      %b = tile.{op} : {y}
      tile.store(%b, %out) {{map = affine_map<({kept}) -> ({kept})>}}
      tile.yield()
    }}
    """


def reduced(fn: str, axes: str) -> str:
    return f'reduce(%a) {{fn = "{fn}", axes = array<i64: {axes}>}}'


def scanned(fn: str, axis: int, reverse: bool = False) -> str:
    return f'scan(%a) {{fn = "{fn}", axis = {axis} : index, reverse = {str(reverse).lower()}}}'


def bools(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape) < 0.5


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7), (0,)), ((5, 7), (1,)), ((3, 4, 5), (0, 2)), ((300,), (0,)), ((4, 0), (1,))], ids=str
)
def test_reductions_are_parities(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    kept = tuple(size for dim, size in enumerate(shape) if dim not in axes)
    text = kernel(reduced("bitwise_xor", ", ".join(map(str, axes))), shape, kept)
    x = bools(*shape)
    unit = check_meaning(PASS, text, "wormhole", inputs=[x])
    np.testing.assert_array_equal(run(unit, [x])[0], np.logical_xor.reduce(x, axis=axes))
    assert "bitwise_xor" not in str(unit.module)


@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (1, False), (1, True)])
def test_scans_are_running_parities(axis: int, reverse: bool) -> None:
    x = bools(6, 9)
    text = kernel(scanned("bitwise_xor", axis, reverse), (6, 9), (6, 9))
    (got,) = run(check_meaning(PASS, text, "wormhole", inputs=[x]), [x])
    along = np.flip(x, axis) if reverse else x
    expected = np.logical_xor.accumulate(along, axis=axis)
    np.testing.assert_array_equal(got, np.flip(expected, axis) if reverse else expected)


@pytest.mark.parametrize("fn", ["bitwise_and", "bitwise_or"])
def test_other_functions_of_bools_are_left(fn: str) -> None:
    check_unchanged(PASS, kernel(reduced(fn, "1"), (5, 7), (5,)), "wormhole")


@pytest.mark.parametrize("dtype", ["i32", "ui8"])
def test_exclusive_ors_of_integers_are_left(dtype: str) -> None:
    check_unchanged(PASS, kernel(reduced("bitwise_xor", "1"), (5, 7), (5,), dtype), "wormhole")
    check_unchanged(PASS, kernel(scanned("bitwise_xor", 1), (5, 7), (5, 7), dtype), "wormhole")


def test_maps_are_left() -> None:
    check_unchanged(PASS, kernel('map(%a, %a) {fn = "bitwise_xor"}', (5, 7), (5, 7)), "wormhole")

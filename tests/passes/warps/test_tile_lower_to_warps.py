"""Tile kernels that `tile-lower-to-warps` schedules for a block of warps: the same results in any layout, and what it
does not lower."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, remarks
from tilewright.dialects import scheduled, tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass

PASS = TileLowerToWarpsPass()


def kernel(
    body: str,
    result: tuple[int, ...] = (12, 20),
    source: tuple[int, int] = (12, 20),
    dtype: str = "i32",
    out: str = "",
    more: str = "",
) -> str:
    """A kernel of one point that computes `%r` of an array in the tile `%a`."""
    x = f"tensor<{source[0]}x{source[1]}x{dtype}>"
    y = f"tensor<{'x'.join(map(str, (*result, out or dtype)))}>"
    dims = ", ".join(f"d{n}" for n in range(len(result)))
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "k"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]{more}}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>):
      %a = tile.load(%x) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : {x}
      {body}
      tile.store(%r, %out) {{map = affine_map<({dims}) -> ({dims})>}}
      tile.yield()
    }}
    """


TILE = "tensor<12x20xi32>"
BODIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "elementwise": (f'%r = tile.map(%a, %a) {{fn = "multiply"}} : {TILE}', (12, 20)),
    "a transpose": ("%r = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<20x12xi32>", (20, 12)),
    "a tile and its transpose": (
        """
        %t = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<20x12xi32>
        %u = tile.slice(%t) {starts = array<i64: 0, 0>, limits = array<i64: 12, 12>, strides = array<i64: 1, 1>}
          : tensor<12x12xi32>
        %v = tile.slice(%a) {starts = array<i64: 0, 3>, limits = array<i64: 12, 15>, strides = array<i64: 1, 1>}
          : tensor<12x12xi32>
        %r = tile.map(%u, %v) {fn = "subtract"} : tensor<12x12xi32>
        """,
        (12, 12),
    ),
    "sums of rows": ('%r = tile.reduce(%a) {fn = "add", axes = array<i64: 1>} : tensor<12xi32>', (12,)),
    "maxima of columns": ('%r = tile.reduce(%a) {fn = "maximum", axes = array<i64: 0>} : tensor<20xi32>', (20,)),
    "a sum of all, repeated": (
        f"""
        %s = tile.reduce(%a) {{fn = "add", axes = array<i64: 0, 1>}} : tensor<i32>
        %t = tile.broadcast(%s) {{axes = array<i64>}} : {TILE}
        %r = tile.map(%a, %t) {{fn = "subtract"}} : {TILE}
        """,
        (12, 20),
    ),
    "every third column": (
        """
        %r = tile.slice(%a) {starts = array<i64: 1, 2>, limits = array<i64: 11, 20>, strides = array<i64: 2, 3>}
          : tensor<5x6xi32>
        """,
        (5, 6),
    ),
    "a reshape": ("%r = tile.reshape(%a) : tensor<8x30xi32>", (8, 30)),
    "a concatenation": ("%r = tile.concat(%a, %a, %a) {axis = 0 : index} : tensor<36x20xi32>", (36, 20)),
    "running sums of rows": (
        f'%r = tile.scan(%a) {{fn = "add", axis = 1 : index, reverse = false}} : {TILE}',
        (12, 20),
    ),
    "running maxima of columns": (
        f'%r = tile.scan(%a) {{fn = "maximum", axis = 0 : index, reverse = true}} : {TILE}',
        (12, 20),
    ),
    "positions": (
        f"""
        %n = tile.iota() {{map = affine_map<(d0, d1) -> (d0 * 3 + d1)>}} : tensor<12x20xi64>
        %m = tile.cast(%n) : {TILE}
        %r = tile.map(%a, %m) {{fn = "add"}} : {TILE}
        """,
        (12, 20),
    ),
    "a loop that carries a tile and a row": (
        f"""
        %z = tile.full() {{value = 0 : index}} : tensor<20xi32>
        %r, %row = tile.for(%a, %z) {{trips = 3 : index}} do {{
        ^bb1(%t: index, %s: {TILE}, %c: tensor<20xi32>):
          %d = tile.reduce(%s) {{fn = "add", axes = array<i64: 0>}} : tensor<20xi32>
          %e = tile.broadcast(%d) {{axes = array<i64: 1>}} : {TILE}
          %f = tile.map(%s, %e) {{fn = "subtract"}} : {TILE}
          tile.yield(%f, %d)
        }} : {TILE}, tensor<20xi32>
        """,
        (12, 20),
    ),
    "a branch": (
        f"""
        %s = tile.reduce(%a) {{fn = "add", axes = array<i64: 0, 1>}} : tensor<i32>
        %z = tile.full() {{value = 0 : index}} : tensor<i32>
        %is = tile.map(%s, %z) {{fn = "less"}} : tensor<i1>
        %r = tile.if(%is) do {{
          %b = tile.map(%a) {{fn = "negative"}} : {TILE}
          tile.yield(%b)
        }} do {{
          %c = tile.map(%a, %a) {{fn = "add"}} : {TILE}
          tile.yield(%c)
        }} : {TILE}
        """,
        (12, 20),
    ),
    "a pinned tile": (
        f"""
        %p = tile.relayout(%a) {{layout = "(12, 20) : [4@warp 3@reg | 20@lane]", strict = false}} : {TILE}
        %r = tile.map(%p) {{fn = "negative"}} : {TILE}
        """,
        (12, 20),
    ),
}


def x_of(shape: tuple[int, int] = (12, 20), dtype: type = np.int32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(dtype)


@pytest.mark.parametrize("chip", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", BODIES)
def test_kernels_mean_the_same_in_warps(name: str, chip: str) -> None:
    body, result = BODIES[name]
    unit = check_meaning(PASS, kernel(body, result), chip, inputs=[x_of()])
    assert any(isinstance(op, scheduled.ParallelOp) for op in unit.module.walk())
    assert not unit.remarks


@pytest.mark.parametrize("dtype", [("f16", np.float16, "f32"), ("i8", np.int8, "i32")], ids=str)
@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (40, 24)], ids=str)
def test_matmuls_mean_the_same_in_warps(shape: tuple[int, int], dtype: tuple[str, type, str]) -> None:
    rows, depth = shape
    name, numpy, sum = dtype
    body = f"""
        %b = tile.transpose(%a) {{permutation = array<i64: 1, 0>}} : tensor<{depth}x{rows}x{name}>
        %z = tile.full() {{value = {"0 : index" if sum == "i32" else "0.0 : f64"}}} : tensor<{rows}x{rows}x{sum}>
        %r = tile.dot(%a, %b, %z) {{}} : tensor<{rows}x{rows}x{sum}>
    """
    text = kernel(body, (rows, rows), shape, name, sum)
    check_meaning(PASS, text, "sm_90a", inputs=[x_of(shape, numpy)])


def warps_of(unit: Unit) -> list[int | None]:
    return [op.warps for op in unit.module.walk() if isinstance(op, scheduled.ParallelOp)]


@pytest.mark.parametrize("warps", [1, 2, 8])
def test_a_kernel_has_the_warps_that_it_declares(warps: int) -> None:
    for name in ("sums of rows", "maxima of columns", "running sums of rows", "a concatenation"):
        body, result = BODIES[name]
        text = kernel(body, result, more=f", warps = {warps} : index, stages = 3 : index")
        unit = check_meaning(PASS, text, "sm_90a", inputs=[x_of()])
        assert warps_of(unit) == [warps]
        assert [k.stages for k in unit.kernels()] == [3]


def test_large_tiles_have_more_warps() -> None:
    body = '%r = tile.map(%a) {fn = "negative"} : tensor<128x512xi32>'
    (warps,) = warps_of(applied(PASS, kernel(body, (128, 512), (128, 512)), "sm_90a"))
    assert warps is not None
    assert warps > 4


def test_a_tile_beyond_the_registers_is_remarked() -> None:
    body = '%r = tile.map(%a) {fn = "negative"} : tensor<512x512xi32>'
    text = kernel(body, (512, 512), (512, 512), more=", warps = 4 : index")
    ((decision, reason),) = remarks(applied(PASS, text, "sm_90a"), PASS.name)
    assert decision == "spills registers to memory"
    assert "needs 2048 registers" in reason


def test_cumulative_products_of_floats_are_refused() -> None:
    body = '%r = tile.scan(%a) {fn = "multiply", axis = 1 : index, reverse = false} : tensor<12x20xf32>'
    with pytest.raises(UnsupportedOnTargetError, match="cumulative products of floats are not compiled for GPUs yet"):
        applied(PASS, kernel(body, dtype="f32"), "sm_90a")


def test_equal_moves_are_made_once() -> None:
    """Two readers of a tile in another layout share one trip through shared memory."""
    body = """
        %t = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<20x12xi32>
        %u = tile.map(%t) {fn = "negative"} : tensor<20x12xi32>
        %v = tile.map(%t, %t) {fn = "multiply"} : tensor<20x12xi32>
        %r = tile.map(%u, %v) {fn = "add"} : tensor<20x12xi32>
    """
    unit = check_meaning(PASS, kernel(body, (20, 12)), "sm_90a", inputs=[x_of()])
    assert sum(isinstance(op, tile.LoadOp) for op in unit.module.walk()) <= 2

"""Loops that `tile-flatten-loops` makes one loop around a matmul, and nests that it leaves as they are."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import tile
from tilewright.passes.warps.tile_flatten_loops import TileFlattenLoopsPass


def nest(
    *,
    trips: tuple[int, ...] = (3, 2),
    atom: str = ', atom = "wgmma, 1 warpgroup"',
    dtype: str = "f16",
    in_outer: str = "",
    in_inner: str = "",
    start: str = "%s0",
    passed_on: str = "%r1",
    end: str = "",
) -> str:
    """Loops in each other that add up the matmuls of windows which all their trips choose; `start` is what the second
    loop begins with, `passed_on` what the first one continues with."""
    loops, closing = "", ""
    for n, count in enumerate(trips):
        initial = "%zero" if n == 0 else start if n == 1 else f"%s{n - 1}"
        stop = f", end = {end}" if end and n == len(trips) - 1 else ""
        symbol = "%first, " if stop else ""
        loops += f"""
        %r{n} = tile.for({symbol}{initial}) {{trips = {count} : index{stop}}} do {{
        ^bb{n + 1}(%t{n}: index, %s{n}: tensor<64x16xf32>):
          {in_outer if n == 0 else ""}
        """
        yielded = "%p" if n == 0 == len(trips) - 1 else passed_on if n == 0 else f"%r{n + 1}"
        yielded = "%p" if n == len(trips) - 1 else yielded
        closing = f"tile.yield({yielded})\n }} : tensor<64x16xf32>\n" + closing
    # Inner loops end first.
    parts = closing.strip().split("\n }")
    closing = "\n }".join(parts)
    ends = [part for part in closing.split("tile.yield")[1:]]
    closing = "".join("tile.yield" + part for part in reversed(ends))
    symbols = ", ".join(f"%t{n}" for n in range(len(trips)))
    names = ", ".join(f"s{n}" for n in range(len(trips)))
    row = " + ".join(f"s{n} * {8 * (n + 1)}" for n in range(len(trips)))
    result = "%r0"
    return f"""
    func.func @main(%x: tensor<64x128x{dtype}>, %w: tensor<128x16x{dtype}>) -> tensor<64x16xf32> {{
      %y = array.call(%x, %w) {{callee = "product"}} : tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }}
    tile.kernel() {{sym_name = "product", grid = array<i64: 1>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%0: !tile.ref<tensor<64x128x{dtype}>>, %1: !tile.ref<tensor<128x16x{dtype}>>,
        %2: !tile.ref<tensor<64x16xf32>>, %first: index):
      %zero = tile.full() {{value = 0.0 : f64}} : tensor<64x16xf32>
      {loops}
          %a = tile.load(%0, {symbols}) {{map = affine_map<(d0, d1)[{names}] -> (d0, d1 + {row})>}}
            : tensor<64x32x{dtype}>
          %b = tile.load(%1, {symbols}) {{map = affine_map<(d0, d1)[{names}] -> (d0 + {row}, d1)>}}
            : tensor<32x16x{dtype}>
          {in_inner}
          %p = tile.dot(%a, %b, %s{len(trips) - 1}) {{part = 16 : index{atom}}} : tensor<64x16xf32>
          {closing}
      tile.store({result}, %2) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
      tile.yield()
    }}
    """.replace("part = 16 : index, ", "").replace("{part = 16 : index}", "{}")


def loops_in(text: str) -> list[int]:
    unit = check_meaning(TileFlattenLoopsPass(), text, "sm_90a")
    return [op.trips for op in unit.module.walk() if isinstance(op, tile.ForOp)]


@pytest.mark.parametrize("trips", [(3, 2), (1, 5), (2, 3, 2), (2, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_nests_of_any_depth_are_one_loop(trips: tuple[int, ...], dtype: str) -> None:
    total = 1
    for count in trips:
        total *= count
    assert loops_in(nest(trips=trips, dtype=dtype)) == [total]


def test_one_loop_is_left() -> None:
    check_unchanged(TileFlattenLoopsPass(), nest(trips=(4,)), "sm_90a")


def test_a_matmul_of_no_asynchronous_instruction_is_left() -> None:
    check_unchanged(TileFlattenLoopsPass(), nest(atom=""), "sm_90a")
    check_unchanged(TileFlattenLoopsPass(), nest(atom=', atom = "mma.sync"'), "sm_90a")


def test_two_matmuls_are_left() -> None:
    more = '%q = tile.dot(%a, %b, %s1) {atom = "wgmma, 1 warpgroup"} : tensor<64x16xf32>'
    check_unchanged(TileFlattenLoopsPass(), nest(in_inner=more), "sm_90a")


def test_an_outer_loop_that_does_more_is_left() -> None:
    more = '%twice = tile.map(%s0, %s0) {fn = "add"} : tensor<64x16xf32>'
    check_unchanged(TileFlattenLoopsPass(), nest(in_outer=more), "sm_90a")
    check_unchanged(TileFlattenLoopsPass(), nest(in_outer=more, start="%twice"), "sm_90a")


def test_an_inner_loop_that_begins_anew_is_left() -> None:
    check_unchanged(TileFlattenLoopsPass(), nest(start="%zero"), "sm_90a")


def test_an_outer_loop_that_forgets_the_inner_one_is_left() -> None:
    check_unchanged(TileFlattenLoopsPass(), nest(passed_on="%s0"), "sm_90a")


def test_loops_of_unknown_trip_counts_are_left() -> None:
    check_unchanged(TileFlattenLoopsPass(), nest(end="affine_map<()[s0] -> (s0 + 1)>"), "sm_90a")

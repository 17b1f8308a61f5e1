"""Loops that `tile-flatten-loops` makes one loop around a matmul, and nests that it leaves as they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import tile
from tilewright.passes.warps.tile_flatten_loops import TileFlattenLoopsPass


@dataclass(frozen=True)
class Nest:
    """Loops in each other that add up the matmuls of windows which all their trips choose; `start` is what the second
    loop begins with, `passed_on` what the first one continues with."""

    trips: tuple[int, ...] = (3, 2)
    atom: str = 'atom = "wgmma, 1 warpgroup"'
    dtype: str = "f16"
    in_outer: str = ""
    behind: str = ""
    in_inner: str = ""
    start: str = "%s0"
    passed_on: str = "%r1"
    end: str = ""
    end_of: int = 1

    def _loops(self, depth: int = 0) -> str:
        if depth == len(self.trips):
            return self._product()
        is_last = depth == len(self.trips) - 1
        initial = ("%zero", self.start)[depth] if depth < 2 else f"%s{depth - 1}"
        following = "%p" if is_last else self.passed_on if depth == 0 else f"%r{depth + 1}"
        end = f", end = {self.end}" if self.end and depth == self.end_of else ""
        return f"""
        %r{depth} = tile.for({"%i, " if end else ""}{initial}) {{trips = {self.trips[depth]} : index{end}}} do {{
        ^bb{depth + 1}(%t{depth}: index, %s{depth}: tensor<64x16xf32>):
          {self.in_outer if depth == 0 else ""}
          {self._loops(depth + 1)}
          {self.behind if depth == 0 else ""}
          tile.yield({following})
        }} : tensor<64x16xf32>"""

    def _product(self) -> str:
        numbers = range(len(self.trips))
        trips, names = (", ".join(f"{letter}{n}" for n in numbers) for letter in ("%t", "s"))
        row = " + ".join(f"s{n} * {8 * (n + 1)}" for n in numbers)
        return f"""
          %a = tile.load(%x, {trips}) {{map = affine_map<(d0, d1)[{names}] -> (d0, d1 + {row})>}}
            : tensor<64x32x{self.dtype}>
          %b = tile.load(%w, {trips}) {{map = affine_map<(d0, d1)[{names}] -> (d0 + {row}, d1)>}}
            : tensor<32x16x{self.dtype}>
          {self.in_inner}
          %p = tile.dot(%a, %b, %s{len(self.trips) - 1}) {{{self.atom}}} : tensor<64x16xf32>"""

    @property
    def text(self) -> str:
        x, w, y = f"tensor<64x128x{self.dtype}>", f"tensor<128x16x{self.dtype}>", "tensor<64x16xf32>"
        return f"""
    func.func @main(%x: {x}, %w: {w}) -> {y} {{
      %y = array.call(%x, %w) {{callee = "product"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "product", grid = array<i64: 1>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %w: !tile.ref<{w}>, %out: !tile.ref<{y}>, %i: index):
      %zero = tile.full() {{value = 0.0 : f64}} : {y}
      {self._loops()}
      tile.store(%r0, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
      tile.yield()
    }}
    """


def check_left(nest: Nest) -> None:
    check_unchanged(TileFlattenLoopsPass(), nest.text, "sm_90a")


def loops_in(nest: Nest) -> list[int]:
    unit = check_meaning(TileFlattenLoopsPass(), nest.text, "sm_90a")
    return [op.trips for op in unit.module.walk() if isinstance(op, tile.ForOp)]


@pytest.mark.parametrize("trips", [(3, 2), (1, 5), (2, 3, 2), (2, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_nests_of_any_depth_are_one_loop(trips: tuple[int, ...], dtype: str) -> None:
    assert loops_in(Nest(trips=trips, dtype=dtype)) == [prod(trips)]


def test_one_loop_is_left() -> None:
    check_left(Nest(trips=(4,)))


def test_a_matmul_of_no_asynchronous_instruction_is_left() -> None:
    check_left(Nest(atom=""))
    check_left(Nest(atom='atom = "mma.sync"'))


def test_two_matmuls_are_left() -> None:
    more = '%q = tile.dot(%a, %b, %s1) {atom = "wgmma, 1 warpgroup"} : tensor<64x16xf32>'
    check_left(Nest(in_inner=more))


def test_an_outer_loop_that_does_more_is_left() -> None:
    more = '%twice = tile.map(%s0, %s0) {fn = "add"} : tensor<64x16xf32>'
    check_left(Nest(in_outer=more))
    check_left(Nest(in_outer=more, start="%twice"))
    check_left(Nest(behind='%twice = tile.map(%r1) {fn = "negative"} : tensor<64x16xf32>'))


def test_an_inner_loop_that_begins_anew_is_left() -> None:
    check_left(Nest(start="%zero"))


def test_an_outer_loop_that_forgets_the_inner_one_is_left() -> None:
    check_left(Nest(passed_on="%s0"))


def test_loops_of_unknown_trip_counts_are_left() -> None:
    for loop in range(2):
        check_left(Nest(end="affine_map<()[s0] -> (s0 + 1)>", end_of=loop))

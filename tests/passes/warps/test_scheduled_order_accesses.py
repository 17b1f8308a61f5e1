"""Kernels whose blocks touch elements of an array more than once: a barrier where other threads may have touched them,
and nowhere else. They are in order by the definitions of the schedules, and right on an emulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.fuzz.tile_steps import Kernel, module_text
from tests.fuzz.tiles import check, expected_of, inputs_of
from tests.passes.pass_support import parse, unit_of
from tilewright.dialects import scheduled, tile
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.warps.scheduled_order_accesses import ScheduledOrderAccessesPass
from tilewright.pipelines import tile_to_warps
from tilewright.semantics.hazards import RaceError
from tilewright.semantics.scheduled import run_call

ROWS, COLUMNS = 32, 40
# As many elements as four warps store.
LOADED = "%t = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<16x32xf32>"
# The body of a kernel of one point, and how many barriers it needs.
KERNELS: dict[str, tuple[str, int]] = {
    "two stores that reach into each other": (
        f"""
        {LOADED}
        tile.store(%t, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
        tile.store(%t, %out) {{map = affine_map<(d0, d1) -> (d0 + 4, d1 + 2)>}}
        """,
        1,
    ),
    "two stores side by side": (
        f"""
        {LOADED}
        tile.store(%t, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
        tile.store(%t, %out) {{map = affine_map<(d0, d1) -> (d0, d1 + 32)>}}
        """,
        0,
    ),
    "a window that is loaded turned after it was stored": (
        f"""
        {LOADED}
        tile.store(%t, %w) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
        %u = tile.load(%w) {{map = affine_map<(d0, d1) -> (d1, d0)>}} : tensor<8x8xf32>
        tile.store(%u, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
        """,
        1,
    ),
    "windows of trips that reach into each other": (
        f"""
        {LOADED}
        tile.for() {{trips = 5 : index}} do {{
        ^bb1(%i: index):
          tile.store(%t, %out, %i) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 4, d1 + s0)>}}
          tile.yield()
        }}
        """,
        1,
    ),
    "windows of trips below each other": (
        f"""
        {LOADED}
        tile.for() {{trips = 2 : index}} do {{
        ^bb1(%i: index):
          tile.store(%t, %out, %i) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>}}
          tile.yield()
        }}
        """,
        0,
    ),
    "windows that two loops choose": (
        f"""
        {LOADED}
        tile.for() {{trips = 2 : index}} do {{
        ^bb1(%i: index):
          tile.for() {{trips = 2 : index}} do {{
          ^bb2(%j: index):
            tile.store(%t, %out, %i, %j) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 16, d1 + s1 * 32)>}}
            tile.yield()
          }}
          tile.yield()
        }}
        """,
        0,
    ),
    "one window in every trip of the inner loop": (
        f"""
        {LOADED}
        tile.for() {{trips = 3 : index}} do {{
        ^bb1(%i: index):
          tile.for() {{trips = 2 : index}} do {{
          ^bb2(%j: index):
            tile.store(%t, %out, %i, %j) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * 8, d1 + s1 * 3)>}}
            tile.yield()
          }}
          tile.yield()
        }}
        """,
        1,
    ),
    "what is added to in place": (
        """
        tile.for() {trips = 3 : index} do {
        ^bb1(%i: index):
          %t = tile.load(%a, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 8, d1)>} : tensor<16x32xf32>
          %u = tile.load(%w) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<16x32xf32>
          %v = tile.map(%t, %u) {fn = "add"} : tensor<16x32xf32>
          tile.store(%v, %w) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.yield()
        }
        """,
        0,
    ),
    "what is added to in place by each of several warps": (
        """
        tile.for() {trips = 3 : index} do {
        ^bb1(%i: index):
          %t = tile.load(%a, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 8, d1)>} : tensor<8x16xf32>
          %u = tile.load(%w) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x16xf32>
          %v = tile.map(%t, %u) {fn = "add"} : tensor<8x16xf32>
          tile.store(%v, %w) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.yield()
        }
        """,
        2,
    ),
    "rows that are computed from the row above": (
        """
        tile.for() {trips = 5 : index} do {
        ^bb1(%i: index):
          %u = tile.load(%w, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0, d1 + 1)>} : tensor<1x16xf32>
          %v = tile.map(%u, %u) {fn = "add"} : tensor<1x16xf32>
          tile.store(%v, %w, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 + 1, d1)>}
          tile.yield()
        }
        """,
        1,
    ),
}
CHIPS = ("sm_90a", "sm_120a")


def text_of(body: str) -> str:
    return module_text(ROWS, COLUMNS, 1, body.strip("\n").split("\n"))


def lowered(body: str, without: type | None = None) -> Unit:
    unit = unit_of(parse(text_of(body)), {})
    unit.machine = load("sm_90a")
    for each in tile_to_warps():
        if without is None or not isinstance(each, without):
            each.apply(unit)
    return unit


def ran(unit: Unit, arrays: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    return run_call(unit.kernel("k"), arrays, seed)


@pytest.mark.parametrize("name", KERNELS)
def test_barriers_are_where_threads_meet(name: str) -> None:
    body, count = KERNELS[name]
    unit, plain = lowered(body), unit_of(parse(text_of(body)), {})
    barriers = [op for op in unit.kernel("k").walk() if isinstance(op, scheduled.BarrierOp) and op.arrays]
    assert len(barriers) == count
    arrays = inputs_of(plain, 0)
    for seed in range(3):
        for got, wanted in zip(ran(unit, arrays, seed), expected_of(plain, arrays), strict=True):
            np.testing.assert_array_equal(got[~np.isnan(wanted)], wanted[~np.isnan(wanted)])


@pytest.mark.parametrize("name", [name for name, (_, count) in KERNELS.items() if count])
def test_without_them_it_is_a_race(name: str) -> None:
    unit = lowered(KERNELS[name][0], ScheduledOrderAccessesPass)
    assert any(isinstance(op, tile.StoreOp) for op in unit.kernel("k").walk())
    with pytest.raises(RaceError, match="in an array"):
        ran(unit, inputs_of(unit_of(parse(text_of(KERNELS[name][0])), {}), 0), 0)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right_on_an_emulator(name: str, chip: str) -> None:
    outcome = check(Kernel(0, text_of(KERNELS[name][0])), (f"cuda:{chip}",))
    assert not outcome.kind, outcome.message
    assert outcome.unknown < outcome.elements

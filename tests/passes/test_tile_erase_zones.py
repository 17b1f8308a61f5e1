"""Zone markers that `tile-erase-zones` removes: all where nothing is recorded, none where a trace is."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.passes.pass_support import applied, check_meaning, check_unchanged, remarks
from tilewright.dialects import tile
from tilewright.passes.base import Unit
from tilewright.passes.tile_erase_zones import TileEraseZonesPass

ZONES = """
func.func @main(%x: tensor<5x7xbf16>) -> tensor<5x7xbf16> {
  %y = array.call(%x) {callee = "k"} : tensor<5x7xbf16>
  func.return %y : tensor<5x7xbf16>
}
tile.kernel() {sym_name = "k", grid = array<i64: 5>, effects = ["in", "out"]} do {
^bb0(%x: !tile.ref<tensor<5x7xbf16>>, %out: !tile.ref<tensor<5x7xbf16>>, %i: index):
  tile.zone() {label = "all", edge = "begin"}
  %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0, d1)>} : tensor<1x7xbf16>
  %r = tile.for(%a) {trips = 3 : index} do {
  ^bb1(%t: index, %s: tensor<1x7xbf16>):
    tile.zone() {label = "step", edge = "begin"}
    %n = tile.map(%s) {fn = "negative"} : tensor<1x7xbf16>
    tile.zone() {label = "step", edge = "end"}
    tile.yield(%n)
  } : tensor<1x7xbf16>
  tile.store(%r, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0, d1)>}
  tile.zone() {label = "all", edge = "end"}
  tile.yield()
}
"""
PLAIN = "\n".join(line for line in ZONES.splitlines() if "tile.zone" not in line)


def zones(unit: Unit) -> int:
    return sum(isinstance(op, tile.ZoneOp) for op in unit.module.walk())


@pytest.mark.parametrize("unless_traced", [False, True])
def test_all_markers_are_removed_without_a_trace(unless_traced: bool) -> None:
    each = TileEraseZonesPass(unless_traced=unless_traced)
    unit = check_meaning(each, ZONES)
    assert zones(unit) == 0
    assert remarks(unit, each.name) == [("zones left out: `all`, `step`", "no trace is recorded")]


def test_markers_stay_for_a_trace(tmp_path: Path) -> None:
    with tw.options(trace_file=tmp_path / "trace.json"):
        assert check_unchanged(TileEraseZonesPass(unless_traced=True), ZONES, "sm_90a").remarks == []


def test_a_target_that_records_none_says_so(tmp_path: Path) -> None:
    with tw.options(trace_file=tmp_path / "trace.json"):
        unit = applied(TileEraseZonesPass(), ZONES)
    assert zones(unit) == 0
    assert remarks(unit, "tile-erase-zones") == [("zones left out: `all`, `step`", "the target cpu records none")]


def test_a_kernel_without_markers_is_left() -> None:
    assert check_unchanged(TileEraseZonesPass(), PLAIN).remarks == []

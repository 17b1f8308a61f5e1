"""Reorder the tiles of matmuls for cache reuse: concurrent thread blocks read the same rows and columns of operands.

Blocks start in the order of their ids, and concurrent blocks share the second-level cache. Tiles are ordered in groups
of some rows, or some columns, if that loads fewer bytes from beyond the cache: the group size is the one of least
traffic, by the model of `cost/warps/tile_order.py`, or of nearly as little if pairs of blocks may then share operands.
If the cache has room for all operands, or no order is better, the order is kept.

Before (sm_90a with cores = 4, warp = 1, l2 = 2048):
    func.func @main(%x: tensor<40x16xf16>, %y: tensor<16x64xf16>) -> tensor<40x64xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<40x64xf32>
      func.return %z : tensor<40x64xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<40x16xf16>>, %y: !tile.ref<tensor<16x64xf16>>, %out: !tile.ref<tensor<40x64xf32>>):
      scheduled.parallel() {extents = array<i64: 3, 4>, grain = 1 : index, warps = 1 : index} do {
      ^bb0(%i: index, %j: index):
        %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 16)), d1)>, fill = 0.000000e+00 : f64} :
            tensor<16x16xf16, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %b = tile.load(%y, %j) {map = affine_map<(d0, d1)[s0] -> (d0, (d1 + (s0 * 16)))>, fill = 0.000000e+00 : f64} :
            tensor<16x16xf16, "(16, 16) : [2@reg*2 4@lane 2@reg | 2@reg*4 8@lane*4]">
        %zero = tile.full() {value = 0.000000e+00 : f64} :
            tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %sum = scheduled.mma(%a, %b, %zero) {atom = "mma.sync, 1 x 1 warps"} :
            tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%sum, %out, %i, %j) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<40x16xf16>, %y: tensor<16x64xf16>) -> tensor<40x64xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<40x64xf32>
      func.return %z : tensor<40x64xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<40x16xf16>>, %y: !tile.ref<tensor<16x64xf16>>, %out: !tile.ref<tensor<40x64xf32>>):
      scheduled.parallel() {extents = array<i64: 12>, grain = 1 : index, warps = 1 : index} do {
      ^bb0(%n: index):
        %i, %j = scheduled.point(%n) {map = affine_map<()[s0] -> (s0)>, extents = array<i64: 3, 4>, group = 2 : index} :
            index, index
        %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 16)), d1)>, fill = 0.000000e+00 : f64} :
            tensor<16x16xf16, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %b = tile.load(%y, %j) {map = affine_map<(d0, d1)[s0] -> (d0, (d1 + (s0 * 16)))>, fill = 0.000000e+00 : f64} :
            tensor<16x16xf16, "(16, 16) : [2@reg*2 4@lane 2@reg | 2@reg*4 8@lane*4]">
        %zero = tile.full() {value = 0.000000e+00 : f64} :
            tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %sum = scheduled.mma(%a, %b, %zero) {atom = "mma.sync, 1 x 1 warps"} :
            tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%sum, %out, %i, %j) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tilewright.cost.warps.tile_order import best_order, plain_order
from tilewright.dialects import scheduled, tile
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.scheduled_multicast_copies import may_be_pairs
from tilewright.passes.warps.tile_grids import blocks_together, number_points, product_grid


class ScheduledOrderTilesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-order-tiles"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                self._apply(unit, kernel, region)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp) -> None:
        found = product_grid(kernel, region)
        if found is None:
            return
        cache, behind = unit.machine.memories[1], unit.machine.memory(unit.machine.default_memory)
        tiles, blocks = found.tiles, unit.machine.cores * blocks_together(region, unit.machine)
        best = best_order(tiles, blocks, cache.bytes, in_pairs=may_be_pairs(region, unit.machine))
        plain = plain_order(tiles, blocks, cache.bytes)
        reason = f"{blocks} blocks at a time read {best.traffic_bytes} bytes from {behind.name}"
        if best == plain:
            why = f"{cache.name} has room for all panels" if tiles.panel_bytes <= cache.bytes else "no order is better"
            unit.remarks.append(Remark(self.name, kernel.sym_name, "row-major tile order", f"{why}: {reason}"))
            return
        pair = (found.columns, found.rows) if best.is_turned else (found.rows, found.columns)
        outer = [dim for dim in range(len(region.shape)) if dim not in pair]
        number_points(region, [*outer, *pair], best.group)
        decision = f"tiles in groups of {best.group} {'columns' if best.is_turned else 'rows'}"
        reason += f", row-major {plain.traffic_bytes}"
        unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))

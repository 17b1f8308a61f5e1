"""Specialize a chain of matmuls: a producer warp issues tensor copies of its operands, pipelined ahead.

A chain is a sequence of matmuls in a loop in which the result of one, after further operations, is an operand of
another; some are issued before the loop, for its first trip, or after it. Each array that they read has a ring of
buffers, filled in the order of the matmuls, and barriers of its own: a matmul waits for its own operands only. A window
that stays the same has one buffer, filled once. Matmuls are waited for at the first use of their results, which
overlaps with the matmuls issued since. The pass checks that a chain fits before it changes anything, and a remark gives
the reason if not.

Before (sm_90a):
    func.func @main(%x: tensor<64x16xf16>, %y: tensor<48x16xf16>, %z: tensor<48x16xf16>) -> tensor<64x16xf32> {
      %r = array.call(%x, %y, %z) {callee = "chain"} : tensor<64x16xf32>
      func.return %r : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "chain", grid = array<i64>, effects = ["in", "in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x16xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<48x16xf16>>, %3:
        !tile.ref<tensor<64x16xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 4 : index} do {
        %4 = tile.load(%0) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x16xf16,
            "(64, 16) : [4@warp 16@lane*2 | 2@lane 8@reg]">
        %5 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %6 = tile.load(%1) {map = affine_map<(d0, d1) -> (d1, d0)>} : tensor<16x16xf16,
            "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
        %7 = tile.relayout(%5) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict = false}
            : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %8 = scheduled.alloc() : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %9 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        scheduled.barrier() {scope = "block"}
        tile.store(%4, %8) {map = affine_map<(d0, d1) -> (d0, d1)>}
        tile.store(%6, %9) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.fence()
        scheduled.barrier() {scope = "block"}
        %10 = scheduled.mma(%8, %9, %7) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %11 = scheduled.mma_wait(%10) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %12 = tile.cast(%11) : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %13, %14 = tile.for(%12, %7) {trips = 2 : index} do {
        ^bb0(%15: index, %16: tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">, %17:
            tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          %18 = tile.load(%1, %15) {map = affine_map<(d0, d1)[s0] -> (((d1 + (s0 * 16)) + 16), d0)>} : tensor<16x16xf16,
              "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %19 = tile.relayout(%5) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
              false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %20 = scheduled.alloc() : !tile.ref<tensor<64x16xf16>, "block",
              "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %21 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%4, %20) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%18, %21) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %22 = scheduled.mma(%20, %21, %19) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %23 = scheduled.mma_wait(%22) {pending = 0 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %24 = tile.load(%2, %15) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 16)), d1)>} : tensor<16x16xf16,
              "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %25 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%24, %25) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %26 = scheduled.mma(%16, %25, %17) {atom = "wgmma, left in registers", asynchronous = true} :
              tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %27 = scheduled.mma_wait(%26) {pending = 0 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %28 = tile.cast(%23) : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          tile.yield(%28, %27)
        } : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">, tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %29 = tile.load(%2) {map = affine_map<(d0, d1) -> ((d0 + 32), d1)>} : tensor<16x16xf16,
            "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
        %30 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        scheduled.barrier() {scope = "block"}
        tile.store(%29, %30) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.fence()
        scheduled.barrier() {scope = "block"}
        %31 = scheduled.mma(%13, %30, %14) {atom = "wgmma, left in registers", asynchronous = true} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %32 = scheduled.mma_wait(%31) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%32, %3) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x16xf16>, %y: tensor<48x16xf16>, %z: tensor<48x16xf16>) -> tensor<64x16xf32> {
      %r = array.call(%x, %y, %z) {callee = "chain"} : tensor<64x16xf32>
      func.return %r : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "chain", grid = array<i64>, effects = ["in", "in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x16xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<48x16xf16>>, %3:
        !tile.ref<tensor<64x16xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 4 : index} do {
        %4 = scheduled.alloc() : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %5 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [16@mem.shared | 2@mem.shared*128 8@mem.shared*16] + swizzle[mem.shared{3:4}^{6:7}]">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %9 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %10 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %11 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          scheduled.expect(%5) {number = affine_map<() -> (0)>, bytes = 2048 : index}
          scheduled.tensor_copy(%0, %4, %5) {map = affine_map<(d0, d1) -> (d0, d1)>, number = affine_map<() -> (0)>}
          scheduled.expect(%7) {number = affine_map<() -> (0)>, bytes = 512 : index}
          %12 = scheduled.stage(%6) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [16@mem.shared | 2@mem.shared*128 8@mem.shared*16] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.tensor_copy(%1, %12, %7) {map = affine_map<(d0, d1) -> (d1, d0)>, number = affine_map<() -> (0)>}
          tile.for() {trips = 2 : index} do {
          ^bb0(%13: index):
            scheduled.await(%8, %13) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, phase = affine_map<()[s0] ->
                ((((s0 + 1) floordiv 2) + -1))>}
            scheduled.expect(%7, %13) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, bytes = 512 : index}
            %14 = scheduled.stage(%6, %13) {map = affine_map<()[s0] -> (((s0 + 1) mod 2))>} :
                !tile.ref<tensor<16x16xf16>, "block",
                "(16, 16) : [16@mem.shared | 2@mem.shared*128 8@mem.shared*16] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%1, %14, %7, %13) {map = affine_map<(d0, d1)[s0] -> (((d1 + (s0 * 16)) + 16), d0)>,
                number = affine_map<()[s0] -> (((s0 + 1) mod 2))>}
            scheduled.await(%11, %13) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> (((s0
                floordiv 2) + -1))>}
            scheduled.expect(%10, %13) {number = affine_map<()[s0] -> ((s0 mod 2))>, bytes = 512 : index}
            %15 = scheduled.stage(%9, %13) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
                "block",
                "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%2, %15, %10, %13) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 16)), d1)>, number =
                affine_map<()[s0] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.await(%11) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
          scheduled.expect(%10) {number = affine_map<() -> (0)>, bytes = 512 : index}
          %16 = scheduled.stage(%9) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.tensor_copy(%2, %16, %10) {map = affine_map<(d0, d1) -> ((d0 + 32), d1)>, number = affine_map<() ->
              (0)>}
          scheduled.end()
        }
        %17 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %18 = tile.relayout(%17) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
            false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        scheduled.await(%5) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
        scheduled.await(%7) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
        %19 = scheduled.stage(%6) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [16@mem.shared | 2@mem.shared*128 8@mem.shared*16] + swizzle[mem.shared{3:4}^{6:7}]">
        %20 = scheduled.mma(%4, %19, %18) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %21 = scheduled.mma_wait(%20) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        scheduled.arrive(%8) {number = affine_map<() -> (0)>}
        %22 = tile.cast(%21) : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %23, %24 = tile.for(%22, %18) {trips = 2 : index} do {
        ^bb0(%25: index, %26: tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">, %27:
            tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          %28 = tile.relayout(%17) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
              false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.await(%7, %25) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, phase = affine_map<()[s0] ->
              (((s0 + 1) floordiv 2))>}
          %29 = scheduled.stage(%6, %25) {map = affine_map<()[s0] -> (((s0 + 1) mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block", "(16, 16) : [16@mem.shared | 2@mem.shared*128 8@mem.shared*16] + swizzle[mem.shared{3:4}^{6:7}]">
          %30 = scheduled.mma(%4, %29, %28) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.await(%10, %25) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> ((s0
              floordiv 2))>}
          %31 = scheduled.stage(%9, %25) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block", "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %32 = scheduled.mma(%26, %31, %27) {atom = "wgmma, left in registers", asynchronous = true} :
              tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %33 = scheduled.mma_wait(%30) {pending = 1 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%8, %25) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>}
          %34 = tile.cast(%33) : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %35 = scheduled.mma_wait(%32) {pending = 0 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%11, %25) {number = affine_map<()[s0] -> ((s0 mod 2))>}
          tile.yield(%34, %35)
        } : tensor<64x16xf16, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">, tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        scheduled.await(%10) {number = affine_map<() -> (0)>, phase = affine_map<() -> (1)>}
        %36 = scheduled.stage(%9) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %37 = scheduled.mma(%23, %36, %24) {atom = "wgmma, left in registers", asynchronous = true} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %38 = scheduled.mma_wait(%37) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%38, %3) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType, NoneAttr, TensorType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, rebuilt
from tilewright.dialects.rewriting import block_of, erase, in_block, insert_before
from tilewright.dialects.scheduled import asynchronous
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.fallbacks import NO_ROOM_FOR_STAGES
from tilewright.passes.warps.chain_feeds import Feed, Fill, check_turns, feeds_of, first_use, loop_of, users_of, wait_of
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import COPIES, barriers, in_zones, labels_around
from tilewright.passes.warps.operand_rings import Operand, described, remove_trips, stage_of, take_from, with_symbols
from tilewright.passes.warps.warp_space import SHARED


class ScheduledSpecializeChainsPass(msgspec.Struct, frozen=True):
    """`stages`: how many tiles of each operand there are at once, where a kernel does not state it."""

    name: ClassVar[str] = "scheduled-specialize-chains"
    stages: int = 2

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                products = [op for op in region.walk() if isinstance(op, scheduled.MmaOp) and op.asynchronous]
                if len(products) > 1:
                    self._apply(unit, kernel, region, products)

    def _apply(
        self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp, products: Sequence[scheduled.MmaOp]
    ) -> None:
        wanted = self.stages if kernel.stages is None else kernel.stages
        wanted = unit.fallbacks.stages(kernel.sym_name, wanted)
        try:
            if not wanted:
                raise Refused(NO_ROOM_FOR_STAGES)
            loop = loop_of(products, region)
            feeds = feeds_of(products, loop, region)
            stages = _stages(loop, feeds, wanted, unit.machine)
            check_turns(feeds, loop, stages)
        except Refused as reason:
            unit.remarks.append(Remark(self.name, kernel.sym_name, "not warp-specialized", str(reason)))
            return
        for label in _zones_left(products):
            reason = "matmuls are waited for at the first use of their results"
            unit.remarks.append(Remark(self.name, kernel.sym_name, f"zone `{label}` ends before they do", reason))
        _Writer(region, loop, products, feeds, stages).write()
        taken = sum(feed.bytes(stages) for feed in feeds)
        decision = f"a warp copies {len(feeds)} windows ahead, {stages} stages"
        reason = "; ".join([*dict.fromkeys(map(described, products)), f"{taken} bytes of {SHARED}"])
        unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))


def _zones_left(products: Sequence[scheduled.MmaOp]) -> list[str]:
    """The zones of matmuls that the waits for them do not stay in."""
    left: dict[str, None] = {}
    for wait in map(wait_of, products):
        stays = labels_around(first_use(wait))
        left |= dict.fromkeys(label for label in labels_around(wait) if label not in stays)
    return list(left)


# ---- whether there is room -------------------------------------------------------------------------------------------


def _stages(loop: tile.ForOp, feeds: Sequence[Feed], wanted: int, machine: Machine) -> int:
    """The most stages, up to those wanted, for which the memory has room, and at least 2.

    Raises:
        Refused: there is no room for 2.
    """
    room = machine.memory_of(SHARED).bytes - _left_bytes(loop, feeds)
    for stages in range(max(2, wanted), 1, -1):
        waits = sum(2 * barriers(1 if feed.is_resident else stages, 1).bytes for feed in feeds)
        if sum(feed.bytes(stages) for feed in feeds) + waits <= room:
            return stages
    raise Refused(f"two stages need {sum(feed.bytes(2) for feed in feeds)} bytes of {SHARED}, {room} are left")


def _left_bytes(loop: tile.ForOp, feeds: Sequence[Feed]) -> int:
    """Bytes of resident buffers, up to the end of the loop."""
    gone = {alloc for feed in feeds for fill in feed.fills for alloc, _ in fill.operand.window.trips}
    around = block_of(loop)
    before = list(around.ops)[: around.get_operation_index(loop) + 1]
    found = (each for op in before for each in op.walk() if isinstance(each, scheduled.AllocOp) and each not in gone)
    return sum(op.stage_bytes * op.count for op in found)


# ---- what is written ------------------------------------------------------------------------------------------------


@dataclass
class _Buffers:
    """The ring of a feed, and its mbarriers: a stage is full, or is free."""

    feed: Feed
    buffer: scheduled.AllocOp
    full: asynchronous.MbarrierOp
    empty: asynchronous.MbarrierOp | None
    stages: int

    @staticmethod
    def of(feed: Feed, stages: int, groups: int) -> _Buffers:
        operand = feed.fills[0].operand
        if feed.is_resident:
            buffer = scheduled.AllocOp(result=operand.ring(2).result.type)
            return _Buffers(feed, buffer, barriers(1, 1), None, 1)
        return _Buffers(feed, operand.ring(stages), barriers(stages, 1), barriers(stages, groups), stages)

    @property
    def made(self) -> Iterator[Operation]:
        yield self.buffer
        yield self.full
        if self.empty is not None:
            yield self.empty

    def tile_of(self, fill: Fill, symbols: Sequence[SSAValue]) -> scheduled.AllocOp | scheduled.StageOp:
        return self.buffer if self.feed.is_resident else stage_of(self.buffer, symbols, fill.number % self.stages)

    def await_full(self, fill: Fill) -> asynchronous.AwaitOp:
        return self._await(self.full, fill, fill.symbols, fill.number // self.stages)

    def await_empty(self, fill: Fill, symbols: Sequence[SSAValue]) -> list[Operation]:
        """Until the window that was in the stage before has been read, if there was one."""
        is_first = isinstance(fill.number, AffineConstantExpr) and fill.number.value < self.stages
        if self.empty is None or is_first:
            return []
        return [self._await(self.empty, fill, symbols, fill.number // self.stages - 1)]

    def expect(self, fill: Fill, symbols: Sequence[SSAValue]) -> asynchronous.ExpectOp:
        number = self._number(fill, len(symbols))
        return asynchronous.ExpectOp(
            mbarrier=self.full.result, symbols=symbols, number=number, bytes=self.feed.fill_bytes
        )

    def arrive_empty(self, fill: Fill) -> asynchronous.ArriveOp:
        assert self.empty is not None
        number = self._number(fill, len(fill.symbols))
        return asynchronous.ArriveOp(mbarrier=self.empty.result, symbols=fill.symbols, number=number)

    def copy(
        self, fill: Fill, target: scheduled.AllocOp | scheduled.StageOp, symbols: Sequence[SSAValue]
    ) -> asynchronous.TensorCopyOp:
        """`symbols`: those of the fill, its loop's counter being that of the role."""
        load, inner = fill.operand.window.load, dict(zip(fill.symbols, symbols, strict=True))
        places = [inner.get(symbol, symbol) for symbol in load.symbols]
        given = list(dict.fromkeys((*symbols, *places)))
        by = [AffineExpr.symbol(given.index(place)) for place in places]
        map = with_symbols(fill.operand.window.map, by, len(given))
        op = asynchronous.TensorCopyOp(
            source=load.source,
            destination=target.result,
            mbarrier=self.full.result,
            symbols=given,
            map=map,
            number=self._number(fill, len(given)),
        )
        op.location = load.location
        return op

    def _number(self, fill: Fill, symbols: int) -> AffineMap:
        return AffineMap(0, symbols, (fill.number % self.stages,))

    def _await(
        self, mbarriers: asynchronous.MbarrierOp, fill: Fill, symbols: Sequence[SSAValue], phase: AffineExpr
    ) -> asynchronous.AwaitOp:
        return asynchronous.AwaitOp(
            mbarrier=mbarriers.result,
            symbols=symbols,
            number=self._number(fill, len(symbols)),
            phase=AffineMap(0, len(symbols), (phase,)),
        )


@dataclass
class _Writer:
    """Writes the warp that copies at the beginning of a block, and makes the matmuls wait for it."""

    region: scheduled.ParallelOp
    loop: tile.ForOp
    products: Sequence[scheduled.MmaOp]
    feeds: Sequence[Feed]
    stages: int
    buffers: list[_Buffers] = field(init=False)

    def write(self) -> None:
        warps = 1 if self.region.warps is None else self.region.warps
        self.buffers = [_Buffers.of(feed, self.stages, warps // WARPGROUP) for feed in self.feeds]
        made = [op for each in self.buffers for op in each.made]
        meeting = scheduled.BarrierOp(scope=scheduled.EVERY_ROLE)
        role = scheduled.RoleOp(role=COPIES, warps=1, body=Region(self._copies()))
        first = self.region.body.block.first_op
        assert first is not None
        self.region.body.block.insert_ops_before([*made, meeting, role], first)
        self._take_from_stages()
        for product in self.products:
            self._wait_late(product)

    # ---- the warp that copies ---------------------------------------------------------------------------------------

    def _copies(self) -> Block:
        """In the order in which the matmuls read."""
        block, body = Block(), Block(arg_types=[IndexType()])
        for each in (each for each in self.buffers if each.feed.is_resident):
            self._fill(each, each.feed.fills[0], (), block)
        loop: tile.ForOp | None = None
        for product in self.products:
            is_inside = product.parent_op() is self.loop
            if is_inside and loop is None:
                loop = self._loop(body)
                block.add_ops(in_zones(labels_around(self.loop), [loop]))
            for each, fill in self._fills_of(product):
                if not each.feed.is_resident:
                    symbols = [body.args[0]] if is_inside else list(fill.symbols)
                    self._fill(each, fill, symbols, body if is_inside else block)
        body.add_op(tile.YieldOp())
        block.add_op(scheduled.EndOp())
        return block

    def _loop(self, body: Block) -> tile.ForOp:
        return rebuilt(self.loop, self.loop.symbols, [], [Region(body)])

    def _fills_of(self, product: scheduled.MmaOp) -> list[tuple[_Buffers, Fill]]:
        """The operands of a matmul."""
        return [(each, fill) for each in self.buffers for fill in each.feed.fills if fill.operand.product is product]

    def _fill(self, each: _Buffers, fill: Fill, symbols: Sequence[SSAValue], block: Block) -> None:
        block.add_ops([*each.await_empty(fill, symbols), each.expect(fill, symbols)])
        target = each.tile_of(fill, symbols)
        if isinstance(target, scheduled.StageOp):
            block.add_op(target)
        block.add_op(each.copy(fill, target, symbols))

    # ---- the products -----------------------------------------------------------------------------------------------

    def _take_from_stages(self) -> None:
        """Matmuls read full stages. Resident windows are waited for once, before the first."""
        remove_trips([store for feed in self.feeds for fill in feed.fills for _, store in fill.operand.window.trips])
        awaited: set[int] = set()
        for product in self.products:
            for each, fill in self._fills_of(product):
                target = each.tile_of(fill, fill.symbols)
                before = product if not each.feed.is_resident else self._in_region(product)
                if id(each) not in awaited or not each.feed.is_resident:
                    insert_before(before, each.await_full(fill))
                awaited.add(id(each))
                if isinstance(target, scheduled.StageOp):
                    insert_before(product, target)
                self._take_from(fill.operand, target)

    def _in_region(self, product: scheduled.MmaOp) -> Operation:
        return product if product.parent_op() is self.region else self.loop

    def _take_from(self, operand: Operand, target: scheduled.AllocOp | scheduled.StageOp) -> None:
        """The matmul reads a buffer; what loaded its operand goes, unless something else uses it."""
        take_from(operand, target)
        for op in operand.window.shared:
            if not any(list(result.uses) for result in op.results):
                erase(op)

    def _wait_late(self, product: scheduled.MmaOp) -> None:
        """Wait for a matmul where its result is used first; others may be under way that were begun since. Then its
        stages are empty, if a later window comes there."""
        wait, block = wait_of(product), block_of(product)
        target = first_use(wait)
        begun = list(block.ops)[block.get_operation_index(product) + 1 : block.get_operation_index(target)]
        pending = sum(isinstance(op, scheduled.MmaOp) and op.asynchronous for op in begun)
        late = scheduled.MmaWaitOp(
            accumulator=wait.accumulator,
            computed=_rows_between(begun, target),
            pending=pending,
            result=wait.result.type,
        )
        insert_before(target, late)
        wait.result.replace_all_uses_with(late.result)
        erase(wait)
        is_behind = block is not self.loop.body.block and block.get_operation_index(late) > block.get_operation_index(
            self.loop
        )
        read = [(each, fill) for each, fill in self._fills_of(product) if not each.feed.is_resident and not is_behind]
        insert_before(target, *(each.arrive_empty(fill) for each, fill in read))


def _rows_between(begun: Sequence[Operation], target: Operation) -> list[SSAValue]:
    """Values of f32 that are computed while a matmul is under way and used later: sums and maxima of rows, of which
    there are few and which depend on all elements."""
    block = block_of(target)
    end = block.get_operation_index(target)

    def is_used_later(value: SSAValue) -> bool:
        return any(block.get_operation_index(in_block(user, block)) >= end for user in users_of(value))

    held = [value for op in begun for value in op.results if _is_in_registers(value)]
    rows = [value for value in held if array_type(value).rank == 1 and array_type(value).dtype == dtypes.f32]
    return [value for value in rows if is_used_later(value)]


def _is_in_registers(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType) and not isinstance(value.type.encoding, NoneAttr)

"""Make a kernel persistent: launch as many thread blocks as the machine runs at once, and loop over tiles in each.

The pass applies to kernels whose matmul operands a producer warp copies. The producer continues with the next tile
while the other warps store their results: stages, and phases of their barriers, are counted on from tile to tile. When
all matmuls of a tile are complete, its last stage is empty, too. A buffer that a TMA store reads is waited for before
the next tile writes it. If an SM has room for two blocks, one computes while the other stores, and each tile keeps a
block of its own; a remark gives the reason, or any other limit.

Before (sm_90a with cores = 4, warp = 1):
    func.func @main(%0: tensor<128x32xf16>, %1: tensor<32x48xf16>) -> tensor<128x48xf32> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<128x48xf32>
      func.return %2 : tensor<128x48xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<128x32xf16>>, %1: !tile.ref<tensor<32x48xf16>>, %2: !tile.ref<tensor<128x48xf32>>):
      scheduled.parallel() {extents = array<i64: 2, 3>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb0(%9: index):
            scheduled.await(%8, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> (((s0
                floordiv 2) + -1))>}
            scheduled.expect(%7, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, bytes = 2560 : index}
            %10 = scheduled.stage(%5, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
                "block",
                "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%0, %10, %7, %9, %3) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s1 * 64)), (d1
                + (s0 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            %11 = scheduled.stage(%6, %9) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
                "block",
                "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%1, %11, %7, %9, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1
                + (s1 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.end()
        }
        %12 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %13 = tile.relayout(%12) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
            false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %14 = tile.for(%13) {trips = 2 : index} do {
        ^bb0(%15: index, %16: tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          scheduled.await(%7, %15) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> ((s0
              floordiv 2))>}
          %17 = scheduled.stage(%5, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<64x16xf16>,
              "block",
              "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %18 = scheduled.stage(%6, %15) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %19 = scheduled.mma(%17, %18, %16) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %20 = scheduled.mma_wait(%19) {pending = 1 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%8, %15) {number = affine_map<()[s0] -> (((s0 + 1) mod 2))>, trip = affine_map<()[s0] ->
              ((s0 + -1))>}
          tile.yield(%20)
        } : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %21 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<64x16xf32,
            "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%21, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%0: tensor<128x32xf16>, %1: tensor<32x48xf16>) -> tensor<128x48xf32> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<128x48xf32>
      func.return %2 : tensor<128x48xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<128x32xf16>>, %1: !tile.ref<tensor<32x48xf16>>, %2: !tile.ref<tensor<128x48xf32>>):
      scheduled.parallel() {extents = array<i64: 4>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index):
        %4 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for(%3) {trips = 2 : index, end = affine_map<()[s0] -> (((((s0 * -1) + 5) floordiv 4) + 1))>} do {
          ^bb0(%8: index):
            %9, %10 = scheduled.point(%3, %8) {map = affine_map<()[s0, s1] -> ((s0 + (s1 * 4)))>, extents =
                array<i64: 2, 3>, group = 1 : index} : index, index
            tile.for() {trips = 2 : index} do {
            ^bb0(%11: index):
              scheduled.await(%7, %11, %8) {number = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>, phase =
                  affine_map<()[s0, s1] -> ((((s0 + (s1 * 2)) floordiv 2) + -1))>}
              scheduled.expect(%6, %11, %8) {number = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>, bytes =
                  2560 : index}
              %12 = scheduled.stage(%4, %11, %8) {map = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>} :
                  !tile.ref<tensor<64x16xf16>, "block",
                  "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
              scheduled.tensor_copy(%0, %12, %6, %11, %9, %8) {map = affine_map<(d0, d1)[s0, s1, s2] -> ((d0 + (s1 *
                  64)), (d1 + (s0 * 16)))>, number = affine_map<()[s0, s1, s2] -> (((s0 + (s2 * 2)) mod 2))>}
              %13 = scheduled.stage(%5, %11, %8) {map = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>} :
                  !tile.ref<tensor<16x16xf16>, "block",
                  "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
              scheduled.tensor_copy(%1, %13, %6, %11, %10, %8) {map = affine_map<(d0, d1)[s0, s1, s2] -> ((d0 + (s0
                  * 16)), (d1 + (s1 * 16)))>, number = affine_map<()[s0, s1, s2] -> (((s0 + (s2 * 2)) mod 2))>}
              tile.yield()
            }
            tile.yield()
          }
          scheduled.end()
        }
        tile.for(%3) {trips = 2 : index, end = affine_map<()[s0] -> (((((s0 * -1) + 5) floordiv 4) + 1))>} do {
        ^bb0(%14: index):
          %15, %16 = scheduled.point(%3, %14) {map = affine_map<()[s0, s1] -> ((s0 + (s1 * 4)))>, extents =
              array<i64: 2, 3>, group = 1 : index} : index, index
          %17 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
          %18 = tile.relayout(%17) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
              false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %19 = tile.for(%18) {trips = 2 : index} do {
          ^bb0(%20: index, %21: tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
            scheduled.await(%6, %20, %14) {number = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>, phase =
                affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) floordiv 2))>}
            %22 = scheduled.stage(%4, %20, %14) {map = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>} :
                !tile.ref<tensor<64x16xf16>, "block",
                "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            %23 = scheduled.stage(%5, %20, %14) {map = affine_map<()[s0, s1] -> (((s0 + (s1 * 2)) mod 2))>} :
                !tile.ref<tensor<16x16xf16>, "block",
                "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            %24 = scheduled.mma(%22, %23, %21) {atom = "wgmma, 1 warpgroup", asynchronous = true} :
                tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
            %25 = scheduled.mma_wait(%24) {pending = 1 : index} : tensor<64x16xf32,
                "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
            scheduled.arrive(%7, %20, %14) {number = affine_map<()[s0, s1] -> ((((s0 + (s1 * 2)) + 1) mod 2))>, trip
                = affine_map<()[s0, s1] -> ((s0 + -1))>}
            tile.yield(%25)
          } : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %26 = scheduled.mma_wait(%19) {pending = 0 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          scheduled.arrive(%7, %14) {number = affine_map<()[s0] -> ((((s0 * 2) + 1) mod 2))>}
          tile.store(%26, %2, %15, %16) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>}
          tile.yield()
        }
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, Region
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import erase
from tilewright.dialects.scheduled import asynchronous, tile_order
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import COPIES, MULTIPLIES
from tilewright.passes.warps.tile_grids import blocks_together, number_points, point_of
from tilewright.passes.warps.tile_sums import Parts, sums_in_registers, sums_in_tensor_memory
from tilewright.passes.warps.warp_space import SHARED


class ScheduledLoopOverTilesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-loop-over-tiles"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                if any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
                    self._apply(unit, kernel, region)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp) -> None:
        tiles, blocks = prod(region.shape), unit.machine.cores
        try:
            parts = _parts_of(region)
            _check_room(region, unit.machine)
        except Refused as reason:
            unit.remarks.append(Remark(self.name, kernel.sym_name, "not persistent", str(reason)))
            return
        _Loops(region, parts, blocks).write()
        turns, waiting = -(-tiles // blocks), waiting_seconds(unit.machine)
        reason = (
            f"{turns} one after another; {(turns - 1) * waiting * 1e6:.1f} us of waiting for first copies are hidden"
        )
        unit.remarks.append(Remark(self.name, kernel.sym_name, f"{blocks} persistent blocks for {tiles} tiles", reason))


def waiting_seconds(machine: Machine) -> float:
    """The latency of a block's first copies, during which no MMA is issued. A persistent block saves it for each tile
    but its first."""
    cache, behind = machine.memories[1], machine.memory(machine.default_memory)
    return cache.latency_s + behind.latency_s


# ---- what can be done -----------------------------------------------------------------------------------------------


def _parts_of(region: scheduled.ParallelOp) -> Parts:
    """The parts of a region in which roles feed one matmul.

    Raises:
        Refused: it has others.
    """
    roles = [op for op in region.body.block.ops if isinstance(op, scheduled.RoleOp)]
    names = [role.role for role in roles]
    if names == [COPIES]:
        parts = sums_in_registers(region, roles)
    elif names == [COPIES, MULTIPLIES]:
        parts = sums_in_tensor_memory(region, roles)
    else:
        raise Refused(f"there are the roles {', '.join(names)}")
    if any(isinstance(op, scheduled.CopyOp) for op in region.walk()):
        raise Refused("compute threads copy as well")
    if region.registers is not None:
        raise Refused("the producer releases registers once")
    if len({loop.trips for loop in parts.loops}) > 1 or any(loop.end is not None for loop in parts.loops):
        raise Refused("trip counts differ between tiles")
    return parts


def _check_room(region: scheduled.ParallelOp, machine: Machine) -> None:
    """Blocks of several tiles have work and memory.

    Raises:
        Refused: they do not.
    """
    tiles = prod(region.shape)
    if tiles <= machine.cores:
        raise Refused(f"{tiles} tiles for {machine.cores} multiprocessors")
    if point_of(region) is None and len(region.shape) < 2:
        raise Refused("tiles are in one row or column")
    together = blocks_together(region, machine)
    if together > 1:
        raise Refused(f"{together} blocks have room on a multiprocessor: each works while others wait or store")
    ops = list(region.walk())
    taken = sum(op.count * op.stage_bytes for op in ops if isinstance(op, scheduled.AllocOp))
    taken += sum(op.bytes for op in ops if isinstance(op, asynchronous.MbarrierOp))
    room = machine.memory_of(SHARED).bytes
    if taken > room:
        raise Refused(f"stages and the buffers of results need {taken} bytes of {SHARED}, there are {room}")


# ---- what is written ------------------------------------------------------------------------------------------------


@dataclass
class _Loops:
    """Puts what a block does to a tile, and what its roles do, into loops over tiles."""

    region: scheduled.ParallelOp
    parts: Parts
    blocks: int

    def write(self) -> None:
        shape = self.region.shape
        point = point_of(self.region) or number_points(self.region, range(len(shape)), 1)
        self.region.extents = (self.blocks,)
        self._store_late()
        self.parts.prepare()
        for role in self.parts.roles:
            self._loop_of_role(role, point)
        self._loop_of_warpgroups(point)
        erase(point)

    def _loop_of_role(self, role: scheduled.RoleOp, point: tile_order.PointOp) -> None:
        body, block = Block(arg_types=[IndexType()]), role.body.block
        _move([op for op in block.ops if not isinstance(op, scheduled.EndOp)], body)
        self.parts.write_role(role, body)
        self._begin(body, point)
        last = block.last_op
        assert last is not None
        block.insert_op_before(self._for(body, point), last)

    def _loop_of_warpgroups(self, point: tile_order.PointOp) -> None:
        block, role = self.region.body.block, self.parts.roles[-1]
        behind = list(block.ops)[block.get_operation_index(role) + 1 : -1]
        if isinstance(behind[-1], asynchronous.StoreWaitOp):
            behind.pop()
        body = Block(arg_types=[IndexType()])
        _move(behind, body)
        given_back = self.parts.write_warpgroups(body)
        self._begin(body, point)
        block.insert_ops_after([self._for(body, point), *given_back], role)

    def _begin(self, body: Block, point: tile_order.PointOp) -> None:
        """The tile of a turn is found first, where the operations of a body use its coordinates."""
        own = point.clone()
        own.operands = [point.symbols[0], body.args[0]]
        counted = AffineMap(0, 2, (AffineExpr.symbol(0) + AffineExpr.symbol(1) * self.blocks,))
        own.map = counted
        uses = [
            (use, same)
            for result, same in zip(point.results, own.results, strict=True)
            for use in result.uses
            if _is_in(use.operation, body)
        ]
        if not uses:
            own.erase()
            return
        for use, same in uses:
            use.operation.operands[use.index] = same
        first = body.first_op
        assert first is not None
        body.insert_op_before(own, first)

    def _for(self, body: Block, point: tile_order.PointOp) -> tile.ForOp:
        """A loop over the tiles of a block: some have one fewer."""
        body.add_op(tile.YieldOp())
        tiles = point.order.count
        trips = -(-tiles // self.blocks)
        if tiles % self.blocks == 0:
            return tile.ForOp(trips=trips, body=Region(body))
        left = AffineExpr.symbol(0) * -1 + (tiles - 1)
        end = AffineMap(0, 1, (left // self.blocks + 1,))
        return tile.ForOp(arguments=[point.symbols[0]], trips=trips, end=end, body=Region(body))

    def _store_late(self) -> None:
        """Buffers that the machine stores from are waited for before they are written again, and at the end."""
        block = self.region.body.block
        stores = [op for op in block.ops if isinstance(op, asynchronous.TensorStoreOp)]
        if not stores:
            return
        for wait in [op for op in block.ops if isinstance(op, asynchronous.StoreWaitOp)]:
            erase(wait)
        for store in stores:
            buffer = store.source.owner
            assert isinstance(buffer, scheduled.AllocOp)
            buffer.detach()
            block.insert_op_before(buffer, self.parts.roles[0])
            block.insert_op_before(asynchronous.StoreWaitOp(), self._before_reading(buffer))
        last = block.last_op
        assert last is not None
        block.insert_op_before(asynchronous.StoreWaitOp(), last)

    def _before_reading(self, buffer: scheduled.AllocOp) -> Operation:
        """The barrier before a buffer is written, or the wait for matmuls, if that is sooner: the assembler has each
        matmul waited for where one thread branches off between sums being read and stored."""
        barrier, block = _barrier_before(_written(buffer)), self.region.body.block
        return min(barrier, self.parts.waits, key=block.get_operation_index)


def _written(buffer: scheduled.AllocOp) -> Operation:
    """Operations that write to a buffer."""
    return next(use.operation for use in buffer.result.uses if isinstance(use.operation, tile.StoreOp))


def _barrier_before(op: Operation) -> Operation:
    at = op.prev_op
    while not isinstance(at, scheduled.BarrierOp):
        assert at is not None
        at = at.prev_op
    return at


def _move(ops: Sequence[Operation], body: Block) -> None:
    for op in ops:
        op.detach()
        body.add_op(op)


def _is_in(op: Operation, body: Block) -> bool:
    around: Operation | None = op
    while around is not None:
        if around.parent_block() is body:
            return True
        around = around.parent_op()
    return False

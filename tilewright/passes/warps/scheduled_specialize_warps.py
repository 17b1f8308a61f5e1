"""Specialize a loop of asynchronous MMAs: a producer warp issues tensor copies of its operands, pipelined ahead.

The producer waits until a stage of a ring of buffers is empty, declares the bytes to expect, and issues the copies,
which complete a phase of the stage's barrier: the stage is full. The warpgroups wait for that, issue the matmuls of the
stage, and signal the stage of the previous trip as empty when the matmuls that read it are complete. So copies and
matmuls are in flight all the time, without a barrier of all warps. The pass checks that a loop fits before it changes
anything, and a remark gives the reason if not.

Before (sm_90a):
    func.func @main(%x: tensor<64x48xf16>, %y: tensor<48x16xf16>) -> tensor<64x16xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<64x16xf32>
      func.return %z : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<64x48xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<64x16xf32>>):
      scheduled.parallel() {extents = array<i64: 1, 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = tile.full() {value = 0.000000e+00 : f64} : tensor<64x16xf32>
        %6 = tile.relayout(%5) {layout = "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict =
            false} : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %7 = tile.for(%6) {trips = 3 : index} do {
        ^bb0(%8: index, %9: tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          %10 = tile.load(%0, %3, %8) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>,
              fill = 0.000000e+00 : f64} : tensor<64x16xf16, "(64, 16) : [4@warp 16@lane*2 | 2@lane 8@reg]">
          %11 = tile.load(%1, %8, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 + (s1 * 16)))>,
              fill = 0.000000e+00 : f64} : tensor<16x16xf16, "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %12 = scheduled.alloc() : !tile.ref<tensor<64x16xf16>, "block",
              "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %13 = scheduled.alloc() : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%10, %12) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%11, %13) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %14 = scheduled.mma(%12, %13, %9) {atom = "wgmma, 1 warpgroup", asynchronous = true} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %15 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<64x16xf32,
              "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          tile.yield(%15)
        } : tensor<64x16xf32, "(64, 16) : [4@warp 2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%7, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 64)), (d1 + (s1 * 16)))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x48xf16>, %y: tensor<48x16xf16>) -> tensor<64x16xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<64x16xf32>
      func.return %z : tensor<64x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<64x48xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<64x16xf32>>):
      scheduled.parallel() {extents = array<i64: 1, 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<64x16xf16>, "block",
            "(64, 16) : [8@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %7 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for() {trips = 3 : index} do {
          ^bb0(%9: index):
            scheduled.await(%8, %9) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] ->
                (((s0 floordiv 2) + -1))>}
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
        %14 = tile.for(%13) {trips = 3 : index} do {
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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import msgspec
from xdsl.ir import Operation
from xdsl.ir.affine import AffineExpr

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of, yielded
from tilewright.dialects.scheduled import asynchronous
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.fallbacks import NO_ROOM_FOR_STAGES
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import TRIP, CopyingRole, await_phase, barriers, copied_operand, number
from tilewright.passes.warps.operand_rings import (
    Operand,
    described,
    left_bytes,
    remove_trips,
    stage_of,
    stages_beside,
    take_from,
)
from tilewright.passes.warps.warp_space import SHARED


class ScheduledSpecializeWarpsPass(msgspec.Struct, frozen=True):
    """`stages`: how many tiles of each operand there are at once, where a kernel does not state it and they have
    room."""

    name: ClassVar[str] = "scheduled-specialize-warps"
    stages: int = 4

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                if any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
                    continue
                products = [op for op in region.walk() if isinstance(op, scheduled.MmaOp)]
                for product in (op for op in products if op.asynchronous):
                    self._apply(unit, kernel, region, product)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp, product: scheduled.MmaOp) -> None:
        wanted = self.stages if kernel.stages is None else kernel.stages
        wanted = unit.fallbacks.stages(kernel.sym_name, wanted)
        try:
            if not wanted:
                raise Refused(NO_ROOM_FOR_STAGES)
            loop, wait = _loop_of(product, region)
            operands = [
                copied_operand(product, side, loop.body.block.args[0]) for side in (product.left, product.right)
            ]
            room = _room(loop, operands, unit.machine)
            stages = _stages(loop, operands, wanted, room)
            if prod(region.shape) > unit.machine.cores:
                stages = stages_beside(loop, stages, room, lambda each: _bytes(operands, each))
        except Refused as reason:
            unit.remarks.append(Remark(self.name, kernel.sym_name, "not warp-specialized", str(reason)))
            return
        taken = sum(operand.bytes(stages) for operand in operands)
        _Roles(region, loop, wait, operands, stages).write(room - taken - 2 * barriers(stages, 1).bytes)
        decision = f"a warp copies {len(operands)} windows ahead, {stages} stages"
        reason = f"{described(product)}; {taken} bytes of {SHARED}"
        unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))


# ---- what can be done -----------------------------------------------------------------------------------------------


def _loop_of(product: scheduled.MmaOp, region: scheduled.ParallelOp) -> tuple[tile.ForOp, scheduled.MmaWaitOp]:
    """The loop that adds a matmul to a carried tile, and the wait for it.

    Raises:
        Refused: there is none, or its trips are not those of the block.
    """
    loop = product.parent_op()
    if not isinstance(loop, tile.ForOp) or loop.parent_op() is not region:
        raise Refused("the matmul is not in a loop of its own")
    if loop.end is not None:
        raise Refused("the trip count of the loop is not known at block start")
    if any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
        raise Refused("another loop already has a producer warp")
    others = [op for op in loop.body.walk() if isinstance(op, scheduled.MmaOp) and op is not product]
    users = [use.operation for use in product.result.uses]
    last = loop.body.block.last_op
    if others or len(users) != 1 or not isinstance(wait := users[0], scheduled.MmaWaitOp) or last is None:
        raise Refused("the loop has more than one matmul")
    added = list(zip(last.operands, loop.body.block.args[1:], strict=True))
    uses = (len(list(value.uses)) for value in (wait.result, product.accumulator))
    if (wait.result, product.accumulator) not in added or any(count != 1 for count in uses):
        raise Refused("the loop does more than accumulate matmuls")
    return loop, wait


def _stages(loop: tile.ForOp, operands: Sequence[Operand], wanted: int, room: int) -> int:
    """The most stages, up to those wanted, that the loop has trips and the memory room for, and at least 2.

    Raises:
        Refused: there is no room for 2.
    """
    for stages in range(max(2, min(wanted, loop.trips)), 1, -1):
        if _bytes(operands, stages) <= room:
            return stages
    raise Refused(f"two stages need {sum(operand.bytes(2) for operand in operands)} bytes of {SHARED}, {room} are left")


def _bytes(operands: Sequence[Operand], stages: int) -> int:
    """Bytes of rings and their barriers."""
    return sum(operand.bytes(stages) for operand in operands) + 2 * barriers(stages, 1).bytes


def _room(loop: tile.ForOp, operands: Sequence[Operand], machine: Machine) -> int:
    """Bytes of shared memory that the buffers in a loop, and those before it, leave free."""
    block = block_of(loop)
    before = list(block.ops)[: block.get_operation_index(loop)]
    taken = sum(op.bytes for op in before if isinstance(op, scheduled.AllocOp))
    return machine.memory_of(SHARED).bytes - taken - left_bytes(loop, operands)


# ---- what is written ------------------------------------------------------------------------------------------------


@dataclass
class _Roles:
    """Writes the warp that copies at the beginning of a block, and makes a loop wait for it. `wait` is for the loop's
    matmul."""

    region: scheduled.ParallelOp
    loop: tile.ForOp
    wait: scheduled.MmaWaitOp
    operands: Sequence[Operand]
    stages: int

    def write(self, spare_bytes: int) -> None:
        """`spare_bytes`: of memory that is left to what follows the loop while matmuls are under way."""
        warps = 1 if self.region.warps is None else self.region.warps
        rings = [operand.ring(self.stages) for operand in self.operands]
        full, empty = barriers(self.stages, 1), barriers(self.stages, warps // WARPGROUP)
        meeting = scheduled.BarrierOp(scope=scheduled.EVERY_ROLE)
        role = CopyingRole(self.loop, self.operands, self.stages, rings, full, empty).role()
        first = self.region.body.block.first_op
        assert first is not None
        self.region.body.block.insert_ops_before([*rings, full, empty, meeting, role], first)
        self._multiply(rings, full, empty)
        _sink(self._wait_behind(), spare_bytes)

    @property
    def _stage(self) -> AffineExpr:
        return TRIP % self.stages

    def _multiply(
        self, rings: Sequence[scheduled.AllocOp], full: asynchronous.MbarrierOp, empty: asynchronous.MbarrierOp
    ) -> None:
        """The loop takes its operands from full stages; its newest matmul is under way when a trip ends."""
        block, trip = self.loop.body.block, self.loop.body.block.args[0]
        stages = [stage_of(ring, [trip], self._stage) for ring in rings]
        remove_trips([store for operand in self.operands for _, store in operand.window.trips])
        for operand, stage in zip(self.operands, stages, strict=True):
            take_from(operand, stage)
        first = block.first_op
        assert first is not None
        block.insert_ops_before([await_phase(full, trip, self._stage, TRIP // self.stages), *stages], first)
        self.wait.pending = 1
        before = number((TRIP + (self.stages - 1)) % self.stages)
        arrive = asynchronous.ArriveOp(mbarrier=empty.result, symbols=[trip], number=before, trip=number(TRIP - 1))
        block.insert_op_after(arrive, self.wait)

    def _wait_behind(self) -> scheduled.MmaWaitOp:
        """All matmuls have been done after the loop."""
        around, last = block_of(self.loop), yielded(self.loop.body.block)
        result = self.loop.results[list(last).index(self.wait.result)]
        uses = list(result.uses)
        done = scheduled.MmaWaitOp(accumulator=result, pending=0, result=result.type)
        around.insert_op_after(done, self.loop)
        for use in uses:
            use.operation.operands[use.index] = done.result
        return done


def _sink(wait: scheduled.MmaWaitOp, spare_bytes: int) -> None:
    """Wait, and convert the result, where it is used first: what does not need it is done meanwhile, in buffers for
    which there are `spare_bytes`. The assembler takes accumulators that are read before a store under a condition to be
    read while matmuls are under way, and has each matmul waited for (nvJitLink's remark C7514)."""
    moved: list[Operation] = [wait]
    edge = _zone_edge_behind(wait)
    while len(uses := list(moved[-1].results[0].uses)) == 1 and isinstance(user := uses[0].operation, tile.CastOp):
        if edge is not None and not user.is_before_in_block(edge):
            break
        moved.append(user)
    target, block = _first_use(moved[-1], spare_bytes), block_of(wait)
    if target is None:
        return
    for op in moved:
        op.detach()
        block.insert_op_before(op, target)


def _zone_edge_behind(op: Operation) -> tile.ZoneOp | None:
    at = op.next_op
    while at is not None and not isinstance(at, tile.ZoneOp):
        at = at.next_op
    return at


def _first_use(op: Operation, spare_bytes: int) -> Operation | None:
    """The operation after another one that uses its result first, or the buffer and barrier right before it; or the
    first buffer for which there is no room, or the end of the zone that the matmuls are in."""
    users = {use.operation for use in op.results[0].uses}
    before_use: Operation | None = None
    at = op.next_op
    while at is not None and at not in users and not at.regions and not isinstance(at, tile.ZoneOp):
        if not isinstance(at, scheduled.BarrierOp | scheduled.AllocOp):
            before_use = None
        elif before_use is None:
            before_use = at
        if isinstance(at, scheduled.AllocOp):
            spare_bytes -= at.stage_bytes
            if spare_bytes < 0:
                return before_use
        at = at.next_op
    return before_use or at

"""Pipeline the operand copies of matmul loops: asynchronous copies to a ring of stages, bypassing registers.

The windows of a trip are copied to a stage of a ring of buffers while the matmuls of earlier trips run: windows of the
first trips before the loop, then in each trip those of `stages - 1` trips later, after the trip's one barrier, which
signals that all copies of this trip's stage have arrived and that all warps have read the stage that is written next.
The pass checks that a loop fits before it changes anything, and a remark gives the reason if not.

Before (sm_90a):
    func.func @main(%x: tensor<16x48xf16>, %y: tensor<48x16xf16>) -> tensor<16x16xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<16x16xf32>
      func.return %z : tensor<16x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<16x48xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<16x16xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 1 : index} do {
        %3 = tile.full() {value = 0.000000e+00 : f64} : tensor<16x16xf32>
        %4 = tile.relayout(%3) {layout = "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict = false}
            : tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %5 = tile.for(%4) {trips = 3 : index} do {
        ^bb0(%6: index, %7: tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          %8 = tile.load(%0, %6) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 16)>} : tensor<16x16xf16,
              "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %9 = tile.load(%1, %6) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>} : tensor<16x16xf16,
              "(16, 16) : [16@lane*2 | 2@lane 8@reg]">
          %10 = tile.relayout(%8) {layout = "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict = false}
              : tensor<16x16xf16, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          %11 = tile.relayout(%9) {layout = "(16, 16) : [2@reg*2 4@lane 2@reg | 2@reg*4 8@lane*4]", strict = false}
              : tensor<16x16xf16, "(16, 16) : [2@reg*2 4@lane 2@reg | 2@reg*4 8@lane*4]">
          %12 = scheduled.mma(%10, %11, %7) {atom = "mma.sync, 1 x 1 warps"} : tensor<16x16xf32,
              "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          tile.yield(%12)
        } : tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        tile.store(%5, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<16x48xf16>, %y: tensor<48x16xf16>) -> tensor<16x16xf32> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<16x16xf32>
      func.return %z : tensor<16x16xf32>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<16x48xf16>>, %1: !tile.ref<tensor<48x16xf16>>, %2: !tile.ref<tensor<16x16xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 1 : index} do {
        %3 = tile.full() {value = 0.000000e+00 : f64} : tensor<16x16xf32>
        %4 = tile.relayout(%3) {layout = "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]", strict = false}
            : tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        scheduled.barrier() {scope = "block"}
        %7 = scheduled.stage(%5) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        scheduled.copy(%0, %7) {map = affine_map<(d0, d1) -> (d0, d1)>,
            layout = "(16, 16) : [16@lane*2 | 2@lane 8@reg]"}
        %8 = scheduled.stage(%6) {map = affine_map<() -> (0)>} : !tile.ref<tensor<16x16xf16>, "block",
            "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        scheduled.copy(%1, %8) {map = affine_map<(d0, d1) -> (d0, d1)>,
            layout = "(16, 16) : [16@lane*2 | 2@lane 8@reg]"}
        scheduled.commit()
        %9 = tile.for(%4) {trips = 3 : index} do {
        ^bb0(%10: index, %11: tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">):
          scheduled.wait() {pending = 0 : index}
          scheduled.barrier() {scope = "block"}
          %12 = scheduled.stage(%5, %10) {map = affine_map<()[s0] -> (((s0 + 1) mod 2))>}
              : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.copy(%0, %12, %10) {map = affine_map<(d0, d1)[s0] -> (d0, (d1 + ((s0 * 16) + 16)))>,
              trip = affine_map<()[s0] -> ((s0 + 1))>, trips = 3 : index,
              layout = "(16, 16) : [16@lane*2 | 2@lane 8@reg]"}
          %13 = scheduled.stage(%6, %10) {map = affine_map<()[s0] -> (((s0 + 1) mod 2))>}
              : !tile.ref<tensor<16x16xf16>, "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          scheduled.copy(%1, %13, %10) {map = affine_map<(d0, d1)[s0] -> ((d0 + ((s0 * 16) + 16)), d1)>,
              trip = affine_map<()[s0] -> ((s0 + 1))>, trips = 3 : index,
              layout = "(16, 16) : [16@lane*2 | 2@lane 8@reg]"}
          scheduled.commit()
          %14 = scheduled.stage(%5, %10) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %15 = scheduled.stage(%6, %10) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x16xf16>,
              "block",
              "(16, 16) : [2@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %16 = scheduled.mma(%14, %15, %11) {atom = "mma.sync, 1 x 1 warps",
              left_fragment = "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]",
              right_fragment = "(16, 16) : [2@reg*2 4@lane 2@reg | 2@reg*4 8@lane*4]"} : tensor<16x16xf32,
              "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
          tile.yield(%16)
        } : tensor<16x16xf32, "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]">
        scheduled.wait() {pending = 0 : index}
        tile.store(%9, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of
from tilewright.dialects.scheduled import asynchronous
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.fallbacks import NO_ROOM_FOR_STAGES
from tilewright.passes.warps.copied_windows import Refused, is_point, landing_of, window_behind
from tilewright.passes.warps.operand_rings import (
    Operand,
    described,
    left_bytes,
    remove_trips,
    stage_of,
    take_from,
    with_symbols,
)
from tilewright.passes.warps.warp_space import SHARED


class ScheduledPipelineCopiesPass(msgspec.Struct, frozen=True):
    """`stages`: how many tiles of each operand there are at once, where a kernel does not state it and they have
    room."""

    name: ClassVar[str] = "scheduled-pipeline-copies"
    stages: int = 3

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                for loop in list(_loops(region.body.block)):
                    self._apply(unit, kernel, region, loop)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp, loop: tile.ForOp) -> None:
        operands, refused = _found(region, loop, unit.machine)
        wanted = self.stages if kernel.stages is None else kernel.stages
        wanted = unit.fallbacks.stages(kernel.sym_name, wanted)
        room = unit.machine.memory_of(SHARED).bytes - left_bytes(loop, operands)
        stages = _fitting(wanted, loop.trips, room, operands)
        if operands and not stages:
            refused.append(_no_room(loop, room, operands) if wanted else NO_ROOM_FOR_STAGES)
        if stages:
            decision = f"{len(operands)} windows copied ahead, {stages} stages"
            tiles = "; ".join(dict.fromkeys(described(operand.product) for operand in operands))
            taken = sum(operand.bytes(stages) for operand in operands)
            _Pipeline(loop, operands, stages).write()
            unit.remarks.append(Remark(self.name, kernel.sym_name, decision, f"{tiles}; {taken} bytes of {SHARED}"))
        for reason in dict.fromkeys(refused):
            unit.remarks.append(Remark(self.name, kernel.sym_name, "copies not pipelined", reason))


def _found(region: scheduled.ParallelOp, loop: tile.ForOp, machine: Machine) -> tuple[list[Operand], list[str]]:
    """The operands of a loop's matmuls that can be copied ahead, and why the others cannot."""
    warps = 1 if region.warps is None else region.warps
    operands: list[Operand] = []
    refused: list[str] = []
    products = [each for each in loop.body.block.ops if isinstance(each, scheduled.MmaOp)]
    for op in (each for each in products if not isinstance(each.right.owner, scheduled.StageOp)):
        for side in (op.left, op.right):
            try:
                window = window_behind(side, loop.body.block, side is op.left)
                if any(map(is_point, window.load.symbols)):
                    raise Refused("the offset of a window is computed in the loop")
                operands.append(Operand(op, side, window, landing_of(op, side, window, warps, machine)))
            except Refused as reason:
                refused.append(str(reason))
    return operands, refused


def _loops(block: Block) -> Iterator[tile.ForOp]:
    for op in block.walk():
        if isinstance(op, tile.ForOp):
            yield op


def _fitting(wanted: int, trips: int, room: int, operands: Sequence[Operand]) -> int:
    """The most stages, up to those wanted, that the loop has trips and the memory room for; 0 for less than 2."""
    for stages in range(min(wanted, trips), 1, -1):
        if operands and sum(operand.bytes(stages) for operand in operands) <= room:
            return stages
    return 0


def _no_room(loop: tile.ForOp, room: int, operands: Sequence[Operand]) -> str:
    if loop.trips < 2:
        return "the loop has one trip"
    return f"two stages need {sum(operand.bytes(2) for operand in operands)} bytes of {SHARED}, {room} are left"


@dataclass
class _Pipeline:
    """Writes the copies of a loop's operands: before it, at the head of its body, and a wait after it."""

    loop: tile.ForOp
    operands: Sequence[Operand]
    stages: int

    def write(self) -> None:
        block, counter = self.loop.body.block, self.loop.body.block.args[0]
        rings = [operand.ring(self.stages) for operand in self.operands]
        before: list[Operation] = [*rings, _barrier()]
        for trip in range(self.stages - 1):
            for operand, ring in zip(self.operands, rings, strict=True):
                before += self._first_copy(operand, ring, trip)
            before.append(scheduled.CommitOp())
        head: list[Operation] = [scheduled.WaitOp(pending=self.stages - 2)]
        if any(operand.product.asynchronous for operand in self.operands):
            head.append(asynchronous.FenceOp())
        head.append(_barrier())
        for operand, ring in zip(self.operands, rings, strict=True):
            head += self._next_copy(operand, ring)
        head.append(scheduled.CommitOp())
        read = [stage_of(ring, [counter], AffineExpr.symbol(0) % self.stages) for ring in rings]
        remove_trips([store for operand in self.operands for _, store in operand.window.trips])
        for operand, stage in zip(self.operands, read, strict=True):
            take_from(operand, stage)
        first = block.first_op
        assert first is not None
        block.insert_ops_before([*head, *read], first)
        around = block_of(self.loop)
        around.insert_ops_before(before, self.loop)
        around.insert_op_after(scheduled.WaitOp(pending=0), self.loop)

    def _first_copy(self, operand: Operand, ring: scheduled.AllocOp, trip: int) -> list[Operation]:
        """The copy of a trip's window before the loop: the counter is a number."""
        window = operand.window
        counter = self.loop.body.block.args[0]
        symbols = [s for s in window.load.symbols if s is not counter]
        kept = iter(range(len(symbols)))
        by = [AffineExpr.constant(trip) if s is counter else AffineExpr.symbol(next(kept)) for s in window.load.symbols]
        map = with_symbols(window.map, by, len(symbols))
        stage = stage_of(ring, [], AffineExpr.constant(trip))
        return [stage, self._copy(operand, stage, symbols, map)]

    def _next_copy(self, operand: Operand, ring: scheduled.AllocOp) -> list[Operation]:
        """The copy of the window of `stages - 1` trips later, if there is such a trip."""
        window = operand.window
        counter = self.loop.body.block.args[0]
        symbols = list(window.load.symbols)
        if counter not in symbols:
            symbols.append(counter)
        at = symbols.index(counter)
        later = AffineExpr.symbol(at) + (self.stages - 1)
        by = [later if s is counter else AffineExpr.symbol(n) for n, s in enumerate(window.load.symbols)]
        stage = stage_of(ring, [counter], (AffineExpr.symbol(0) + (self.stages - 1)) % self.stages)
        map = with_symbols(window.map, by, len(symbols))
        trip = AffineMap(0, len(symbols), (later,))
        return [stage, self._copy(operand, stage, symbols, map, trip)]

    def _copy(
        self,
        operand: Operand,
        stage: scheduled.StageOp,
        symbols: Sequence[SSAValue],
        map: AffineMap,
        trip: AffineMap | None = None,
    ) -> Operation:
        """Copy a window to a stage; with a `trip`, only if the loop has it."""
        op = scheduled.CopyOp(
            source=operand.window.load.source,
            destination=stage.result,
            symbols=symbols,
            map=map,
            trip=trip,
            trips=None if trip is None else self.loop.trips,
            layout=str(operand.landing.threads),
        )
        op.location = operand.window.load.location
        return op


def _barrier() -> scheduled.BarrierOp:
    return scheduled.BarrierOp(scope=scheduled.BLOCK)

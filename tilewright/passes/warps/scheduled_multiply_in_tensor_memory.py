"""Specialize a loop of matmuls in tensor memory: one warp issues tensor copies, one issues MMAs.

The loop is replaced by two roles. The producer warp waits until a stage of a ring of buffers is empty, declares the
bytes to expect and issues the copies, which complete a phase of the stage's barrier: the stage is full. The MMA warp
waits for that, issues the MMAs of the stage, and commits: when they complete, the stage is empty. Its last commit
signals that the sum is complete, which the other warps wait for; then they load it to registers, and free tensor
memory.

Before (sm_100a):
    func.func @main(%x: tensor<128x48xf16>, %y: tensor<48x32xf16>) -> tensor<128x32xf16> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<128x32xf16>
      func.return %z : tensor<128x32xf16>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<128x48xf16>>, %1: !tile.ref<tensor<48x32xf16>>, %2: !tile.ref<tensor<128x32xf16>>):
      scheduled.parallel() {extents = array<i64: 1, 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = tile.full() {value = 0.000000e+00 : f64} : tensor<128x32xf32>
        %6 = tile.relayout(%5) {layout = "(128, 32) : [4@warp 32@lane | 32@reg]", strict = false} : tensor<128x32xf32,
                "(128, 32) : [4@warp 32@lane | 32@reg]">
        %7 = tile.for(%6) {trips = 3 : index} do {
        ^bb0(%8: index, %9: tensor<128x32xf32, "(128, 32) : [4@warp 32@lane | 32@reg]">):
          %10 = tile.load(%0, %3, %8) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 128)), (d1 + (s1 * 16)))>,
                  fill = 0.000000e+00 : f64} : tensor<128x16xf16,
                  "(128, 16) : [2@reg*8 4@warp 16@lane*2 | 2@lane 8@reg]">
          %11 = tile.load(%1, %8, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 + (s1 * 32)))>, fill
                  = 0.000000e+00 : f64} : tensor<16x32xf16, "(16, 32) : [2@warp 8@lane*4 | 4@lane 8@reg]">
          %12 = scheduled.alloc() : !tile.ref<tensor<128x16xf16>, "block",
                  "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
          %13 = scheduled.alloc() : !tile.ref<tensor<16x32xf16>, "block",
                  "(16, 32) : [2@mem.shared*256 8@mem.shared*32 | 32@mem.shared] + swizzle[mem.shared{3:5}^{6:8}]">
          scheduled.barrier() {scope = "block"}
          tile.store(%10, %12) {map = affine_map<(d0, d1) -> (d0, d1)>}
          tile.store(%11, %13) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.fence()
          scheduled.barrier() {scope = "block"}
          %14 = scheduled.mma(%12, %13, %9) {atom = "tcgen05, 1 warpgroup", asynchronous = true} : tensor<128x32xf32,
                  "(128, 32) : [4@warp 32@lane | 32@reg]">
          %15 = scheduled.mma_wait(%14) {pending = 0 : index} : tensor<128x32xf32,
                  "(128, 32) : [4@warp 32@lane | 32@reg]">
          tile.yield(%15)
        } : tensor<128x32xf32, "(128, 32) : [4@warp 32@lane | 32@reg]">
        %16 = tile.cast(%7) : tensor<128x32xf16, "(128, 32) : [4@warp 32@lane | 32@reg]">
        tile.store(%16, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 128)), (d1 + (s1 * 32)))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<128x48xf16>, %y: tensor<48x32xf16>) -> tensor<128x32xf16> {
      %z = array.call(%x, %y) {callee = "product"} : tensor<128x32xf16>
      func.return %z : tensor<128x32xf16>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"], stages = 2 : index} do {
    ^bb0(%0: !tile.ref<tensor<128x48xf16>>, %1: !tile.ref<tensor<48x32xf16>>, %2: !tile.ref<tensor<128x32xf16>>):
      scheduled.parallel() {extents = array<i64: 1, 1>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%3: index, %4: index):
        %5 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<128x16xf16>, "block",
                "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
        %6 = scheduled.alloc() {stages = 2 : index} : !tile.ref<tensor<16x32xf16>, "block",
                "(16, 32) : [2@mem.shared*256 8@mem.shared*32 | 32@mem.shared] + swizzle[mem.shared{3:5}^{6:8}]">
        %7 = scheduled.tensor_alloc() {columns = 32 : index} : !tile.ref<tensor<128x32xf32>, "tensor",
                "(128, 32) : [128@tmem.row | 32@tmem.col]">
        %8 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %9 = scheduled.mbarrier() {count = 2 : index, arrivals = 1 : index} : !tile.ref<tensor<2xi64>, "block">
        %10 = scheduled.mbarrier() {count = 1 : index, arrivals = 1 : index} : !tile.ref<tensor<1xi64>, "block">
        scheduled.barrier() {scope = "every role"}
        scheduled.role() {role = "copies", warps = 1 : index} do {
          tile.for() {trips = 3 : index} do {
          ^bb0(%11: index):
            scheduled.await(%9, %11) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> (((s0
                    floordiv 2) + -1))>}
            scheduled.expect(%8, %11) {number = affine_map<()[s0] -> ((s0 mod 2))>, bytes = 5120 : index}
            %12 = scheduled.stage(%5, %11) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<128x16xf16>,
                    "block",
                    "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            scheduled.tensor_copy(%0, %12, %8, %11, %3) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s1 * 128)), (d1 +
                    (s0 * 16)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            %13 = scheduled.stage(%6, %11) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x32xf16>,
                    "block",
                    "(16, 32) : [2@mem.shared*256 8@mem.shared*32 | 32@mem.shared] + swizzle[mem.shared{3:5}^{6:8}]">
            scheduled.tensor_copy(%1, %13, %8, %11, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 16)), (d1 +
                    (s1 * 32)))>, number = affine_map<()[s0, s1] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.end()
        }
        scheduled.role() {role = "multiplies", warps = 1 : index} do {
          tile.for() {trips = 3 : index} do {
          ^bb0(%14: index):
            scheduled.await(%8, %14) {number = affine_map<()[s0] -> ((s0 mod 2))>, phase = affine_map<()[s0] -> ((s0
                    floordiv 2))>}
            %15 = scheduled.stage(%5, %14) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<128x16xf16>,
                    "block",
                    "(128, 16) : [16@mem.shared*128 8@mem.shared*16 | 16@mem.shared] + swizzle[mem.shared{3:4}^{6:7}]">
            %16 = scheduled.stage(%6, %14) {map = affine_map<()[s0] -> ((s0 mod 2))>} : !tile.ref<tensor<16x32xf16>,
                    "block",
                    "(16, 32) : [2@mem.shared*256 8@mem.shared*32 | 32@mem.shared] + swizzle[mem.shared{3:5}^{6:8}]">
            scheduled.tensor_mma(%15, %16, %7, %14) {atom = "tcgen05, 1 warpgroup", adds = affine_map<()[s0] -> (s0)>}
            scheduled.mma_commit(%9, %14) {number = affine_map<()[s0] -> ((s0 mod 2))>}
            tile.yield()
          }
          scheduled.mma_commit(%10) {number = affine_map<() -> (0)>}
          scheduled.end()
        }
        scheduled.await(%10) {number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}
        scheduled.tensor_fence() {side = "after"}
        %17 = scheduled.tensor_load(%7) : tensor<128x32xf32, "(128, 32) : [4@warp 32@lane | 32@reg]">
        scheduled.tensor_fence() {side = "before"}
        scheduled.barrier() {scope = "block"}
        scheduled.tensor_free(%7)
        %18 = tile.cast(%17) : tensor<128x32xf16, "(128, 32) : [4@warp 32@lane | 32@reg]">
        tile.store(%18, %2, %3, %4) {map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 128)), (d1 + (s1 * 32)))>}
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
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.cost.warps.products import tensor_columns
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue import tensor_memory_accumulator
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.copied_windows import Landing, Refused
from tilewright.passes.warps.copying_role import (
    MULTIPLIES,
    TRIP,
    CopyingRole,
    await_phase,
    barriers,
    in_zones,
    labels_around,
    number,
)
from tilewright.passes.warps.operand_rings import Operand, described, drop_unused, left_bytes, stage_of, stages_beside
from tilewright.passes.warps.tensor_operands import tensor_operand
from tilewright.passes.warps.warp_space import SHARED


class ScheduledMultiplyInTensorMemoryPass(msgspec.Struct, frozen=True):
    """`stages`: how many tiles of each operand there are at once, where a kernel does not state it and they have
    room."""

    name: ClassVar[str] = "scheduled-multiply-in-tensor-memory"
    stages: int = 4

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                products = [op for op in region.walk() if isinstance(op, scheduled.MmaOp)]
                if len(products) == 1 and unit.machine.sums_in_tensor_memory(products[0].atom):
                    self._apply(unit, kernel, region, products[0])

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp, product: scheduled.MmaOp) -> None:
        """Whether the matmul fits was found out when it was named."""
        loop = product.parent_op()
        if not isinstance(loop, tile.ForOp) or loop.parent_op() is not region:
            raise CompilerBug("a matmul in tensor memory is not in a loop of its own")
        try:
            operands = [_operand(product, side, loop) for side in (product.left, product.right)]
        except Refused as reason:
            raise CompilerBug(f"a matmul in tensor memory is not fed by copies: {reason}") from reason
        wanted = self.stages if kernel.stages is None else kernel.stages
        stages = _stages(loop, operands, wanted, unit.machine)
        if prod(region.shape) > unit.machine.cores:
            room = unit.machine.memory_of(SHARED).bytes - _taken(loop, operands)
            stages = stages_beside(loop, stages, room, lambda each: _bytes(operands, each))
        decision = f"in tensor memory; a warp copies {len(operands)} windows ahead, {stages} stages"
        taken = sum(operand.bytes(stages) for operand in operands)
        reason = f"{described(product)}; {taken} bytes of {SHARED}"
        _Roles(region, loop, product, operands, stages).write()
        unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))


def _operand(product: scheduled.MmaOp, side: SSAValue, loop: tile.ForOp) -> Operand:
    window, buffer = tensor_operand(side, loop, side is product.left)
    return Operand(product, side, window, Landing(buffer))


def _stages(loop: tile.ForOp, operands: Sequence[Operand], wanted: int, machine: Machine) -> int:
    """The most stages, up to those wanted, that the loop has trips and the memory room for, and at least 2."""
    stages = max(2, min(wanted, loop.trips))
    while stages > 2 and _bytes(operands, stages) + _taken(loop, operands) > machine.memory_of(SHARED).bytes:
        stages -= 1
    return stages


def _taken(loop: tile.ForOp, operands: Sequence[Operand]) -> int:
    """Bytes of shared memory of the buffers in a loop, and of those before it."""
    block = block_of(loop)
    before = list(block.ops)[: block.get_operation_index(loop)]
    return sum(op.bytes for op in before if isinstance(op, scheduled.AllocOp)) + left_bytes(loop, operands)


def _bytes(operands: Sequence[Operand], stages: int) -> int:
    """Bytes of rings and their barriers, of two accumulators' barriers, and of their address."""
    rings = sum(operand.bytes(stages) for operand in operands)
    return rings + 2 * barriers(stages, 1).bytes + 5 * barriers(1, 1).bytes


@dataclass
class _Roles:
    """Writes the two warps at the beginning of a block, and what comes instead of the loop."""

    region: scheduled.ParallelOp
    loop: tile.ForOp
    product: scheduled.MmaOp
    operands: Sequence[Operand]
    stages: int

    def write(self) -> None:
        rings = [operand.ring(self.stages) for operand in self.operands]
        full, empty, done = barriers(self.stages, 1), barriers(self.stages, 1), barriers(1, 1)
        total = self._total()
        meeting = scheduled.BarrierOp(scope=scheduled.EVERY_ROLE)
        copies = CopyingRole(self.loop, self.operands, self.stages, rings, full, empty).role()
        multiplies = self._multiplies(rings, full, empty, done, total)
        first = self.region.body.block.first_op
        assert first is not None
        made = [*rings, total, full, empty, done, meeting, copies, multiplies]
        self.region.body.block.insert_ops_before(made, first)
        self._take_out(total, done)

    def _total(self) -> tensor_memory.TensorAllocOp:
        """The columns that the sum takes."""
        type = array_type(self.product.accumulator)
        lies = tensor_memory_accumulator(type.shape)
        result = tile.ref(type, tensor_memory.TENSOR, str(lies))
        return tensor_memory.TensorAllocOp(columns=tensor_columns(type.shape[1]), result=result)

    def _multiplies(
        self,
        rings: Sequence[scheduled.AllocOp],
        full: asynchronous.MbarrierOp,
        empty: asynchronous.MbarrierOp,
        done: asynchronous.MbarrierOp,
        total: tensor_memory.TensorAllocOp,
    ) -> scheduled.RoleOp:
        """The loop of the MMA warp: each trip reads a stage."""
        body = Block(arg_types=[IndexType()])
        trip, stage = body.args[0], TRIP % self.stages
        tiles = [stage_of(ring, [trip], stage) for ring in rings]
        left, right = (each.result for each in tiles)
        product = tensor_memory.TensorMmaOp(
            left=left,
            right=right,
            accumulator=total.result,
            symbols=[trip],
            atom=self.product.atom,
            adds=number(TRIP),
        )
        product.location = self.product.location
        emptied = tensor_memory.MmaCommitOp(mbarrier=empty.result, symbols=[trip], number=number(stage))
        wait = await_phase(full, trip, stage, TRIP // self.stages)
        multiplied = in_zones(labels_around(self.product), [product])
        body.add_ops([wait, *tiles, *multiplied, emptied, tile.YieldOp()])
        loop = tile.ForOp(trips=self.loop.trips, body=Region(body))
        finished = tensor_memory.MmaCommitOp(mbarrier=done.result, number=_only())
        block = Block()
        block.add_ops([*in_zones(labels_around(self.loop), [loop]), finished, scheduled.EndOp()])
        return scheduled.RoleOp(role=MULTIPLIES, warps=1, body=Region(block))

    def _take_out(self, total: tensor_memory.TensorAllocOp, done: asynchronous.MbarrierOp) -> None:
        """Instead of the loop its sum is waited for, loaded, and tensor memory given back."""
        (result,), (start,) = self.loop.results, self.loop.initial
        loaded = tensor_memory.TensorLoadOp(source=total.result, result=result.type)
        made: list[Operation] = [
            asynchronous.AwaitOp(mbarrier=done.result, number=_only(), phase=_only()),
            _fence(tensor_memory.AFTER),
            loaded,
            _fence(tensor_memory.BEFORE),
            scheduled.BarrierOp(scope=scheduled.BLOCK),
            tensor_memory.TensorFreeOp(tensor=total.result),
        ]
        around = block_of(self.loop)
        around.insert_ops_before(made, self.loop)
        result.replace_all_uses_with(loaded.result)
        erase(self.loop)
        drop_unused(start)


def _only() -> AffineMap:
    """Of one barrier the only one, and its first phase."""
    return AffineMap(0, 0, (AffineExpr.constant(0),))


def _fence(side: str) -> tensor_memory.TensorFenceOp:
    return tensor_memory.TensorFenceOp(side=side)

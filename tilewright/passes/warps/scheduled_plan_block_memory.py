"""Assign shared memory offsets to the buffers of a thread block.

A buffer lives from its allocation to its last use, through the whole of a loop that uses it and does not allocate it.
Buffers that live at the same time are apart; others may share bytes, if between the last use of the one and the first
of the other all warps meet at a barrier. Barriers in memory, and the address of tensor memory, are after all buffers.
Kernels that need more than there is are reported together: the program is compiled again with smaller plans for them.

Before (sm_90a):
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        %b = scheduled.alloc() : !tile.ref<tensor<64xf32>, "block", "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%a, %b) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %c = tile.load(%b) {map = affine_map<(d0) -> (((d0 * -1) + 63))>} : tensor<64xf32,
            "(64) : [2@warp 32@lane]">
        %d = scheduled.alloc() : !tile.ref<tensor<64xf32>, "block", "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%c, %d) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %e = tile.load(%d) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [32@lane 2@warp]">
        tile.store(%e, %out) {map = affine_map<(d0) -> (d0)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %y = array.call(%x) {callee = "turned"} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
    tile.kernel() {sym_name = "turned", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        %b = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%a, %b) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %c = tile.load(%b) {map = affine_map<(d0) -> (((d0 * -1) + 63))>} : tensor<64xf32,
            "(64) : [2@warp 32@lane]">
        %d = scheduled.alloc() {offset_bytes = 0 : index} : !tile.ref<tensor<64xf32>, "block",
            "(64) : [64@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%c, %d) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %e = tile.load(%d) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [32@lane 2@warp]">
        tile.store(%e, %out) {map = affine_map<(d0) -> (d0)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of, in_block
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import DoesNotFit, Excess
from tilewright.passes.warps.warp_space import SHARED

# Barriers in memory begin at multiples of their size.
_MBARRIER_BYTES = 8


class ScheduledPlanBlockMemoryPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-plan-block-memory"

    def apply(self, unit: Unit) -> None:
        room = unit.machine.memory_of(SHARED).bytes
        excesses: list[Excess] = []
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                needed = _plan(region.body.block)
                if needed > room:
                    excesses.append(Excess(kernel.sym_name, needed, room, unit.machine.name))
        if excesses:
            raise DoesNotFit.of(excesses)


@dataclass
class _Life:
    """A buffer and when it lives, as numbers of operations in the order of the text."""

    op: scheduled.AllocOp
    first: int
    last: int
    offset_bytes: int = 0

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.op.bytes


@dataclass
class _Times:
    """The number of each operation and of its end, the numbers of the barriers, and from where to where loops and
    branches are."""

    number: dict[Operation, int] = field(default_factory=dict[Operation, int])
    end: dict[Operation, int] = field(default_factory=dict[Operation, int])
    barriers: list[int] = field(default_factory=list[int])
    inside: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


def _plan(block: Block) -> int:
    """Set the addresses of all buffers of a block; gives the bytes that they take."""
    times = _Times()
    _count(block, times, count())
    lives = [_life(op, times) for op in times.number if isinstance(op, scheduled.AllocOp)]
    placed: list[_Life] = []
    for life in sorted(lives, key=lambda each: -each.op.bytes):
        apart = [other for other in placed if not _may_share(life, other, times)]
        life.offset_bytes = _lowest(life.op.bytes, apart)
        life.op.offset_bytes = life.offset_bytes
        placed.append(life)
    end = max((life.end_bytes for life in placed), default=0)
    for op in (op for op in times.number if isinstance(op, asynchronous.MbarrierOp | tensor_memory.TensorAllocOp)):
        start = -(-end // _MBARRIER_BYTES) * _MBARRIER_BYTES
        op.offset_bytes = start
        end = start + op.bytes
    return end


def _count(block: Block, times: _Times, numbers: Iterator[int]) -> None:
    for op in block.ops:
        times.number[op] = next(numbers)
        if isinstance(op, scheduled.BarrierOp) and op.scope != scheduled.WARP:
            times.barriers.append(times.number[op])
        for region in op.regions:
            _count(region.block, times, numbers)
        times.end[op] = next(numbers)
        if op.regions:
            times.inside.append((times.number[op], times.end[op]))


def _life(op: scheduled.AllocOp, times: _Times) -> _Life:
    first = last = times.number[op]
    for user in _users(op):
        last = max(last, times.end[in_block(user, block_of(op))])
    return _Life(op, first, last)


def _users(op: scheduled.AllocOp | scheduled.StageOp) -> Iterator[Operation]:
    """The operations that use a buffer or a stage of it, and the waits for those that are asynchronous; for matmuls to
    tensor memory the loads of their sum."""
    for use in op.result.uses:
        if isinstance(use.operation, scheduled.StageOp):
            yield from _users(use.operation)
            continue
        yield use.operation
        if isinstance(use.operation, scheduled.MmaOp) and use.operation.asynchronous:
            yield from _waits(use.operation.result)
        if isinstance(product := use.operation, tensor_memory.TensorMmaOp):
            loads = list(tensor_memory.loads_of(product.accumulator))
            # Of sums that several products add up to, those of this one are beside it.
            beside = [load for load in loads if load.parent_block() is product.parent_block()]
            yield from beside or loads


def _waits(going: SSAValue) -> Iterator[Operation]:
    """The waits for an asynchronous MMA, one trip of the loops around it: the last is for all."""
    for use in going.uses:
        user = use.operation
        if isinstance(user, scheduled.MmaWaitOp):
            yield user
            if user.pending:
                yield from _waits(user.result)
        elif isinstance(user, tile.YieldOp) and isinstance(loop := user.parent_op(), tile.ForOp):
            yield from _waits(loop.results[use.index])


def _may_share(one: _Life, other: _Life, times: _Times) -> bool:
    """Whether two buffers live at different times, with a barrier between, also from one trip of a loop to the next."""
    early, late = (one, other) if one.first < other.first else (other, one)
    if late.first <= early.last:
        return False
    return _has_barrier(early.last, _first_use(late, times), times) and _has_barrier_round(early, late, times)


def _first_use(life: _Life, times: _Times) -> int:
    return min((times.number[user] for user in _users(life.op)), default=life.first)


def _has_barrier(start: int, end: int, times: _Times) -> bool:
    """Whether all warps meet between two points on every way: at a barrier in no loop or branch that is between."""
    for number in times.barriers:
        if start < number < end and not any(start < first < number < last < end for first, last in times.inside):
            return True
    return False


def _has_barrier_round(early: _Life, late: _Life, times: _Times) -> bool:
    """The check for the path from the later buffer back to the earlier one, in each loop that has both."""
    around = early.op.parent_op()
    while around is not None:
        start, end = times.number.get(around), times.end.get(around)
        if isinstance(around, tile.ForOp) and start is not None and end is not None and start < late.first < end:
            first = _first_use(early, times)
            if not _has_barrier(late.last, end, times) and not _has_barrier(start, first, times):
                return False
        around = around.parent_op()
    return True


def _lowest(size: int, apart: Sequence[_Life]) -> int:
    """The lowest aligned place for some bytes that overlaps none of others."""
    step = scheduled.BUFFER_ALIGNMENT_BYTES
    starts = sorted({0, *(-(-life.end_bytes // step) * step for life in apart)})
    return next(
        start for start in starts if all(start >= life.end_bytes or start + size <= life.offset_bytes for life in apart)
    )

"""Warps with a role, barriers in memory, and copies that the machine makes by itself.

A role of one warp is run by one of its lanes, which is all that waiting for barriers and beginning copies takes. PTX
ISA, mbarrier, elect.sync and cp.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory, tile_order
from tilewright.errors import CompilerBug
from tilewright.passes.warps.tensor_windows import Boxes, boxes_of
from tilewright.passes.warps.tile_lower_to_warps import parsed
from tilewright.records import dataclass
from tilewright.runtime.cuda.steps import TensorMap
from tilewright.targets.cuda.atoms import blackwell, hopper
from tilewright.targets.cuda.atoms.tensor_memory import by_one_thread
from tilewright.targets.cuda.intrinsics import NVIDIA
from tilewright.targets.simt.emit_memory import Memory, evaluated
from tilewright.targets.simt.fragments import Builder, Threads, Value, i32

# What one lane of a role may do.
_OF_ONE_LANE = (
    *(asynchronous.AwaitOp, asynchronous.ExpectOp, asynchronous.TensorCopyOp, scheduled.StageOp, scheduled.EndOp),
    *(tensor_memory.TensorMmaOp, tensor_memory.MmaCommitOp),
    *(tensor_memory.TensorStageOp, tensor_memory.TensorFenceOp),
    *(tile.ForOp, tile.YieldOp, tile_order.PointOp),
    *(scheduled.SetRegistersOp, scheduled.RecordOp),
)
# Of a block's barriers, the one of the warps that have no role (PTX ISA, bar: 16 of them); number 0 is of all.
_WITHOUT_ROLES = 1


MoveOp = asynchronous.TensorCopyOp | asynchronous.TensorStoreOp
UseOp = (
    asynchronous.ExpectOp
    | asynchronous.ArriveOp
    | asynchronous.AwaitOp
    | asynchronous.TensorCopyOp
    | tensor_memory.MmaCommitOp
)


@dataclass
class Roles:
    """The warps of a kernel's blocks: `warps` without a role and those of roles after them; and the tensor maps that
    are parameters after its refs. `shares_registers`: a block of so many threads has not all registers for each."""

    kernel: tile.KernelOp
    region: scheduled.ParallelOp
    warps: int
    lanes: int
    shares_registers: bool = False
    tensor_maps: tuple[TensorMap, ...] = field(init=False)

    def __post_init__(self) -> None:
        ops = list(self.kernel.walk())
        self._of_roles = sum(op.warps for op in ops if isinstance(op, scheduled.RoleOp))
        self._next_warp = self.warps
        copies = [op for op in ops if isinstance(op, asynchronous.TensorCopyOp | asynchronous.TensorStoreOp)]
        described = {op: _tensor_map(op, self.kernel.refs.index(_array(op))) for op in copies}
        self.tensor_maps = tuple(dict.fromkeys(described.values()))
        self._numbers = {op: self.tensor_maps.index(found) for op, found in described.items()}

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return (self.warps + self._of_roles) * self.lanes

    def begin(self, function: Any) -> None:
        """Take the tensor maps from the last arguments of a function. The assembler has to leave each thread of a block
        with roles, or with many threads, its share of the registers: it is notified how many there are."""
        self._maps = [hopper.tensor_map(argument) for argument in function.args[len(self.kernel.refs) :]]
        if self._of_roles or self.shares_registers:
            _annotate(function, "maxntidx", self.threads)
        if self.cluster > 1:
            for axis, blocks in (("x", self.cluster), ("y", 1), ("z", 1)):
                _annotate(function, f"cluster_dim_{axis}", blocks)
        if self.region.registers is not None:
            _annotate(function, "maxnreg", self.region.registers)

    @property
    def cluster(self) -> int:
        """How many blocks are one."""
        return self.region.blocks_of_cluster

    def barrier(self, builder: Builder, op: scheduled.BarrierOp) -> None:
        """A barrier of a block leaves out the warps of roles."""
        if op.scope == scheduled.CLUSTER:
            hopper.cluster_sync(builder)
        elif self._of_roles and op.scope == scheduled.BLOCK:
            hopper.barrier_sync(builder, _WITHOUT_ROLES, self.warps * self.lanes)
        else:
            NVIDIA.barrier(builder, op.scope)

    def run(self, threads: Threads, op: scheduled.RoleOp, emit: Callable[[], None]) -> None:
        """Branch to a role by the number of the warp; `emit` writes what an elected lane of its first warp does, when
        all have set their registers. The others of the role end there, those without one continue.

        Raises:
            CompilerBug: one lane cannot do what the role does.
        """
        unfit = [each.name for each in op.body.block.walk() if not isinstance(each, _OF_ONE_LANE)]
        if unfit or op.working != 1:
            raise CompilerBug(f"a role of {op.working} warps with {', '.join(unfit) or 'nothing unusual'}")
        builder, warp = threads.builder, threads.numbers["warp"]
        first, count = self._next_warp, op.warps
        self._next_warp += count
        own, others = builder.append_basic_block(op.role), builder.append_basic_block("without_role")
        builder.cbranch(builder.icmp_unsigned("<", builder.sub(warp, i32(first)), i32(count)), own, others)
        builder.position_at_end(own)
        for each in op.body.block.ops:
            if isinstance(each, scheduled.SetRegistersOp):
                self._give_or_take(builder, each)
        with builder.if_then(builder.icmp_unsigned("==", warp, i32(first))), builder.if_then(hopper.elect_one(builder)):
            emit()
        builder.ret_void()
        builder.position_at_end(others)

    def set_registers(self, builder: Builder, op: scheduled.SetRegistersOp) -> None:
        """Outside of roles; in one it has been done by whole warps, before a lane is elected."""
        if not isinstance(op.parent_op(), scheduled.RoleOp):
            self._give_or_take(builder, op)

    def _give_or_take(self, builder: Builder, op: scheduled.SetRegistersOp) -> None:
        if self.region.registers is None:
            raise CompilerBug("registers are released that were never allocated")
        count = op.count
        hopper.set_most_registers(builder, count, grows=count > self.region.registers)

    def make(self, threads: Threads, op: asynchronous.MbarrierOp, start: Value) -> None:
        """The first thread begins the first phases of barriers in memory."""
        builder = threads.builder
        with builder.if_then(_is_first(threads)):
            for number in range(op.count):
                hopper.mbarrier_init(builder, _at(builder, start, i32(number)), op.arrivals)
            hopper.fence_mbarrier_init(builder)

    def store(
        self,
        threads: Threads,
        op: asynchronous.TensorStoreOp,
        source: Memory,
        indices: Mapping[SSAValue, Value],
    ) -> None:
        """The first thread has a buffer stored."""
        builder = threads.builder
        symbols = [indices[symbol] for symbol in op.symbols]
        with builder.if_then(_is_first(threads)):
            for place, coordinates in _places(builder, op, source.pointer, symbols):
                hopper.tensor_copy_out(builder, self._maps[self._numbers[op]], coordinates, place)
            hopper.bulk_commit(builder)

    def wait_for_stores(self, threads: Threads) -> None:
        """The first thread waits until the buffers that it has stored have been read."""
        with threads.builder.if_then(_is_first(threads)):
            hopper.bulk_wait(threads.builder, 0, only_read=True)

    def use(
        self,
        threads: Threads,
        op: UseOp,
        memories: Mapping[SSAValue, Memory],
        indices: Mapping[SSAValue, Value],
    ) -> None:
        """Wait for a phase of a barrier in memory, or do something that completes one."""
        builder = threads.builder
        symbols = [indices[symbol] for symbol in op.symbols]
        barrier = _at(builder, memories[op.mbarrier].pointer, _number(builder, op.number, symbols))
        match op:
            case asynchronous.ExpectOp():
                hopper.mbarrier_expect(builder, barrier, i32(op.bytes))
            case asynchronous.ArriveOp():
                self._arrive(threads, op, barrier, symbols)
            case asynchronous.AwaitOp():
                # The phase before the first, and those before it, count as complete.
                phase = _number(builder, op.phase, symbols)
                hopper.mbarrier_wait(builder, barrier, builder.and_(phase, i32(1)))
            case tensor_memory.MmaCommitOp():
                by_one_thread(threads, op, lambda: self._commit(builder, op, barrier))
            case asynchronous.TensorCopyOp():
                tensor_map = self._maps[self._numbers[op]]
                _copy(builder, op, tensor_map, memories[op.destination].pointer, barrier, symbols)

    def _arrive(self, threads: Threads, op: asynchronous.ArriveOp, barrier: Value, symbols: Sequence[Value]) -> None:
        """The first thread of each warpgroup arrives, if there is a trip for it; everywhere in a cluster, its first
        threads do, each at the block of a rank."""
        builder = threads.builder
        if threads.extents["warp"] % WARPGROUP:
            raise CompilerBug(f"an arrival by warpgroups of {threads.extents['warp']} warps")
        within, lane = builder.urem(threads.numbers["warp"], i32(WARPGROUP)), threads.numbers["lane"]
        is_everywhere = op.everywhere and self.cluster > 1
        if is_everywhere:
            is_one_of_them = builder.icmp_unsigned("<", lane, i32(self.cluster))
            arrives = builder.and_(builder.icmp_unsigned("==", within, i32(0)), is_one_of_them)
        else:
            arrives = builder.icmp_unsigned("==", builder.or_(within, lane), i32(0))
        if op.trip is not None:
            begun = builder.icmp_signed(">=", _number(builder, op.trip, symbols), i32(0))
            arrives = builder.and_(arrives, begun)
        with builder.if_then(arrives):
            if is_everywhere:
                hopper.mbarrier_arrive_at(builder, barrier, lane)
            else:
                hopper.mbarrier_arrive(builder, barrier)

    def _commit(self, builder: Builder, op: tensor_memory.MmaCommitOp, barrier: Value) -> None:
        if op.everywhere and self.cluster > 1:
            blackwell.tcgen05_commit_to(builder, barrier, self.cluster)
        else:
            blackwell.tcgen05_commit(builder, barrier)

    def notes(self, threads: Threads, op: scheduled.RecordOp) -> Value:
        """Whether this is the thread of its role that notes the time."""
        around = op.parent_op()
        while around is not None and not isinstance(around, scheduled.RoleOp):
            around = around.parent_op()
        return _is_first(threads) if around is None else ir.Constant(hopper.I1, 1)


def _annotate(function: Any, name: str, value: int) -> None:
    entry = ir.FormattedConstant(ir.PointerType(), function.get_reference())
    function.module.add_named_metadata("nvvm.annotations", [entry, name, i32(value)])


def _is_first(threads: Threads) -> Value:
    """Whether this is the first thread of the block."""
    number = threads.builder.or_(threads.numbers["warp"], threads.numbers["lane"])
    return threads.builder.icmp_unsigned("==", number, i32(0))


def _at(builder: Builder, start: Value, number: Value) -> Value:
    return builder.gep(start, [number], source_etype=hopper.I64)


def _number(builder: Builder, map: AffineMap, symbols: Sequence[Value]) -> Value:
    return evaluated(builder, map.results[0], [], symbols)


def _array(op: MoveOp) -> SSAValue:
    return op.source if isinstance(op, asynchronous.TensorCopyOp) else op.destination


def _boxes(op: MoveOp) -> Boxes:
    is_copy = isinstance(op, asynchronous.TensorCopyOp)
    buffer, shared = (op.destination, op.parts) if is_copy else (op.source, None)
    return boxes_of(op.map, tile.ref_type(_array(op)), parsed(tile.ref_type(buffer).layout.data), shared)


def _tensor_map(op: MoveOp, parameter: int) -> TensorMap:
    """The array as stored, its last dim first."""
    boxes, source = _boxes(op), tile.ref_type(_array(op))
    rank, item = len(source.shape), source.dtype.itemsize
    strides = [prod(source.shape[dim + 1 :]) * item for dim in range(rank - 1)]
    return TensorMap(
        parameter=parameter,
        dtype=tile.ref_type(op.destination).dtype.name,
        shape=source.shape[::-1],
        strides=tuple(reversed(strides)),
        box=boxes.box[::-1],
        swizzle=boxes.swizzle,
    )


def _copy(
    builder: Builder,
    op: asynchronous.TensorCopyOp,
    tensor_map: Value,
    target: Value,
    barrier: Value,
    symbols: Sequence[Value],
) -> None:
    """Begin the copies of all boxes of a window, or of the block's part of one."""
    blocks, rank = (1, None) if op.parts is None else (op.parts[0], hopper.rank_in_cluster(builder))
    for place, coordinates in _places(builder, op, target, symbols, rank):
        hopper.tensor_copy_in(builder, place, tensor_map, coordinates, barrier, blocks=blocks)


def _places(
    builder: Builder, op: MoveOp, buffer: Value, symbols: Sequence[Value], rank: Value | None = None
) -> Iterator[tuple[Value, list[Value]]]:
    """The address of each box of a window in the buffer, and in the array, its last dim first; of a window that blocks
    share, those of a rank."""
    boxes = _boxes(op)
    if rank is not None:
        buffer = builder.gep(buffer, [builder.mul(rank, i32(boxes.rank_bytes))], source_etype=ir.IntType(8))
    for start, offset_bytes in boxes.parts:
        index = [i32(at) for at in start]
        if rank is not None:
            steps = zip(index, boxes.rank_index, strict=True)
            index = [builder.add(at, builder.mul(rank, i32(step))) if step else at for at, step in steps]
        coordinates = [evaluated(builder, expression, index, symbols) for expression in op.map.results]
        place = builder.gep(buffer, [i32(offset_bytes)], source_etype=ir.IntType(8)) if offset_bytes else buffer
        yield place, coordinates[::-1]

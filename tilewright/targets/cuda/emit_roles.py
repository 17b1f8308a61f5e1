"""Warps with a role, barriers in memory, and copies that the machine makes by itself.

A role of one warp is run by one of its lanes, which is all that waiting for barriers and beginning copies takes. PTX
ISA, mbarrier, elect.sync and cp.async.bulk.tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from llvmlite import ir
from xdsl.ir import Operation
from xdsl.ir.affine import AffineMap

from tilewright.cost.warp_products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import decode
from tilewright.errors import CompilerBug
from tilewright.passes.tensor_windows import Boxes, boxes_of
from tilewright.passes.tile_lower_to_warps import parsed
from tilewright.runtime.cuda_steps import TensorMap
from tilewright.targets.cuda import hopper
from tilewright.targets.cuda.emit_memory import evaluated
from tilewright.targets.cuda.fragments import Builder, Threads, Value, i32

# What one lane of a role may do.
_OF_ONE_LANE = (
    *(scheduled.AwaitOp, scheduled.ExpectOp, scheduled.TensorCopyOp, scheduled.StageOp, scheduled.EndOp),
    *(tile.ForOp, tile.YieldOp),
)
# Of a block's barriers, the one of the warps that have no role (PTX ISA, bar: 16 of them); number 0 is of all.
_WITHOUT_ROLES = 1


def role_warps(kernel: tile.KernelOp) -> int:
    """The warps of a block that have a role."""
    return sum(int(decode(op.warps)) for op in kernel.walk() if isinstance(op, scheduled.RoleOp))


def begin_role(threads: Threads, op: scheduled.RoleOp, first_warp: int) -> tuple[Value, Value]:
    """Branch to a role by the number of the warp: the block of its elected lane, in which the builder is then, and that
    where the others go on.

    Raises:
        CompilerBug: one lane cannot do what the role does.
    """
    unfit = [each.name for each in op.body.block.walk() if not isinstance(each, _OF_ONE_LANE)]
    if unfit or decode(op.warps) != 1:
        raise CompilerBug(f"a role of {decode(op.warps)} warps with {', '.join(unfit) or 'nothing unusual'}")
    builder = threads.builder
    own, others = builder.append_basic_block(op.role.data), builder.append_basic_block("without_role")
    builder.cbranch(builder.icmp_unsigned("==", threads.numbers["warp"], i32(first_warp)), own, others)
    builder.position_at_end(own)
    elected, ended = builder.append_basic_block("elected"), builder.append_basic_block("role_ended")
    builder.cbranch(hopper.elect_one(builder), elected, ended)
    builder.position_at_end(elected)
    return ended, others


def end_role(builder: Builder, ended: Value, others: Value) -> None:
    """The warp of a role ends; go on with the others."""
    builder.branch(ended)
    builder.position_at_end(ended)
    builder.ret_void()
    builder.position_at_end(others)


def emit_block_barrier(builder: Builder, threads: int) -> None:
    """All warps without a role meet."""
    hopper.barrier_sync(builder, _WITHOUT_ROLES, threads)


# ---- barriers in memory ---------------------------------------------------------------------------------------------


def emit_mbarriers(threads: Threads, op: scheduled.MbarrierOp, start: Value, is_first_thread: Value) -> None:
    """One thread begins their first phases."""
    builder = threads.builder
    with builder.if_then(is_first_thread):
        for number in range(int(decode(op.count))):
            hopper.mbarrier_init(builder, _at(builder, start, i32(number)), int(decode(op.arrivals)))
        hopper.fence_mbarrier_init(builder)


def barrier_of(builder: Builder, start: Value, number: AffineMap, symbols: Sequence[Value]) -> Value:
    """The barrier whose number is an expression of symbols."""
    return _at(builder, start, _number(builder, number, symbols))


def _at(builder: Builder, start: Value, number: Value) -> Value:
    return builder.gep(start, [number], source_etype=hopper.I64)


def _number(builder: Builder, map: AffineMap, symbols: Sequence[Value]) -> Value:
    return evaluated(builder, map.results[0], [], symbols)


def emit_await(builder: Builder, op: scheduled.AwaitOp, barrier: Value, symbols: Sequence[Value]) -> None:
    """The phase before the first, and those before it, count as complete."""
    phase = _number(builder, op.phase.data, symbols)
    hopper.mbarrier_wait(builder, barrier, builder.and_(phase, i32(1)))


def emit_arrive(threads: Threads, op: scheduled.ArriveOp, barrier: Value, symbols: Sequence[Value]) -> None:
    """The first thread of each warpgroup arrives, if there is a trip for it."""
    builder = threads.builder
    if threads.extents["warp"] % WARPGROUP:
        raise CompilerBug(f"an arrival by warpgroups of {threads.extents['warp']} warps")
    within = builder.urem(threads.numbers["warp"], i32(WARPGROUP))
    arrives = builder.icmp_unsigned("==", builder.or_(within, threads.numbers["lane"]), i32(0))
    if op.trip is not None:
        begun = builder.icmp_signed(">=", _number(builder, op.trip.data, symbols), i32(0))
        arrives = builder.and_(arrives, begun)
    with builder.if_then(arrives):
        hopper.mbarrier_arrive(builder, barrier)


# ---- copies by the machine ------------------------------------------------------------------------------------------


def tensor_maps_of(kernel: tile.KernelOp) -> tuple[tuple[TensorMap, ...], dict[Operation, int]]:
    """What a kernel's copies need to know of its arrays, and which of it each copy needs."""
    maps: list[TensorMap] = []
    numbers: dict[Operation, int] = {}
    for op in kernel.walk():
        if isinstance(op, scheduled.TensorCopyOp):
            found = _tensor_map(op, kernel.refs.index(op.source))
            if found not in maps:
                maps.append(found)
            numbers[op] = maps.index(found)
    return tuple(maps), numbers


def _boxes(op: scheduled.TensorCopyOp) -> Boxes:
    return boxes_of(op.map.data, tile.ref_type(op.source), parsed(tile.ref_type(op.destination).layout.data))


def _tensor_map(op: scheduled.TensorCopyOp, parameter: int) -> TensorMap:
    """The array as it lies, its last dim first."""
    boxes, source = _boxes(op), tile.ref_type(op.source)
    rank, item = len(source.shape), source.dtype.itemsize
    strides = [prod(source.shape[dim + 1 :]) * item for dim in range(rank - 1)]
    return TensorMap(
        parameter=parameter,
        dtype=source.dtype.name,
        shape=source.shape[::-1],
        strides=tuple(reversed(strides)),
        box=boxes.box[::-1],
        swizzle=boxes.swizzle,
    )


def emit_tensor_copy(
    builder: Builder,
    op: scheduled.TensorCopyOp,
    tensor_map: Value,
    target: Value,
    barrier: Value,
    symbols: Sequence[Value],
) -> None:
    """Begin the copies of all boxes of a window."""
    for start, offset_bytes in _boxes(op).parts:
        index = [i32(at) for at in start]
        places = [evaluated(builder, expression, index, symbols) for expression in op.map.data.results]
        place = builder.gep(target, [i32(offset_bytes)], source_etype=ir.IntType(8)) if offset_bytes else target
        hopper.tensor_copy_in(builder, place, tensor_map, places[::-1], barrier)

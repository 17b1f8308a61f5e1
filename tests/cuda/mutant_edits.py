"""Edits of scheduled kernels that plant a mistake in what brings order, and what is next to an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, IndexType, IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.primitives import ArrayType

Edit = Callable[[Operation], None]

SYNCHRONISES = (
    scheduled.BarrierOp,
    scheduled.CommitOp,
    scheduled.WaitOp,
    asynchronous.FenceOp,
    asynchronous.ArriveOp,
    asynchronous.ExpectOp,
    asynchronous.AwaitOp,
    scheduled.MmaWaitOp,
    tensor_memory.MmaCommitOp,
    tensor_memory.TensorFenceOp,
    tensor_memory.TensorFreeOp,
    asynchronous.StoreWaitOp,
    scheduled.SetRegistersOp,
)
USES_BARRIERS = (
    *(asynchronous.ArriveOp, asynchronous.ExpectOp, asynchronous.AwaitOp, asynchronous.TensorCopyOp),
    tensor_memory.MmaCommitOp,
)
_USES_TENSOR_MEMORY = (
    *(tensor_memory.TensorAllocOp, tensor_memory.TensorMmaOp, tensor_memory.TensorLoadOp),
    tensor_memory.TensorPutOp,
)
# What touches memory where an operand is there.
_MOVES = (tile.LoadOp, tile.StoreOp, scheduled.MmaOp, asynchronous.TensorStoreOp)

# ---- edits ----------------------------------------------------------------------------------------------------------


def leave_out(op: Operation) -> None:
    if isinstance(op, scheduled.MmaWaitOp):
        op.result.replace_all_uses_with(op.accumulator)
    op.detach()
    op.erase()


def repeat(op: Operation) -> None:
    block = op.parent_block()
    assert block is not None
    if not isinstance(op, scheduled.MmaWaitOp):
        block.insert_op_after(op.clone(), op)
        return
    before = op.clone()
    block.insert_op_before(before, op)
    op.operands[0] = before.result


def move(op: Operation, forwards: bool) -> None:
    other = neighbour(op, forwards)
    block = op.parent_block()
    assert other is not None
    assert block is not None
    op.detach()
    if forwards:
        block.insert_op_after(op, other)
    else:
        block.insert_op_before(op, other)


def neighbour(op: Operation, forwards: bool) -> Operation | None:
    """The next operation that touches memory or synchronises; None where there is none, or values are in the way."""
    other = op.next_op if forwards else op.prev_op
    while other is not None and not _matters(other):
        if _needs(other, op) or _needs(op, other):
            return None
        other = other.next_op if forwards else other.prev_op
    if other is None or _needs(other, op) or _needs(op, other):
        return None
    return other


def _matters(op: Operation) -> bool:
    inner = [each for each in op.walk() if not isinstance(each, tile.YieldOp | scheduled.EndOp)]
    return any(
        isinstance(
            each, (*SYNCHRONISES, *USES_BARRIERS, *_USES_TENSOR_MEMORY, scheduled.CopyOp, asynchronous.MbarrierOp)
        )
        or (isinstance(each, scheduled.MmaOp) and each.asynchronous)
        or (isinstance(each, _MOVES) and any(_is_of_a_block(operand) for operand in each.operands))
        for each in inner
    )


def _is_of_a_block(value: SSAValue) -> bool:
    return isinstance(value.type, tile.RefType) and value.type.space.data == scheduled.BLOCK


def _needs(user: Operation, op: Operation) -> bool:
    results = list(op.results)
    return any(operand in results for each in user.walk() for operand in each.operands)


def put(op: Operation, name: str, attribute: Any) -> None:
    op.properties[name] = attribute


def take_away(op: Operation, name: str) -> None:
    del op.properties[name]


def added(name: str, by: int) -> Edit:
    def edit(op: Operation) -> None:
        given = op.properties[name]
        assert isinstance(given, IntegerAttr)
        op.properties[name] = IntegerAttr(given.value.data + by, IndexType())

    return edit


def shift(op: Operation, name: str, by: int, modulus: int | None = None) -> None:
    map = map_of(op, name)
    (result,) = map.results
    shifted = result + by
    _put_map(op, name, map, shifted if modulus is None else shifted % modulus)


def map_of(op: Operation, name: str) -> AffineMap:
    given = op.properties[name]
    assert isinstance(given, AffineMapAttr)
    return given.data


def _put_map(op: Operation, name: str, map: AffineMap, result: AffineExpr) -> None:
    op.properties[name] = AffineMapAttr(AffineMap(map.num_dims, map.num_symbols, (result,)))


def with_a_barrier_fewer(op: Operation) -> None:
    assert isinstance(op, asynchronous.MbarrierOp)
    count, block = op.count - 1, op.parent_block()
    assert block is not None
    held = tile.ref(ArrayType((count,), dtypes.i64), scheduled.BLOCK)
    fewer = asynchronous.MbarrierOp(count=count, arrivals=op.arrivals, result=held)
    block.insert_op_before(fewer, op)
    op.result.replace_all_uses_with(fewer.result)
    leave_out(op)


def share_a_barrier(op: Operation) -> None:
    assert isinstance(op, asynchronous.MbarrierOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "number", op.count - 1)


def share_a_stage(op: Operation) -> None:
    """All stages are numbered as before, but the last has the first's place."""
    assert isinstance(op, scheduled.AllocOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "map", op.count - 1)


def _modulo(op: Operation, name: str, modulus: int) -> None:
    map = map_of(op, name)
    (result,) = map.results
    _put_map(op, name, map, result % modulus)


def take_others(op: Operation, at: int) -> None:
    others = [each for each in barriers_of(op) if each is not op.operands[_barrier_operand(op)].owner]
    op.operands[_barrier_operand(op)] = others[at].result


def _barrier_operand(op: Operation) -> int:
    return 2 if isinstance(op, asynchronous.TensorCopyOp) else 0


def have_trips_alike(*ops: Operation) -> bool:
    """Whether operations are all in loops, or all say nothing of a trip."""
    in_loops = [isinstance(op.parent_op(), tile.ForOp) for op in ops]
    plain = [all(isinstance(operand.type, tile.RefType) for operand in op.operands) for op in ops]
    return all(in_loops) or all(plain)


def exchange(op: Operation, apart: int) -> None:
    """Each takes the other's place, and the trip of the loop there."""
    ops = list(kernel_of(op).walk())
    other = ops[ops.index(op) + apart]
    for each, place in ((op, other), (other, op)):
        block = place.parent_block()
        assert block is not None
        new = each.clone()
        for number, operand in enumerate(new.operands):
            if not isinstance(operand.type, tile.RefType):
                new.operands[number] = block.args[0] if block.args else operand
        block.insert_op_before(new, place)
    for each in (op, other):
        leave_out(each)


# ---- where an operation is ------------------------------------------------------------------------------------------


def kernel_of(op: Operation) -> tile.KernelOp:
    around: Operation | None = op
    while not isinstance(around, tile.KernelOp):
        assert around is not None
        around = around.parent_op()
    return around


def region_of(op: Operation) -> scheduled.ParallelOp:
    around = op.parent_op()
    while not isinstance(around, scheduled.ParallelOp):
        assert around is not None
        around = around.parent_op()
    return around


def role_of(op: Operation) -> Operation | None:
    around = op.parent_op()
    while around is not None and not isinstance(around, scheduled.RoleOp):
        around = around.parent_op()
    return around


def barriers_of(op: Operation) -> list[asynchronous.MbarrierOp]:
    return [each for each in kernel_of(op).walk() if isinstance(each, asynchronous.MbarrierOp)]


def count_of(op: Any) -> int:
    return op.mbarrier.owner.count

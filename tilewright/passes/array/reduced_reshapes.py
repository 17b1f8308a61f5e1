"""Reductions of whole runs of dims of a reshaped, transposed array, as reductions of that without the reshape."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.passes.array.array_move_reshapes import elementwise_after, moves, runs, sink_past, viewed_as
from tilewright.passes.array.fusion import ELEMENTWISE, users
from tilewright.primitives import ArrayType


def reduce_before_reshapes(block: Block) -> None:
    """Reduce what is computed of transposed arrays in their own shape, if only reductions leave what follows on a
    reshape, each of all dims that count the same elements or of none: then they can be in the order of memory."""
    for op in list(block.ops):
        if not moves(op) or not _reads_transposed(op.operands[0]):
            continue
        following = elementwise_after(op)
        inside = dict.fromkeys([op, *following])
        exits = [each for one in inside for each in users(one.results[0]) if each not in inside]
        if not exits or any(_own_axes(each, op) is None for each in exits):
            continue
        axes = [(each, _own_axes(each, op)) for each in dict.fromkeys(exits)]
        if following:
            sink_past(op, following)
        for reduce, own in axes:
            if isinstance(reduce, array.ReduceOp) and own is not None:
                _reduce_source(reduce, own)


def _reads_transposed(value: SSAValue) -> bool:
    """Whether elementwise operations compute a value of a transposed array."""
    pending, seen = [value], set[Operation]()
    while pending:
        op = pending.pop().owner
        if isinstance(op, array.TransposeOp):
            return True
        if isinstance(op, ELEMENTWISE) and op not in seen:
            seen.add(op)
            pending += op.operands
    return False


def _own_axes(op: Operation, reshape: array.ReshapeOp) -> tuple[int, ...] | None:
    """The axes of the operand of a reshape for those that an operation reduces; None where it does something else, or
    reduces a part of what some of them count."""
    if not isinstance(op, array.ReduceOp) or op.part is not None:
        return None
    source, shape = array_type(reshape.operands[0]).shape, array_type(reshape.results[0]).shape
    found: list[int] = []
    for own, outer in runs(source, shape):
        reduced = {axis in op.axes for axis in outer if shape[axis] != 1}
        if len(reduced) > 1:
            return None
        found += own if True in reduced else ()
    return tuple(found)


def _reduce_source(reduce: array.ReduceOp, axes: tuple[int, ...]) -> None:
    """Reduce the operand of the reshape that a reduction reads."""
    reshape = reduce.operands[0].owner
    if not isinstance(reshape, array.ReshapeOp):
        return
    (source,) = reshape.operands
    left = tuple(size for axis, size in enumerate(array_type(source).shape) if axis not in axes)
    dtype = array_type(reduce.results[0]).dtype
    made = array.ReduceOp(arguments=[source], fn=reduce.fn, axes=axes, outputs=[tensor(ArrayType(left, dtype))])
    insert_like(reduce, made)
    result = viewed_as(made.results[0], array_type(reduce.results[0]).shape, reduce)
    reduce.results[0].replace_all_uses_with(result)
    erase(reduce)
    if reshape.results[0].first_use is None:
        erase(reshape)

"""Scatters whose indices count positions from a known one on: the update of a window."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.passes.array.fusion import is_splat
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


def window_update(_: Unit, op: array.ScatterOp) -> Sequence[SSAValue] | None:
    """The array with a window updated, in place of a scatter to all elements of that; None where indices are others, or
    some are outside, which are dropped."""
    target, updates, *indices = op.operands
    shape, rank = array_type(target).shape, array_type(indices[0]).rank
    starts, sizes, order = [0] * len(shape), list(shape), list[int]()
    rest = iter(range(rank, array_type(updates).rank))
    counted: dict[int, tuple[int | None, int]] = {}
    for axis, index in zip(op.axes, indices, strict=True):
        found = _counts(index)
        if found is None:
            return None
        counted[axis] = found
    for axis, size in enumerate(shape):
        if axis not in counted:
            order.append(next(rest))
            continue
        dim, starts[axis] = counted[axis]
        sizes[axis] = 1 if dim is None else array_type(indices[0]).shape[dim]
        if dim is not None:
            order.append(dim)
        if not 0 <= starts[axis] <= size - sizes[axis]:
            return None
    given = array_type(updates).shape
    apart = [dim for dim in range(rank) if dim not in order and given[dim] != 1]
    if apart or len(set(order)) < len(order):
        return None  # several updates go to one element
    return [_updated(op, starts, sizes, order)]


def _counts(value: SSAValue) -> tuple[int | None, int] | None:
    """The dim whose positions an index counts, None for none, and the index at the first of them."""
    op = value.owner
    if isinstance(op, array.ConstantOp) and is_splat(op):
        return None, int(op.value)
    if isinstance(op, array.IotaOp):
        return op.axis, 0
    if isinstance(op, array.CastOp):
        return _counts(op.operands[0])
    if not isinstance(op, array.MapOp) or op.fn != "add":
        return None
    first, second = (_counts(operand) for operand in op.operands)
    if first is None or second is None or (first[0] is not None and second[0] is not None):
        return None
    return second[0] if first[0] is None else first[0], first[1] + second[1]


def _updated(op: array.ScatterOp, starts: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> SSAValue:
    """The update of a window; `order`: the dims of the updates in that of the array's axes, without those of which one
    position is updated."""
    target, value = op.operands[0], op.operands[1]
    type = array_type(value)
    inner = [dim for dim in range(type.rank) if dim not in order]  # of one element
    permutation = (*inner, *order)
    if permutation != tuple(range(type.rank)):
        outputs = [tensor(ArrayType(tuple(type.shape[dim] for dim in permutation), type.dtype))]
        value = _add(op, array.TransposeOp(arguments=[value], permutation=permutation, outputs=outputs))
    window = tensor(ArrayType(tuple(sizes), type.dtype))
    if array_type(value).shape != tuple(sizes):
        value = _add(op, array.ReshapeOp(arguments=[value], outputs=[window]))
    if op.fn != "set":
        limits = tuple(start + size for start, size in zip(starts, sizes, strict=True))
        part = array.SliceOp(
            arguments=[target], starts=tuple(starts), limits=limits, strides=(1,) * len(starts), outputs=[window]
        )
        value = _add(op, array.MapOp(arguments=[_add(op, part), value], fn=op.fn, outputs=[window]))
    place = tensor(ArrayType((), dtypes.i64))
    places = [_add(op, array.ConstantOp(value=start, resource="", outputs=[place])) for start in starts]
    return _add(op, array.DynamicUpdateSliceOp(arguments=[target, value, *places], outputs=[op.results[0].type]))


def _add(op: array.ArrayOp, made: array.ArrayOp) -> SSAValue:
    insert_like(op, made)
    return made.results[0]

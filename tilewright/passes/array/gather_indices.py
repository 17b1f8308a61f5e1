"""Indices of gathers, and gathers by those of another one."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.passes.array.fusion import is_splat
from tilewright.primitives import ArrayType

# An index after the last element of any array.
_BEYOND = 2**62


def add(gather: array.GatherOp, made: array.ArrayOp) -> SSAValue:
    insert_like(gather, made)
    return made.results[0]


def typed(shape: Sequence[int], like: SSAValue) -> Attribute:
    return tensor(ArrayType(tuple(shape), array_type(like).dtype))


def gathered_from(gather: array.GatherOp, source: SSAValue, axes: dict[int, int]) -> SSAValue:
    """A gather by the same indices from another array; `axes` are the axes of that for those of `gather`, in its
    order."""
    if not axes:
        return source
    indices = [each for axis, each in zip(gather.axes, gather.operands[1:], strict=True) if axis in axes]
    sizes = array_type(source).shape
    rest = [axis for axis in range(len(sizes)) if axis not in axes.values()]
    rank = array_type(indices[0]).rank
    outputs = [typed((*array_type(indices[0]).shape, *(sizes[axis] for axis in rest)), source)]
    owner = source.owner
    if isinstance(owner, array.ConstantOp) and is_splat(owner):
        return add(gather, rebuilt(owner, [], outputs))
    if isinstance(owner, array.IotaOp) and owner.axis in rest:
        return add(gather, array.IotaOp(arguments=[], axis=rank + rest.index(owner.axis), outputs=outputs))
    if isinstance(owner, array.IotaOp):
        index = wide(gather, indices[list(axes.values()).index(owner.axis)], sizes[owner.axis])
        place = cast_as(gather, clamped(gather, index, sizes[owner.axis]), source)
        return add(gather, array.BroadcastOp(arguments=[place], axes=tuple(range(rank)), outputs=outputs))
    return add(gather, array.GatherOp(arguments=[source, *indices], axes=tuple(axes.values()), outputs=outputs))


def clamped(gather: array.GatherOp, index: SSAValue, size: int) -> SSAValue:
    """The positions that are gathered at indices, whose type counts up to `size`."""
    for fn, bound in (("minimum", size - 1), ("maximum", 0)):
        index = combined(gather, fn, index, number(gather, bound, index))
    return index


def cast_as(gather: array.GatherOp, value: SSAValue, like: SSAValue) -> SSAValue:
    """A value in the element type of another one."""
    type = array_type(value)
    if type.dtype == array_type(like).dtype:
        return value
    return add(gather, array.CastOp(arguments=[value], outputs=[typed(type.shape, like)]))


def wide(gather: array.GatherOp, index: SSAValue, size: int) -> SSAValue:
    """An index in a type that counts up to `size`, and below 0."""
    dtype = array_type(index).dtype
    if dtype.kind != "u" and dtype.highest > size:
        return index
    return as_i64(gather, index)


def as_i64(gather: array.GatherOp, index: SSAValue) -> SSAValue:
    """An index in 64 bits with a sign; one of u64 that has none there stays beyond every array."""
    type = ArrayType(array_type(index).shape, dtypes.i64)
    if array_type(index) == type:
        return index
    if array_type(index).dtype == dtypes.u64:
        index = combined(gather, "minimum", index, number(gather, _BEYOND, index))
    return add(gather, array.CastOp(arguments=[index], outputs=[tensor(type)]))


def place_of(gather: array.GatherOp, index: SSAValue, size: int, form: tuple[int, int]) -> SSAValue:
    """`start + stride * index` for an index below `size`."""
    start, stride = form
    place = clamped(gather, wide(gather, index, start + abs(stride) * size), size)
    if stride != 1:
        place = combined(gather, "multiply", place, number(gather, stride, place))
    return combined(gather, "add", place, number(gather, start, place)) if start else place


def number(gather: array.GatherOp, value: int, like: SSAValue) -> SSAValue:
    return add(gather, array.ConstantOp(value=value, resource="", outputs=[like.type]))


def combined(gather: array.GatherOp, fn: str, left: SSAValue, right: SSAValue) -> SSAValue:
    return add(gather, array.MapOp(arguments=[left, right], fn=fn, outputs=[left.type]))


def compared(gather: array.GatherOp, fn: str, left: SSAValue, right: SSAValue) -> SSAValue:
    flags = tensor(ArrayType(array_type(left).shape, dtypes.bool_))
    return add(gather, array.MapOp(arguments=[left, right], fn=fn, outputs=[flags]))

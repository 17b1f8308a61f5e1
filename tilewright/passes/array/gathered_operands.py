"""Gathers from what an operation gives, as that operation on gathers from its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.passes.array.gather_indices import (
    add,
    clamped,
    combined,
    compared,
    gathered_from,
    number,
    place_of,
    typed,
    wide,
)
from tilewright.passes.array.gathered_reshapes import gather_reshaped
from tilewright.primitives import ArrayType

# The largest part of a concatenation that is gathered from all of its operands together: in single elements, of which
# each is a load of its own, and in rows, which take as long as rows that are copied.
_MOST_FROM_OPERANDS, _MOST_ROWS_FROM_OPERANDS = 0.25, 1.0
# Elements of a line of a cache.
_LINE_ELEMENTS = 16
# Slices of one array, of which an index is in one: each takes a comparison for each index.
_MOST_SLICES = 8


def gather_operands(op: array.ArrayOp, gather: array.GatherOp) -> SSAValue | None:
    """The values that `gather` takes of the result of `op`, without that; None where a gather from memory stays."""
    rule = _RULES.get(type(op))
    return rule(op, gather) if rule is not None else None


def _elementwise(op: array.ArrayOp, gather: array.GatherOp) -> SSAValue:
    axes = {axis: axis for axis in gather.axes}
    gathered = {operand: gathered_from(gather, operand, axes) for operand in dict.fromkeys(op.operands)}
    return add(gather, rebuilt(op, [gathered[operand] for operand in op.operands], [gather.results[0].type]))


def _broadcast(op: array.BroadcastOp, gather: array.GatherOp) -> SSAValue:
    """Axes that the operand has are gathered from it, others are repeated."""
    source = _without_repeated(op, gather)
    shape = array_type(op.results[0]).shape
    repeated = _repeated(op, gather)
    own = {result: n for n, result in enumerate(axis for axis in op.axes if axis not in repeated)}
    axes = {axis: own[axis] for axis in gather.axes if axis in own}
    leading = range(array_type(gather.operands[1]).rank)
    rest = [axis for axis in range(len(shape)) if axis not in gather.axes]
    kept = [len(leading) + rest.index(axis) for axis in own if axis not in axes]
    made = array.BroadcastOp(
        arguments=[gathered_from(gather, source, axes)],
        axes=(*(leading if axes else ()), *kept),
        outputs=[gather.results[0].type],
    )
    return add(gather, made)


def _repeated(op: array.BroadcastOp, gather: array.GatherOp) -> list[int]:
    """The gathered axes along which the operand has one element, so that all indices give that."""
    sizes, shape = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [axis for size, axis in zip(sizes, op.axes, strict=True) if size != shape[axis] and axis in gather.axes]


def _without_repeated(op: array.BroadcastOp, gather: array.GatherOp) -> SSAValue:
    (source,) = op.operands
    repeated = _repeated(op, gather)
    if not repeated:
        return source
    sizes = array_type(source).shape
    left = [size for size, axis in zip(sizes, op.axes, strict=True) if axis not in repeated]
    return add(gather, array.ReshapeOp(arguments=[source], outputs=[typed(left, source)]))


def _concat(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    if op.axis in gather.axes:
        return _in_parts(op, gather) or _from_sliced(op, gather) or _from_operands(op, gather)
    axes = {axis: axis for axis in gather.axes}
    before = sum(axis not in gather.axes for axis in range(op.axis))
    parts = _gathered_slices(op, gather) or [gathered_from(gather, operand, axes) for operand in op.operands]
    axis = array_type(gather.operands[1]).rank + before
    return add(gather, array.ConcatOp(arguments=parts, axis=axis, outputs=[gather.results[0].type]))


def _in_parts(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    """A concatenation of gathers where the index along its axis counts the positions, as along all axes but one of
    `take_along_axis`: a part of the indices takes elements of one operand."""
    counted = gather.operands[1 + gather.axes.index(op.axis)]
    count = counted.owner
    if not isinstance(count, array.IotaOp):
        return None
    axis, sizes = count.axis, [array_type(each).shape[op.axis] for each in op.operands]
    if array_type(counted).shape[axis] != sum(sizes):
        return None
    parts: list[SSAValue] = []
    for n, operand in enumerate(op.operands):
        indices = [
            _counted(gather, index, axis, sizes[n])
            if index is counted
            else _part(gather, index, axis, sum(sizes[:n]), sizes[n])
            for index in gather.operands[1:]
        ]
        shape = list(array_type(gather.results[0]).shape)
        shape[axis] = sizes[n]
        outputs = [typed(shape, operand)]
        parts.append(add(gather, array.GatherOp(arguments=[operand, *indices], axes=gather.axes, outputs=outputs)))
    return add(gather, array.ConcatOp(arguments=parts, axis=axis, outputs=[gather.results[0].type]))


def _counted(gather: array.GatherOp, index: SSAValue, axis: int, size: int) -> SSAValue:
    """The positions along an axis, `size` of them, in the shape of `index` along the others."""
    shape = list(array_type(index).shape)
    shape[axis] = size
    return add(gather, array.IotaOp(arguments=[], axis=axis, outputs=[typed(shape, index)]))


def _part(gather: array.GatherOp, index: SSAValue, axis: int, start: int, size: int) -> SSAValue:
    """The indices from `start` on along an axis, `size` of them."""
    starts, limits = [0] * array_type(index).rank, list(array_type(index).shape)
    starts[axis], limits[axis] = start, start + size
    shape = [limit - first for first, limit in zip(starts, limits, strict=True)]
    owner = index.owner
    if isinstance(owner, array.IotaOp) and owner.axis != axis:
        return add(gather, array.IotaOp(arguments=[], axis=owner.axis, outputs=[typed(shape, index)]))
    made = array.SliceOp(
        arguments=[index],
        starts=tuple(starts),
        limits=tuple(limits),
        strides=(1,) * len(starts),
        outputs=[typed(shape, index)],
    )
    return add(gather, made)


def _from_operands(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    """Few elements along the axis of a concatenation: gathered from each operand, selected by where the index is."""
    sizes, result = [array_type(each).shape[op.axis] for each in op.operands], array_type(gather.results[0])
    joined = array_type(op.results[0])
    in_rows = joined.rank - 1 not in gather.axes and joined.shape[-1] >= _LINE_ELEMENTS
    most = _MOST_ROWS_FROM_OPERANDS if in_rows else _MOST_FROM_OPERANDS
    if len(sizes) * result.size > most * joined.size:
        return None
    at = gather.axes.index(op.axis)
    index = clamped(gather, wide(gather, gather.operands[1 + at], sum(sizes)), sum(sizes))
    flags = tensor(ArrayType(result.shape, dtypes.bool_))
    found: SSAValue | None = None
    for n in reversed(range(len(sizes))):
        start = sum(sizes[:n])
        own = combined(gather, "subtract", index, number(gather, start, index)) if start else index
        indices = [own if axis == at else each for axis, each in enumerate(gather.operands[1:])]
        part = array.GatherOp(arguments=[op.operands[n], *indices], axes=gather.axes, outputs=[gather.results[0].type])
        taken = add(gather, part)
        if found is None:
            found = taken
            continue
        before = compared(gather, "less", index, number(gather, start + sizes[n], index))
        rank = array_type(index).rank
        chosen = add(gather, array.BroadcastOp(arguments=[before], axes=tuple(range(rank)), outputs=[flags]))
        choice = array.MapOp(arguments=[chosen, taken, found], fn="select", outputs=[gather.results[0].type])
        found = add(gather, choice)
    return found


def _from_sliced(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    """A gather from the array of which slices along the axis are concatenated, as where it is rolled: by where each
    index is in that."""
    slices = _slices_of_one(op)
    if not 1 < len(slices) <= _MOST_SLICES:
        return None
    (source,) = slices[0].operands
    shape, sizes = array_type(source).shape, [array_type(each).shape[op.axis] for each in op.operands]
    if any(size != shape[axis] for axis, size in enumerate(array_type(op.results[0]).shape) if axis != op.axis):
        return None
    at = gather.axes.index(op.axis)
    size = max(sum(sizes), shape[op.axis]) * max(each.strides[op.axis] for each in slices)
    index = clamped(gather, wide(gather, gather.operands[1 + at], size), sum(sizes))
    place = index
    for n, each in reversed(list(enumerate(slices))):
        first, step = sum(sizes[:n]), each.strides[op.axis]
        own = index if step == 1 else combined(gather, "multiply", index, number(gather, step, index))
        own = combined(gather, "add", own, number(gather, each.starts[op.axis] - first * step, index))
        if n + 1 < len(slices):
            before = compared(gather, "less", index, number(gather, first + sizes[n], index))
            choice = array.MapOp(arguments=[before, own, place], fn="select", outputs=[index.type])
            own = add(gather, choice)
        place = own
    indices = [place if axis == at else each for axis, each in enumerate(gather.operands[1:])]
    made = array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=[gather.results[0].type])
    return add(gather, made)


def _slices_of_one(op: array.ConcatOp) -> list[array.SliceOp]:
    """The operands of a concatenation, where all are slices of one array; else none."""
    slices = [each.owner for each in op.operands if isinstance(each.owner, array.SliceOp)]
    if len(slices) < len(op.operands) or any(each.operands[0] is not slices[0].operands[0] for each in slices):
        return []
    return slices


def _gathered_slices(op: array.ConcatOp, gather: array.GatherOp) -> list[SSAValue]:
    """Slices of one gather, where a concatenation is of slices of one array along another axis, as where that is
    rolled; else none."""
    slices = _slices_of_one(op)
    if not slices:
        return []
    (source,) = slices[0].operands
    shape = array_type(source).shape
    if any(array_type(each.results[0]).shape[axis] != shape[axis] for each in slices for axis in gather.axes):
        return []
    gathered = gathered_from(gather, source, {axis: axis for axis in gather.axes})
    return [_sliced(gather, each, gathered) for each in slices]


def _sliced(gather: array.GatherOp, op: array.SliceOp, gathered: SSAValue) -> SSAValue:
    """The slice of what is gathered, on the axes that a gather leaves."""
    indices = array_type(gather.operands[1]).shape
    rest = [axis for axis in range(len(op.starts)) if axis not in gather.axes]
    made = array.SliceOp(
        arguments=[gathered],
        starts=(*(0 for _ in indices), *(op.starts[axis] for axis in rest)),
        limits=(*indices, *(op.limits[axis] for axis in rest)),
        strides=(*(1 for _ in indices), *(op.strides[axis] for axis in rest)),
        outputs=[typed((*indices, *(array_type(op.results[0]).shape[axis] for axis in rest)), gathered)],
    )
    return add(gather, made)


def _transpose(op: array.TransposeOp, gather: array.GatherOp) -> SSAValue:
    axes = {axis: op.permutation[axis] for axis in gather.axes}
    gathered = gathered_from(gather, op.operands[0], axes)
    rank = array_type(gather.operands[1]).rank
    rest = [axis for axis in range(len(op.permutation)) if axis not in axes.values()]
    order = [rank + rest.index(source) for axis, source in enumerate(op.permutation) if axis not in axes]
    permutation = (*range(rank), *order)
    if permutation == tuple(range(len(permutation))):
        return gathered
    return add(
        gather, array.TransposeOp(arguments=[gathered], permutation=permutation, outputs=[gather.results[0].type])
    )


def _reverse(op: array.ReverseOp, gather: array.GatherOp) -> SSAValue:
    """Positions counted from the other end along the axes that are gathered; the others reversed after it."""
    (source,) = op.operands
    sizes = array_type(source).shape
    indices: list[SSAValue] = []
    for axis, index in zip(gather.axes, gather.operands[1:], strict=True):
        indices.append(place_of(gather, index, sizes[axis], (sizes[axis] - 1, -1)) if axis in op.axes else index)
    made = array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=[gather.results[0].type])
    taken, rank = add(gather, made), array_type(indices[0]).rank
    rest = [axis for axis in range(len(sizes)) if axis not in gather.axes]
    axes = tuple(rank + n for n, axis in enumerate(rest) if axis in op.axes)
    if not axes:
        return taken
    return add(gather, array.ReverseOp(arguments=[taken], axes=axes, outputs=[gather.results[0].type]))


def _slice(op: array.SliceOp, gather: array.GatherOp) -> SSAValue | None:
    """Positions in the array of which a slice is taken, along the axes that are gathered; the slice along the others
    stays, of what something computes."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    parts = [axis for axis in gather.axes if shape[axis] != sizes[axis]]
    if not parts or not isinstance(source.owner, array.ArrayOp) or isinstance(source.owner, array.ConstantOp):
        return None
    indices: list[SSAValue] = []
    for axis, index in zip(gather.axes, gather.operands[1:], strict=True):
        form = op.starts[axis], op.strides[axis]
        indices.append(place_of(gather, index, shape[axis], form) if axis in parts else index)
    # The other axes are sliced first, so that slices bubble up and gathers follow them.
    starts, limits, strides = list(op.starts), list(op.limits), list(op.strides)
    for axis in parts:
        starts[axis], limits[axis], strides[axis] = 0, sizes[axis], 1
    left = tuple(size if axis in parts else shape[axis] for axis, size in enumerate(sizes))
    if left != sizes:
        outputs = [typed(left, source)]
        source = add(
            gather,
            array.SliceOp(
                arguments=[source], starts=tuple(starts), limits=tuple(limits), strides=tuple(strides), outputs=outputs
            ),
        )
    outputs = [gather.results[0].type]
    return add(gather, array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=outputs))


def _pad(op: array.PadOp, gather: array.GatherOp) -> SSAValue | None:
    """Elements of the operand, where the indices are inside of it, padded along the other axes."""
    source, value = op.operands
    if any(op.interior[axis] for axis in gather.axes):
        return None
    sizes, outputs = array_type(source).shape, [gather.results[0].type]
    indices, inside = _places(op, gather)
    shape, rank = array_type(indices[0]).shape, array_type(indices[0]).rank
    rest = [axis for axis in range(len(sizes)) if axis not in gather.axes]
    taken = [typed((*shape, *(sizes[axis] for axis in rest)), source)]
    gathered = add(gather, array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=taken))
    none = (0,) * rank
    low, high, interior = ((*none, *(each[axis] for axis in rest)) for each in (op.low, op.high, op.interior))
    if any((*low, *high, *interior)):
        padding = array.PadOp(arguments=[gathered, value], low=low, high=high, interior=interior, outputs=outputs)
        gathered = add(gather, padding)
    if inside is None:
        return gathered
    flags = tensor(ArrayType(array_type(gather.results[0]).shape, dtypes.bool_))
    chosen = add(gather, array.BroadcastOp(arguments=[inside], axes=tuple(range(rank)), outputs=[flags]))
    beside = add(gather, array.BroadcastOp(arguments=[value], axes=(), outputs=outputs))
    return add(gather, array.MapOp(arguments=[chosen, gathered, beside], fn="select", outputs=outputs))


def _places(op: array.PadOp, gather: array.GatherOp) -> tuple[list[SSAValue], SSAValue | None]:
    """Indices of the operand for those of the padded array, and whether all are inside of it; None if they must be."""
    sizes, padded = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    indices: list[SSAValue] = []
    inside: SSAValue | None = None
    for axis, index in zip(gather.axes, gather.operands[1:], strict=True):
        if sizes[axis] == padded[axis]:
            indices.append(index)
            continue
        valid = clamped(gather, wide(gather, index, padded[axis]), padded[axis])
        place = combined(gather, "subtract", valid, number(gather, op.low[axis], valid))
        indices.append(place)
        for fn, bound in (("greater_equal", 0), ("less", sizes[axis])):
            found = compared(gather, fn, place, number(gather, bound, place))
            inside = found if inside is None else combined(gather, "bitwise_and", inside, found)
    return indices, inside


def _gather(op: array.GatherOp, gather: array.GatherOp) -> SSAValue | None:
    """Indices that are gathered by indices, with those of the other axes; or a gather along the other axes alone."""
    source, *indices = op.operands
    rank = array_type(indices[0]).rank
    own = [axis for axis in gather.axes if axis < rank]
    if not own:
        return _other_axes_first(op, gather)
    rest = [axis for axis in range(array_type(source).rank) if axis not in op.axes]
    others = {axis: rest[axis - rank] for axis in gather.axes if axis >= rank}
    if others and len(own) < rank:
        return None
    axes = {axis: axis for axis in own}
    parts = [gathered_from(gather, each, axes) for each in indices]
    parts += [index for axis, index in zip(gather.axes, gather.operands[1:], strict=True) if axis in others]
    places = (*op.axes, *others.values())
    return add(gather, array.GatherOp(arguments=[source, *parts], axes=places, outputs=[gather.results[0].type]))


def _other_axes_first(op: array.GatherOp, gather: array.GatherOp) -> SSAValue | None:
    """Two gathers in the other order, where the first one keeps most of an array or repeats it, and so stays where it
    is: the second one takes less of what computes the array."""
    source, *indices = op.operands
    if array_type(op.results[0]).size <= array_type(source).size // 2 or not isinstance(source.owner, array.ArrayOp):
        return None
    rank, own_rank = array_type(indices[0]).rank, array_type(gather.operands[1]).rank
    rest = [axis for axis in range(array_type(source).rank) if axis not in op.axes]
    axes = {axis: rest[axis - rank] for axis in gather.axes}
    taken = gathered_from(gather, source, axes)
    # What is left of the array comes after the indices: (own indices, other axes).
    left = [axis for axis in range(array_type(source).rank) if axis not in axes.values()]
    places = tuple(own_rank + left.index(axis) for axis in op.axes)
    type = array_type(gather.results[0])
    own, rest_sizes = type.shape[:own_rank], type.shape[own_rank + rank :]
    swapped = [typed((*array_type(indices[0]).shape, *own, *rest_sizes), source)]
    again = add(gather, array.GatherOp(arguments=[taken, *indices], axes=places, outputs=swapped))
    order = (*range(rank, rank + own_rank), *range(rank), *range(rank + own_rank, type.rank))
    return add(gather, array.TransposeOp(arguments=[again], permutation=order, outputs=[gather.results[0].type]))


def _reduce(op: array.ReduceOp, gather: array.GatherOp) -> SSAValue | None:
    """Axes that are left are gathered before the others are reduced; of rows that is worth it where it takes few
    elements, as each is on another line of the cache."""
    (source,) = op.operands
    last = array_type(source).rank - 1
    left = [axis for axis in range(last + 1) if axis not in op.axes]
    axes = {axis: left[axis] for axis in gather.axes}
    most = array_type(op.results[0]).size // (_LINE_ELEMENTS if last in axes.values() else 1)
    if op.part is not None or array_type(gather.results[0]).size > most:
        return None
    gathered = gathered_from(gather, source, axes)
    rank = array_type(gather.operands[1]).rank
    rest = [axis for axis in range(array_type(source).rank) if axis not in axes.values()]
    summed = tuple(rank + rest.index(axis) for axis in op.axes)
    return add(gather, array.ReduceOp(arguments=[gathered], fn=op.fn, axes=summed, outputs=[gather.results[0].type]))


def _along_lines(op: array.SortOp | array.ScanOp, gather: array.GatherOp) -> SSAValue | None:
    """The lines that are taken, sorted or scanned."""
    (source, *others), rank = op.operands, array_type(gather.operands[1]).rank
    if others or len(op.results) > 1 or op.axis in gather.axes:
        return None
    gathered = gathered_from(gather, source, {axis: axis for axis in gather.axes})
    before = sum(axis not in gather.axes for axis in range(op.axis))
    made = rebuilt(op, [gathered], [gather.results[0].type])
    made.axis = rank + before
    return add(gather, made)


# A rule takes the operation of its class.
_RULES: dict[type, Callable[[Any, array.GatherOp], SSAValue | None]] = {
    array.MapOp: _elementwise,
    array.CastOp: _elementwise,
    array.BitcastOp: _elementwise,
    array.BroadcastOp: _broadcast,
    array.ConcatOp: _concat,
    array.ReshapeOp: gather_reshaped,
    array.TransposeOp: _transpose,
    array.PadOp: _pad,
    array.ReverseOp: _reverse,
    array.SliceOp: _slice,
    array.GatherOp: _gather,
    array.ReduceOp: _reduce,
    array.ScanOp: _along_lines,
    array.SortOp: _along_lines,
}

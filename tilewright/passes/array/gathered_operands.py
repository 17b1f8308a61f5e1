"""Gathers from what an operation gives, as that operation on gathers from its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Attribute, SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.errors import CompilerBug
from tilewright.passes.array.array_move_reshapes import runs
from tilewright.passes.array.fusion import is_splat
from tilewright.primitives import ArrayType

# The largest part of a concatenation that is gathered from all of its operands together: in single elements, of which
# each is a load of its own, and in rows, which take as long as rows that are copied.
_MOST_FROM_OPERANDS, _MOST_ROWS_FROM_OPERANDS = 0.25, 1.0
# Elements that are taken at each index where all positions of other axes have an index, too.
_FEWEST_OF_EACH = 8
# Elements of a line of a cache.
_LINE_ELEMENTS = 16
# Slices of one array, of which an index is in one: each takes a comparison for each index.
_MOST_SLICES = 8


def gather_operands(op: array.ArrayOp, gather: array.GatherOp) -> SSAValue | None:
    """The values that `gather` takes of the result of `op`, without that; None where a gather from memory stays."""
    rule = _RULES.get(type(op))
    return rule(op, gather) if rule is not None else None


def _add(gather: array.GatherOp, made: array.ArrayOp) -> SSAValue:
    insert_like(gather, made)
    return made.results[0]


def _tensor(shape: Sequence[int], like: SSAValue) -> Attribute:
    return tensor(ArrayType(tuple(shape), array_type(like).dtype))


def _gathered(gather: array.GatherOp, source: SSAValue, axes: dict[int, int]) -> SSAValue:
    """A gather by the same indices from another array; `axes` are the axes of that for those of `gather`, in its
    order."""
    if not axes:
        return source
    indices = [each for axis, each in zip(gather.axes, gather.operands[1:], strict=True) if axis in axes]
    sizes = array_type(source).shape
    rest = [axis for axis in range(len(sizes)) if axis not in axes.values()]
    rank = array_type(indices[0]).rank
    outputs = [_tensor((*array_type(indices[0]).shape, *(sizes[axis] for axis in rest)), source)]
    owner = source.owner
    if isinstance(owner, array.ConstantOp) and is_splat(owner):
        return _add(gather, rebuilt(owner, [], outputs))
    if isinstance(owner, array.IotaOp) and owner.axis in rest:
        return _add(gather, array.IotaOp(arguments=[], axis=rank + rest.index(owner.axis), outputs=outputs))
    if isinstance(owner, array.IotaOp):
        index = _wide(gather, indices[list(axes.values()).index(owner.axis)], sizes[owner.axis])
        place = _cast(gather, _clamped(gather, index, sizes[owner.axis]), source)
        return _add(gather, array.BroadcastOp(arguments=[place], axes=tuple(range(rank)), outputs=outputs))
    return _add(gather, array.GatherOp(arguments=[source, *indices], axes=tuple(axes.values()), outputs=outputs))


def _clamped(gather: array.GatherOp, index: SSAValue, size: int) -> SSAValue:
    """The positions that are gathered at indices, whose type counts up to `size`."""
    for fn, bound in (("minimum", size - 1), ("maximum", 0)):
        index = _combined(gather, fn, index, _number(gather, bound, index))
    return index


def _cast(gather: array.GatherOp, value: SSAValue, like: SSAValue) -> SSAValue:
    """A value in the element type of another one."""
    type = array_type(value)
    if type.dtype == array_type(like).dtype:
        return value
    return _add(gather, array.CastOp(arguments=[value], outputs=[_tensor(type.shape, like)]))


def _elementwise(op: array.ArrayOp, gather: array.GatherOp) -> SSAValue:
    axes = {axis: axis for axis in gather.axes}
    gathered = {operand: _gathered(gather, operand, axes) for operand in dict.fromkeys(op.operands)}
    return _add(gather, rebuilt(op, [gathered[operand] for operand in op.operands], [gather.results[0].type]))


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
        arguments=[_gathered(gather, source, axes)],
        axes=(*(leading if axes else ()), *kept),
        outputs=[gather.results[0].type],
    )
    return _add(gather, made)


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
    return _add(gather, array.ReshapeOp(arguments=[source], outputs=[_tensor(left, source)]))


def _concat(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    if op.axis in gather.axes:
        return _in_parts(op, gather) or _from_sliced(op, gather) or _from_operands(op, gather)
    axes = {axis: axis for axis in gather.axes}
    before = sum(axis not in gather.axes for axis in range(op.axis))
    parts = _gathered_slices(op, gather) or [_gathered(gather, operand, axes) for operand in op.operands]
    axis = array_type(gather.operands[1]).rank + before
    return _add(gather, array.ConcatOp(arguments=parts, axis=axis, outputs=[gather.results[0].type]))


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
        outputs = [_tensor(shape, operand)]
        parts.append(_add(gather, array.GatherOp(arguments=[operand, *indices], axes=gather.axes, outputs=outputs)))
    return _add(gather, array.ConcatOp(arguments=parts, axis=axis, outputs=[gather.results[0].type]))


def _counted(gather: array.GatherOp, index: SSAValue, axis: int, size: int) -> SSAValue:
    """The positions along an axis, `size` of them, in the shape of `index` along the others."""
    shape = list(array_type(index).shape)
    shape[axis] = size
    return _add(gather, array.IotaOp(arguments=[], axis=axis, outputs=[_tensor(shape, index)]))


def _part(gather: array.GatherOp, index: SSAValue, axis: int, start: int, size: int) -> SSAValue:
    """The indices from `start` on along an axis, `size` of them."""
    starts, limits = [0] * array_type(index).rank, list(array_type(index).shape)
    starts[axis], limits[axis] = start, start + size
    shape = [limit - first for first, limit in zip(starts, limits, strict=True)]
    owner = index.owner
    if isinstance(owner, array.IotaOp) and owner.axis != axis:
        return _add(gather, array.IotaOp(arguments=[], axis=owner.axis, outputs=[_tensor(shape, index)]))
    made = array.SliceOp(
        arguments=[index],
        starts=tuple(starts),
        limits=tuple(limits),
        strides=(1,) * len(starts),
        outputs=[_tensor(shape, index)],
    )
    return _add(gather, made)


def _from_operands(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    """Few elements along the axis of a concatenation: gathered from each operand, selected by where the index is."""
    sizes, result = [array_type(each).shape[op.axis] for each in op.operands], array_type(gather.results[0])
    joined = array_type(op.results[0])
    in_rows = joined.rank - 1 not in gather.axes and joined.shape[-1] >= _LINE_ELEMENTS
    most = _MOST_ROWS_FROM_OPERANDS if in_rows else _MOST_FROM_OPERANDS
    if len(sizes) * result.size > most * joined.size:
        return None
    at = gather.axes.index(op.axis)
    index = _clamped(gather, _wide(gather, gather.operands[1 + at], sum(sizes)), sum(sizes))
    flags = tensor(ArrayType(result.shape, dtypes.bool_))
    found: SSAValue | None = None
    for n in reversed(range(len(sizes))):
        start = sum(sizes[:n])
        own = _combined(gather, "subtract", index, _number(gather, start, index)) if start else index
        indices = [own if axis == at else each for axis, each in enumerate(gather.operands[1:])]
        part = array.GatherOp(arguments=[op.operands[n], *indices], axes=gather.axes, outputs=[gather.results[0].type])
        taken = _add(gather, part)
        if found is None:
            found = taken
            continue
        before = _compared(gather, "less", index, _number(gather, start + sizes[n], index))
        rank = array_type(index).rank
        chosen = _add(gather, array.BroadcastOp(arguments=[before], axes=tuple(range(rank)), outputs=[flags]))
        choice = array.MapOp(arguments=[chosen, taken, found], fn="select", outputs=[gather.results[0].type])
        found = _add(gather, choice)
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
    index = _clamped(gather, _wide(gather, gather.operands[1 + at], size), sum(sizes))
    place = index
    for n, each in reversed(list(enumerate(slices))):
        first, step = sum(sizes[:n]), each.strides[op.axis]
        own = index if step == 1 else _combined(gather, "multiply", index, _number(gather, step, index))
        own = _combined(gather, "add", own, _number(gather, each.starts[op.axis] - first * step, index))
        if n + 1 < len(slices):
            before = _compared(gather, "less", index, _number(gather, first + sizes[n], index))
            choice = array.MapOp(arguments=[before, own, place], fn="select", outputs=[index.type])
            own = _add(gather, choice)
        place = own
    indices = [place if axis == at else each for axis, each in enumerate(gather.operands[1:])]
    made = array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=[gather.results[0].type])
    return _add(gather, made)


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
    gathered = _gathered(gather, source, {axis: axis for axis in gather.axes})
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
        outputs=[_tensor((*indices, *(array_type(op.results[0]).shape[axis] for axis in rest)), gathered)],
    )
    return _add(gather, made)


def _reshape(op: array.ReshapeOp, gather: array.GatherOp) -> SSAValue | None:
    """Axes that are gathered are axes of the operand, or count the same elements together, with others whose positions
    are gathered, too, if these are few."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    axes = [axis for axis in gather.axes if shape[axis] != 1]
    found = _gathered_runs(sizes, shape, axes)
    if not found:
        return None
    if len(axes) == len(gather.axes) and all(len(own) == len(outer) == 1 for own, outer in found):
        own_axes = {outer[0]: own[0] for own, outer in found}
        gathered = _gathered(gather, source, {axis: own_axes[axis] for axis in gather.axes})
        return _add(gather, array.ReshapeOp(arguments=[gathered], outputs=[gather.results[0].type]))
    if not isinstance(source.owner, array.ArrayOp) or isinstance(source.owner, array.ConstantOp):
        return None  # memory is gathered from as the view of it that it is
    along = _reshape_along(op, gather)
    if along is not None:
        return along
    others = [axis for _, outer in found for axis in outer if axis not in axes]
    count = array_type(gather.operands[1]).size * math.prod(shape[axis] for axis in others)
    if others and count * _FEWEST_OF_EACH > array_type(gather.results[0]).size:
        return None
    chosen = _with_positions(gather, others, shape)
    indices: list[SSAValue] = []
    for own, outer in found:
        counted = _combined_index(gather, [chosen[axis] for axis in outer], [shape[axis] for axis in outer])
        indices += _digits(gather, counted, [sizes[d] for d in own])
    places = tuple(d for own, _ in found for d in own)
    rest = [size for d, size in enumerate(sizes) if d not in places]
    outputs = [_tensor((*array_type(indices[0]).shape, *rest), source)]
    taken = _add(gather, array.GatherOp(arguments=[source, *indices], axes=places, outputs=outputs))
    return _in_order(gather, taken, others, shape)


def _with_positions(gather: array.GatherOp, others: Sequence[int], shape: Sequence[int]) -> dict[int, SSAValue]:
    """The index along each gathered axis, and the positions along `others`, whose dims follow on those of the
    indices."""
    given = dict(zip(gather.axes, gather.operands[1:], strict=True))
    if not others:
        return given
    own = array_type(gather.operands[1]).shape
    wide = (*own, *(shape[axis] for axis in others))
    for axis, index in given.items():
        made = array.BroadcastOp(arguments=[index], axes=tuple(range(len(own))), outputs=[_tensor(wide, index)])
        given[axis] = _add(gather, made)
    for n, axis in enumerate(others):
        counts = array.IotaOp(arguments=[], axis=len(own) + n, outputs=[tensor(ArrayType(wide, dtypes.i64))])
        given[axis] = _add(gather, counts)
    return given


def _in_order(gather: array.GatherOp, taken: SSAValue, others: Sequence[int], shape: Sequence[int]) -> SSAValue:
    """Put axes in the order of the array that is gathered from; dims of `others` follow on those of the indices before
    that."""
    left = [axis for axis in range(len(shape)) if axis not in gather.axes]
    now = [*others, *(axis for axis in left if axis not in others)]
    own = array_type(gather.operands[1]).shape
    flat = array.ReshapeOp(arguments=[taken], outputs=[_tensor((*own, *(shape[axis] for axis in now)), taken)])
    value = _add(gather, flat)
    if now == left:
        return value
    order = (*range(len(own)), *(len(own) + now.index(axis) for axis in left))
    return _add(gather, array.TransposeOp(arguments=[value], permutation=order, outputs=[gather.results[0].type]))


def _reshape_along(op: array.ReshapeOp, gather: array.GatherOp) -> SSAValue | None:
    """As `take_along_axis` has it, where all axes but some count the positions: the same along the axes of the operand,
    whose indices are reshaped, so that no position is divided; None where an axis whose index is given is not one of
    the operand."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    given = _given_indices(gather, shape)
    if given is None:
        return None
    result = list(sizes)
    own: dict[int, SSAValue] = {}
    for before, after in runs(tuple(sizes), tuple(shape)):
        here = [axis for axis in after if axis in given]
        if not here:
            continue
        dims, counting = ([d for d in of if each[d] != 1] for of, each in ((before, sizes), (after, shape)))
        if counting != here or len(dims) != 1 or len(here) != 1:
            return None
        own[dims[0]] = given[here[0]]
        result[dims[0]] = array_type(given[here[0]]).shape[here[0]]
    if len(own) != len(given):
        return None
    like = gather.operands[1]
    indices = [
        _add(gather, array.ReshapeOp(arguments=[own[d]], outputs=[_tensor(result, own[d])]))
        if d in own
        else _add(gather, array.IotaOp(arguments=[], axis=d, outputs=[_tensor(result, like)]))
        for d in range(len(sizes))
    ]
    made = array.GatherOp(
        arguments=[source, *indices], axes=tuple(range(len(sizes))), outputs=[_tensor(result, source)]
    )
    return _add(gather, array.ReshapeOp(arguments=[_add(gather, made)], outputs=[gather.results[0].type]))


def _given_indices(gather: array.GatherOp, shape: Sequence[int]) -> dict[int, SSAValue] | None:
    """The axes whose index does not count all positions of its own, with that; None where an axis is not gathered, or
    the indices do not have an axis for each."""
    if gather.axes != tuple(range(len(shape))) or array_type(gather.operands[1]).rank != len(shape):
        return None
    given: dict[int, SSAValue] = {}
    for axis, index in enumerate(gather.operands[1:]):
        owner = index.owner
        counts = isinstance(owner, array.IotaOp) and owner.axis == axis
        if not counts or array_type(index).shape[axis] != shape[axis]:
            given[axis] = index
    return given


def _gathered_runs(
    sizes: Sequence[int], shape: Sequence[int], axes: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The axes of an operand and those of its reshape, of more than one element, that count the same elements, where
    some of `axes` of the reshape are among these."""
    found: list[tuple[list[int], list[int]]] = []
    for own, outer in () if 0 in shape else runs(tuple(sizes), tuple(shape)):
        counting = [axis for axis in outer if shape[axis] != 1]
        if not set(axes).isdisjoint(counting):
            found.append(([d for d in own if sizes[d] != 1], counting))
    return found


def _combined_index(gather: array.GatherOp, indices: Sequence[SSAValue], sizes: Sequence[int]) -> SSAValue:
    """The position among the elements of some axes that indices along each of them state."""
    if len(indices) == 1:
        return indices[0]
    total: SSAValue | None = None
    for n, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        place = _place(gather, _as_i64(gather, index), size, (0, math.prod(sizes[n + 1 :])))
        total = place if total is None else _combined(gather, "add", total, place)
    if total is None:
        raise CompilerBug("no axis is gathered")
    return total


def _digits(gather: array.GatherOp, index: SSAValue, sizes: Sequence[int]) -> list[SSAValue]:
    """The position along each of some axes that an index among the elements of all of them states."""
    if len(sizes) == 1:
        return [index]
    index = _clamped(gather, _wide(gather, index, math.prod(sizes)), math.prod(sizes))
    found: list[SSAValue] = []
    for n, size in enumerate(sizes):
        below = math.prod(sizes[n + 1 :])
        digit = index if below == 1 else _combined(gather, "floor_divide", index, _number(gather, below, index))
        found.append(_combined(gather, "remainder", digit, _number(gather, size, index)) if n else digit)
    return found


def _wide(gather: array.GatherOp, index: SSAValue, size: int) -> SSAValue:
    """An index in a type that counts up to `size`, and below 0."""
    dtype = array_type(index).dtype
    if dtype.kind != "u" and dtype.highest > size:
        return index
    return _as_i64(gather, index)


def _as_i64(gather: array.GatherOp, index: SSAValue) -> SSAValue:
    type = ArrayType(array_type(index).shape, dtypes.i64)
    if array_type(index) == type:
        return index
    return _add(gather, array.CastOp(arguments=[index], outputs=[tensor(type)]))


def _transpose(op: array.TransposeOp, gather: array.GatherOp) -> SSAValue:
    axes = {axis: op.permutation[axis] for axis in gather.axes}
    gathered = _gathered(gather, op.operands[0], axes)
    rank = array_type(gather.operands[1]).rank
    rest = [axis for axis in range(len(op.permutation)) if axis not in axes.values()]
    order = [rank + rest.index(source) for axis, source in enumerate(op.permutation) if axis not in axes]
    permutation = (*range(rank), *order)
    if permutation == tuple(range(len(permutation))):
        return gathered
    return _add(
        gather, array.TransposeOp(arguments=[gathered], permutation=permutation, outputs=[gather.results[0].type])
    )


def _reverse(op: array.ReverseOp, gather: array.GatherOp) -> SSAValue:
    """Positions counted from the other end along the axes that are gathered; the others reversed after it."""
    (source,) = op.operands
    sizes = array_type(source).shape
    indices: list[SSAValue] = []
    for axis, index in zip(gather.axes, gather.operands[1:], strict=True):
        indices.append(_place(gather, index, sizes[axis], (sizes[axis] - 1, -1)) if axis in op.axes else index)
    made = array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=[gather.results[0].type])
    taken, rank = _add(gather, made), array_type(indices[0]).rank
    rest = [axis for axis in range(len(sizes)) if axis not in gather.axes]
    axes = tuple(rank + n for n, axis in enumerate(rest) if axis in op.axes)
    if not axes:
        return taken
    return _add(gather, array.ReverseOp(arguments=[taken], axes=axes, outputs=[gather.results[0].type]))


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
        indices.append(_place(gather, index, shape[axis], form) if axis in parts else index)
    # The other axes are sliced first, so that slices bubble up and gathers follow them.
    starts, limits, strides = list(op.starts), list(op.limits), list(op.strides)
    for axis in parts:
        starts[axis], limits[axis], strides[axis] = 0, sizes[axis], 1
    left = tuple(size if axis in parts else shape[axis] for axis, size in enumerate(sizes))
    if left != sizes:
        outputs = [_tensor(left, source)]
        source = _add(
            gather,
            array.SliceOp(
                arguments=[source], starts=tuple(starts), limits=tuple(limits), strides=tuple(strides), outputs=outputs
            ),
        )
    outputs = [gather.results[0].type]
    return _add(gather, array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=outputs))


def _place(gather: array.GatherOp, index: SSAValue, size: int, form: tuple[int, int]) -> SSAValue:
    """`start + stride * index` for an index below `size`."""
    start, stride = form
    place = _clamped(gather, _wide(gather, index, start + abs(stride) * size), size)
    if stride != 1:
        place = _combined(gather, "multiply", place, _number(gather, stride, place))
    return _combined(gather, "add", place, _number(gather, start, place)) if start else place


def _pad(op: array.PadOp, gather: array.GatherOp) -> SSAValue | None:
    """Elements of the operand, where the indices are inside of it, padded along the other axes."""
    source, value = op.operands
    if any(op.interior[axis] for axis in gather.axes):
        return None
    sizes, outputs = array_type(source).shape, [gather.results[0].type]
    indices, inside = _places(op, gather)
    shape, rank = array_type(indices[0]).shape, array_type(indices[0]).rank
    rest = [axis for axis in range(len(sizes)) if axis not in gather.axes]
    taken = [_tensor((*shape, *(sizes[axis] for axis in rest)), source)]
    gathered = _add(gather, array.GatherOp(arguments=[source, *indices], axes=gather.axes, outputs=taken))
    none = (0,) * rank
    low, high, interior = ((*none, *(each[axis] for axis in rest)) for each in (op.low, op.high, op.interior))
    if any((*low, *high, *interior)):
        padding = array.PadOp(arguments=[gathered, value], low=low, high=high, interior=interior, outputs=outputs)
        gathered = _add(gather, padding)
    if inside is None:
        return gathered
    flags = tensor(ArrayType(array_type(gather.results[0]).shape, dtypes.bool_))
    chosen = _add(gather, array.BroadcastOp(arguments=[inside], axes=tuple(range(rank)), outputs=[flags]))
    beside = _add(gather, array.BroadcastOp(arguments=[value], axes=(), outputs=outputs))
    return _add(gather, array.MapOp(arguments=[chosen, gathered, beside], fn="select", outputs=outputs))


def _places(op: array.PadOp, gather: array.GatherOp) -> tuple[list[SSAValue], SSAValue | None]:
    """Indices of the operand for those of the padded array, and whether all are inside of it; None if they must be."""
    sizes, padded = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    indices: list[SSAValue] = []
    inside: SSAValue | None = None
    for axis, index in zip(gather.axes, gather.operands[1:], strict=True):
        if sizes[axis] == padded[axis]:
            indices.append(index)
            continue
        clamped = _clamped(gather, _wide(gather, index, padded[axis]), padded[axis])
        place = _combined(gather, "subtract", clamped, _number(gather, op.low[axis], clamped))
        indices.append(place)
        for fn, bound in (("greater_equal", 0), ("less", sizes[axis])):
            found = _compared(gather, fn, place, _number(gather, bound, place))
            inside = found if inside is None else _combined(gather, "bitwise_and", inside, found)
    return indices, inside


def _number(gather: array.GatherOp, value: int, like: SSAValue) -> SSAValue:
    return _add(gather, array.ConstantOp(value=value, resource="", outputs=[like.type]))


def _combined(gather: array.GatherOp, fn: str, left: SSAValue, right: SSAValue) -> SSAValue:
    return _add(gather, array.MapOp(arguments=[left, right], fn=fn, outputs=[left.type]))


def _compared(gather: array.GatherOp, fn: str, left: SSAValue, right: SSAValue) -> SSAValue:
    flags = tensor(ArrayType(array_type(left).shape, dtypes.bool_))
    return _add(gather, array.MapOp(arguments=[left, right], fn=fn, outputs=[flags]))


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
    parts = [_gathered(gather, each, axes) for each in indices]
    parts += [index for axis, index in zip(gather.axes, gather.operands[1:], strict=True) if axis in others]
    places = (*op.axes, *others.values())
    return _add(gather, array.GatherOp(arguments=[source, *parts], axes=places, outputs=[gather.results[0].type]))


def _other_axes_first(op: array.GatherOp, gather: array.GatherOp) -> SSAValue | None:
    """Two gathers in the other order, where the first one keeps most of an array or repeats it, and so stays where it
    is: the second one takes less of what computes the array."""
    source, *indices = op.operands
    if array_type(op.results[0]).size <= array_type(source).size // 2 or not isinstance(source.owner, array.ArrayOp):
        return None
    rank, own_rank = array_type(indices[0]).rank, array_type(gather.operands[1]).rank
    rest = [axis for axis in range(array_type(source).rank) if axis not in op.axes]
    axes = {axis: rest[axis - rank] for axis in gather.axes}
    taken = _gathered(gather, source, axes)
    # What is left of the array comes after the indices: (own indices, other axes).
    left = [axis for axis in range(array_type(source).rank) if axis not in axes.values()]
    places = tuple(own_rank + left.index(axis) for axis in op.axes)
    type = array_type(gather.results[0])
    own, rest_sizes = type.shape[:own_rank], type.shape[own_rank + rank :]
    swapped = [_tensor((*array_type(indices[0]).shape, *own, *rest_sizes), source)]
    again = _add(gather, array.GatherOp(arguments=[taken, *indices], axes=places, outputs=swapped))
    order = (*range(rank, rank + own_rank), *range(rank), *range(rank + own_rank, type.rank))
    return _add(gather, array.TransposeOp(arguments=[again], permutation=order, outputs=[gather.results[0].type]))


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
    gathered = _gathered(gather, source, axes)
    rank = array_type(gather.operands[1]).rank
    rest = [axis for axis in range(array_type(source).rank) if axis not in axes.values()]
    summed = tuple(rank + rest.index(axis) for axis in op.axes)
    return _add(gather, array.ReduceOp(arguments=[gathered], fn=op.fn, axes=summed, outputs=[gather.results[0].type]))


# A rule takes the operation of its class.
_RULES: dict[type, Callable[[Any, array.GatherOp], SSAValue | None]] = {
    array.MapOp: _elementwise,
    array.CastOp: _elementwise,
    array.BitcastOp: _elementwise,
    array.BroadcastOp: _broadcast,
    array.ConcatOp: _concat,
    array.ReshapeOp: _reshape,
    array.TransposeOp: _transpose,
    array.PadOp: _pad,
    array.ReverseOp: _reverse,
    array.SliceOp: _slice,
    array.GatherOp: _gather,
    array.ReduceOp: _reduce,
}

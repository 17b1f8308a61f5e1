"""Gathers from a reshape, as reshapes of gathers from its operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.errors import CompilerBug
from tilewright.passes.array.array_move_reshapes import runs
from tilewright.passes.array.gather_indices import (
    add,
    as_i64,
    clamped,
    combined,
    gathered_from,
    number,
    place_of,
    typed,
    wide,
)
from tilewright.primitives import ArrayType

# Elements that are taken at each index where all positions of other axes have an index, too.
_FEWEST_OF_EACH = 8


def gather_reshaped(op: array.ReshapeOp, gather: array.GatherOp) -> SSAValue | None:
    """Axes that are gathered are axes of the operand, or count the same elements together, with others whose positions
    are gathered, too, if these are few."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    axes = [axis for axis in gather.axes if shape[axis] != 1]
    found = _gathered_runs(sizes, shape, axes)
    is_stored = not isinstance(source.owner, array.ArrayOp) or isinstance(source.owner, array.ConstantOp)
    if not found or is_stored:
        return None  # memory is gathered from as the view of it that it is
    if len(axes) == len(gather.axes) and all(len(own) == len(outer) == 1 for own, outer in found):
        own_axes = {outer[0]: own[0] for own, outer in found}
        gathered = gathered_from(gather, source, {axis: own_axes[axis] for axis in gather.axes})
        return add(gather, array.ReshapeOp(arguments=[gathered], outputs=[gather.results[0].type]))
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
    outputs = [typed((*array_type(indices[0]).shape, *rest), source)]
    taken = add(gather, array.GatherOp(arguments=[source, *indices], axes=places, outputs=outputs))
    return _in_order(gather, taken, others, shape)


def _with_positions(gather: array.GatherOp, others: Sequence[int], shape: Sequence[int]) -> dict[int, SSAValue]:
    """The index along each gathered axis, and the positions along `others`, whose dims follow on those of the
    indices."""
    given = dict(zip(gather.axes, gather.operands[1:], strict=True))
    if not others:
        return given
    own = array_type(gather.operands[1]).shape
    joined = (*own, *(shape[axis] for axis in others))
    for axis, index in given.items():
        made = array.BroadcastOp(arguments=[index], axes=tuple(range(len(own))), outputs=[typed(joined, index)])
        given[axis] = add(gather, made)
    for n, axis in enumerate(others):
        counts = array.IotaOp(arguments=[], axis=len(own) + n, outputs=[tensor(ArrayType(joined, dtypes.i64))])
        given[axis] = add(gather, counts)
    return given


def _in_order(gather: array.GatherOp, taken: SSAValue, others: Sequence[int], shape: Sequence[int]) -> SSAValue:
    """Put axes in the order of the array that is gathered from; dims of `others` follow on those of the indices before
    that."""
    left = [axis for axis in range(len(shape)) if axis not in gather.axes]
    now = [*others, *(axis for axis in left if axis not in others)]
    own = array_type(gather.operands[1]).shape
    flat = array.ReshapeOp(arguments=[taken], outputs=[typed((*own, *(shape[axis] for axis in now)), taken)])
    value = add(gather, flat)
    if now == left:
        return value
    order = (*range(len(own)), *(len(own) + now.index(axis) for axis in left))
    return add(gather, array.TransposeOp(arguments=[value], permutation=order, outputs=[gather.results[0].type]))


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
        add(gather, array.ReshapeOp(arguments=[own[d]], outputs=[typed(result, own[d])]))
        if d in own
        else add(gather, array.IotaOp(arguments=[], axis=d, outputs=[typed(result, like)]))
        for d in range(len(sizes))
    ]
    made = array.GatherOp(arguments=[source, *indices], axes=tuple(range(len(sizes))), outputs=[typed(result, source)])
    return add(gather, array.ReshapeOp(arguments=[add(gather, made)], outputs=[gather.results[0].type]))


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
        place = place_of(gather, as_i64(gather, index), size, (0, math.prod(sizes[n + 1 :])))
        total = place if total is None else combined(gather, "add", total, place)
    if total is None:
        raise CompilerBug("no axis is gathered")
    return total


def _digits(gather: array.GatherOp, index: SSAValue, sizes: Sequence[int]) -> list[SSAValue]:
    """The position along each of some axes that an index among the elements of all of them states."""
    if len(sizes) == 1:
        return [index]
    index = clamped(gather, wide(gather, index, math.prod(sizes)), math.prod(sizes))
    found: list[SSAValue] = []
    for n, size in enumerate(sizes):
        below = math.prod(sizes[n + 1 :])
        digit = index if below == 1 else combined(gather, "floor_divide", index, number(gather, below, index))
        found.append(combined(gather, "remainder", digit, number(gather, size, index)) if n else digit)
    return found

"""Gathers from what an operation gives, as that operation on gathers from its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Attribute, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.primitives import ArrayType


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
    """A gather by the same indices from another array; `axes` are the axes of that for those of `gather`."""
    if not axes:
        return source
    indices = [each for axis, each in zip(gather.axes, gather.operands[1:], strict=True) if axis in axes]
    sizes = array_type(source).shape
    rest = [size for axis, size in enumerate(sizes) if axis not in axes.values()]
    outputs = [_tensor((*array_type(indices[0]).shape, *rest), source)]
    made = array.GatherOp(arguments=[source, *indices], axes=tuple(axes.values()), outputs=outputs)
    return _add(gather, made)


def _elementwise(op: array.ArrayOp, gather: array.GatherOp) -> SSAValue:
    axes = {axis: axis for axis in gather.axes}
    gathered = {operand: _gathered(gather, operand, axes) for operand in dict.fromkeys(op.operands)}
    return _add(gather, rebuilt(op, [gathered[operand] for operand in op.operands], [gather.results[0].type]))


def _broadcast(op: array.BroadcastOp, gather: array.GatherOp) -> SSAValue | None:
    """Axes that the operand has are gathered from it, others are repeated."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    own = {result: axis for axis, result in enumerate(op.axes)}
    if any(sizes[own[axis]] != shape[axis] for axis in gather.axes if axis in own):
        return None
    axes = {axis: own[axis] for axis in gather.axes if axis in own}
    leading = range(array_type(gather.operands[1]).rank)
    rest = [axis for axis in range(len(shape)) if axis not in gather.axes]
    kept = [len(leading) + rest.index(axis) for axis in op.axes if axis not in axes]
    made = array.BroadcastOp(
        arguments=[_gathered(gather, source, axes)],
        axes=(*(leading if axes else ()), *kept),
        outputs=[gather.results[0].type],
    )
    return _add(gather, made)


def _concat(op: array.ConcatOp, gather: array.GatherOp) -> SSAValue | None:
    if op.axis in gather.axes:
        return None
    axes = {axis: axis for axis in gather.axes}
    before = sum(axis not in gather.axes for axis in range(op.axis))
    parts = [_gathered(gather, operand, axes) for operand in op.operands]
    axis = array_type(gather.operands[1]).rank + before
    return _add(gather, array.ConcatOp(arguments=parts, axis=axis, outputs=[gather.results[0].type]))


def _reshape(op: array.ReshapeOp, gather: array.GatherOp) -> SSAValue | None:
    """Each axis that is gathered is one of the operand; the others count the same elements without them."""
    (source,) = op.operands
    sizes, shape = array_type(source).shape, array_type(op.results[0]).shape
    axes = {axis: _same_axis(sizes, math.prod(shape[:axis]), shape[axis]) for axis in gather.axes}
    found = {axis: own for axis, own in axes.items() if own is not None}
    if len(found) < len(axes):
        return None
    gathered = _gathered(gather, source, found)
    return _add(gather, array.ReshapeOp(arguments=[gathered], outputs=[gather.results[0].type]))


def _same_axis(sizes: Sequence[int], before: int, size: int) -> int | None:
    """The axis of `size` that follows on `before` elements."""
    return next((n for n, own in enumerate(sizes) if own == size != 1 and math.prod(sizes[:n]) == before), None)


# A rule takes the operation of its class.
_RULES: dict[type, Callable[[Any, array.GatherOp], SSAValue | None]] = {
    array.MapOp: _elementwise,
    array.CastOp: _elementwise,
    array.BitcastOp: _elementwise,
    array.BroadcastOp: _broadcast,
    array.ConcatOp: _concat,
    array.ReshapeOp: _reshape,
}

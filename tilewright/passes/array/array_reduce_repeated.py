"""Reduce an array once instead of each time that a broadcast repeats it.

A sum over a dim along which a broadcast repeats its operand is the operand times the count; a maximum is the operand;
not for sums of narrow floats, which the multiplication would round once more. Elements repeated along other dims are
reduced before that. A reshape between them may merge dims that are all reduced or all kept, as that of `tile` merges
the repeats with the dim itself; what transposes between them leave is transposed after the reduction. A reduction of
dims of one element is a reshape, and one over the dim along which short rows or transposed arrays are concatenated is
one of each of these. Before simplification, which removes the broadcast and looks at what gives its operand.

Before:
    func.func @main(%x: tensor<4x6xf32>) -> tensor<4xf32> {
      %repeats = array.broadcast(%x) {axes = array<i64: 0, 2>} : tensor<4x3x6xf32>
      %tiled = array.reshape(%repeats) : tensor<4x18xf32>
      %z = array.reduce(%tiled) {fn = "add", axes = array<i64: 1>} : tensor<4xf32>
      func.return %z : tensor<4xf32>
    }
After:
    func.func @main(%x: tensor<4x6xf32>) -> tensor<4xf32> {
      %repeats = array.broadcast(%x) {axes = array<i64: 0, 2>} : tensor<4x3x6xf32>
      %tiled = array.reshape(%repeats) : tensor<4x18xf32>
      %once = array.reduce(%x) {fn = "add", axes = array<i64: 1>} : tensor<4xf32>
      %count = array.constant() {value = 3.0 : f64, resource = ""} : tensor<4xf32>
      %z = array.map(%once, %count) {fn = "multiply"} : tensor<4xf32>
      func.return %z : tensor<4xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# Reductions that a value repeated does not change.
_IDEMPOTENT = ("maximum", "minimum", "bitwise_and", "bitwise_or")
# Concatenations that are reduced operand by operand: how many arrays, of how many elements, in runs shorter than this.
_MOST_OPERANDS, _LEAST_ELEMENTS, _SHORT_RUN = 4, 65536, 16


class ArrayReduceRepeatedPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-reduce-repeated"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.ReduceOp)]:
                if _is_of_one(op):
                    whole = array.ReshapeOp(arguments=op.operands, outputs=[op.results[0].type])
                    insert_like(op, whole)
                    op.results[0].replace_all_uses_with(whole.results[0])
                    erase(op)
                    continue
                source, axes, kept = _before_views(op)
                repeats = source.owner
                if isinstance(repeats, array.ConcatOp) and kept == sorted(kept) and _is_by_operand(op, repeats, axes):
                    reason = "rows of the operands are short or apart"
                    unit.remarks.append(Remark(self.name, f"reduction at {where(op)}", "of each operand", reason))
                    _reduce_operands(op, repeats, axes)
                    continue
                if not isinstance(repeats, array.BroadcastOp) or op.part is not None:
                    continue
                shape = array_type(source).shape
                repeated = _repeated_axes(repeats, axes)
                everywhere = _repeated_axes(repeats, range(len(shape)))
                if everywhere and 0 not in shape and (not repeated or _is_simply_repeated(op)):
                    count = math.prod(shape[axis] for axis in everywhere)
                    reason = f"a broadcast repeats elements {count} times"
                    unit.remarks.append(Remark(self.name, f"reduction at {where(op)}", "of the array once", reason))
                    _reduce_once(op, repeats, kept, repeated)


def _is_by_operand(op: array.ReduceOp, join: array.ConcatOp, axes: Sequence[int]) -> bool:
    """Whether a reduction of a concatenation is one of each operand, whose results are combined."""
    type, result = array_type(join.results[0]), array_type(op.results[0])
    is_exact = op.fn in _IDEMPOTENT or (op.fn == "add" and type.dtype == type.dtype.compute)
    if op.part is not None or type.dtype != result.dtype or not is_exact or join.axis not in axes:
        return False
    if len(join.operands) > _MOST_OPERANDS or type.size < _LEAST_ELEMENTS or join.results[0].has_more_than_one_use():
        return False
    inner = math.prod(type.shape[join.axis + 1 :])
    runs = [array_type(each).shape[join.axis] * inner for each in join.operands]
    return min(runs) < _SHORT_RUN or any(
        isinstance(_stacked(each, join.axis).owner, array.TransposeOp) for each in join.operands
    )


def _reduce_operands(op: array.ReduceOp, join: array.ConcatOp, axes: tuple[int, ...]) -> None:
    total: SSAValue | None = None
    for each in join.operands:
        source = _stacked(each, join.axis)
        left = axes if source is each else tuple(axis - (axis > join.axis) for axis in axes if axis != join.axis)
        found = source
        if left:
            made = array.ReduceOp(arguments=[source], fn=op.fn, axes=left, outputs=[op.results[0].type])
            insert_like(op, made)
            found = made.results[0]
        if total is not None:
            both = array.MapOp(arguments=[total, found], fn=op.fn, outputs=[op.results[0].type])
            insert_like(op, both)
            found = both.results[0]
        total = found
    if total is not None:
        op.results[0].replace_all_uses_with(total)
        erase(op)


def _stacked(value: SSAValue, axis: int) -> SSAValue:
    """The array that is stacked along an axis, which a reshape adds to it."""
    shape, reshape = array_type(value).shape, value.owner
    if isinstance(reshape, array.ReshapeOp) and shape[axis] == 1:
        (source,) = reshape.operands
        return source if array_type(source).shape == shape[:axis] + shape[axis + 1 :] else value
    return value


def _is_of_one(op: array.ReduceOp) -> bool:
    """Whether each result is one element."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    return op.part is None and 0 not in source.shape and source.size == result.size and source.dtype == result.dtype


def _is_simply_repeated(op: array.ReduceOp) -> bool:
    """Whether a reduction of repeated elements is one of the elements, or that times the count, to the last bit that
    the type asks for."""
    type = array_type(op.operands[0])
    if type.dtype != array_type(op.results[0]).dtype:
        return False
    return op.fn in _IDEMPOTENT or (op.fn == "add" and type.dtype == type.dtype.compute and not type.dtype.is_bool)


def _before_views(op: array.ReduceOp) -> tuple[SSAValue, tuple[int, ...], list[int]]:
    """The array that a reduction reads and the dims that it reduces, before transposes and reshapes where that is
    possible; with the dims that are kept, in the order in which the result has them."""
    (value,), axes = op.operands, op.axes
    kept = [axis for axis in range(array_type(value).rank) if axis not in axes]
    while True:
        owner = value.owner
        if isinstance(owner, array.TransposeOp):
            axes = tuple(sorted(owner.permutation[axis] for axis in axes))
            kept = [owner.permutation[axis] for axis in kept]
        elif isinstance(owner, array.ReshapeOp) and kept == sorted(kept):
            sizes = array_type(owner.operands[0]).shape
            merged = merged_axes(sizes, array_type(value).shape, axes)
            if merged is None:
                return value, axes, kept
            axes, kept = merged, [axis for axis in range(len(sizes)) if axis not in merged]
        else:
            return value, axes, kept
        value = owner.operands[0]


def merged_axes(sizes: Sequence[int], shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...] | None:
    """The dims of `sizes` whose elements `axes` of the reshape to `shape` count; None where a dim is only in part."""
    found: list[int] = []
    for axis in axes:
        before, after = math.prod(shape[:axis]), math.prod(shape[: axis + 1])
        starts = [math.prod(sizes[:n]) for n in range(len(sizes) + 1)]
        if before not in starts or after not in starts:
            return None
        found += [n for n in range(len(sizes)) if before <= starts[n] and starts[n + 1] <= after and sizes[n] > 1]
    return tuple(sorted(found))


def _repeated_axes(op: array.BroadcastOp, axes: Sequence[int]) -> tuple[int, ...]:
    """The dims among `axes` along which a broadcast repeats its operand."""
    sizes, shape = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    own = {axis: size for axis, size in zip(op.axes, sizes, strict=True)}
    return tuple(axis for axis in axes if own.get(axis, 1) != shape[axis])


def _reduce_once(op: array.ReduceOp, repeats: array.BroadcastOp, kept: Sequence[int], repeated: Sequence[int]) -> None:
    """Put a reduction of the operand of a broadcast in place of one of what that repeats; `kept`: the dims of that
    which the result has, in its order."""
    (source,) = repeats.operands
    type, wide, result = array_type(source), array_type(repeats.results[0]), array_type(op.results[0])
    own = tuple(n for n, axis in enumerate(repeats.axes) if axis not in kept)
    value: SSAValue = source
    if own:
        shape = tuple(n for d, n in enumerate(type.shape) if d not in own)
        once = array.ReduceOp(arguments=[source], fn=op.fn, axes=own, outputs=[tensor(ArrayType(shape, result.dtype))])
        insert_like(op, once)
        value = once.results[0]
    # What is left of the operand's dims, in the order of the result, and the dims along which it is repeated.
    left = [kept.index(axis) for axis in repeats.axes if axis in kept]
    if left != sorted(left):
        order = tuple(sorted(range(len(left)), key=left.__getitem__))
        turned = ArrayType(tuple(array_type(value).shape[d] for d in order), result.dtype)
        transposed = array.TransposeOp(arguments=[value], permutation=order, outputs=[tensor(turned)])
        insert_like(op, transposed)
        value, left = transposed.results[0], sorted(left)
    shape = tuple(wide.shape[axis] for axis in kept)
    if left != list(range(len(shape))) or array_type(value).shape != shape:
        spread = array.BroadcastOp(
            arguments=[value], axes=tuple(left), outputs=[tensor(ArrayType(shape, result.dtype))]
        )
        insert_like(op, spread)
        value = spread.results[0]
    if shape != result.shape:
        flat = array.ReshapeOp(arguments=[value], outputs=[tensor(result)])
        insert_like(op, flat)
        value = flat.results[0]
    if op.fn == "add" and repeated:
        value = _times(op, value, math.prod(wide.shape[axis] for axis in repeated))
    op.results[0].replace_all_uses_with(value)
    erase(op)


def _times(op: array.ReduceOp, value: SSAValue, count: int) -> SSAValue:
    number = float(count) if array_type(value).dtype.is_float else count
    factor = array.ConstantOp(value=number, resource="", outputs=[value.type])
    product = array.MapOp(arguments=[value, factor.results[0]], fn="multiply", outputs=[value.type])
    insert_like(op, factor)
    insert_like(op, product)
    return product.results[0]

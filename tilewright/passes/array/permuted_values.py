"""Sinking of transposes through elementwise operations to their operands.

A pass that writes a transpose in front of an operation's users gives it here; operations after it that can be computed
in the other order of dims are, and are followed by a transpose in their turn. Two that meet are one, or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase
from tilewright.dtypes import DType
from tilewright.passes.array.fusion import is_splat
from tilewright.primitives import ArrayType

Permutation = tuple[int, ...]

# Attributes of operations that have one number for each dim.
_PER_DIM = {
    "pad": ("low", "high", "interior"),
    "slice": ("starts", "limits", "strides"),
    "window_reduce": ("window", "strides", "low", "high", "dilation"),
}


class PermutedValues(msgspec.Struct):
    """Values of a block that are transposes written here, with what they are transposes of."""

    block: Block
    known: dict[SSAValue, tuple[SSAValue, Permutation]] = msgspec.field(
        default_factory=dict[SSAValue, tuple[SSAValue, Permutation]]
    )

    def add(self, op: Operation, made: array.ArrayOp) -> SSAValue:
        """Insert a new operation before `op`, at its user location."""
        made.location = op.location
        self.block.insert_op_before(made, op)
        return made.results[0]

    def add_transpose(self, op: Operation, source: SSAValue, permutation: Permutation) -> SSAValue:
        """Insert a transpose before `op`."""
        type = array_type(source)
        shape = tuple(type.shape[p] for p in permutation)
        view = array.TransposeOp(arguments=[source], permutation=permutation, outputs=[_tensor(shape, source)])
        return self.add(op, view)

    def add_cast(self, op: Operation, value: SSAValue, dtype: DType) -> SSAValue:
        """A value in another type, before `op`."""
        type = array_type(value)
        if type.dtype == dtype:
            return value
        return self.add(op, array.CastOp(arguments=[value], outputs=[tensor(ArrayType(type.shape, dtype))]))

    def add_reshape(self, op: Operation, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        """A value in another shape, before `op`."""
        if array_type(value).shape == shape:
            return value
        return self.add(op, array.ReshapeOp(arguments=[value], outputs=[_tensor(shape, value)]))

    def add_padding(self, op: Operation, value: SSAValue, low: tuple[int, ...], high: tuple[int, ...]) -> SSAValue:
        """A value with so many zeros around it, before `op`."""
        type = array_type(value)
        if not any((*low, *high)):
            return value
        zero = self.add(op, array.ConstantOp(value=0, resource="", outputs=[tensor(ArrayType((), type.dtype))]))
        return self.add(op, array.PadOp(arguments=[value, zero], low=low, high=high, interior=(0,) * type.rank))

    def replace(self, op: Operation, source: SSAValue, permutation: Permutation) -> None:
        """Put a transpose of `source` in place of an operation's result."""
        result = op.results[0]
        if permutation == tuple(range(len(permutation))):
            result.replace_all_uses_with(source)
        else:
            view = self.add_transpose(op, source, permutation)
            self.known[view] = (source, permutation)
            result.replace_all_uses_with(view)
        erase(op)

    def transposed(self, op: Operation, value: SSAValue, permutation: Permutation) -> SSAValue:
        """The transpose of a value, before `op`."""
        source, inner = self.known.get(value, (value, tuple(range(len(permutation)))))
        joined = tuple(inner[p] for p in permutation)
        type = array_type(source)
        if joined == tuple(range(len(joined))):
            return source
        shape = tuple(type.shape[p] for p in joined)
        if isinstance(source.owner, array.ConstantOp) and is_splat(source.owner):
            return self.add(op, rebuilt(source.owner, result_types=[_tensor(shape, source)]))
        if [p for p in joined if type.shape[p] != 1] == [p for p in range(type.rank) if type.shape[p] != 1]:
            return self.add(op, array.ReshapeOp(arguments=[source], outputs=[_tensor(shape, source)]))
        return self.add_transpose(op, source, joined)

    def sink(self, op: Operation) -> bool:
        """Compute an operation of what its operands are transposes of, if that can be done."""
        rule = _RULES.get(type(op))
        if (
            rule is None
            or not isinstance(op, array.ArrayOp)
            or not any(operand in self.known for operand in op.operands)
        ):
            return False
        return rule(self, op)


def _tensor(shape: tuple[int, ...], like: SSAValue) -> Attribute:
    """The type of an array of the elements of another."""
    return tensor(ArrayType(shape, array_type(like).dtype))


def inverse(permutation: Permutation) -> Permutation:
    """The inverse of a permutation."""
    return tuple(permutation.index(d) for d in range(len(permutation)))


def _elementwise(values: PermutedValues, op: array.ArrayOp) -> bool:
    permuted = [values.known[operand] for operand in op.operands if operand in values.known]
    _, permutation = max(permuted, key=lambda each: array_type(each[0]).size)
    undo = inverse(permutation)
    operands = [values.transposed(op, operand, undo) for operand in op.operands]
    result = _tensor(tuple(array_type(op.results[0]).shape[u] for u in undo), op.results[0])
    values.replace(op, values.add(op, rebuilt(op, operands, [result])), permutation)
    return True


def _broadcast(values: PermutedValues, op: array.BroadcastOp) -> bool:
    shape = array_type(op.results[0]).shape
    source, permutation = values.known[op.operands[0]]
    if op.axes != tuple(range(len(shape))):
        return False
    wide = tuple(shape[p] for p in inverse(permutation))
    values.replace(op, values.add(op, rebuilt(op, [source], [_tensor(wide, source)])), permutation)
    return True


def _reduce(values: PermutedValues, op: array.ReduceOp) -> bool:
    source, permutation = values.known[op.operands[0]]
    reduced = op.axes
    axes = tuple(sorted(permutation[a] for a in reduced))
    kept = [d for d in range(len(permutation)) if d not in axes]
    order = tuple(kept.index(p) for d, p in enumerate(permutation) if d not in reduced)
    parts = array_type(op.results[0]).shape[: 0 if op.part is None else 1]
    shape = (*parts, *(array_type(source).shape[d] for d in kept))
    made = rebuilt(op, [source], [_tensor(shape, op.results[0])])
    made.axes = axes
    values.replace(op, values.add(op, made), order)
    return True


def _each_dim(values: PermutedValues, op: array.PadOp | array.SliceOp | array.WindowReduceOp) -> bool:
    if op.operands[0] not in values.known:
        return False
    source, permutation = values.known[op.operands[0]]
    undo = inverse(permutation)
    shape = tuple(array_type(op.results[0]).shape[u] for u in undo)
    made = rebuilt(op, [source, *op.operands[1:]], [_tensor(shape, op.results[0])])
    permute_attributes(made, undo)
    values.replace(op, values.add(op, made), permutation)
    return True


def permute_attributes(op: array.PadOp | array.SliceOp | array.WindowReduceOp, order: Sequence[int]) -> None:
    """Put the numbers that an operation has for each dim in another order: number i is what was number `order[i]`."""
    for name in _PER_DIM[op.primitive]:
        each: tuple[int, ...] = getattr(op, name)
        setattr(op, name, tuple(each[axis] for axis in order))


def _reverse(values: PermutedValues, op: array.ReverseOp) -> bool:
    source, permutation = values.known[op.operands[0]]
    made = rebuilt(op, [source], [source.type])
    made.axes = tuple(sorted(permutation[a] for a in op.axes))
    values.replace(op, values.add(op, made), permutation)
    return True


def _concat(values: PermutedValues, op: array.ConcatOp) -> bool:
    permutation = next(values.known[operand] for operand in op.operands if operand in values.known)[1]
    undo = inverse(permutation)
    operands = [values.transposed(op, operand, undo) for operand in op.operands]
    shape = tuple(array_type(op.results[0]).shape[u] for u in undo)
    made = rebuilt(op, operands, [_tensor(shape, op.results[0])])
    made.axis = permutation[op.axis]
    values.replace(op, values.add(op, made), permutation)
    return True


def _transpose(values: PermutedValues, op: array.TransposeOp) -> bool:
    source, inner = values.known[op.operands[0]]
    values.replace(op, source, tuple(inner[p] for p in op.permutation))
    return True


def _reshape(values: PermutedValues, op: array.ReshapeOp) -> bool:
    """Dims that are split or merged move as one: the source has each group's dims side by side, and the groups in the
    order of their first dims there."""
    permutation = values.known[op.operands[0]][1]
    before, after = (array_type(value).shape for value in (op.operands[0], op.results[0]))
    groups = reshaped_groups(before, after)
    if groups is None:
        return False
    wide = [g for g in groups if any(before[d] != 1 for d in g[0])]
    thin = [g for g in groups if g not in wide]
    ordered = [*sorted(wide, key=lambda g: min(permutation[d] for d in g[0] if before[d] != 1)), *thin]
    dims = [d for g in ordered for d in g[0]]
    moved = values.transposed(op, op.operands[0], tuple(dims))
    results = [d for g in ordered for d in g[1]]
    shape = tuple(after[d] for d in results)
    result = values.add(op, array.ReshapeOp(arguments=[moved], outputs=[_tensor(shape, moved)]))
    values.replace(op, result, inverse(tuple(results)))
    return True


def reshaped_groups(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Runs of dims of a shape, each with the run that it becomes by a reshape: one of them of one dim. None where the
    reshape takes dims apart and puts them together otherwise."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first = second = 0
    while first < len(before) or second < len(after):
        ends = [min(first + 1, len(before)), min(second + 1, len(after))]
        while (left := math.prod(before[first : ends[0]])) != (right := math.prod(after[second : ends[1]])):
            side = 0 if left < right else 1
            if ends[side] == len((before, after)[side]):
                return None
            ends[side] += 1
        groups.append((tuple(range(first, ends[0])), tuple(range(second, ends[1]))))
        first, second = ends
    return groups if all(1 in map(len, g) or not all(g) for g in groups) else None


def _gather(values: PermutedValues, op: array.GatherOp) -> bool:
    """Dims of the index arrays first, then the dims that are left, in the order of the source."""
    operand, *indices = op.operands
    if operand not in values.known:
        return False
    source, permutation = values.known[operand]
    indexed = op.axes
    axes = tuple(permutation[a] for a in indexed)
    kept = [d for d in range(len(permutation)) if d not in axes]
    first = array_type(indices[0]).rank
    rest = (first + kept.index(p) for d, p in enumerate(permutation) if d not in indexed)
    shape = (*array_type(indices[0]).shape, *(array_type(source).shape[d] for d in kept))
    made = rebuilt(op, [source, *indices], [_tensor(shape, source)])
    made.axes = axes
    values.replace(op, values.add(op, made), (*range(first), *rest))
    return True


# A rule takes the operation of its class.
_RULES: dict[type[Operation], Callable[[PermutedValues, Any], bool]] = {
    array.MapOp: _elementwise,
    array.CastOp: _elementwise,
    array.BitcastOp: _elementwise,
    array.BroadcastOp: _broadcast,
    array.ReduceOp: _reduce,
    array.PadOp: _each_dim,
    array.SliceOp: _each_dim,
    array.WindowReduceOp: _each_dim,
    array.ReverseOp: _reverse,
    array.ConcatOp: _concat,
    array.TransposeOp: _transpose,
    array.ReshapeOp: _reshape,
    array.GatherOp: _gather,
}

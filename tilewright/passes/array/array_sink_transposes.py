"""Compute what follows a transposed array in the order of the array as it is stored.

Elementwise operations and reductions, such as those of a softmax along a dim that is not the innermost one in memory,
would read the array across its rows. They are computed before the transpose if only reductions, scans and transposes
back leave what they compute: reductions have other axes, what is scanned is transposed, and transposes back are
dropped. Broadcasts next to them, of the results of these reductions too, have their dims in the other order. A reshape
before such reductions, of all dims that count the same elements, is dropped (`reduced_reshapes.py`). After
simplification, which moves a reduction that alone reads what is transposed; before reductions are split.

Before:
    func.func @main(%x: tensor<96x64xf32>) -> tensor<96x64xf32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
      %highest = array.reduce(%t) {fn = "maximum", axes = array<i64: 1>} : tensor<64xf32>
      %shift = array.broadcast(%highest) {axes = array<i64: 0>} : tensor<64x96xf32>
      %y = array.map(%t, %shift) {fn = "subtract"} : tensor<64x96xf32>
      %z = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<96x64xf32>
      func.return %z : tensor<96x64xf32>
    }
After:
    func.func @main(%x: tensor<96x64xf32>) -> tensor<96x64xf32> {
      %highest = array.reduce(%x) {fn = "maximum", axes = array<i64: 0>} : tensor<64xf32>
      %shift = array.broadcast(%highest) {axes = array<i64: 1>} : tensor<96x64xf32>
      %z = array.map(%x, %shift) {fn = "subtract"} : tensor<96x64xf32>
      func.return %z : tensor<96x64xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.errors import CompilerBug
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.array.fusion import ELEMENTWISE, is_splat, users
from tilewright.passes.array.permuted_values import Permutation, inverse
from tilewright.passes.array.reduced_reshapes import reduce_before_reshapes
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.lower_loop_group import is_gathered_along_rows
from tilewright.primitives import ArrayType

Elementwise: TypeAlias = array.MapOp | array.CastOp | array.BitcastOp
_Exit: TypeAlias = array.ReduceOp | array.ScanOp | array.ArgReduceOp | array.TransposeOp | array.SliceOp
# Elementwise operations that are looked at.
_MOST_OPERATIONS = 64
# Elements of lines that are worked on side by side.
_LEAST_RUN = 16
# Elements of a transposed array for each one that a slice takes, as a variance takes the first of each row.
_FEW_TAKEN = 16


class ArraySinkTransposesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-sink-transposes"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            reduce_before_reshapes(block)
            for op in [op for op in block.ops if isinstance(op, array.TransposeOp)]:
                region = _region_of(op, block) if op.parent is block else None
                if region is not None:
                    why = "only reductions and transposes back leave what is computed of it"
                    unit.remarks.append(Remark(self.name, f"transpose at {where(op)}", "computed before it", why))
                    _rewrite(region)
                    drop_unused(block)


class _Region(msgspec.Struct):
    """A transpose, the elementwise operations on what it gives, and the operations that read their results: reductions,
    scans, transposes back and slices of few elements. All in the order of the block."""

    turn: array.TransposeOp
    inside: list[Elementwise]
    exits: list[_Exit]


def _region_of(turn: array.TransposeOp, block: Block) -> _Region | None:
    """Find the operations on a transposed array, if only reductions, scans and transposes back leave them."""
    if is_gathered_along_rows(turn.operands[0]):
        return None
    values, inside, exits = {turn.results[0]}, set[Operation](), set[Operation]()
    pending = [turn.results[0]]
    while pending:
        for user in users(pending.pop()):
            if user.parent is not block or len(inside) > _MOST_OPERATIONS:
                return None
            if isinstance(user, ELEMENTWISE):
                inside.add(user)
                pending += [each for each in user.results if each not in values]
                values.update(user.results)
            elif _leaves(user, turn):
                exits.add(user)
            else:
                return None
    others = {operand for op in inside for operand in op.operands} - values
    if all(isinstance(op, array.SliceOp) for op in exits) or not all(_is_moved(each, turn) for each in others):
        return None
    ordered = [op for op in block.ops if op in inside or op in exits]
    leaving = [op for op in ordered if isinstance(op, _Exit)]
    return _Region(turn, [op for op in ordered if isinstance(op, Elementwise)], leaving)


def _leaves(op: Operation, turn: array.TransposeOp) -> bool:
    if isinstance(op, array.TransposeOp):
        return op.permutation == inverse(turn.permutation)
    if isinstance(op, array.SliceOp):
        return array_type(op.results[0]).size * _FEW_TAKEN <= array_type(turn.results[0]).size
    if isinstance(op, array.ScanOp | array.ArgReduceOp):
        return len(op.operands) == 1 and _is_worked_along(op, turn)
    return isinstance(op, array.ReduceOp) and op.part is None


def _is_worked_along(op: array.ScanOp | array.ArgReduceOp, turn: array.TransposeOp) -> bool:
    """Whether rows along an axis are contiguous in memory, or columns next to each other in long rows."""
    inner = math.prod(array_type(turn.operands[0]).shape[turn.permutation[op.axis] + 1 :])
    return inner == 1 or inner >= _LEAST_RUN


def _is_moved(value: SSAValue, turn: array.TransposeOp) -> bool:
    """Whether an operand from elsewhere can be had before the transpose."""
    owner = value.owner
    if isinstance(owner, array.TransposeOp):
        return owner.permutation == turn.permutation
    return isinstance(owner, array.BroadcastOp) or (isinstance(owner, array.ConstantOp) and is_splat(owner))


def _rewrite(region: _Region) -> None:
    """Compute a region before its transpose."""
    values: dict[SSAValue, SSAValue] = {region.turn.results[0]: region.turn.operands[0]}
    permutation = region.turn.permutation
    for op in region.inside:
        operands = [_before(op, each, permutation, values) for each in op.operands]
        outputs = [_permuted(op.results[0], inverse(permutation))]
        values[op.results[0]] = _insert(op, rebuilt(op, operands, outputs))
    for op in region.exits:
        source = values[op.operands[0]]
        result = source if isinstance(op, array.TransposeOp) else _worked(op, source, permutation)
        op.results[0].replace_all_uses_with(result)
        erase(op)


def _before(op: array.ArrayOp, value: SSAValue, permutation: Permutation, values: dict[SSAValue, SSAValue]) -> SSAValue:
    """An operand of `op` before the transpose."""
    owner = value.owner
    if value in values:
        return values[value]
    if isinstance(owner, array.TransposeOp):
        return owner.operands[0]
    outputs = [_permuted(value, inverse(permutation))]
    if isinstance(owner, array.BroadcastOp):
        axes = [permutation[axis] for axis in owner.axes]
        order = sorted(range(len(axes)), key=axes.__getitem__)
        source = _transposed(op, owner.operands[0], order)
        made = array.BroadcastOp(arguments=[source], axes=tuple(sorted(axes)), outputs=outputs)
        return _insert(op, made)
    if not isinstance(owner, array.ConstantOp):
        raise CompilerBug(f"{value} cannot be had before the transpose")
    return _insert(op, rebuilt(owner, [], outputs))


def _transposed(op: array.ArrayOp, value: SSAValue, order: Sequence[int]) -> SSAValue:
    """A value with its dims in another order; a reshape where only dims of one element move."""
    shape = array_type(value).shape
    if list(order) == sorted(order):
        return value
    outputs = [_permuted(value, order)]
    long = [axis for axis in order if shape[axis] != 1]
    if long == sorted(long):
        return _insert(op, array.ReshapeOp(arguments=[value], outputs=outputs))
    return _insert(op, array.TransposeOp(arguments=[value], permutation=tuple(order), outputs=outputs))


def _worked(
    op: array.ReduceOp | array.ScanOp | array.ArgReduceOp | array.SliceOp, source: SSAValue, permutation: Permutation
) -> SSAValue:
    """The result of an operation along axes on what is computed before a transpose."""
    if isinstance(op, array.ReduceOp):
        return _reduced(op, source, permutation)
    if isinstance(op, array.SliceOp):
        made = rebuilt(op, [source], [_permuted(op.results[0], inverse(permutation))])
        made.starts, made.limits, made.strides = (
            tuple(each[axis] for axis in inverse(permutation)) for each in (op.starts, op.limits, op.strides)
        )
        return _transposed(op, _insert(op, made), permutation)
    axis = permutation[op.axis]
    if isinstance(op, array.ScanOp):
        made = rebuilt(op, [source], [_permuted(op.results[0], inverse(permutation))])
        made.axis = axis
        return _transposed(op, _insert(op, made), permutation)
    order = [each - (each > axis) for each in permutation if each != axis]
    made = rebuilt(op, [source], [_permuted(op.results[0], inverse(tuple(order)))])
    made.axis = axis
    return _transposed(op, _insert(op, made), order)


def _reduced(op: array.ReduceOp, source: SSAValue, permutation: Permutation) -> SSAValue:
    """The result of a reduction from what is reduced before its transpose."""
    axes = tuple(sorted(permutation[axis] for axis in op.axes))
    kept = [axis for axis in range(len(permutation)) if axis not in axes]
    shape = array_type(source).shape
    outputs = [tensor(ArrayType(tuple(shape[axis] for axis in kept), array_type(op.results[0]).dtype))]
    made = rebuilt(op, [source], outputs)
    made.axes = axes
    order = [kept.index(axis) for n, axis in enumerate(permutation) if n not in op.axes]
    return _transposed(op, _insert(op, made), order)


def _permuted(value: SSAValue, order: Sequence[int]) -> Attribute:
    """The type of a value with its dims in another order."""
    type = array_type(value)
    return tensor(ArrayType(tuple(type.shape[axis] for axis in order), type.dtype))


def _insert(op: array.ArrayOp, made: array.ArrayOp) -> SSAValue:
    insert_like(op, made)
    return made.results[0]

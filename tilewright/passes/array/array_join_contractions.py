"""Join contractions that are added up: one contraction of their operands side by side along the depth.

The gradient of a weight that an unrolled loop reads in each step is such a sum. Joined, its terms are added up in
registers, instead of being stored and read again; the operands are copied, which is less where the depth is small.
Before fusion, which would take the sum for an epilogue.

Before:
    func.func @main(%a: tensor<2x8xi32>, %b: tensor<2x16xi32>, %c: tensor<2x8xi32>, %d: tensor<2x16xi32>)
        -> tensor<8x16xi32> {
      %first = array.contract(%a, %b) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 0>,
        right_contract = array<i64: 0>} : tensor<8x16xi32>
      %second = array.contract(%c, %d) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 0>, right_contract = array<i64: 0>} : tensor<8x16xi32>
      %sum = array.map(%first, %second) {fn = "add"} : tensor<8x16xi32>
      func.return %sum : tensor<8x16xi32>
    }
After:
    func.func @main(%a: tensor<2x8xi32>, %b: tensor<2x16xi32>, %c: tensor<2x8xi32>, %d: tensor<2x16xi32>)
        -> tensor<8x16xi32> {
      %left = array.concat(%a, %c) {axis = 0 : index} : tensor<4x8xi32>
      %right = array.concat(%b, %d) {axis = 0 : index} : tensor<4x16xi32>
      %sum = array.contract(%left, %right) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 0>, right_contract = array<i64: 0>} : tensor<8x16xi32>
      func.return %sum : tensor<8x16xi32>
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType


class ArrayJoinContractionsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-join-contractions"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            sums = [op for op in block.ops if isinstance(op, array.MapOp) and op.fn == "add"]
            concats = _Concats(block)
            changed = False
            known: set[Operation] = set()
            for root in reversed(sums):
                # Additions within a larger sum were looked at with it, whose terms include theirs.
                if root.parent_block() is block and root not in known:
                    terms, inner = _terms(root)
                    known.update(inner)
                    changed |= self._join(unit, root, terms, inner, concats)
            if changed:
                drop_unused(block)

    def _join(
        self, unit: Unit, root: array.MapOp, terms: list[SSAValue], sums: list[Operation], concats: _Concats
    ) -> bool:
        """Join the contractions of a sum; returns whether there are any to join."""
        alike: dict[tuple[object, ...], list[array.ContractOp]] = {}
        for term in terms:
            op = term.owner
            if isinstance(op, array.ContractOp) and term.has_one_use() and _is_shallow(op, concats.block):
                alike.setdefault(_form(op), []).append(op)
        groups = [group for group in alike.values() if len(group) > 1]
        if not groups:
            return False
        joined = {op for group in groups for op in group}
        kept = [term for term in terms if term.owner not in joined]
        for group in groups:
            reason = f"{len(group)} contractions are added up"
            unit.remarks.append(Remark(self.name, f"sum at {where(root)}", "one contraction", reason))
            kept.append(_joined(root, group, concats))
        root.results[0].replace_all_uses_with(_added(root, kept))
        for op in (*sums, *joined):
            erase(op)
        return True


class _Concats:
    """Concatenations of a block's values, each made once, right after the last of its operands."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._index = {op: n for n, op in enumerate(block.ops)}
        self._first = next(iter(block.ops))
        self._known: dict[tuple[int, tuple[SSAValue, ...]], SSAValue] = {}

    def of(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        key = (axis, tuple(values))
        if key not in self._known:
            self._known[key] = self._new(values, axis)
        return self._known[key]

    def _new(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        type = array_type(values[0])
        extent = sum(array_type(value).shape[axis] for value in values)
        shape = (*type.shape[:axis], extent, *type.shape[axis + 1 :])
        concat = array.ConcatOp(arguments=values, axis=axis, outputs=[tensor(ArrayType(shape, type.dtype))])
        owners = [value.owner for value in values]
        before = [owner for owner in owners if isinstance(owner, Operation) and owner in self._index]
        last = max(before, key=self._index.__getitem__, default=None)
        concat.location = (last or self._first).location
        if last is None:
            self.block.insert_op_before(concat, self._first)
        else:
            self.block.insert_op_after(concat, last)
        return concat.results[0]


def _terms(root: array.MapOp) -> tuple[list[SSAValue], list[Operation]]:
    """The values that a tree of additions adds up, in its order, and the additions, users first."""
    terms: list[SSAValue] = []
    sums: list[Operation] = [root]
    pending = list(reversed(root.operands))
    while pending:
        value = pending.pop()
        op = value.owner
        is_sum = isinstance(op, array.MapOp) and op.fn == "add" and op.parent_block() is root.parent_block()
        if isinstance(op, array.MapOp) and is_sum and value.has_one_use():
            sums.append(op)
            pending += reversed(op.operands)
        else:
            terms.append(value)
    return terms, sums


def _is_shallow(op: array.ContractOp, block: Block | None) -> bool:
    """Whether a plain contraction in a block has operands that are smaller than its result."""
    if op.parent_block() is not block or op.part is not None or op.left_batch or len(op.left_contract) != 1:
        return False
    sizes = [array_type(value).nbytes for value in op.operands]
    return sum(sizes) < array_type(op.results[0]).nbytes


def _form(op: array.ContractOp) -> tuple[object, ...]:
    """Equal for contractions that have one form but for their depths."""
    axes = (op.left_contract[0], op.right_contract[0])
    operands = [(array_type(v).dtype, _without(array_type(v).shape, d)) for v, d in zip(op.operands, axes, strict=True)]
    return (*operands, *axes, op.precision, array_type(op.results[0]))


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _joined(root: array.MapOp, group: Sequence[array.ContractOp], concats: _Concats) -> SSAValue:
    first = group[0]
    operands = [
        _beside(root, [op.operands[n] for op in group], axis, concats)
        for n, axis in enumerate((first.left_contract[0], first.right_contract[0]))
    ]
    joined = rebuilt(first, operands)
    insert_like(root, joined)
    return joined.results[0]


def _beside(root: array.MapOp, values: Sequence[SSAValue], axis: int, concats: _Concats) -> SSAValue:
    """The values side by side along an axis; all transposed alike, as they are stored, then transposed."""
    permutations = {v.owner.permutation if isinstance(v.owner, array.TransposeOp) else () for v in values}
    permutation = permutations.pop()
    if permutations or not permutation:
        return concats.of(values, axis)
    stored = [v.owner.operands[0] for v in values if isinstance(v.owner, array.TransposeOp)]
    concat = concats.of(stored, permutation[axis])
    type = array_type(concat)
    turned = ArrayType(tuple(type.shape[d] for d in permutation), type.dtype)
    view = array.TransposeOp(arguments=[concat], permutation=permutation, outputs=[tensor(turned)])
    insert_like(root, view)
    return view.results[0]


def _added(root: array.MapOp, terms: Sequence[SSAValue]) -> SSAValue:
    total = terms[0]
    for term in terms[1:]:
        op = rebuilt(root, [total, term])
        insert_like(root, op)
        total = op.results[0]
    return total

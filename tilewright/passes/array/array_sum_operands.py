"""Sum the operand of a contraction instead of its result, where only a sum over rows or columns of that is used.

A sum over the rows of a matmul is the sum over the rows of the left operand, times the right one: a mean of what a
linear layer gives. The contraction has no such dim then. Not of narrow floats, whose sums would be rounded in between,
nor where operands are rounded first.
After simplification, which removes what else would use the result; before anything chooses the form of a contraction.

Before:
    func.func @main(%x: tensor<64x16xf32>, %w: tensor<16x8xf32>) -> tensor<8xf32> {
      %y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<64x8xf32>
      %z = array.reduce(%y) {fn = "add", axes = array<i64: 0>} : tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
After:
    func.func @main(%x: tensor<64x16xf32>, %w: tensor<16x8xf32>) -> tensor<8xf32> {
      %row = array.reduce(%x) {fn = "add", axes = array<i64: 0>} : tensor<16xf32>
      %z = array.contract(%row, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 0>,
        right_contract = array<i64: 0>} : tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.passes.array.array_simplify import reduced_as_stored
from tilewright.passes.array.fusion import users
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType


class ArraySumOperandsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-sum-operands"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.ReduceOp)]:
                contraction = op.operands[0].owner
                if isinstance(contraction, array.ContractOp) and _applies(op, contraction):
                    subject, reason = f"sum at {where(op)}", "of rows or columns of a contraction"
                    unit.remarks.append(Remark(self.name, subject, "of its operands", reason))
                    _sum_operands(op, contraction)


def _applies(op: array.ReduceOp, contraction: array.ContractOp) -> bool:
    type = array_type(contraction.results[0])
    if op.fn != "add" or op.part is not None or contraction.part is not None or contraction.precision is not None:
        return False
    is_free = all(axis >= len(contraction.left_batch) for axis in op.axes) and 0 not in type.shape
    is_exact = all(array_type(each).dtype == type.dtype.compute for each in contraction.operands)
    return is_free and is_exact and type.dtype == type.dtype.compute and users(contraction.results[0]) == [op]


def _sum_operands(op: array.ReduceOp, contraction: array.ContractOp) -> None:
    left, right = contraction.operands
    batches = len(contraction.left_batch)
    columns = array_type(left).rank - len(contraction.left_contract)
    sides = (
        (left, contraction.left_batch, contraction.left_contract, [a - batches for a in op.axes if a < columns]),
        (right, contraction.right_batch, contraction.right_contract, [a - columns for a in op.axes if a >= columns]),
    )
    dtype = array_type(op.results[0]).dtype
    summed = [_summed(op, *side) for side in sides]
    made = array.ContractOp(
        arguments=[value for value, _, _ in summed],
        left_batch=summed[0][1],
        right_batch=summed[1][1],
        left_contract=summed[0][2],
        right_contract=summed[1][2],
        outputs=[tensor(ArrayType(array_type(op.results[0]).shape, dtype))],
    )
    insert_like(op, made)
    op.results[0].replace_all_uses_with(made.results[0])
    erase(op)
    erase(contraction)
    for value, _, _ in summed:
        # Nothing else reads a transposed operand now: it is summed in the order of memory.
        if isinstance(value.owner, array.ReduceOp) and (stored := reduced_as_stored(value.owner)) is not None:
            value.replace_all_uses_with(stored)
            erase(value.owner)


def _summed(
    op: array.ReduceOp, value: SSAValue, batch: Sequence[int], contracted: Sequence[int], rows: Sequence[int]
) -> tuple[SSAValue, tuple[int, ...], tuple[int, ...]]:
    """An operand summed over some of its free dims, and which of its dims are batches and contracted then."""
    type = array_type(value)
    free = [d for d in range(type.rank) if d not in (*batch, *contracted)]
    axes = tuple(free[n] for n in rows)
    if not axes:
        return value, tuple(batch), tuple(contracted)
    kept = [d for d in range(type.rank) if d not in axes]
    shape = tuple(type.shape[d] for d in kept)
    made = array.ReduceOp(arguments=[value], fn="add", axes=axes, outputs=[tensor(ArrayType(shape, type.dtype))])
    insert_like(op, made)
    return made.results[0], tuple(map(kept.index, batch)), tuple(map(kept.index, contracted))

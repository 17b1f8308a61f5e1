"""Contractions of a matrix with a vector that are best a multiplication and a reduction.

A contraction reads a matrix in place, as it is stored: one that elementwise operations compute is stored for it. A
reduction computes each element where it reads it, in the order of memory, and shares long columns among threads.
"""

from __future__ import annotations

import math

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.passes.array.fusion import ELEMENTWISE, is_inline, operands_through, users
from tilewright.passes.kernels.contract_facts import Side, sides_of
from tilewright.primitives import ArrayType

# Depths from which few columns of a matrix that is stored by rows are best reduced, and how many for each column.
# Measured on two cores with AVX-512, f32: 2048 x 512 to 100000 x 256 take 0.25 to 0.75 of the time.
LONG_COLUMN, ROWS_OF_A_COLUMN = 2048, 4
# Lanes of a vector are indices of a batch from this size on.
SHORT_BATCH = 16
# Operations that compute a matrix, at most, and what may be before them: all that loops take in, or read as it is.
_MOST_BETWEEN = 64
_READ = (array.ConstantOp, array.ReduceOp)


class MatrixByVector(msgspec.Struct, frozen=True):
    """A contraction over all of a vector, or of as many vectors as matrices."""

    op: array.ContractOp
    matrix: Side
    vector: Side

    @property
    def is_computed(self) -> bool:
        """Whether only this contraction reads the matrix, which elementwise operations compute of what is stored."""
        value = self.matrix.value
        if isinstance(value.owner, array.TransposeOp):
            value = value.owner.operands[0]
        is_made = isinstance(value.owner, ELEMENTWISE) and value.owner.parent is self.op.parent
        return is_made and _is_fused(self.matrix.value) and not self._has_batch_inside()

    def _has_batch_inside(self) -> bool:
        """Whether the innermost dim in memory of what the matrices are computed from is a short one of the batch."""
        sources = operands_through(self.matrix.value, ELEMENTWISE)
        turns = [each.owner for each in sources if isinstance(each.owner, array.TransposeOp)]
        inside = [op.permutation.index(len(op.permutation) - 1) for op in turns]
        return any(dim in self.matrix.batch and self.matrix.shape[dim] < SHORT_BATCH for dim in inside)

    @property
    def has_long_columns(self) -> bool:
        """Whether the matrix is stored by rows, which are short next to their number."""
        value, contracted = self.matrix.value, self.matrix.contracted
        if isinstance(value.owner, array.TransposeOp):
            contracted = tuple(value.owner.permutation[axis] for axis in contracted)
            value = value.owner.operands[0]
        type = array_type(value)
        depth = math.prod(type.shape[axis] for axis in contracted)
        is_stored = isinstance(value.owner, array.ConstantOp) or not isinstance(value.owner, Operation)
        is_long = depth >= max(LONG_COLUMN, ROWS_OF_A_COLUMN * type.size // max(1, depth))
        is_one = type.rank == len(self.matrix.free) + len(contracted)
        return type.dtype.is_float and is_stored and is_long and is_one and type.rank - 1 not in contracted

    def reduction(self) -> array.ReduceOp:
        """A reduction of the matrix times the vector, which has the elements of the result."""
        matrix, vector, dtype = self.matrix, self.vector, array_type(self.op.results[0]).dtype
        # Each dim of the vector, without those of one element that are summed over nothing, is one of the matrix.
        kept = sorted((*vector.batch, *vector.contracted))
        place = dict(zip((*vector.batch, *vector.contracted), (*matrix.batch, *matrix.contracted), strict=True))
        sizes = tuple(vector.shape[dim] for dim in kept)
        factor = self._add(array.ReshapeOp(arguments=[vector.value], outputs=[tensor(ArrayType(sizes, dtype))]))
        order = sorted(range(len(kept)), key=lambda n: place[kept[n]])
        if order != list(range(len(kept))):
            turned = tensor(ArrayType(tuple(sizes[n] for n in order), dtype))
            factor = self._add(array.TransposeOp(arguments=[factor], permutation=tuple(order), outputs=[turned]))
        all_of_it = [matrix.value.type]
        axes = tuple(sorted(place.values()))
        factor = self._add(array.BroadcastOp(arguments=[factor], axes=axes, outputs=all_of_it))
        products = self._add(array.MapOp(arguments=[matrix.value, factor], fn="multiply", outputs=all_of_it))
        left = tensor(ArrayType(tuple(n for d, n in enumerate(matrix.shape) if d not in matrix.contracted), dtype))
        summed = tuple(sorted(matrix.contracted))
        reduction = array.ReduceOp(arguments=[products], fn="add", axes=summed, outputs=[left])
        insert_like(self.op, reduction)
        return reduction

    def _add(self, made: array.ArrayOp) -> SSAValue:
        insert_like(self.op, made)
        return made.results[0]


def matrix_by_vector(op: array.ContractOp) -> MatrixByVector | None:
    """A contraction of matrices of the type of its sums with vectors; None of others."""
    left, right = sides_of(op)
    dtype = array_type(op.results[0]).dtype
    types = {dtype, dtype.compute, *(array_type(each).dtype for each in op.operands)}
    if len(types) > 1 or 0 in (*left.shape, *right.shape):
        return None
    for matrix, vector in ((left, right), (right, left)):
        is_vector = math.prod(vector.shape[axis] for axis in vector.free) == 1
        # The result has the batch first: so has the matrix.
        if is_vector and list(matrix.batch) == sorted(matrix.batch) and not _is_free_before(matrix):
            return MatrixByVector(op, matrix, vector)
    return None


def _is_free_before(side: Side) -> bool:
    """Whether a free dim is before one of the batch."""
    return bool(side.free and side.batch) and min(side.free) < max(side.batch)


def _is_fused(value: SSAValue) -> bool:
    """Whether a loop computes a value from what is stored, for one user: nothing else stores it, and it is no epilogue
    of a contraction."""
    pending, seen = [value], 0
    while pending:
        each = pending.pop()
        owner, seen = each.owner, seen + 1
        if not isinstance(owner, Operation) or isinstance(owner, _READ):
            continue
        computes = isinstance(owner, ELEMENTWISE) and len(users(each)) == 1
        if seen > _MOST_BETWEEN or not (computes or is_inline(owner)):
            return False
        pending += owner.operands
    return True

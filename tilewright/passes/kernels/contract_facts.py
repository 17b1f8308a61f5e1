"""Facts of a matmul: which dims of its result are rows and columns, which types and layouts its operands have."""

from __future__ import annotations

import math

import msgspec
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType


class Side(msgspec.Struct, frozen=True):
    """An operand of a contraction."""

    value: SSAValue
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return array_type(self.value).shape

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.batch and d not in self.contracted)


def sides_of(op: array.ContractOp) -> tuple[Side, Side]:
    """The left and the right operand."""
    left, right = op.operands
    return Side(left, op.left_batch, op.left_contract), Side(right, op.right_batch, op.right_contract)


def result_dims(op: array.ContractOp) -> tuple[list[int], list[int], list[int]]:
    """Batch, left-free and right-free dimensions, as result dimensions, without the dimension of a split contraction's
    parts."""
    first = 0 if op.part is None else 1
    batch = first + len(op.left_batch)
    left = batch + array_type(op.operands[0]).rank - len(op.left_batch) - len(op.left_contract)
    rank = array_type(op.results[0]).rank
    return list(range(first, batch)), list(range(batch, left)), list(range(left, rank))


def depth_sizes_of(op: array.ContractOp) -> tuple[int, ...]:
    """The sizes of the contracted dims."""
    summed: tuple[int, ...] = op.left_contract
    return tuple(array_type(op.operands[0]).shape[d] for d in summed)


def depth_of(op: array.ContractOp) -> int:
    """How much of the last contracted dim is summed together; 1 if none is contracted."""
    summed: tuple[int, ...] = op.left_contract
    depth = array_type(op.operands[0]).shape[summed[-1]] if summed else 1
    return depth if op.part is None else min(depth, op.part)


def batches_of(op: array.ContractOp) -> int:
    """Matmuls over the last rows, columns and contracted dimension, or a part of it."""
    shape = array_type(op.results[0]).shape
    _, rows, columns = result_dims(op)
    return math.prod(n for d, n in enumerate(shape) if d not in (*rows[-1:], *columns[-1:]))


def accumulator_of(dtype: DType) -> DType:
    """The type that a matmul with results of a type adds up in."""
    return dtype.compute


def untransposed(value: SSAValue) -> SSAValue:
    """The source of a transpose."""
    while isinstance(value.owner, array.TransposeOp):
        value = value.owner.operands[0]
    return value


def array_behind(value: SSAValue) -> SSAValue:
    """The source of a view that MMAs read through."""
    while isinstance(value.owner, array.TransposeOp | array.UnfoldOp):
        value = value.owner.operands[0]
    return value


def multiplied_types(op: array.ContractOp) -> tuple[DType, DType]:
    """The types in which the operands are multiplied if they can be."""
    if op.precision is not None:
        return dtypes.tf32, dtypes.tf32
    left, right = (array_type(operand).dtype for operand in op.operands)
    return left, right

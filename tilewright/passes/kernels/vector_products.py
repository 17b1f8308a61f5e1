"""Matmuls of vectors: contractions as the cost model sees them, and the instructions that multiply them."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from xdsl.ir import BlockArgument, SSAValue

from tilewright import schedules
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.vectors.products import Product, Right
from tilewright.cost.vectors.register_blocks import RegisterBlock
from tilewright.cost.vectors.tiles import is_streamed, rows_along_depth
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.kernels.contract_facts import (
    accumulator_of,
    array_behind,
    batches_of,
    depth_of,
    depth_sizes_of,
    multiplied_types,
    result_dims,
    untransposed,
)
from tilewright.passes.kernels.lower_contract_group import contract_of, has_more

# Rows from which on a right operand that is contiguous along an odd depth is packed in words, which takes four times as
# long as to transpose it. Measured: with 32 rows f32 is quicker, with 64 words are, for 1024 columns.
ROWS_OF_ODD_DEPTH = 48


def last_sizes(op: array.ContractOp) -> tuple[int, int, int]:
    """Rows, columns and depth of a matmul: the sizes of its last dimensions of each kind."""
    shape = array_type(op.results[0]).shape
    _, rows, columns = result_dims(op)
    return shape[rows[-1]] if rows else 1, shape[columns[-1]] if columns else 1, depth_of(op)


def matrix_atom_for(op: array.ContractOp, machine: Machine) -> MatrixAtom | None:
    """The matrix instruction that multiplies the operands as they are, or None."""
    rows, _, depth = last_sizes(op)
    accumulator = accumulator_of(array_type(op.results[0]).dtype)
    atom = machine.matrix_atom(*multiplied_types(op), accumulator, depth)
    return None if atom is None or rows < atom.rows else atom


def word_atom_for(group: array.FusedOp, op: array.ContractOp, machine: Machine) -> MatrixAtom | None:
    """The instruction that multiplies words of the operands in a micro-kernel, or None: matmuls of few rows that read
    the right operand once, as stored, take longer to read than to convert it."""
    rows, columns, depth = last_sizes(op)
    result = array_type(op.results[0])
    accumulator = accumulator_of(result.dtype)
    atom = machine.word_atom(*multiplied_types(op), accumulator)
    if atom is None or matrix_atom_for(op, machine) is not None or depth < atom.group:
        return None
    if op.part is not None and op.part % atom.group:
        return None  # a part would begin inside a word
    if is_streamed(rows, columns, result.dtype) and reads_columns(group, op):
        return None
    if rows <= rows_along_depth(depth, result.dtype, machine) and reads_along_depth(group, op):
        return None
    return None if depth % atom.group and rows < ROWS_OF_ODD_DEPTH and _is_along_depth(group, op) else atom


def _is_along_depth(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether the right operand is an array known at run time only that is contiguous along the depth."""
    right = untransposed(op.operands[1])
    if not isinstance(right, BlockArgument) or isinstance(group.operands[right.index].owner, array.ConstantOp):
        return False
    return _lies_along(op.operands[1], op.right_contract[-1])


def in_words(product: Product, group: int) -> Product:
    """A matmul of words of `group` steps of the depth."""
    return msgspec.structs.replace(product, depth=-(-product.depth // group))


def vector_matmul(
    op: array.ContractOp,
    tile: MatmulTile,
    block: RegisterBlock | None = None,
    right: Literal["in_place", "kept", "together"] | None = None,
) -> schedules.VectorMatmul:
    """The schedule by about such a tile, which is no larger than the matmul."""
    extents = zip((tile.rows, tile.columns, tile.depth), last_sizes(op), strict=True)
    rows, columns, depth = (max(1, min(extent, size)) for extent, size in extents)
    size = None if block is None else (block.rows, block.columns)
    return schedules.VectorMatmul(tile=(rows, columns, depth), block=size, right=right)


def atom_of_parts(group: array.FusedOp, op: array.ContractOp, machine: Machine) -> MatrixAtom | None:
    """The atom that computes a matmul from bf16 parts. Both operands are arrays of the group, under transposes at most,
    and no constants: they are read again if the result is not finite."""
    left, right = (array_type(operand).dtype for operand in op.operands)
    _, rows, columns = result_dims(op)
    ends = [array_type(op.results[0]).shape[d] for d in (*rows[-1:], *columns[-1:])]
    ends += [array_type(op.operands[0]).shape[d] for d in op.left_contract[-1:]]
    if op.precision is not None or op.part is not None or len(ends) < 3 or min(ends) < 2:
        return None
    for operand in op.operands:
        value = untransposed(operand)
        if not isinstance(value, BlockArgument) or isinstance(group.operands[value.index].owner, array.ConstantOp):
            return None
    return machine.split_atom(left, right, accumulator_of(array_type(op.results[0]).dtype))


def product_of(group: array.FusedOp, words: MatrixAtom | None = None) -> Product:
    """Facts of a `contract` group for the cost model, of operands that are multiplied as they are where an instruction
    multiplies `words` of them."""
    op = contract_of(group)
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    _, rows, columns = result_dims(op)
    summed: tuple[int, ...] = op.left_contract
    dtype = accumulator_of(result.dtype)
    is_read = (left.dtype == dtype or words is not None) and op.precision is None
    in_windows = reads_windows(group, op)
    in_place = bool(summed) and _lies_along(op.operands[0], summed[-1]) and is_read
    width = result.shape[columns[-1]] if columns else 1
    product = Product(
        rows=max(1, result.shape[rows[-1]] if rows else 1),
        columns=max(1, width),
        depth=math.prod(depth_sizes_of(op)) if in_windows else depth_of(op),
        dtype=dtype,
        batches=max(1, batches_of(op)),
        pitch_bytes=right.shape[-1] * right.dtype.itemsize if right.rank else 0,
        choices=(Right.IN_PLACE,) if in_windows else _right_choices(group, op, words),
        copies_left=not in_place and not in_windows,
        buffered=(len(summed) > 1 and not in_windows) or has_more(group, op),
    )
    return product if words is None else in_words(product, words.group)


def reads_windows(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether a matmul sums over several dims of windows whose columns are adjacent, as they are in an array, with rows
    of another array that are a dim of it: it reads both in place."""
    left, right = op.operands
    summed, dtype = op.right_contract, accumulator_of(array_type(op.results[0]).dtype)
    if len(summed) < 2 or op.precision is not None or op.part is not None:
        return False
    if array_type(left).dtype != dtype or array_type(right).dtype.compute != dtype:
        return False
    last = array_type(right).rank - 1
    is_view = isinstance(right.owner, array.UnfoldOp) and _lies_along(right, last)
    return is_view and last not in summed and isinstance(array_behind(left), BlockArgument)


def _right_choices(group: array.FusedOp, op: array.ContractOp, words: MatrixAtom | None) -> tuple[Right, ...]:
    """The treatments of the right operand. An array of the group, under transposes at most, is packed as a whole, or
    read in place if the matmul's columns are contiguous; an operand that the group computes is packed by each tile."""
    value = untransposed(op.operands[1])
    if not isinstance(value, BlockArgument) or op.precision is not None:
        return (Right.ALONE,)
    if isinstance(group.operands[value.index].owner, array.ConstantOp):
        return (Right.READY,)
    is_read = reads_array(group, op) if words is None else reads_columns(group, op)
    return (Right.IN_PLACE, Right.KEPT, Right.TOGETHER) if is_read else (Right.TOGETHER,)


def reads_along_depth(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether both operands are arrays that are contiguous along the depth, the right one known at run time only and of
    a type that is loaded as the one that the matmul is computed in: a matmul of few rows reads it in place."""
    right = untransposed(op.operands[1])
    if not isinstance(right, BlockArgument) or op.precision is not None or not op.left_contract:
        return False
    if array_type(right).dtype.compute != array_type(op.results[0]).dtype.compute:
        return False
    is_constant = isinstance(group.operands[right.index].owner, array.ConstantOp)
    inside = _lies_along(op.operands[0], op.left_contract[-1]) and _lies_along(op.operands[1], op.right_contract[-1])
    return inside and not is_constant


def _lies_along(value: SSAValue, dim: int) -> bool:
    """Whether a value is an array of the group, seen through transposes, whose neighbours in memory are those along a
    dim, but for dims of one element: such a left operand is read in place."""
    while isinstance(value.owner, array.TransposeOp | array.UnfoldOp):
        op, (inner,) = value.owner, value.owner.operands
        if isinstance(op, array.TransposeOp):
            dim = op.permutation[dim]
        elif dim >= op.axis + len(op.steps):
            dim -= len(op.steps) - 1
        elif array_type(inner).rank - 1 != op.axis or dim < op.axis or op.steps[dim - op.axis] != 1:
            return False
        else:
            dim = op.axis
        value = inner
    return isinstance(value, BlockArgument) and math.prod(array_type(value).shape[dim + 1 :]) == 1


def reads_array(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether the right operand is an array known at run time only, its columns side by side, of the type that the
    matmul is computed in: it is read in place."""
    is_wide = array_type(op.operands[1]).dtype == array_type(op.results[0]).dtype.compute
    return is_wide and reads_columns(group, op)


def reads_columns(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether the right operand is an array known at run time only, its columns side by side, of a type that is loaded
    as the one that the matmul is computed in: a matmul of few rows reads it in place."""
    right = op.operands[1]
    type = array_type(right)
    if not isinstance(right, BlockArgument) or op.precision is not None:
        return False
    if type.dtype.compute != array_type(op.results[0]).dtype.compute:
        return False
    summed = op.right_contract
    return type.rank - 1 not in summed and not isinstance(group.operands[right.index].owner, array.ConstantOp)

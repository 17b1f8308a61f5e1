"""Matmuls of warps: contractions and convolutions as the cost model sees them, and the types that matrix instructions
multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace
from xdsl.ir import BlockArgument

from tilewright import dtypes
from tilewright.cost.warps.products import WarpProduct
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.passes.kernels.contract_facts import (
    accumulator_of,
    array_behind,
    batches_of,
    depth_of,
    multiplied_types,
    result_dims,
)
from tilewright.passes.kernels.lower_contract_group import contract_of
from tilewright.passes.kernels.warp_epilogues import epilogue_of

# What a lane may copy at once.
_PIECES_BYTES = (16, 8, 4)


def warp_product(op: array.ContractOp, pieces: Sequence[int], machine: Machine) -> WarpProduct:
    """Facts of a matmul for the cost model of warps; operand windows can be copied in pieces of some bytes, or not if
    those are 0."""
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    summed: tuple[int, ...] = op.left_contract
    _, rows, columns = result_dims(op)
    height, width = (result.shape[dims[-1]] if dims else 1 for dims in (rows, columns))
    multiplied = multiplied_as(op, machine)
    as_they_are = multiplied is None or multiplied == dtypes.tf32
    return WarpProduct(
        height,
        width,
        depth_of(op),
        multiplied or left.dtype,
        accumulator_of(result.dtype),
        batches_of(op),
        min(pieces) if height > 1 and width > 1 and as_they_are else 0,
        right=multiplied or right.dtype,
        scattered=(not pieces[0], not pieces[1]),
        trips=math.prod(left.shape[d] for d in summed[:-1]),
    )


def contract_product(group: array.FusedOp, machine: Machine) -> WarpProduct:
    """Facts of the matmul of a `contract` group for the cost model of warps."""
    op = contract_of(group)
    pieces = [_piece_bytes(op, operand) for operand in range(2)]
    return replace(warp_product(op, pieces, machine), epilogue=epilogue_of(group, op))


def _piece_bytes(op: array.ContractOp, operand: int) -> int:
    """Bytes of the pieces in which a matmul's operand can be copied, if the operand is an array of the group; else
    0."""
    return piece_bytes(op, operand) if isinstance(array_behind(op.operands[operand]), BlockArgument) else 0


def multiplied_as(op: array.ContractOp, machine: Machine) -> DType | None:
    """The type that warps convert a matmul's operands to; None: they multiply them as they are."""
    return multiplied_type(*multiplied_types(op), accumulator_of(array_type(op.results[0]).dtype), machine)


def multiplied_type(left: DType, right: DType, accumulator: DType, machine: Machine) -> DType | None:
    """The type that operands are converted to, if no instruction multiplies them as they are: floats of 8 bits to f16,
    of which all are numbers, where one multiplies those."""
    if machine.warp_atom_of(left, right, accumulator) is not None:
        return dtypes.tf32 if left == dtypes.tf32 else None
    narrow = left.is_float and max(left.bits, right.bits) < dtypes.f16.bits
    has_halves = machine.warp_atom_of(dtypes.f16, dtypes.f16, accumulator) is not None
    return dtypes.f16 if narrow and has_halves else accumulator


def piece_bytes(op: array.ContractOp, operand: int) -> int:
    """In pieces of how many bytes windows of an operand can be copied to a buffer and multiplied from there, if it is
    an array, seen through transposes and unfoldings of one of its dims: with aligned rows; one of other than 16 bits
    runs along the contracted dim. Else 0."""
    summed: tuple[int, ...] = op.left_contract if operand == 0 else op.right_contract
    batch: tuple[int, ...] = op.left_batch if operand == 0 else op.right_batch
    value = op.operands[operand]
    rank = array_type(value).rank
    # The operand's dim along each of the array's, if there is just one.
    dims: list[int | None] = list(range(rank))
    while isinstance(view := value.owner, array.TransposeOp | array.UnfoldOp):
        if isinstance(view, array.TransposeOp):
            dims = [dims[view.permutation.index(dim)] for dim in range(len(dims))]
        else:
            dims[view.axis : view.axis + len(view.sizes)] = [None]
        value = view.operands[0]
    if not summed or not dims:
        return 0
    type = array_type(value)
    free = [dim for dim in range(rank) if dim not in summed and dim not in batch]
    along = (summed[-1],) if type.dtype.itemsize != 2 else (summed[-1], *free[-1:])
    return piece_of_rows(type.shape[-1] * type.dtype.itemsize) if dims[-1] in along else 0


def piece_of_rows(row_bytes: int) -> int:
    """In pieces of how many bytes rows that follow each other can be copied; 0 if they cannot."""
    return next((size for size in _PIECES_BYTES if row_bytes % size == 0), 0)


def row_product(op: array.ConvolveOp, machine: Machine) -> WarpProduct:
    """Facts for the cost model of warps of a convolution that runs row by row of its result, with the image in
    registers."""
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    groups = op.groups
    accumulator = accumulator_of(result.dtype)
    multiplied = multiplied_type(image.dtype, kernel.dtype, accumulator, machine)
    return WarpProduct(
        kernel.shape[0] // groups,
        result.shape[-1],
        kernel.shape[1],
        multiplied or kernel.dtype,
        accumulator,
        groups * result.shape[0] * math.prod(result.shape[2:-1]),
        right=multiplied or image.dtype,
        scattered=(False, True),  # neighbours of the image are columns, and windows begin anywhere
        trips=math.prod(kernel.shape[2:]),
    )


def is_multiplied_by_warps(op: array.ConvolveOp, machine: Machine) -> bool:
    """Whether MMA instructions take a convolution's operands, as they are or converted without a loss."""
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    if 0 in (*result.shape, *kernel.shape):
        return False
    accumulator = accumulator_of(result.dtype)
    return multiplied_type(image.dtype, kernel.dtype, accumulator, machine) != accumulator

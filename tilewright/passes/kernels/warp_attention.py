"""Attention of warps: the types that MMA instructions multiply, and the schedule on warpgroups."""

from __future__ import annotations

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine
from tilewright.passes.array.attention_masks import causal_masks
from tilewright.passes.kernels.attention_warpgroups import Chain, chain_of
from tilewright.passes.kernels.lower_attention_group import (
    LEAST_ROWS,
    AttentionParts,
    query_dim,
    rounded_type,
)

# Of attention that warps hold in registers: scores, weights and results of 16 rows a warp.
REGISTER_ROWS, REGISTER_KEYS = 64, 64


def rounded_operands(parts: AttentionParts, machine: Machine) -> DType | None:
    """The operand type of both matmuls, if MMA instructions take it and the weights are rounded to it; else None."""
    operand = rounded_type(parts)
    if operand is None:
        return None
    atom = machine.warp_atom_of(operand, operand, array_type(parts.scores).dtype.compute)
    return None if atom is None else operand


def registers_of(parts: AttentionParts, operand: DType, rows: int, machine: Machine) -> int:
    """Registers of a thread for what it holds during the whole loop: its part of the results, and of the queries, which
    the warps next to it hold as well. Queries that are not rounded are in shared memory, which overflows before."""
    lanes = machine.axes["lane"]
    columns = array_type(parts.value_product.results[0]).shape[-1]
    inner = array_type(parts.score_product.operands[0]).shape[-1]
    return rows * columns // (WARPGROUP * lanes) + LEAST_ROWS * inner * operand.itemsize // (4 * lanes)


def chain_for(
    parts: AttentionParts, operand: DType, machine: Machine, wanted: tuple[int | None, int | None] = (None, None)
) -> Chain | None:
    """The schedule of a fused attention on warpgroups, on so many of them and with so many keys a step as are `wanted`;
    None where they do not multiply the type, or the machine does not copy the arrays for them."""
    products = (parts.score_product, parts.value_product)
    shape, row_dim = array_type(parts.scores).shape, query_dim(parts)
    masks = [mask for mask in causal_masks(parts.scores) if mask.hides(shape)]
    if any(mask.query_dim != row_dim for mask in masks):
        return None
    offset = min((mask.offset for mask in masks), default=None)
    return chain_of(products, operand, shape, row_dim, offset, machine, wanted)

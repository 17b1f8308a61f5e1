"""MMAs of blocks of warps, and those that continue while the warps do.

The accumulator of an asynchronous MMA is in registers that no other operation may access: each further MMA, and each
`mma_wait`, continues with them, and only the user of the last result may read them.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright import dtypes, ops
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import tensor_memory
from tilewright.semantics.hazards import RaceError
from tilewright.semantics.places import named
from tilewright.semantics.tile import Tensor, Values, dot
from tilewright.semantics.warps.block_memory import Buffer, Cells, warps_of
from tilewright.semantics.warps.block_run import BlockRun, Product

# Which operand of a product is added to.
_ACCUMULATOR = 2


def check_uses(op: Operation, values: Values, block: BlockRun) -> None:
    """An operation uses no registers of an MMA that is under way, but to continue with it.

    Raises:
        RaceError: it does.
    """
    for number, operand in enumerate(op.operands):
        product = values[operand]
        if not isinstance(product, Product) or isinstance(op, tile.ForOp):
            continue
        who = named(op, values)
        if product.goes_on:
            raise RaceError(f"{who} uses {product.name}, whose registers {product.goes_on} accumulates into")
        if product.agent is not block.agent:
            raise RaceError(f"{who} uses {product.name} of other warps")
        if isinstance(op, scheduled.MmaWaitOp) or (_is_asynchronous(op) and number == _ACCUMULATOR):
            continue
        if not block.is_done(product):
            raise RaceError(f"{who} uses {product.name}, which has not been waited for")
        values[operand] = product.value


def multiply(op: scheduled.MmaOp, values: Values, block: BlockRun) -> Tensor | Product:
    """The sum, or an MMA in flight."""
    who = named(op, values)
    if not _is_asynchronous(op):
        left, right = (
            _rounded(operand, _operand(values[operand], fragment, block, who))
            for operand, fragment in zip((op.left, op.right), op.fragments, strict=True)
        )
        return dot(left, right, values[op.accumulator])
    reads: list[tuple[Cells, int]] = []
    left, right = (_read(values[operand], block, who, reads) for operand in (op.left, op.right))
    return block.begin_product(dot(left, right, _taken(values[op.accumulator], who)), reads, who)


def multiply_to_tensor_memory(op: tensor_memory.TensorMmaOp, values: Values, adds: bool, block: BlockRun) -> None:
    """An MMA in flight."""
    who = named(op, values)
    reads: list[tuple[Cells, int]] = []
    left, right = (_read(values[operand], block, who, reads) for operand in (op.left, op.right))
    target = values[op.accumulator]
    block.tensor_multiply(target, dot(left, right, np.zeros_like(target.values)), adds, reads, who)


def _read(operand: Tensor | Buffer, block: BlockRun, who: str, reads: list[tuple[Cells, int]]) -> Tensor:
    """An operand of an asynchronous MMA; what it reads in memory is noted in `reads`."""
    if not isinstance(operand, Buffer):
        return operand
    contents, note = block.read_for_product(operand, who)
    reads.append(note)
    return contents


def wait(op: scheduled.MmaWaitOp, values: Values, block: BlockRun) -> Tensor | Product:
    """The sum, or the same MMA when it is still under way."""
    block.wait_for_products(op.pending)
    before: Tensor | Product = values[op.accumulator]
    if not isinstance(before, Product):
        return before
    value = _taken(before, named(op, values))
    if block.is_done(before):
        return value
    return Product(value, before.agent, before.number, before.name, before.reads)


def _is_asynchronous(op: Operation) -> bool:
    return isinstance(op, scheduled.MmaOp) and op.asynchronous and bool(op.asynchronous)


def _taken(before: Tensor | Product, who: str) -> Tensor:
    """The contents of registers that `who` accumulates into."""
    if not isinstance(before, Product):
        return before
    before.goes_on = who
    return before.value


def _operand(value: Tensor | Buffer, fragment: str, block: BlockRun, who: str) -> Tensor:
    """Operands in buffers are read by the warps that hold the fragment, or else by any."""
    if not isinstance(value, Buffer):
        return value
    shape: tuple[int, ...] = value.places.shape
    holders, _ = warps_of(fragment, shape, block.agent.warps)
    return block.memory.load(block.agent, value, tuple(np.indices(shape)), holders, who)


def _rounded(operand: SSAValue, value: Tensor) -> Tensor:
    """An operand as an MMA multiplies it."""
    type = array_type(operand.type.array if isinstance(operand.type, tile.RefType) else operand)
    return ops.cast(value, type.dtype) if type.dtype == dtypes.tf32 else value

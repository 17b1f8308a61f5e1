"""Epilogues of matmuls on warps: whether they leave registers for large tiles of results."""

from __future__ import annotations

from xdsl.ir import BlockArgument, Operation, SSAValue

from tilewright import ops
from tilewright.cost.warps.products import Epilogue
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.kernels.lower_contract_group import has_more

# Functions of one instruction or few, which need no registers but those of their operands.
_SINGLE = (ops.ALU, ops.MULTIPLY)
# Arrays as large as the result, windows of which a light epilogue may load.
_MOST_RESIDUALS = 1


def epilogue_of(group: array.FusedOp, op: array.ContractOp | array.ConvolveOp) -> Epilogue:
    """The epilogue of a group's matmul."""
    if not has_more(group, op):
        return Epilogue.NONE
    return Epilogue.LIGHT if _is_light(group, op) else Epilogue.HEAVY


def _is_light(group: array.FusedOp, op: array.ContractOp | array.ConvolveOp) -> bool:
    """Whether all operations are casts and functions of one instruction, and load one array as large as the result at
    most, as it is stored."""
    depend: set[SSAValue] = set(op.results)
    loaded: set[SSAValue] = set()
    for each in group.body.block.ops:
        if each.results and depend & set(each.operands):
            if not _is_single(each):
                return False
            depend |= set(each.results)
            loaded |= {operand for operand in each.operands if not _is_small(operand)}
    loaded -= depend
    return len(loaded) <= _MOST_RESIDUALS and all(isinstance(value, BlockArgument) for value in loaded)


def _is_single(op: Operation) -> bool:
    return isinstance(op, array.CastOp) or (isinstance(op, array.MapOp) and ops.FUNCTIONS[op.fn].cost in _SINGLE)


def _is_small(value: SSAValue) -> bool:
    """Whether a value is a constant, or repeats a smaller array."""
    while isinstance(value.owner, array.CastOp):
        value = value.owner.operands[0]
    owner, size = value.owner, array_type(value).size
    if isinstance(owner, array.BroadcastOp):
        return array_type(owner.operands[0]).size < size
    return isinstance(owner, array.ConstantOp)

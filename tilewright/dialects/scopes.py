"""The rule of scopes: every value is defined where it is used."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException


def verify_scopes(op: Operation) -> None:
    """Check that each operand inside an operation is an argument of a block around its user, or a result of an
    operation before it in such a block.

    Raises:
        VerifyException: a value is used where it is not defined, such as after the branch that computes it.
    """
    for region in op.regions:
        for block in region.blocks:
            _verify_block(block, set())


def _verify_block(block: Block, defined: set[SSAValue]) -> None:
    """`defined` are the values of the blocks around; it is left as it was."""
    own: list[SSAValue] = list(block.args)
    defined.update(own)
    for op in block.ops:
        for position, operand in enumerate(op.operands):
            if operand not in defined:
                raise VerifyException(f"{op.name}: operand {position}, {_described(operand)}, is not defined there")
        for region in op.regions:
            for inner in region.blocks:
                _verify_block(inner, defined)
        own.extend(op.results)
        defined.update(op.results)
    defined.difference_update(own)


def _described(value: SSAValue) -> str:
    owner = value.owner
    if isinstance(owner, Operation):
        return f"a result of {owner.name}"
    parent = owner.parent_op()
    return f"an argument of a block of {'no operation' if parent is None else parent.name}"

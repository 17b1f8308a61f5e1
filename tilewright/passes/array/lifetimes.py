"""Last uses of arrays, which decide which memory an operation may overwrite."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.rewriting import in_block


def storage(value: SSAValue) -> SSAValue:
    """The value whose memory a view shares."""
    while isinstance(value.owner, array.ReshapeOp):
        value = value.owner.operands[0]
    return value


def all_users(value: SSAValue) -> Iterable[Operation]:
    """Users of a value and of its views."""
    views = [value]
    while views:
        for use in views.pop().uses:
            yield use.operation
            if isinstance(use.operation, array.ReshapeOp):
                views.append(use.operation.results[0])


def ends_with(value: SSAValue, op: Operation) -> bool:
    """Whether `op`, in the block that the value is made in, is the last to use its memory, and as one operand only."""
    block = op.parent_block()
    root = storage(value)
    made_in = root.owner if isinstance(root.owner, Block) else root.owner.parent_block()
    if block is None or made_in is not block or [storage(o) for o in op.operands].count(root) != 1:
        return False
    tops = [in_block(u, block) for u in all_users(root) if not isinstance(u, array.ReshapeOp)]
    return all(top is op or top.is_before_in_block(op) for top in tops)

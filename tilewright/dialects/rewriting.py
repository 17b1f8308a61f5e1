"""Insertion, replacement and removal of operations."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue

from tilewright.errors import CompilerBug


def block_of(op: Operation) -> Block:
    """The block that an operation is in.

    Raises:
        CompilerBug: it is in none.
    """
    block = op.parent_block()
    if block is None:
        raise CompilerBug(f"`{op.name}` is in no block")
    return block


def in_block(op: Operation, block: Block) -> Operation:
    """The ancestor of `op` that is directly in `block`."""
    while op.parent_block() is not block:
        parent = op.parent_op()
        if parent is None:
            return op
        op = parent
    return op


def insert_before(op: Operation, *new: Operation) -> None:
    """Insert operations before one that is in a block."""
    block_of(op).insert_ops_before(new, op)


def insert_after(op: Operation, *new: Operation) -> None:
    """Insert operations after one that is in a block."""
    block_of(op).insert_ops_after(new, op)


def insert_like(op: Operation, new: Operation) -> None:
    """Insert an operation before another one, at its user location."""
    new.location = op.location
    insert_before(op, new)


def erase(op: Operation) -> None:
    """Remove an operation whose results have no uses."""
    op.detach()
    op.erase()


def replace(op: Operation, new: Operation) -> None:
    """Replace an operation by another one with as many results, at its user location."""
    new.location = op.location
    insert_before(op, new)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    erase(op)


def yielded(block: Block) -> Sequence[SSAValue]:
    """The operands of a block's terminator.

    Raises:
        CompilerBug: the block is empty.
    """
    if block.last_op is None:
        raise CompilerBug("a block without a terminator")
    return block.last_op.operands


def has_uses(op: Operation) -> bool:
    """Whether anything uses a result of an operation."""
    return any(result.first_use is not None for result in op.results)

"""Copies of the elementwise operations before reductions in parts, which store nothing but their parts.

An array that such reductions read and that is used after them would be stored first, and read as often as it is used.
If a few operations compute it, they are written twice instead: for the reductions that can run together, and for its
other uses.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt
from tilewright.dialects.rewriting import insert_like
from tilewright.machines.machine import Machine
from tilewright.passes.array.fusion import ELEMENTWISE, is_cheap, is_inline

# More operations, or operations on more arrays, take as long as an array that is stored and read; so do two functions
# of many instructions, such as `exp`.
_MOST_COPIED, _MOST_ARRAYS, _MOST_DEAR = 8, 2, 1
# Bytes of an element of which a function takes less time than to store and load it.
_MOST_BYTES = 4
_FUSED = (*ELEMENTWISE, array.BroadcastOp, array.ReshapeOp, array.ReduceOp)


class _Together(msgspec.Struct):
    """Reductions in parts of one shape, none of which needs the result of another."""

    reductions: list[array.ReduceOp]
    copies: dict[SSAValue, SSAValue] = {}

    def are_needed_by(self, op: Operation, order: Mapping[Operation, int]) -> bool:
        """Whether an operation is computed from the result of one of these."""
        pending, seen = list(op.operands), set[SSAValue]()
        while pending:
            value = pending.pop()
            owner = value.owner
            if value in seen or not isinstance(owner, Operation):
                continue
            seen.add(value)
            if owner in self.reductions:
                return True
            # What comes before the first of these needs none of them.
            if order.get(owner, -1) > order[self.reductions[0]]:
                pending += owner.operands
        return False


def copy_sources(block: Block, machine: Machine) -> None:
    """Give the reductions in parts of a block sources of their own, where few quick operations compute these."""
    reductions = [op for op in block.ops if isinstance(op, array.ReduceOp) and op.part is not None]
    if not reductions:
        return
    order = {op: n for n, op in enumerate(block.ops)}
    groups: list[_Together] = []
    latest: dict[object, _Together] = {}
    for op in reductions:
        kind = array_type(op.operands[0]).shape, op.axes, op.part, op.part_axis
        group = latest.get(kind)
        if group is None or group.are_needed_by(op, order):
            groups.append(_Together([op]))
            latest[kind] = groups[-1]
        else:
            group.reductions.append(op)
    for group in groups:
        _copy_for(group, machine)


def _copy_for(group: _Together, machine: Machine) -> None:
    own = _own(group, _MOST_DEAR if _is_past_caches(group, machine) else 0)
    if not 0 < len(own) <= _MOST_COPIED or len(_arrays(own)) > _MOST_ARRAYS:
        return
    users = [use.operation for op in own for use in op.results[0].uses]
    others = [user for user in users if user not in own and user not in group.reductions]
    # An array that something else reads, or that the program returns, is stored anyway.
    if not others or not all(isinstance(user, _FUSED) for user in others):
        return
    for op in group.reductions:
        op.operands[0] = _copied(group, op.operands[0], own, op)


def _own(group: _Together, most_dear: int) -> set[Operation]:
    """The cheap operations, up to `most_dear` others, and views among them, between the reductions and what is stored
    in any case."""
    found: set[Operation] = set()
    dear = 0
    pending = [op.operands[0].owner for op in group.reductions]
    while pending and len(found) <= _MOST_COPIED:
        op = pending.pop()
        if not isinstance(op, Operation) or op in found:
            continue
        is_free = is_cheap(op) or is_inline(op)
        if is_free or (_is_function(op) and dear < most_dear):
            dear += not is_free
            found.add(op)
            pending += [operand.owner for operand in op.operands]
    return found


def _is_past_caches(group: _Together, machine: Machine) -> bool:
    """Whether an array of narrow enough floats would be stored to memory, which takes longer than to compute it."""
    source = array_type(group.reductions[0].operands[0])
    return source.dtype.itemsize <= _MOST_BYTES and source.size * source.dtype.itemsize > machine.memory("l3").bytes


def _is_function(op: Operation) -> bool:
    """Whether an operation is a function of one operand, of some ten instructions for each vector."""
    return isinstance(op, array.MapOp) and len(op.operands) == 1


def _arrays(own: set[Operation]) -> set[SSAValue]:
    """The arrays that operations read as a whole."""
    read = {(operand, op) for op in own for operand in op.operands if operand.owner not in own}
    return {operand for operand, op in read if array_type(operand).size >= array_type(op.results[0]).size}


def _copied(group: _Together, value: SSAValue, own: set[Operation], before: Operation) -> SSAValue:
    op = value.owner
    if op not in own or not isinstance(op, array.ArrayOp):
        return value
    if value not in group.copies:
        made = rebuilt(op, [_copied(group, each, own, before) for each in op.operands])
        insert_like(before, made)
        group.copies[value] = made.results[0]
    return group.copies[value]

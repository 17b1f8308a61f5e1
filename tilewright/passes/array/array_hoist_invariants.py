"""Compute before a loop what is the same in all its trips, where that takes longer than to load it.

An operation of a loop is invariant if its operands are, are from outside, or are carried and never change. It is copied
before the loop, with the invariant operations that it needs, where it has much work for each element of its result: a
contraction, a reduction, a sort, several functions. Cheap ones stay, to be computed by the kernels that use them. So do
views, which those read in place, and results of many times the size of what they are computed of.

A loop that makes no trips computes them in vain.

After simplification, which merges equal operations; before anything is fused.

Before:
    func.func @main(%n: tensor<i64>, %x: tensor<16xf32>, %w: tensor<16x16xf32>) -> tensor<16xf32> {
      %i = array.constant() {value = 0 : index, resource = ""} : tensor<i64>
      %a, %b = array.while(%i, %x) do {
      ^bb0(%c: tensor<i64>, %y: tensor<16xf32>):
        %less = array.map(%c, %n) {fn = "less"} : tensor<i1>
        array.yield(%less)
      } do {
      ^bb0(%c: tensor<i64>, %y: tensor<16xf32>):
        %one = array.constant() {value = 1 : index, resource = ""} : tensor<i64>
        %next = array.map(%c, %one) {fn = "add"} : tensor<i64>
        %s = array.reduce(%w) {fn = "add", axes = array<i64: 0>} : tensor<16xf32>
        %z = array.map(%y, %s) {fn = "add"} : tensor<16xf32>
        array.yield(%next, %z)
      } : tensor<i64>, tensor<16xf32>
      func.return %b : tensor<16xf32>
    }
After:
    func.func @main(%n: tensor<i64>, %x: tensor<16xf32>, %w: tensor<16x16xf32>) -> tensor<16xf32> {
      %i = array.constant() {value = 0 : index, resource = ""} : tensor<i64>
      %s = array.reduce(%w) {fn = "add", axes = array<i64: 0>} : tensor<16xf32>
      %a, %b = array.while(%i, %x) do {
      ^bb0(%c: tensor<i64>, %y: tensor<16xf32>):
        %less = array.map(%c, %n) {fn = "less"} : tensor<i1>
        array.yield(%less)
      } do {
      ^bb0(%c: tensor<i64>, %y: tensor<16xf32>):
        %one = array.constant() {value = 1 : index, resource = ""} : tensor<i64>
        %next = array.map(%c, %one) {fn = "add"} : tensor<i64>
        %z = array.map(%y, %s) {fn = "add"} : tensor<16xf32>
        array.yield(%next, %z)
      } : tensor<i64>, tensor<16xf32>
      func.return %b : tensor<16xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright import ops
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import in_block, insert_before, yielded
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.base import Remark, Unit, blocks_of, where

# Additions for each element of a result from which on it is stored and loaded again.
_WORK_OF_A_LOAD = 8
# A result of more bytes than what it is computed of takes at most as many.
_MOST_BYTES = 1 << 26

# What other costs take, as additions.
_WORK = {ops.MOVE: 0, ops.ALU: 1, ops.MULTIPLY: 1, ops.DIVIDE: 8, ops.TRANSCENDENTAL: 16}
_WORK_OF_A_SORTED_ELEMENT = 32
_WORK_OF_A_GATHERED_ELEMENT = 4

# Read where they are used, in place or by the kernel that does.
_VIEWS = (
    array.ReshapeOp,
    array.TransposeOp,
    array.BroadcastOp,
    array.SliceOp,
    array.UnfoldOp,
    array.ReverseOp,
    array.BitcastOp,
)


class ArrayHoistInvariantsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-hoist-invariants"

    def apply(self, unit: Unit) -> None:
        for block in reversed(list(blocks_of(unit.main))):  # inner loops first: what leaves one may leave the next
            loop = block.parent_op()
            if isinstance(loop, array.WhileOp):
                for op in _Trip(loop, block).hoist():
                    subject = f"{op.name.removeprefix('array.')} at {where(op)}"
                    unit.remarks.append(Remark(self.name, subject, "before the loop", "operands do not change"))


class _Trip:
    """A block of a loop, with its invariant operations."""

    def __init__(self, loop: array.WhileOp, block: Block) -> None:
        self._loop, self._block = loop, block
        # For what a trip computes, and what is carried unchanged: the value before the loop, if there is one yet.
        self._before: dict[SSAValue, SSAValue] = {}
        for arg, initial, carried, result in zip(
            block.args, loop.operands, loop.body.block.args, yielded(loop.body.block), strict=True
        ):
            if result is carried:
                self._before[arg] = initial
        self._invariant: dict[Operation, None] = {}
        for op in block.ops:
            if _is_movable(op) and all(map(self._is_invariant, op.operands)):
                self._invariant[op] = None

    def hoist(self) -> list[Operation]:
        """Copy what is worth it before the loop; gives the operations whose results are used there."""
        hoisted: list[Operation] = []
        pending = [op for op in self._invariant if self._is_used_by_others(op)]
        seen = set(pending)
        while pending:
            op = pending.pop()
            needed = self._needed(op)
            if not needed:  # it is before the loop already
                continue
            if not isinstance(op, _VIEWS) and self._is_worth_it(op, needed):
                self._copy(op, needed)
                hoisted.append(op)
                continue
            parts = {operand.owner for operand in op.operands if isinstance(operand.owner, Operation)}
            pending += [part for part in needed if part in parts - seen]
            seen |= parts
        if hoisted:
            drop_unused(self._block)
        return hoisted

    def _is_used_by_others(self, op: Operation) -> bool:
        """Whether something that differs from trip to trip uses an invariant operation."""
        users = (in_block(use.operation, self._block) for result in op.results for use in result.uses)
        return any(user not in self._invariant for user in users)

    def _is_invariant(self, value: SSAValue) -> bool:
        owner = value.owner
        if isinstance(owner, Block):
            return owner is not self._block or value in self._before
        return owner in self._invariant or owner.parent_block() is not self._block

    def _needed(self, op: Operation) -> list[Operation]:
        """An invariant operation, and those of which it is computed that are not before the loop yet, in order;
        none where it is itself."""
        found: set[Operation] = set()
        pending = [op]
        while pending:
            each = pending.pop()
            if each in self._invariant and each not in found and each.results[0] not in self._before:
                found.add(each)
                pending += [operand.owner for operand in each.operands if isinstance(operand.owner, Operation)]
        return [each for each in self._invariant if each in found]

    def _is_worth_it(self, op: Operation, needed: list[Operation]) -> bool:
        made = {result for each in needed for result in each.results}
        inputs = {operand for each in needed for operand in each.operands}.difference(made)
        most = max(_MOST_BYTES, sum(array_type(value).nbytes for value in inputs))
        is_small = sum(array_type(result).nbytes for result in op.results) <= most
        return is_small and _takes_longer_than_loads(op, needed)

    def _copy(self, op: Operation, needed: list[Operation]) -> None:
        """Copy operations before the loop, and use the results of the last one, and of others that are worth it by
        themselves. Others that a trip still uses, such as constants, are computed by both."""
        copies = dict(self._before)
        for each in needed:
            copy = each.clone(copies)
            copy.location = each.location
            insert_before(self._loop, copy)
            copies.update(zip(each.results, copy.results, strict=True))
        for each in needed:
            if each is op or _takes_longer_than_loads(each, [each]):
                for result in each.results:
                    self._before[result] = copies[result]
                    result.replace_all_uses_with(copies[result])


def _takes_longer_than_loads(op: Operation, needed: Iterable[Operation]) -> bool:
    """Whether operations take longer than to load the results of one of them."""
    elements = sum(array_type(result).size for result in op.results)
    return elements > 0 and sum(map(_work_of, needed)) >= _WORK_OF_A_LOAD * elements


def _is_movable(op: Operation) -> bool:
    return isinstance(op, array.PureOp) and not isinstance(op, array.LibraryCallOp)


def _work_of(op: Operation) -> int:
    """The work of an operation, as additions."""
    elements, taken = _elements(op.results), _elements(op.operands)
    match op:
        case array.MapOp():
            return elements * _WORK[ops.FUNCTIONS[op.fn].cost]
        case array.CastOp():
            return elements
        case array.RandomBitsOp():
            return elements * _WORK[ops.TRANSCENDENTAL]
        case array.ReduceOp() | array.ArgReduceOp() | array.ScanOp() | array.ScatterOp():
            return taken
        case array.WindowReduceOp():
            return elements * math.prod(op.window)
        case array.ContractOp():
            shape = array_type(op.operands[0]).shape
            return elements * math.prod(shape[axis] for axis in op.left_contract)
        case array.ConvolveOp():
            return elements * math.prod(array_type(op.operands[1]).shape[1:])
        case array.SortOp() | array.TopKOp():
            return taken * _WORK_OF_A_SORTED_ELEMENT
        case array.GatherOp():
            return elements * _WORK_OF_A_GATHERED_ELEMENT
        case _:
            return 0


def _elements(values: Sequence[SSAValue]) -> int:
    """How many elements the first of some arrays has."""
    return array_type(values[0]).size if values else 0

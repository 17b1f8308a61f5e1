"""Clone splats, iota and index maps for each user, right before it.

They cost nothing where they are used, but a shared one would tie the groups of its users together.
With `in_loops`, views of captured arrays also go into the loops whose contractions read them: the array is then packed
once, at compile time, instead of being laid out by each call before the loop. So do positions, and broadcasts that
elementwise operations read: a loop reads the smaller array, which stays in a nearer cache.

Before:
    func.func @main(%x: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
      %rows = array.broadcast(%x) {axes = array<i64: 1>} : tensor<4x8xf32>
      %y = array.map(%rows) {fn = "exp"} : tensor<4x8xf32>
      %z = array.map(%rows) {fn = "log"} : tensor<4x8xf32>
      func.return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
    }
After:
    func.func @main(%x: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
      %rows = array.broadcast(%x) {axes = array<i64: 1>} : tensor<4x8xf32>
      %y = array.map(%rows) {fn = "exp"} : tensor<4x8xf32>
      %copy = array.broadcast(%x) {axes = array<i64: 1>} : tensor<4x8xf32>
      %z = array.map(%copy) {fn = "log"} : tensor<4x8xf32>
      func.return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import erase, in_block
from tilewright.passes.array.fusion import ELEMENTWISE, inline_closure, is_inline, is_splat, make_group
from tilewright.passes.base import Unit, blocks_of

# Views that lie one behind the other, through which a kernel reads.
MOST_VIEWS = 64


class ArrayDuplicateViewsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-duplicate-views"
    in_loops: bool = False

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            _cut(block)
            if self.in_loops:
                _move_into_loops(block)
            duplicate_views(block)


def _cut(block: Block) -> None:
    """Store a view of so many views, one after the other, as others may read its elements through."""
    depths: dict[Operation, int] = {}
    for op in list(block.ops):
        if not is_inline(op):
            continue
        depth = 1 + max((depths.get(o.owner, 0) for o in op.operands if isinstance(o.owner, Operation)), default=0)
        if depth > MOST_VIEWS:
            group = make_group(block, {op, *inline_closure(op.operands, block)}, "loop", "a chain of views is stored")
            depths[group] = depth = 0
        depths[op] = depth


def duplicate_views(block: Block) -> None:
    """Clone the views of a block for each user."""
    # Users first, so that the operands of a copied view are themselves copied when their turn comes.
    for op in reversed(list(block.ops)):
        if not is_inline(op):
            continue
        (result,) = op.results
        uses = list(result.uses)
        for use in uses[1:]:
            copy = op.clone()
            block.insert_op_before(copy, in_block(use.operation, block))
            use.operation.operands[use.index] = copy.results[0]
        if uses:
            op.detach()
            block.insert_op_before(op, in_block(uses[0].operation, block))


def _move_into_loops(block: Block) -> None:
    """Give the contractions of inner blocks views of captured arrays of their own, and elementwise operations there
    broadcasts and positions."""
    # Users first, as in `duplicate_views`; a view that only inner blocks used is left without users.
    for op in reversed(list(block.ops)):
        if not is_inline(op):
            continue
        kinds = (array.ContractOp,) if _views_captured_array(op) else ELEMENTWISE if _repeats(op) else None
        if kinds is None:
            continue
        (result,) = op.results
        for use in list(result.uses):
            user, inner = use.operation, use.operation.parent_block()
            if inner is None or inner is block or not (isinstance(user, kinds) or is_inline(user)):
                continue
            copy = op.clone()
            inner.insert_op_before(copy, user)
            user.operands[use.index] = copy.results[0]
        if not list(result.uses):
            erase(op)


def _repeats(op: Operation) -> bool:
    """Whether an operation has each element of a smaller array several times, or reads none."""
    return isinstance(op, array.IotaOp) or (
        isinstance(op, array.BroadcastOp) and array_type(op.operands[0]).size < array_type(op.results[0]).size
    )


def _views_captured_array(op: Operation) -> bool:
    """Whether an operation is a view, or a view of views, of an array that is known at compile time."""
    while is_inline(op) and len(op.operands) == 1 and isinstance(op.operands[0].owner, Operation):
        op = op.operands[0].owner
    return isinstance(op, array.ConstantOp) and not is_splat(op)

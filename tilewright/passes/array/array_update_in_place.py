"""Update an array in place if no later operation reads its previous contents.

Elsewhere an update makes a new array, in a loop over all of its elements. The arrays that are updated in place: donated
inputs on the way to the output that takes their memory, arrays that a `while` carries on the way back to their
position, results of matmuls, of control flow, of ordered operations and of earlier updates. Results of elementwise
operations are excluded: their kernels store the updated array as fast as their own. The group is a hint: the memory
plan decides when the order of all kernels is known, and copies the arrays that it refuses. The pass runs after the
matmuls are grouped and before the loops, which would fuse the updates.

Before:
    func.func @main(%x: tensor<64xf32>, %update: tensor<2xf32>, %start: tensor<i64>) -> tensor<64xf32> {
      %ordered = array.sort(%x) {axis = 0 : index, descending = false} : tensor<64xf32>
      %y = array.dynamic_update_slice(%ordered, %update, %start) : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
After:
    func.func @main(%x: tensor<64xf32>, %update: tensor<2xf32>, %start: tensor<i64>) -> tensor<64xf32> {
      %ordered = array.sort(%x) {axis = 0 : index, descending = false} : tensor<64xf32>
      %y = array.fused(%ordered, %update, %start) {kind = "update", why = "the last use of the updated array"} do {
      ^bb0(%ordered1: tensor<64xf32>, %update1: tensor<2xf32>, %start1: tensor<i64>):
        %updated = array.dynamic_update_slice(%ordered1, %update1, %start1) : tensor<64xf32>
        array.yield(%updated)
      } : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.func import ReturnOp
from tilewright.dialects.rewriting import yielded
from tilewright.passes.array.array_fuse_loops import loops
from tilewright.passes.array.fusion import inline_closure, is_inline, make_group
from tilewright.passes.array.lifetimes import ends_with, storage
from tilewright.passes.base import Remark, Unit, blocks_of, where

UPDATES = (array.DynamicUpdateSliceOp, array.ScatterOp)
# The least size of an array that is copied on all threads before a scatter.
_LONG_BYTES = 1 << 18


class ArrayUpdateInPlacePass(msgspec.Struct, frozen=True):
    """`copies_scattered`: whether a scatter to the first dim writes over a copy of an array that has other uses."""

    name: ClassVar[str] = "array-update-in-place"
    copies_scattered: bool = False

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, UPDATES):
                    _group(unit, block, op, self.copies_scattered)


def _group(unit: Unit, block: Block, op: array.ArrayOp, copies_scattered: bool) -> None:
    reason = _refusal(unit, block, op)
    copies = reason is not None and copies_scattered and _is_long_scatter(op)
    decision = "writes over a copy" if copies else "makes a new array" if reason else "writes over the array"
    why = reason or "the last use of the updated array"
    unit.remarks.append(Remark("array-update-in-place", f"{op.primitive} at {where(op)}", decision, why))
    if reason is None or copies:
        make_group(block, {op, *_views(block, op)}, "update", why)


def _is_long_scatter(op: array.ArrayOp) -> bool:
    """Whether a scatter changes elements along the first dim, so that threads cannot share what it changes, of an array
    that they copy faster together."""
    return isinstance(op, array.ScatterOp) and 0 in op.axes and array_type(op.operands[0]).nbytes >= _LONG_BYTES


def _refusal(unit: Unit, block: Block, op: array.ArrayOp) -> str | None:
    """Why an update must make a new array, or None."""
    source = op.operands[0]
    root = storage(source)
    if not ends_with(source, op):
        return "the updated array is used again, or made elsewhere"
    if isinstance(root, BlockArgument):
        home = _home(unit, block, root)
        return None if home is not None and _comes_from(home, op) else "the result has other memory"
    owner = root.owner
    if not isinstance(owner, Operation) or isinstance(owner, array.ConstantOp) or is_inline(owner):
        return "the updated array is not stored"
    return (
        "the producer of the updated array stores the update"
        if loops(owner) and not isinstance(owner, UPDATES)
        else None
    )


def _home(unit: Unit, block: Block, argument: BlockArgument) -> SSAValue | None:
    """The value that finally takes the memory of a block argument: a result of the program, or the next trip's
    array."""
    last, parent = block.last_op, block.parent_op()
    if isinstance(last, ReturnOp):
        output = unit.donated.get(argument.index)
        return None if output is None else last.operands[output]
    if isinstance(parent, array.WhileOp) and block is parent.body.block:
        return yielded(block)[argument.index]
    return None


def _comes_from(value: SSAValue, op: array.ArrayOp) -> bool:
    """Whether a value is what an update makes, updated any number of times."""
    owner = storage(value).owner
    while isinstance(owner, UPDATES):
        if owner is op:
            return True
        owner = storage(owner.operands[0]).owner
    return False


def _views(block: Block, op: array.ArrayOp) -> Iterable[Operation]:
    """Index maps that are fused into the update. Views of the updated array are stored before it: the kernel would read
    them while it overwrites them."""
    root = storage(op.operands[0])
    for operand in op.operands[1:]:
        views = inline_closure([operand], block)
        if all(storage(o) is not root for view in views for o in view.operands):
            yield from views

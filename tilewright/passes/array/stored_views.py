"""Transposes, reversals and broadcasts that the kernel of what they are of stores, in their order."""

from __future__ import annotations

import math

from xdsl.ir import Block, Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import in_block
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.passes.array.fusion import ELEMENTWISE, inline_closure, is_cheap, is_unit_reshape, needs_memory, users
from tilewright.passes.base import Remark, Unit, where
from tilewright.passes.kernels.lower_loop_group import is_short_transpose

# Elements of rows that are stored side by side, at least: rests of shorter ones would be most of the vectors.
_LONG_ROW = 64
# How many times the elements of an array that is read in passing an array has.
SMALLER = 16
# Bytes of a cache line, and of elements that are transposed in registers.
_LINE_BYTES, _WORD_BYTES = 64, 4
_PLAIN = (array.BroadcastOp, array.ReshapeOp, array.ConstantOp, array.IotaOp)


def stored_view(unit: Unit, ops_: set[Operation], members: set[Operation], block: Block) -> set[Operation]:
    """The transpose, reversal or broadcast that stores the only result of elementwise operations, where the kernel can
    store it in that order: what it loads is then a few elements apart, backwards in memory, or loaded again."""
    outside = {u for op in ops_ for r in op.results for u in users(r) if in_block(u, block) not in members}
    view = outside.pop() if len(outside) == 1 else None
    if not isinstance(view, array.ReverseOp | array.BroadcastOp | array.TransposeOp) or not _is_stored(view, block):
        return set()
    is_elementwise = all(isinstance(op, ELEMENTWISE) for op in ops_)
    why: str | None = None
    match view:
        case array.ReverseOp():
            why = "vectors are loaded backwards" if is_elementwise else None
        case array.BroadcastOp():
            is_again = is_elementwise and _is_computed_again(ops_, view, block)
            why = "few cycles for each repeat, of one array" if is_again else None
        case array.TransposeOp():
            why = _why_transposed(ops_, view, block, is_elementwise)
    if why is None:
        return set()
    unit.remarks.append(Remark("array-fuse-loops", f"{view.primitive} at {where(view)}", "fused", why))
    return {view}


def _why_transposed(
    ops_: set[Operation], transpose: array.TransposeOp, block: Block, is_elementwise: bool
) -> str | None:
    """Why operations store their result transposed; None where they do not."""
    if is_short_transpose(transpose) and is_elementwise:
        return "lanes are shuffled as they are loaded"
    if _stores_side_by_side(transpose) and is_elementwise:
        return "lanes are shuffled as they are stored"
    if is_elementwise and _row_bytes(transpose) >= _LINE_BYTES:
        return "rows are stored in another order"
    if is_elementwise and all(is_cheap(op) and _is_of_words(op) for op in ops_):
        return "few cycles for each element, in any order"
    if _computes_of_gathered(ops_, transpose, block):
        return "elements are gathered in any order"
    if is_elementwise or not all(isinstance(op, (*ELEMENTWISE, array.GatherOp)) for op in ops_):
        return None
    return "rows are gathered in any order" if _keeps_rows(transpose) else None


def _row_bytes(transpose: array.TransposeOp) -> int:
    """The bytes of the rows that a transpose moves as they are."""
    type, permutation = array_type(transpose.results[0]), transpose.permutation
    rank = len(permutation)
    kept = next((n for n in range(rank) if permutation[rank - 1 - n] != rank - 1 - n), rank)
    return math.prod(type.shape[rank - kept :]) * type.dtype.itemsize if kept else 0


def _is_of_words(op: Operation) -> bool:
    """Whether an operation reads and gives elements of 32 bits and more: vectors of shorter ones have more lanes than
    are transposed at a time."""
    return all(array_type(value).dtype.itemsize >= _WORD_BYTES for value in (*op.operands, *op.results))


def _is_computed_again(ops_: set[Operation], broadcast: array.BroadcastOp, block: Block) -> bool:
    """Whether a loop over what a broadcast gives computes its operand for each repeat in no more time than it would
    load it: operations of few cycles, without rounding to narrow floats, which read one array of its size."""
    dtypes = [array_type(op.results[0]).dtype for op in ops_]
    if any(dtype.is_float and dtype != dtype.compute for dtype in dtypes):
        return False
    inline = inline_closure([operand for op in ops_ for operand in op.operands], block)
    if not all(is_cheap(op) for op in ops_) or not all(isinstance(each, _PLAIN) for each in inline):
        return False
    size = array_type(broadcast.operands[0]).size
    read = {operand for op in (*ops_, *inline) for operand in op.operands if operand.owner not in {*ops_, *inline}}
    return sum(array_type(each).size * SMALLER > size for each in read) <= 1


def _is_stored(view: array.ArrayOp, block: Block) -> bool:
    """Whether a view is in the block, and all that reads it reads it from memory."""
    readers = users(view.results[0])
    return view.parent_block() is block and all(
        needs_memory(each) or is_unit_reshape(each) or gathers_rows(each) for each in readers
    )


def _stores_side_by_side(transpose: array.TransposeOp) -> bool:
    """Whether elements of a few long rows become neighbours: of vectors along these, lanes in turn."""
    shape, last = array_type(transpose.results[0]).shape, len(transpose.permutation) - 1
    is_inside = last > 0 and transpose.permutation[-2] == last
    return is_inside and shape[-1] in SHUFFLED_STRIDES and shape[-2] >= _LONG_ROW


def _keeps_rows(transpose: array.TransposeOp) -> bool:
    """Whether the innermost dim, which vectors are along, stays where it is."""
    return transpose.permutation[-1] == len(transpose.permutation) - 1


def _computes_of_gathered(ops_: set[Operation], transpose: array.TransposeOp, block: Block) -> bool:
    """Whether operations gather single elements, and compute of these, of rows that are gathered and of smaller arrays
    what is transposed."""
    if not any(gathers_elements(op) for op in ops_):
        return False
    computed = [op for op in ops_ if not isinstance(op, array.GatherOp) and not _is_smaller(op, transpose)]
    inline = inline_closure([operand for op in computed for operand in op.operands], block)
    read = {operand for op in (*computed, *inline) for operand in op.operands if operand.owner not in inline}
    size = array_type(transpose.results[0]).size
    return all(isinstance(op, ELEMENTWISE) for op in computed) and all(
        each.owner in ops_ or array_type(each).size < size for each in read
    )


def _is_smaller(op: Operation, than: Operation) -> bool:
    """Whether an elementwise operation has fewer elements than another one, such as one that computes indices."""
    sizes = [math.prod(array_type(each.results[0]).shape) for each in (op, than)]
    return isinstance(op, ELEMENTWISE) and sizes[0] < sizes[1]


def gathers_elements(op: Operation) -> bool:
    """Whether an operation gathers single elements, not runs of contiguous ones."""
    if not isinstance(op, array.GatherOp):
        return False
    shape = array_type(op.operands[0]).shape
    return shape[-1] == 1 or len(shape) - 1 in op.axes


def gathers_rows(op: Operation) -> bool:
    """Whether an operation gathers what is contiguous, from memory."""
    return isinstance(op, array.GatherOp) and not gathers_elements(op)

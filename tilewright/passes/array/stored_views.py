"""Transposes and reversals that the kernel of what they are of stores, in their order."""

from __future__ import annotations

import math

from xdsl.ir import Block, Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import in_block
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.passes.array.fusion import ELEMENTWISE, inline_closure, is_unit_reshape, needs_memory, users
from tilewright.passes.base import Remark, Unit, where
from tilewright.passes.kernels.lower_loop_group import is_short_transpose

# Elements of rows that are stored side by side, at least: rests of shorter ones would be most of the vectors.
_LONG_ROW = 64


def stored_view(unit: Unit, ops_: set[Operation], members: set[Operation], block: Block) -> set[Operation]:
    """The transpose or reversal that stores the only result of elementwise operations, where the kernel can store it in
    that order: what it loads is then a few elements apart, or backwards in memory."""
    outside = {u for op in ops_ for r in op.results for u in users(r) if in_block(u, block) not in members}
    transpose = outside.pop() if len(outside) == 1 else None
    if isinstance(transpose, array.ReverseOp) and transpose.parent_block() is block:
        plain = all(isinstance(op, ELEMENTWISE) for op in ops_) and _is_stored(transpose)
        if plain:
            why = "vectors are loaded backwards"
            unit.remarks.append(Remark("array-fuse-loops", f"reverse at {where(transpose)}", "fused", why))
        return {transpose} if plain else set()
    if not isinstance(transpose, array.TransposeOp) or transpose.parent_block() is not block:
        return set()
    stored = _is_stored(transpose)
    if stored and is_short_transpose(transpose) and all(isinstance(op, ELEMENTWISE) for op in ops_):
        why = "lanes are shuffled as they are loaded"
    elif stored and _stores_side_by_side(transpose) and all(isinstance(op, ELEMENTWISE) for op in ops_):
        why = "lanes are shuffled as they are stored"
    elif stored and _computes_of_gathered(ops_, transpose, block):
        why = "elements are gathered in any order"
    elif stored and _keeps_rows(transpose) and any(isinstance(op, array.GatherOp) for op in ops_):
        if not all(isinstance(op, (*ELEMENTWISE, array.GatherOp)) for op in ops_):
            return set()
        why = "rows are gathered in any order"
    else:
        return set()
    unit.remarks.append(Remark("array-fuse-loops", f"transpose at {where(transpose)}", "fused", why))
    return {transpose}


def _is_stored(view: array.ArrayOp) -> bool:
    """Whether all that reads a view reads it from memory."""
    return all(needs_memory(u) or is_unit_reshape(u) or gathers_rows(u) for u in users(view.results[0]))


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

"""Shared parts of passes that split long sums: equal parts, and the reduction that adds the parts up."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.primitives import ArrayType

MOST_PARTS = 16
LEAST_PART = 1024


def parts_of(size: int, least: int = LEAST_PART) -> int:
    """Into how many equal parts of at least `least` a dim is cut; 1 if into none."""
    return max(n for n in range(1, MOST_PARTS + 1) if n == 1 or (size % n == 0 and size // n >= least))


def replace_by_parts(op: Operation, partial: Operation, fn: str, result: ArrayType, axis: int = 0) -> None:
    """Put the parts and their reduction in place of an operation."""
    summed = ArrayType(result.shape, array_type(partial.results[0]).dtype)
    total = array.ReduceOp(arguments=[partial.results[0]], fn=fn, axes=(axis,), outputs=[tensor(summed)])
    insert_like(op, partial)
    insert_like(op, total)
    if summed != result:
        total = array.CastOp(arguments=[total.results[0]], outputs=[tensor(result)])
        insert_like(op, total)
    op.results[0].replace_all_uses_with(total.results[0])
    transposes = [o.owner for o in op.operands if isinstance(o.owner, array.TransposeOp)]
    erase(op)
    for transpose in dict.fromkeys(transposes):
        if not list(transpose.results[0].uses):
            erase(transpose)

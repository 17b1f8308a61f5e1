"""Coordinates, other than a loop's own, at which each element of what an operation computes is read once: the operation
may be computed in that loop.

Coordinates are symbolic: the number of a dim of the loop, or a dim of an operand of an operation with an index map of
its own, and the number of the coordinates at which that is read.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeAlias

from xdsl.ir import Operation

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.fusion import ELEMENTWISE
from tilewright.passes.array.stored_views import gathers_elements, gathers_rows

Coordinates: TypeAlias = tuple[Any, ...]
# Ids of the coordinates at which operations with index maps of their own are read; the coordinates of their operands
# name the id. Written out, they would double in size with each such operation, and so would the time to hash them.
Numbers: TypeAlias = dict[Coordinates, int]

# Elements of a run that is computed where it is copied, at least.
_LONG_RUN = 32
# Bytes of rows that are computed in another order, at least: rests of vectors take as long as whole ones.
_COMPUTED_BYTES = 256
# The largest padded array, for each element of what is padded.
_MOST_PADDED = 2


def moves_in_any_order(op: Operation, at: Coordinates, straight: Coordinates) -> bool:
    """Whether an operation gathers single elements at permuted coordinates, or moves rows that stay innermost, or
    computes long ones, of a type that is computed as it is."""
    if not _is_permuted(at, straight):
        return False
    keeps_rows = at[-1:] == straight[-1:]
    if isinstance(op, ELEMENTWISE):
        type = array_type(op.results[0])
        is_long = math.prod(type.shape[-1:]) * type.dtype.itemsize >= _COMPUTED_BYTES
        return keeps_rows and is_long and type.dtype == type.dtype.compute
    moves_rows = keeps_rows and isinstance(op, array.GatherOp | array.PadOp | array.ConcatOp)
    return moves_rows or gathers_elements(op)


def joins_gathered_rows(
    op: Operation,
    at: Coordinates,
    straight: Coordinates,
    numbers: Numbers,
    seen: Collection[Operation],
) -> bool:
    """Whether an operation gathers rows for a concatenation of rows in any order, whose loop is cut where operands end,
    so that each row is copied once."""
    orders = [number for order, number in numbers.items() if _keeps_rows(order, straight)]
    joins = [id(other) for other in seen if isinstance(other, array.ConcatOp)]
    rows = [tuple((join, order, d) for d in range(len(at))) for join in joins for order in orders]
    return gathers_rows(op) and any(_keeps_rows(at, each) for each in rows)


def is_part_of_rows(op: Operation, at: Coordinates, straight: int | None, seen: Collection[Operation]) -> bool:
    """Whether an elementwise operation is read by a padding or concatenation of long rows, whose loop is cut where an
    operand ends: it is computed in that part alone. `straight`: the number of the loop's own coordinates."""
    if not isinstance(op, ELEMENTWISE):
        return False
    for join in seen:
        if isinstance(join, array.PadOp | array.ConcatOp) and _has_long_runs(join):
            dims = [each[2] for each in at if not isinstance(each, int) and each[:2] == (id(join), straight)]
            sizes = [array_type(operand).size for operand in join.operands]
            if len(dims) == len(at) and dims == sorted(dims) and array_type(op.results[0]).size in sizes:
                return True
    return False


def _has_long_runs(op: array.PadOp | array.ConcatOp) -> bool:
    shape = array_type(op.results[0]).shape
    if isinstance(op, array.PadOp):
        source = array_type(op.operands[0])
        is_most = source.size * _MOST_PADDED >= math.prod(shape)
        return not any(op.interior) and source.shape[-1] >= _LONG_RUN and is_most
    inner = math.prod(shape[op.axis + 1 :])
    return all(array_type(each).shape[op.axis] * inner >= _LONG_RUN for each in op.operands)


def _keeps_rows(at: Coordinates, straight: Coordinates) -> bool:
    """Whether coordinates are permuted ones, the innermost of which stays."""
    return at[-1:] == straight[-1:] and _is_permuted(at, straight)


def _is_permuted(at: Coordinates, straight: Coordinates) -> bool:
    return sorted(map(str, at)) == sorted(map(str, straight))

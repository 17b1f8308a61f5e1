"""Branch conditions that are functions of the grid point: movers evaluate them to predicate stores.

A condition is an expression that is 0 where a branch is taken, or where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.cores.affine_expressions import divided, plus, times, with_symbols

# More than two indices or counters of a kernel differ by.
_FAR = 1 << 24
# By name of a comparison: whether its operands are swapped to be `less`, and whether it is the opposite of that.
_ORDERS = {
    "less": (False, False),
    "greater_equal": (False, True),
    "greater": (True, False),
    "less_equal": (True, True),
}


@dataclass(frozen=True)
class Taken:
    """A branch that is taken where a number is 0, or where it `is_zero` not."""

    number: AffineExpr
    is_zero: bool


def choices_of(op: Operation) -> list[tuple[SSAValue, bool]]:
    """The conditions of the branches that an operation is in, from the inside, and whether it is where they hold."""
    found: list[tuple[SSAValue, bool]] = []
    inner: Operation = op
    outer = inner.parent_op()
    while outer is not None:
        if isinstance(outer, tile.IfOp):
            found.append((outer.condition, inner.parent_block() is outer.then.block))
        inner, outer = outer, outer.parent_op()
    return found


def is_of_places(op: Operation) -> bool:
    """Whether an operation is in branches, and all their conditions follow from indices and counters."""
    return bool(choices_of(op)) and taken_where(op, lambda _: AffineExpr.constant(0)) is not None


def taken_where(op: Operation, index: Callable[[SSAValue], AffineExpr]) -> list[Taken] | None:
    """The condition under which all branches around an operation are taken; None if one depends on data. `index`: an
    index's expression."""
    found: list[Taken] = []
    for condition, is_then in choices_of(op):
        parts = _parts(condition, is_then, index)
        if parts is None:
            return None
        found += parts
    return found


def _parts(condition: SSAValue, holds: bool, index: Callable[[SSAValue], AffineExpr]) -> list[Taken] | None:
    op = condition.owner
    if isinstance(op, tile.FullOp):
        return [Taken(AffineExpr.constant(int(bool(op.value) != holds)), True)]
    if not isinstance(op, tile.MapOp):
        return None
    fn = op.fn
    if fn in ("logical_not", "bitwise_not"):
        return _parts(op.operands[0], not holds, index)
    if (fn in ("logical_and", "bitwise_and") and holds) or (fn in ("logical_or", "bitwise_or") and not holds):
        sides = [_parts(operand, holds, index) for operand in op.operands]
        return None if None in sides else [part for side in sides for part in side or ()]
    if fn not in (*_ORDERS, "equal", "not_equal"):
        return None
    left, right = (_number(operand, index) for operand in op.operands)
    if left is None or right is None:
        return None
    if fn in ("equal", "not_equal"):
        return [Taken(plus(left, times(right, -1)), holds == (fn == "equal"))]
    is_swapped, is_opposite = _ORDERS[fn]
    low, high = (right, left) if is_swapped else (left, right)
    return [Taken(divided(plus(plus(low, times(high, -1)), _FAR), _FAR), holds != is_opposite)]


def _number(value: SSAValue, index: Callable[[SSAValue], AffineExpr]) -> AffineExpr | None:
    """A scalar as an expression of indices and counters."""
    op = value.owner
    if array_type(value).shape:
        return None
    match op:
        case tile.IotaOp() if all(isinstance(symbol.type, IndexType) for symbol in op.symbols):
            return with_symbols(op.map.results[0], lambda position: index(op.symbols[position]))
        case tile.FullOp():
            is_small = isinstance(op.value, int) and abs(op.value) < _FAR // 2
            return AffineExpr.constant(int(op.value)) if is_small else None
        case _:
            return None

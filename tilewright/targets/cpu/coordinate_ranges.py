"""The ranges of coordinates in a nest: accesses that are surely inside of their array need no check. Indices that are
read have the range to which the program clamps them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from xdsl.ir import SSAValue
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.affine_access import Access, Form, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.nest_plan import NestPlan, is_place
from tilewright.targets.cpu.nest_position import Position


class Range(NamedTuple):
    """The least and the greatest value of an integer; infinite where nothing is known."""

    low: float = -math.inf
    high: float = math.inf


_ANY = Range()


def _of_type(value: SSAValue) -> Range:
    """The range of a type; that of a u64 is not the one of its bits, an index."""
    dtype = array_type(value).dtype
    if not dtype.is_integer or dtype.bits == 64:
        return _ANY
    half = 1 << dtype.bits - 1
    return Range(-half, half - 1) if dtype.is_signed else Range(0, 2 * half - 1)


class _Indices:
    """Ranges of the integers in tiles, each found once."""

    def __init__(self) -> None:
        self._found: dict[SSAValue, Range] = {}

    def of(self, value: SSAValue) -> Range:
        if value not in self._found:
            self._found[value] = self._of(value)
        return self._found[value]

    def _of(self, value: SSAValue) -> Range:
        match value.owner:
            case tile.FullOp() as op if isinstance(op.value, int):
                return Range(op.value, op.value)
            case tile.BroadcastOp() | tile.ReshapeOp() | tile.TransposeOp() as op:
                return self.of(op.operands[0])
            case tile.MapOp() as op if op.fn in _FUNCTIONS:
                return _FUNCTIONS[op.fn](*(self.of(operand) for operand in op.operands))
            case tile.CastOp() as op if array_type(op.operands[0]).dtype.is_integer:
                found, whole = self.of(op.operands[0]), _of_type(value)
                return found if whole.low <= found.low and found.high <= whole.high else _ANY
            case tile.LoadOp():
                return _of_type(value)
            case _:
                return _ANY


class CoordinateRanges:
    """The least and the greatest value of each coordinate of an access, in the open spans of loops."""

    def __init__(self, context: FunctionContext, plan: NestPlan, position: Position) -> None:
        self.context, self.plan, self.position = context, plan, position
        self._indices = _Indices()

    def of(self, found: Access, position: int) -> Range:
        form = found.forms[position]
        return self._nonlinear(found, position) if form is None else self.of_form(form, found)

    def are_outside(self, found: Access) -> bool:
        """Whether all lanes of an access are outside its array."""
        ranges = (self.of(found, position) for position in range(len(found.forms)))
        return any(r.high < 0 or r.low >= size for r, size in zip(ranges, found.type.shape, strict=True))

    def of_form(self, form: Form, found: Access) -> Range:
        low: float = form.constant
        high: float = form.constant
        terms = [(factor, self._dim(dim)) for dim, factor in form.dims]
        terms += [(factor, self._symbol(found.symbols[symbol])) for symbol, factor in form.symbols]
        for factor, each in terms:
            low += min(factor * each.low, factor * each.high)
            high += max(factor * each.low, factor * each.high)
        return Range(low, high)

    def _dim(self, dim: int) -> Range:
        return Range(*self.position.spans.get(dim, (0, self.plan.space[dim] - 1)))

    def _symbol(self, symbol: SSAValue) -> Range:
        return Range(0, self.context.bound(symbol) - 1) if is_place(symbol) else self._indices.of(symbol)

    def _nonlinear(self, found: Access, position: int) -> Range:
        expression = found.map.results[position]
        if isinstance(expression, AffineBinaryOpExpr) and isinstance(expression.rhs, AffineConstantExpr):
            divisor = expression.rhs.value
            if expression.kind is AffineBinaryOpKind.Mod:
                return Range(0, divisor - 1)
            form = linear_form(expression.lhs, found.at)
            if form is not None and expression.kind is AffineBinaryOpKind.FloorDiv:
                return Range(*(end if math.isinf(end) else end // divisor for end in self.of_form(form, found)))
        return Range(-1, found.type.shape[position])


def _minimum(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), min(a.high, b.high))


def _maximum(a: Range, b: Range) -> Range:
    return Range(max(a.low, b.low), max(a.high, b.high))


def _select(condition: Range, a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), max(a.high, b.high))


_FUNCTIONS: dict[str, Callable[..., Range]] = {"minimum": _minimum, "maximum": _maximum, "select": _select}

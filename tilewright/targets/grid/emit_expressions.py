"""Affine expressions as C++ over `uint32_t`, with what is known of their values.

A difference below zero wraps around, as unsigned numbers do: comparisons with a size still find that it is outside, and
quotients of such go through `floor_divide`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.records import dataclass

# How tightly a text binds: a name, a number or a call; a product; a sum.
_ATOM, _PRODUCT, _SUM = range(3)

FLOOR_DIVIDE = """\
// Rounds down where C++ rounds to zero; the divisor is positive.
inline int32_t floor_divide(int32_t number, int32_t divisor) {
    return number / divisor - (number % divisor < 0);
}
"""


@dataclass(frozen=True)
class Value:
    """An expression's text, and the smallest and largest number that it can be. `divides`: whether it calls
    `floor_divide`."""

    text: str
    low: int
    high: int
    binds: int = _ATOM
    divides: bool = False

    @property
    def number(self) -> int | None:
        """The number that it always is."""
        return self.low if self.low == self.high else None

    def as_signed(self) -> str:
        """A text that has the value, too, where that is below zero."""
        return self.text if self.low >= 0 else f"static_cast<int32_t>({self.text})"

    def within(self, binds: int) -> str:
        """The text, in parentheses where it binds less tightly."""
        return self.text if self.binds <= binds else f"({self.text})"


def constant(number: int) -> Value:
    return Value(str(number), number, number, _ATOM if number >= 0 else _SUM)


def variable(name: str, size: int) -> Value:
    """A name for numbers from 0 on, below a size."""
    return Value(name, 0, size - 1) if size > 1 else constant(0)


def results(map: AffineMap, dims: Sequence[Value], symbols: Sequence[Value]) -> list[Value]:
    """The value of a map."""
    return [evaluate(each, dims, symbols) for each in map.results]


def evaluate(expression: AffineExpr, dims: Sequence[Value], symbols: Sequence[Value]) -> Value:
    """An affine expression of some values."""
    match expression:
        case AffineConstantExpr():
            return constant(expression.value)
        case AffineDimExpr():
            return dims[expression.position]
        case AffineSymExpr():
            return symbols[expression.position]
        case AffineBinaryOpExpr():
            left = evaluate(expression.lhs, dims, symbols)
            right = evaluate(expression.rhs, dims, symbols)
            return _combined(expression.kind, left, right)
        case _:
            raise TypeError(f"an affine expression of no known kind: {expression}")


def _combined(kind: AffineBinaryOpKind, left: Value, right: Value) -> Value:
    match kind:
        case AffineBinaryOpKind.Add:
            return add(left, right)
        case AffineBinaryOpKind.Mul:
            return multiply(left, right)
        case AffineBinaryOpKind.FloorDiv:
            return divide(left, right)
        case AffineBinaryOpKind.Mod:
            return remainder(left, right)
        case _:
            return divide(add(left, constant((right.number or 1) - 1)), right)


def add(left: Value, right: Value) -> Value:
    low, high = left.low + right.low, left.high + right.high
    if low == high:
        return constant(low)
    if left.number is not None or (left.binds == _ATOM and right.binds == _PRODUCT and not right.text.startswith("-")):
        left, right = right, left
    divides = left.divides or right.divides
    if left.text.startswith("-") and left.binds <= _PRODUCT and not right.text.startswith("-") and right.number != 0:
        return Value(f"{right.text} - {left.text[1:]}", low, high, _SUM, divides)
    match right.number:
        case 0:
            return left
        case int(number) if number < 0:
            text = f"{left.text} - {-number}"
        case _ if right.text.startswith("-"):
            text = f"{left.text} - {right.text[1:]}"
        case _:
            text = f"{left.text} + {right.text}"
    return Value(text, low, high, _SUM, divides)


def multiply(left: Value, right: Value) -> Value:
    if left.number is not None:
        left, right = right, left
    ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = min(ends), max(ends)
    if low == high:
        return constant(low)
    match right.number:
        case 1:
            return left
        case -1:
            text = f"-{left.within(_ATOM)}"
        case _:
            text = f"{left.within(_PRODUCT)} * {right.within(_ATOM)}"
    return Value(text, low, high, _PRODUCT, left.divides or right.divides)


def divide(left: Value, right: Value) -> Value:
    """The quotient, rounded down; the divisor is positive."""
    low, high = left.low // right.high, left.high // right.low
    if low == high:
        return constant(low)
    if right.number == 1:
        return left
    if left.low < 0:
        return Value(f"floor_divide({left.text}, {right.text})", low, high, _ATOM, True)
    return Value(f"{left.within(_PRODUCT)} / {right.within(_ATOM)}", low, high, _PRODUCT, left.divides)


def remainder(left: Value, right: Value) -> Value:
    """The remainder, which is not negative; the divisor is positive."""
    if left.number is not None and right.number is not None:
        return constant(left.number % right.number)
    if left.low >= 0 and left.high < right.low:
        return left
    if right.number == 1:
        return constant(0)
    high = right.high - 1
    if left.low < 0:
        whole = multiply(divide(left, right), right)
        return Value(f"{left.text} - {whole.text}", 0, high, _SUM, True)
    return Value(f"{left.within(_PRODUCT)} % {right.within(_ATOM)}", 0, min(high, left.high), _PRODUCT, left.divides)


def tile_place(lanes: Sequence[int], rows: int, columns: int, at: Sequence[Value]) -> tuple[Value, str]:
    """The page of an element of a tile, from the tile's first page on, and its position there. `rows` and `columns` are
    the dims along rows and columns of device tiles, -1 for none."""
    row = at[rows] if rows >= 0 else constant(0)
    column = at[columns] if columns >= 0 else constant(0)
    tall = -(-lanes[rows] // TILE) if rows >= 0 else 1
    wide = -(-lanes[columns] // TILE) if columns >= 0 else 1
    others = [d for d in range(len(lanes)) if d not in (rows, columns)]
    counts = [*(lanes[d] for d in others), tall, wide]
    page = flat([*(at[d] for d in others), divide(row, constant(TILE)), divide(column, constant(TILE))], counts)
    return page, in_tile(row, column)


def in_tile(row: Value, column: Value) -> str:
    return f"in_tile({remainder(row, constant(TILE)).text}, {remainder(column, constant(TILE)).text})"


def flat(coordinates: Sequence[Value], sizes: Sequence[int]) -> Value:
    """The number of a position, counted row-major."""
    found = constant(0)
    for coordinate, size in zip(coordinates, sizes, strict=True):
        found = add(multiply(found, constant(size)), coordinate)
    return found

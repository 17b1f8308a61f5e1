"""Affine maps as expressions of Python, and positions of pages that are sums of a base and what never changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.records import dataclass

# What a generated expression gives: a base, or all numbers one by one.
Argument = int | list[int]


def python(expression: AffineExpr, dims: Sequence[str], symbols: Sequence[str]) -> str:
    """An affine expression as one of Python; numbers are folded."""
    match expression:
        case AffineConstantExpr():
            return str(expression.value)
        case AffineDimExpr():
            return dims[expression.position]
        case AffineSymExpr():
            return symbols[expression.position]
        case AffineBinaryOpExpr():
            left, right = python(expression.lhs, dims, symbols), python(expression.rhs, dims, symbols)
            return _combined(expression.kind, left, right)
        case _:
            raise TypeError(f"an affine expression of no known kind: {expression}")


@cache
def function_of(map: AffineMap) -> Callable[..., tuple[int, ...]]:
    """The value of a map without dims, as a function of its symbols."""
    names = [f"s{i}" for i in range(map.num_symbols)]
    results = "".join(f"{python(each, (), names)}, " for each in map.results)
    return eval(f"lambda {', '.join(names)}: ({results})")


def _combined(kind: AffineBinaryOpKind, left: str, right: str) -> str:
    match kind:
        case AffineBinaryOpKind.Add if left == "0":
            return right
        case AffineBinaryOpKind.Add if right == "0":
            return left
        case AffineBinaryOpKind.Add:
            text = f"({left} + {right})"
        case AffineBinaryOpKind.Mul if "0" in (left, right):
            return "0"
        case AffineBinaryOpKind.Mul if right == "1":
            return left
        case AffineBinaryOpKind.Mul:
            text = f"({left} * {right})"
        case AffineBinaryOpKind.Mod:
            text = f"({left} % {right})"
        case AffineBinaryOpKind.FloorDiv:
            text = f"({left} // {right})"
        case _:
            text = f"(-(-{left} // {right}))"
    return str(eval(text)) if _is_number(left) and _is_number(right) else text


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def coefficients(expression: AffineExpr, dims: int) -> tuple[int, ...] | None:
    """By how much an expression grows with each dim, where that is always the same."""
    match expression:
        case AffineDimExpr():
            return tuple(int(d == expression.position) for d in range(dims))
        case AffineBinaryOpExpr():
            left, right = coefficients(expression.lhs, dims), coefficients(expression.rhs, dims)
            if left is None or right is None:
                return None
            if expression.kind == AffineBinaryOpKind.Add:
                return tuple(a + b for a, b in zip(left, right, strict=True))
            if not any(left) and not any(right):
                return left
            if expression.kind == AffineBinaryOpKind.Mul and isinstance(expression.rhs, AffineConstantExpr):
                return tuple(a * expression.rhs.value for a in left)
            return None
        case _:
            return (0,) * dims


@dataclass(frozen=True)
class Numbers:
    """The numbers that one result of a map gives at the points of some extents, row-major. If `offsets` are known, each
    is added to the value of `argument`, an expression of Python; else that expression gives all of them."""

    argument: str
    offsets: tuple[int, ...] | None

    def all(self, given: Argument) -> Sequence[int]:
        """All numbers, by what the expression gave."""
        if isinstance(given, int):
            offsets = self.offsets or ()
            return [given + offset for offset in offsets]
        return given


def numbers_of(map: AffineMap, result: int, extents: Sequence[int], symbols: Sequence[str]) -> Numbers:
    """The value of a map's result at all points."""
    expression, rank = map.results[result], len(extents)
    factors = coefficients(expression, rank)
    if factors is not None:
        points = itertools.product(*(range(size) for size in extents))
        offsets = tuple(sum(f * d for f, d in zip(factors, point, strict=True)) for point in points)
        return Numbers(python(expression, ["0"] * rank, symbols), offsets)
    names = [f"d{i}" for i in range(rank)]
    loops = " ".join(f"for {name} in range({size})" for name, size in zip(names, extents, strict=True))
    return Numbers(f"[{python(expression, names, symbols)} {loops}]", None)


class Places:
    """Pages of a queue that an operation touches: a base that is computed, and `offsets` from it."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        offsets = numbers.offsets
        self._is_run = offsets is not None and offsets == tuple(range(offsets[0], offsets[0] + len(offsets)))
        self._first, self._count = (offsets[0], len(offsets)) if offsets else (0, 0)
        self.argument = numbers.argument

    def pages(self, given: Argument) -> range | Sequence[int]:
        """The pages: a range where each comes after the one before."""
        if self._is_run and isinstance(given, int):
            first = given + self._first
            return range(first, first + self._count)
        return self._numbers.all(given)


def places_of(map: AffineMap, count: int, symbols: Sequence[str]) -> Places:
    """The pages that a map from one dim, which goes up to `count`, or from none gives."""
    return Places(numbers_of(map, 0, (count,) if map.num_dims else (), symbols))


def places_from(map: AffineMap, offsets: Sequence[int], symbols: Sequence[str]) -> Places:
    """The page that a map without dims gives, and those at some offsets from it."""
    return Places(Numbers(python(map.results[0], (), symbols), tuple(offsets)))

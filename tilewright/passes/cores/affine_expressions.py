"""Affine expressions of indices, which are folded where they are made."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
)

ZERO = AffineExpr.constant(0)


def symbols_in(expression: AffineExpr) -> set[int]:
    """The symbols of an expression that are roots."""
    found: set[int] = set()
    with_symbols(expression, lambda r: found.add(r) or ZERO)
    return found


def with_symbols(expression: AffineExpr, replaced: Callable[[int], AffineExpr]) -> AffineExpr:
    """An expression with other expressions for its symbols, and sums and products of numbers folded."""
    if isinstance(expression, AffineBinaryOpExpr):
        left, right = (with_symbols(e, replaced) for e in (expression.lhs, expression.rhs))
        return combined(expression.kind, left, right)
    if isinstance(expression, AffineConstantExpr | AffineDimExpr):
        return expression
    return replaced(expression.position)  # type: ignore[attr-defined]  the only kind left


def with_dims(expression: AffineExpr, replaced: Callable[[int], AffineExpr]) -> AffineExpr:
    """An expression with other expressions for its dims."""
    if isinstance(expression, AffineBinaryOpExpr):
        left, right = (with_dims(e, replaced) for e in (expression.lhs, expression.rhs))
        return combined(expression.kind, left, right)
    return replaced(expression.position) if isinstance(expression, AffineDimExpr) else expression


def combined(kind: AffineBinaryOpKind, left: AffineExpr, right: AffineExpr) -> AffineExpr:
    """A sum, matmul, quotient or remainder, without what changes nothing."""
    one = AffineExpr.constant(1)
    if kind == AffineBinaryOpKind.Add and ZERO in (left, right):
        return right if left == ZERO else left
    if kind == AffineBinaryOpKind.Mul and ZERO in (left, right):
        return ZERO
    if right == one and kind != AffineBinaryOpKind.Add:
        return ZERO if kind == AffineBinaryOpKind.Mod else left
    return AffineExpr.binary(kind, left, right)


def plus(left: AffineExpr, right: AffineExpr | int) -> AffineExpr:
    right = AffineExpr.constant(right) if isinstance(right, int) else right
    return combined(AffineBinaryOpKind.Add, left, right)


def times(left: AffineExpr, factor: int) -> AffineExpr:
    return combined(AffineBinaryOpKind.Mul, left, AffineExpr.constant(factor))


def divided(left: AffineExpr, by: int) -> AffineExpr:
    return combined(AffineBinaryOpKind.FloorDiv, left, AffineExpr.constant(by))


def remainder(left: AffineExpr, by: int) -> AffineExpr:
    return combined(AffineBinaryOpKind.Mod, left, AffineExpr.constant(by))

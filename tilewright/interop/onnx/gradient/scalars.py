"""Derivatives of the scalar functions: what the cotangent of a result gives its operands.

Each takes the cotangent, the result and the operands. None stands for no derivative, or for zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.errors import UnsupportedOperatorError

Cotangents = tuple[Array | None, ...]

# Functions of one operand, by their derivative, of the result and the operand.
_SLOPES: dict[str, Callable[[Array, Array], Array]] = {
    "negative": lambda r, a: tw.full((), -1.0, dtype=a.dtype),
    "absolute": lambda r, a: tw.sign(a),
    "square": lambda r, a: a * 2.0,
    "reciprocal": lambda r, a: -r * r,
    "sqrt": lambda r, a: 0.5 / r,
    "rsqrt": lambda r, a: -0.5 * r / a,
    "cbrt": lambda r, a: 1.0 / (3.0 * r * r),
    "exp": lambda r, a: r,
    "exp2": lambda r, a: r * math.log(2.0),
    "expm1": lambda r, a: r + 1.0,
    "log": lambda r, a: 1.0 / a,
    "log2": lambda r, a: 1.0 / (a * math.log(2.0)),
    "log10": lambda r, a: 1.0 / (a * math.log(10.0)),
    "log1p": lambda r, a: 1.0 / (a + 1.0),
    "sin": lambda r, a: tw.cos(a),
    "cos": lambda r, a: -tw.sin(a),
    "tan": lambda r, a: r * r + 1.0,
    "asin": lambda r, a: 1.0 / tw.sqrt(1.0 - a * a),
    "acos": lambda r, a: -1.0 / tw.sqrt(1.0 - a * a),
    "atan": lambda r, a: 1.0 / (a * a + 1.0),
    "sinh": lambda r, a: tw.cosh(a),
    "cosh": lambda r, a: tw.sinh(a),
    "tanh": lambda r, a: 1.0 - r * r,
    "asinh": lambda r, a: 1.0 / tw.sqrt(a * a + 1.0),
    "acosh": lambda r, a: 1.0 / tw.sqrt(a * a - 1.0),
    "atanh": lambda r, a: 1.0 / (1.0 - a * a),
    "erf": lambda r, a: tw.exp(-a * a) * (2.0 / math.sqrt(math.pi)),
    "erfc": lambda r, a: tw.exp(-a * a) * (-2.0 / math.sqrt(math.pi)),
    "sigmoid": lambda r, a: r * (1.0 - r),
}
# Functions that are constant between jumps.
_STEPS = frozenset({"floor", "ceil", "trunc", "round", "sign", "floor_divide"})


def _power(g: Array, r: Array, a: Array, b: Array) -> Cotangents:
    # Where the exponent is 0, or the base and its logarithm have no say, so have their derivatives.
    base = tw.where(tw.equal(b, 0.0), 0.0, b * tw.pow(a, tw.where(tw.equal(b, 0.0), 1.0, b - 1.0)))
    logarithm = tw.where(a > 0.0, tw.log(tw.where(a > 0.0, a, 1.0)), 0.0)
    return g * base, g * r * logarithm


def _chosen(g: Array, chosen: Array, other: Array) -> Cotangents:
    """Operands of which one is taken; of equal ones each has half."""
    share = tw.where(chosen, 1.0, tw.where(other, 0.0, 0.5))
    return g * tw.astype(share, g.dtype), g * tw.astype(1.0 - share, g.dtype)


def _hypot(g: Array, r: Array, a: Array, b: Array) -> Cotangents:
    length = tw.where(tw.equal(r, 0.0), 1.0, r)
    return g * a / length, g * b / length


def _atan2(g: Array, r: Array, a: Array, b: Array) -> Cotangents:
    squares = a * a + b * b
    return g * b / squares, -g * a / squares


def _select(g: Array, condition: Array) -> Cotangents:
    zero = tw.zeros_like(g)
    return None, tw.where(condition, g, zero), tw.where(condition, zero, g)


# Functions of two operands.
_PAIRS: dict[str, Callable[[Array, Array, Array, Array], Cotangents]] = {
    "add": lambda g, r, a, b: (g, g),
    "subtract": lambda g, r, a, b: (g, -g),
    "multiply": lambda g, r, a, b: (g * b, g * a),
    "divide": lambda g, r, a, b: (g / b, -g * r / b),
    "power": _power,
    "remainder": lambda g, r, a, b: (g, -g * tw.floor_divide(a, b)),
    "maximum": lambda g, r, a, b: _chosen(g, a > b, a < b),
    "minimum": lambda g, r, a, b: _chosen(g, a < b, a > b),
    "copysign": lambda g, r, a, b: (tw.where(tw.equal(tw.signbit(a), tw.signbit(b)), g, -g), None),
    "hypot": _hypot,
    "atan2": _atan2,
}


def scalar_cotangents(name: str, g: Array, result: Array, operands: list[Array]) -> Cotangents:
    """The cotangents of a scalar function's operands, all of one shape, from the cotangent `g` of its result.

    Raises:
        UnsupportedOperatorError: the function has no derivative here.
    """
    if name in _STEPS:
        return (None,) * len(operands)
    if name in _SLOPES:
        return (g * _SLOPES[name](result, *operands),)
    if name in _PAIRS:
        return _PAIRS[name](g, result, *operands)
    if name == "select":
        return _select(g, operands[0])
    raise UnsupportedOperatorError(f"`{name}` has no derivative", help="take the derivative of something else")

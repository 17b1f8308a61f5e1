"""Exponentials, logarithms, roots, trigonometry: functions of floats, which take integers as f32."""

from __future__ import annotations

from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike, apply


def exp(x: ArrayLike, /) -> Array:
    """e to the power of `x`."""
    return apply("exp", x)


def exp2(x: ArrayLike, /) -> Array:
    """2 to the power of `x`."""
    return apply("exp2", x)


def expm1(x: ArrayLike, /) -> Array:
    """`exp(x) - 1`, exact near 0."""
    return apply("expm1", x)


def log(x: ArrayLike, /) -> Array:
    """Natural logarithm."""
    return apply("log", x)


def log2(x: ArrayLike, /) -> Array:
    """Logarithm to base 2."""
    return apply("log2", x)


def log10(x: ArrayLike, /) -> Array:
    """Logarithm to base 10."""
    return apply("log10", x)


def log1p(x: ArrayLike, /) -> Array:
    """`log(1 + x)`, exact near 0."""
    return apply("log1p", x)


def sqrt(x: ArrayLike, /) -> Array:
    """Square root."""
    return apply("sqrt", x)


def rsqrt(x: ArrayLike, /) -> Array:
    """`1 / sqrt(x)`."""
    return apply("rsqrt", x)


def cbrt(x: ArrayLike, /) -> Array:
    """Cube root."""
    return apply("cbrt", x)


def sin(x: ArrayLike, /) -> Array:
    """Sine of an angle in radians."""
    return apply("sin", x)


def cos(x: ArrayLike, /) -> Array:
    """Cosine of an angle in radians."""
    return apply("cos", x)


def tan(x: ArrayLike, /) -> Array:
    """Tangent of an angle in radians."""
    return apply("tan", x)


def asin(x: ArrayLike, /) -> Array:
    """Inverse sine, in radians."""
    return apply("asin", x)


def acos(x: ArrayLike, /) -> Array:
    """Inverse cosine, in radians."""
    return apply("acos", x)


def atan(x: ArrayLike, /) -> Array:
    """Inverse tangent, in radians."""
    return apply("atan", x)


def sinh(x: ArrayLike, /) -> Array:
    """Hyperbolic sine."""
    return apply("sinh", x)


def cosh(x: ArrayLike, /) -> Array:
    """Hyperbolic cosine."""
    return apply("cosh", x)


def tanh(x: ArrayLike, /) -> Array:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def asinh(x: ArrayLike, /) -> Array:
    """Inverse hyperbolic sine."""
    return apply("asinh", x)


def acosh(x: ArrayLike, /) -> Array:
    """Inverse hyperbolic cosine."""
    return apply("acosh", x)


def atanh(x: ArrayLike, /) -> Array:
    """Inverse hyperbolic tangent."""
    return apply("atanh", x)


def erf(x: ArrayLike, /) -> Array:
    """Error function."""
    return apply("erf", x)


def erfc(x: ArrayLike, /) -> Array:
    """`1 - erf(x)`, exact for large `x`."""
    return apply("erfc", x)


def sigmoid(x: ArrayLike, /) -> Array:
    """`1 / (1 + exp(-x))`, without overflow."""
    return apply("sigmoid", x)


def atan2(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Angle in radians of the point (`x2`, `x1`)."""
    return apply("atan2", x1, x2)


def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`sqrt(x1**2 + x2**2)`, without overflow."""
    return apply("hypot", x1, x2)

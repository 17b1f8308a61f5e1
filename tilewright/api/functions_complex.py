"""Complex numbers: their parts, conjugates and angles. Of real arrays the imaginary part is 0."""

from __future__ import annotations

import math

from tilewright.api import complex_functions
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray
from tilewright.api.functions_elementwise import isnan, signbit, where
from tilewright.api.lifting import ArrayLike, as_float, full, lift


def real(x: ArrayLike, /) -> Array:
    """The real part."""
    lifted = lift(x)
    return lifted.real if isinstance(lifted, ComplexArray) else lifted


def imag(x: ArrayLike, /) -> Array:
    """The imaginary part; zeros of a real array."""
    lifted = lift(x)
    return lifted.imag if isinstance(lifted, ComplexArray) else full(lifted.shape, 0, lifted.dtype)


def conj(x: ArrayLike, /) -> Array:
    """The imaginary part with the other sign; a real array itself."""
    lifted = lift(x)
    return complex_functions.conjugate(lifted) if isinstance(lifted, ComplexArray) else lifted


def angle(x: ArrayLike, /) -> Array:
    """The angle to the positive real axis, from -pi to pi; of real numbers 0 or pi."""
    lifted = as_float(x)
    if isinstance(lifted, ComplexArray):
        return complex_functions.angle(lifted)
    return where(isnan(lifted), lifted, where(signbit(lifted), math.pi, full((), 0.0, lifted.dtype)))

"""Discrete Fourier transforms along axes, on which the namespace `tw.fft` and the importers are built.

A transform of length n is the sum of x[k] exp(-2 pi i j k / n) over k, the inverse one of the opposite sign; each is
times a factor `scale`. Lines are transformed by NumPy's pocketfft, in the type of the array.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray
from tilewright.api.complex_primitives import from_pairs, to_pairs
from tilewright.api.functions_complex import conj
from tilewright.api.lifting import cast, emit, full
from tilewright.dtypes import complex_of
from tilewright.errors import CompilerBug
from tilewright.primitives import Shape


def _last(x: Array, axis: int) -> Array:
    return lifting.transpose(x, [*(d for d in range(x.ndim) if d != axis), axis])


def _back(x: Array, axis: int) -> Array:
    """The last axis moved to where it was."""
    order = list(range(x.ndim - 1))
    order.insert(axis, x.ndim - 1)
    return lifting.transpose(x, order)


def fitted(x: Array, axis: int, size: int) -> Array:
    """The first `size` elements along an axis, followed by zeros where there are fewer."""
    given = x.shape[axis]
    if given > size:
        limits = tuple(size if d == axis else n for d, n in enumerate(x.shape))
        return emit("slice", x, starts=(0,) * x.ndim, limits=limits, strides=(1,) * x.ndim)
    if given == size:
        return x
    zeros = (0,) * x.ndim
    high = tuple(size - given if d == axis else 0 for d in range(x.ndim))
    return emit("pad", x, full((), 0, x.dtype), low=zeros, high=high, interior=zeros)


def complex_transform(x: Array, axis: int, *, inverse: bool, scale: float = 1.0) -> ComplexArray:
    """The transform of complex numbers along an axis."""
    lines = to_pairs(_last(cast(x, complex_of(x.dtype)), axis))
    made = emit("library_call", lines, routine="fft.c2c", inverse=inverse, scale=scale)
    return _complex(_back(from_pairs(made), axis))


def real_transform(x: Array, axis: int, *, scale: float = 1.0) -> ComplexArray:
    """The first half of the transform of real numbers along an axis: n // 2 + 1 of n numbers."""
    made = emit("library_call", _last(x, axis), routine="fft.r2c", scale=scale)
    return _complex(_back(from_pairs(made), axis))


def inverse_real_transform(x: Array, axis: int, size: int, *, scale: float) -> Array:
    """The `size` real numbers of which x, along an axis, is the first half of the transform. The imaginary parts of
    its first number, and for an even size of its last one, are taken for 0."""
    half = fitted(cast(x, complex_of(x.dtype)), axis, size // 2 + 1)
    return _back(emit("library_call", to_pairs(_last(half, axis)), routine="fft.c2r", size=size, scale=scale), axis)


def _complex(x: Array) -> ComplexArray:
    if not isinstance(x, ComplexArray):
        raise CompilerBug("a transform that gives no complex array")
    return x


def whole_spectrum(half: ComplexArray, axis: int, size: int) -> ComplexArray:
    """The transform of `size` real numbers from its first half along an axis, for a transform over this axis alone."""
    rest = _mirrored(half, axis, size)
    return _complex(emit("concat", half, conj(rest), axis=axis)) if rest.shape[axis] else half


def _mirrored(half: Array, axis: int, size: int) -> Array:
    """The numbers of the first half that stand, conjugated, in the second: from the last one back."""
    first, last = 1, size - half.shape[axis] + 1
    starts: Shape = tuple(first if d == axis else 0 for d in range(half.ndim))
    limits = tuple(last if d == axis else n for d, n in enumerate(half.shape))
    cut = emit("slice", half, starts=starts, limits=limits, strides=(1,) * half.ndim)
    return emit("reverse", cut, axes=(axis,))


def over_axes(x: Array, axes: Sequence[int], *, inverse: bool) -> Array:
    """The transform along several axes, without a factor."""
    for axis in axes:
        x = complex_transform(x, axis, inverse=inverse)
    return x

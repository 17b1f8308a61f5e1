"""`tw.fft`: discrete Fourier transforms, as the Array API defines them.

Real arrays are taken where complex ones are; integers become f32. Numbers of f64 transform in f64, others in f32.
`norm` selects which of the transforms is divided by the number of elements: the inverse ("backward", the default), the
forward one ("forward"), or each by its square root ("ortho").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.api.array import Array, located
from tilewright.api.complex_array import ComplexArray
from tilewright.api.fourier import complex_transform, fitted, inverse_real_transform, real_transform
from tilewright.api.functions_complex import conj
from tilewright.api.functions_creation import arange
from tilewright.api.functions_manipulation import concat, roll
from tilewright.api.lifting import ArrayLike, as_float, axes_of, axis_of, cast, element_type, integer, lift
from tilewright.errors import ArgumentError, DTypeError, ShapeError

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

_NORMS = ("backward", "ortho", "forward")


# ---- arguments ------------------------------------------------------------------------------------------------------


def _prepared(x: ArrayLike, what: str) -> Array:
    array = as_float(x)
    if array.ndim == 0:
        raise located(ShapeError(f"`{what}` of a scalar", help="give an array with an axis to transform along"))
    return cast(array, array.dtype if array.dtype.is_complex else array.dtype.compute)


def _real(x: ArrayLike, what: str) -> Array:
    array = _prepared(x, what)
    if array.dtype.is_complex:
        message = f"`{what}` transforms real numbers, not {array.dtype}"
        raise located(DTypeError(message, help=f"use `tw.fft.{what.replace('r', '', 1)}`, or `tw.real(x)`"))
    return array


def _size(n: object, default: int, what: str) -> int:
    size = default if n is None else integer(n, f"the length of `{what}`")
    if size < 1:
        message = f"`{what}` of {size} elements"
        raise located(ShapeError(message, help="transform at least one element"))
    return size


def _scale(norm: object, count: int, *, inverse: bool) -> float:
    """The factor of a transform of so many elements.

    Raises:
        ArgumentError: there is no such norm.
    """
    if norm not in _NORMS:
        raise located(ArgumentError(f"there is no norm {norm!r}", help=f"the norms are {', '.join(_NORMS)}"))
    if norm == "ortho":
        return 1.0 / math.sqrt(count)
    return 1.0 / count if (norm == "backward") == inverse else 1.0


def _over(
    x: Array, s: Sequence[int] | None, axes: Sequence[int] | None, what: str
) -> tuple[tuple[int, ...], list[int | None]]:
    """The axes of a transform over several, and their sizes; None where they are those of the array."""
    if s is not None and not isinstance(s, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's
        raise located(ArgumentError(f"`s` of `{what}` is {s!r}", help="give a size for each axis"))
    if axes is None:
        chosen = tuple(range(x.ndim)) if s is None else tuple(range(x.ndim - len(s), x.ndim))
    else:
        chosen = axes_of(axes, x.ndim)
    sizes: list[int | None] = [None] * len(chosen) if s is None else list(s)
    if len(sizes) != len(chosen) or not chosen or min(chosen) < 0:
        message = f"`{what}` of {len(sizes)} sizes over {len(chosen)} of {x.ndim} axes"
        raise located(ArgumentError(message, help="give a size for each axis, at least one"))
    # The standard has -1 for the size of the array.
    return chosen, [None if n == -1 else n for n in sizes]


# ---- one axis -------------------------------------------------------------------------------------------------------


def _along(x: ArrayLike, n: int | None, axis: int, norm: object, what: str, *, inverse: bool) -> ComplexArray:
    array = _prepared(x, what)
    at = axis_of(axis, array.ndim)
    size = _size(n, array.shape[at], what)
    return complex_transform(fitted(array, at, size), at, inverse=inverse, scale=_scale(norm, size, inverse=inverse))


def fft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform along an axis, of which the first `n` elements are taken, or zeros appended.

    Raises:
        ShapeError: there is no element to transform.
        ArgumentError: there is no such norm.
    """
    return _along(x, n, axis, norm, "fft", inverse=False)


def ifft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `fft`.

    Raises:
        ShapeError, ArgumentError: as of `fft`.
    """
    return _along(x, n, axis, norm, "ifft", inverse=True)


def rfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The first n // 2 + 1 numbers of the transform of real numbers; the others are their conjugates.

    Raises:
        DTypeError: the numbers are complex.
        ShapeError, ArgumentError: as of `fft`.
    """
    array = _real(x, "rfft")
    at = axis_of(axis, array.ndim)
    size = _size(n, array.shape[at], "rfft")
    return real_transform(fitted(array, at, size), at, scale=_scale(norm, size, inverse=False))


def irfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `rfft`: `n` real numbers, 2 * (m - 1) of m if it is None.

    Raises:
        ShapeError, ArgumentError: as of `fft`.
    """
    array = _prepared(x, "irfft")
    at = axis_of(axis, array.ndim)
    size = _size(n, 2 * (array.shape[at] - 1), "irfft")
    return inverse_real_transform(array, at, size, scale=_scale(norm, size, inverse=True))


def hfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform, which is real, of numbers whose second half are the conjugates of the first half `x`.

    Raises:
        ShapeError, ArgumentError: as of `fft`.
    """
    array = _prepared(x, "hfft")
    at = axis_of(axis, array.ndim)
    size = _size(n, 2 * (array.shape[at] - 1), "hfft")
    return inverse_real_transform(conj(array), at, size, scale=_scale(norm, size, inverse=False))


def ihfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `hfft`.

    Raises:
        DTypeError: the numbers are complex.
        ShapeError, ArgumentError: as of `fft`.
    """
    array = _real(x, "ihfft")
    at = axis_of(axis, array.ndim)
    size = _size(n, array.shape[at], "ihfft")
    return conj(real_transform(fitted(array, at, size), at, scale=_scale(norm, size, inverse=True)))


# ---- several axes ---------------------------------------------------------------------------------------------------


def _over_several(
    x: ArrayLike, s: Sequence[int] | None, axes: Sequence[int] | None, norm: object, what: str, *, inverse: bool
) -> Array:
    array = _prepared(x, what)
    chosen, given = _over(array, s, axes, what)
    for axis, size in zip(chosen, given, strict=True):
        array = _along(array, size, axis, norm, what, inverse=inverse)
    return array


def fftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """The transform along several axes, all if `axes` is None; `s` are their lengths.

    Raises:
        ShapeError: there is no element to transform.
        ArgumentError: there is no such norm, or there are not as many lengths as axes.
    """
    return _over_several(x, s, axes, norm, "fftn", inverse=False)


def ifftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """The inverse of `fftn`.

    Raises:
        ShapeError, ArgumentError: as of `fftn`.
    """
    return _over_several(x, s, axes, norm, "ifftn", inverse=True)


def rfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """The transform of real numbers along several axes, of which the last has n // 2 + 1 numbers.

    Raises:
        DTypeError: the numbers are complex.
        ShapeError, ArgumentError: as of `fftn`.
    """
    array = _real(x, "rfftn")
    chosen, given = _over(array, s, axes, "rfftn")
    made = rfft(array, n=given[-1], axis=chosen[-1], norm=norm)
    for axis, size in zip(chosen[:-1], given[:-1], strict=True):
        made = _along(made, size, axis, norm, "rfftn", inverse=False)
    return made


def irfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Array:
    """The inverse of `rfftn`; the length of its last axis is 2 * (m - 1) of m unless `s` gives it.

    Raises:
        ShapeError, ArgumentError: as of `fftn`.
    """
    array = _prepared(x, "irfftn")
    chosen, given = _over(array, s, axes, "irfftn")
    for axis, size in zip(chosen[:-1], given[:-1], strict=True):
        array = _along(array, size, axis, norm, "irfftn", inverse=True)
    return irfft(array, n=given[-1], axis=chosen[-1], norm=norm)


# ---- frequencies ----------------------------------------------------------------------------------------------------


def _frequencies(n: int, d: float, dtype: object, what: str) -> tuple[int, float, Any]:
    count = _size(n, 0, what)
    if isinstance(d, bool) or not isinstance(d, int | float) or not d:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise located(ArgumentError(f"the spacing of `{what}` is {d!r}", help="give a number that is not 0"))
    kind = element_type(dtype) if dtype else element_type("f32")
    if not kind.is_float:
        raise located(DTypeError(f"`{what}` of {kind}", help="use a float type"))
    return count, 1.0 / (count * d), kind


def fftfreq(n: int, /, *, d: float = 1.0, dtype: object = None, device: None = None) -> Array:
    """The frequencies of a transform of `n` samples that are `d` apart: 0, 1, ..., -2, -1 over n d.

    Raises:
        ShapeError, ArgumentError, DTypeError: `n` is not positive, `d` no number or 0, or the type no float type.
    """
    count, step, kind = _frequencies(n, d, dtype, "fftfreq")
    ramp = concat([arange((count + 1) // 2), arange(-(count // 2), 0)])
    return cast(ramp, kind) * step


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: object = None, device: None = None) -> Array:
    """The frequencies of `rfft`: 0, 1, ... n // 2 over n d.

    Raises:
        ShapeError, ArgumentError, DTypeError: as of `fftfreq`.
    """
    count, step, kind = _frequencies(n, d, dtype, "rfftfreq")
    return cast(arange(count // 2 + 1), kind) * step


def _shifted(x: ArrayLike, axes: int | Sequence[int] | None, *, back: bool) -> Array:
    array = lift(x)
    for axis in axes_of(axes, array.ndim):
        half = array.shape[axis] // 2
        array = roll(array, -half if back else half, axis=axis)
    return array


def fftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The frequency 0 moved from the front to the middle of axes, of all if `axes` is None."""
    return _shifted(x, axes, back=False)


def ifftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, back=True)

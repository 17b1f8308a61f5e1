"""Reductions and running totals. `axis` is None for all axes, an integer or a tuple."""

from __future__ import annotations

import builtins
import math

import numpy as np

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, Axis, located
from tilewright.api.complex_array import ComplexArray
from tilewright.api.functions_elementwise import add, divide, equal, less, subtract, truth, where
from tilewright.api.functions_manipulation import concat
from tilewright.api.functions_math import exp, log, sqrt
from tilewright.api.lifting import (
    ArrayLike,
    apply,
    as_float,
    axes_of,
    axis_of,
    cast,
    element_or_complex_type,
    emit,
    lift,
)
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, ShapeError
from tilewright.primitives import Shape


def _reduce(fn: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    axes = axes_of(axis, x.ndim)
    reduced = emit("reduce", x, fn=fn, axes=axes) if axes else x
    return lifting.reshape(reduced, _kept(x.shape, axes)) if keepdims else reduced


def _kept(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def _count(x: Array, axis: Axis) -> int:
    return math.prod(x.shape[d] for d in axes_of(axis, x.ndim))


def _sum_type(dtype: DType) -> DType:
    """Floats and complex numbers sum in their own type, signed integers and bools as i64, unsigned as u64."""
    if dtype.is_float or dtype.is_complex:
        return dtype
    return dtypes.u64 if dtype.kind == "u" else dtypes.i64


def _prepared(x: ArrayLike, dtype: object) -> Array:
    array = lift(x)
    return cast(array, element_or_complex_type(dtype) if dtype else _sum_type(array.dtype))


def sum(x: ArrayLike, /, axis: Axis = None, *, dtype: object = None, keepdims: bool = False) -> Array:
    """Sum. 16-bit floats add in f32 and round once; integers and bools give i64 or u64 unless `dtype` is given.

    Floats are added in blocks of blocks: rounding errors grow with the logarithm of the number of terms
    (`tilewright.ops.summation_depth`). 10 million equal f32 elements are off by less than 1e-6.
    """
    return _reduce("add", _prepared(x, dtype), axis, keepdims)


def prod(x: ArrayLike, /, axis: Axis = None, *, dtype: object = None, keepdims: bool = False) -> Array:
    """Multiply all elements, with the types of `sum`."""
    return _reduce("multiply", _prepared(x, dtype), axis, keepdims)


def max(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element; NaN if there is one.

    Raises:
        ShapeError: there is no element to choose from.
    """
    return _extreme("max", "maximum", x, axis, keepdims)


def min(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The smallest element; NaN if there is one.

    Raises:
        ShapeError: there is no element to choose from.
    """
    return _extreme("min", "minimum", x, axis, keepdims)


def _extreme(name: str, fn: str, x: ArrayLike, axis: Axis, keepdims: bool) -> Array:
    array = lift(x)
    if _count(array, axis) == 0:
        message = f"`{name}` over no elements of an array of shape {array.shape}"
        raise located(ShapeError(message, help="reduce over axes that are not empty"))
    return _reduce(fn, array, axis, keepdims)


def mean(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Arithmetic mean; NaN over no elements. 16-bit floats compute in f32 and round once."""
    array = as_float(x)
    total = _reduce("add", cast(array, array.dtype.compute), axis, keepdims)
    return cast(divide(total, float(_count(array, axis))), array.dtype)


def var(x: ArrayLike, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Variance: squared distances from the mean over (number of elements - `correction`). Of equal elements it is 0; of
    complex numbers it is the sum of that of both parts."""
    array = as_float(x)
    if isinstance(array, ComplexArray):
        parts = [var(part, axis, correction=correction, keepdims=keepdims) for part in (array.real, array.imag)]
        return add(*parts)
    wide = cast(array, array.dtype.compute)
    _, squares = _moments_about(wide, _near_mean(wide, axis), axis)
    count = builtins.max(float(_count(array, axis) - correction), 0.0)
    kept = squares if keepdims else lifting.reshape(squares, _dropped(array.shape, axes_of(axis, array.ndim)))
    return cast(divide(kept, count), array.dtype)


# A remainder of a sum of squares that is smaller than so many times the sum's precision is rounding error.
_ROUNDING = 16.0


def moments(x: Array, axis: Axis) -> tuple[Array, Array]:
    """Mean, and sum of squared distances from it, of floats of a compute type over axes, which are kept.

    The mean of the distances from the rounded mean corrects both (the corrected two-pass algorithm: Chan, Golub and
    LeVeque, 1983), so that the mean of equal elements is exactly their value, and their distance from it is 0.
    """
    return _moments_about(x, mean(x, axis, keepdims=True), axis)


def _near_mean(x: Array, axis: Axis) -> Array:
    """The first element where it is the mean but for rounding, else the mean: equal elements have no distance to it,
    while squares of the distance to a rounded mean overflow where the elements are large."""
    rounded = mean(x, axis, keepdims=True)
    axes = axes_of(axis, x.ndim)
    if not math.prod(x.shape[d] for d in axes):
        return rounded
    first = x[tuple(slice(0, 1) if d in axes else slice(None) for d in range(x.ndim))]
    noise = apply("absolute", rounded) * (4 * _ROUNDING * float(np.finfo(x.dtype.numpy).eps))
    return where(less(apply("absolute", first - rounded), noise), first, rounded)


def _moments_about(x: Array, rounded: Array, axis: Axis) -> tuple[Array, Array]:
    """Mean and sum of squares as of `moments`, from distances to a value near the mean."""
    distance = subtract(x, rounded)
    offset = mean(distance, axis, keepdims=True)
    squares = _reduce("add", apply("square", distance), axis, True)
    count, limits = float(_count(x, axis)), np.finfo(x.dtype.numpy)
    shared = offset * offset * count
    # An infinite element, or an infinite sum, has no finite distance to anything.
    rest = squares - where(apply("isfinite", shared), shared, 0.0)
    noise = squares * (_ROUNDING * float(limits.eps)) + 2.0 * count * float(limits.smallest_subnormal)
    exact = where(apply("isfinite", offset), rounded + offset, rounded)
    return exact, where(less(rest, noise), 0.0, rest)


def std(x: ArrayLike, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviation: the square root of `var`."""
    array = as_float(x)
    if isinstance(array, ComplexArray):
        return sqrt(var(array, axis, correction=correction, keepdims=keepdims))
    wide = cast(array, array.dtype.compute)
    return cast(sqrt(var(wide, axis, correction=correction, keepdims=keepdims)), array.dtype)


def logsumexp(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """`log(sum(exp(x)))` without overflow; -inf over elements that all are -inf. 16-bit floats compute in f32."""
    array = as_float(x)
    wide = cast(array, array.dtype.compute)
    largest = _reduce("maximum", wide, axis, True)
    # An infinite maximum has no finite distance to anything, itself included.
    shift = where(apply("isfinite", largest), largest, 0.0)
    total = log(_reduce("add", exp(subtract(wide, shift)), axis, True)) + shift
    kept = total if keepdims else lifting.reshape(total, _dropped(array.shape, axes_of(axis, array.ndim)))
    return cast(kept, array.dtype)


def _dropped(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def all(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether all elements are non-zero; true over none."""
    return _reduce("bitwise_and", truth(x), axis, keepdims)


def any(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Whether an element is non-zero; false over none."""
    return _reduce("bitwise_or", truth(x), axis, keepdims)


def count_nonzero(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements are non-zero, as i64."""
    return _reduce("add", cast(truth(x), dtypes.i64), axis, keepdims)


def isin(x1: ArrayLike, x2: ArrayLike, /, *, invert: bool = False) -> Array:
    """Whether each element of `x1` is one of `x2` (or is not, with `invert`). Compares all pairs."""
    found, candidates = lift(x1), lift(x2)
    spread = lifting.reshape(found, (*found.shape, 1))
    present = any(equal(spread, lifting.reshape(candidates, (candidates.size,))), axis=-1)
    return apply("bitwise_not", present) if invert else present


# ---- running totals -------------------------------------------------------------------------------------------------


def _running(fn: str, x: ArrayLike, axis: int | None, dtype: object, initial: int | None) -> Array:
    array = _prepared(x, dtype)
    if axis is None and array.ndim != 1:
        message = f"a running total of an array of shape {array.shape} needs an axis"
        raise located(ArgumentError(message, help="pass `axis`, or flatten the array"))
    at = axis_of(0 if axis is None else axis, array.ndim)
    totals = emit("scan", array, fn=fn, axis=at, reverse=False)
    if initial is None:
        return totals
    first = lifting.full((*array.shape[:at], 1, *array.shape[at + 1 :]), initial, array.dtype)
    return concat([first, totals], axis=at)


def cumulative_sum(
    x: ArrayLike, /, axis: int | None = None, *, dtype: object = None, include_initial: bool = False
) -> Array:
    """Sums of the elements so far along `axis`, with the types of `sum`; preceded by 0 with `include_initial`.

    Floats are added in an order that depends on the shape and the machine, not on the number of threads: a total may
    overflow on the way where it is near the largest number of its type.

    Raises:
        ArgumentError: no axis is given for an array that is no vector.
    """
    return _running("add", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: ArrayLike, /, axis: int | None = None, *, dtype: object = None, include_initial: bool = False
) -> Array:
    """Products of the elements so far along `axis`, with the types of `sum`; preceded by 1 with `include_initial`.

    Floats are multiplied in their order.

    Raises:
        ArgumentError: no axis is given for an array that is no vector.
    """
    return _running("multiply", x, axis, dtype, 1 if include_initial else None)


cumsum = cumulative_sum
cumprod = cumulative_prod


def diff(
    x: ArrayLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """Differences of neighbours along `axis`, taken `n` times.

    Raises:
        ArgumentError: `n` is negative.
    """
    array = lift(x)
    at = axis_of(axis, array.ndim)
    times = lifting.integer(n, "the number of differences")
    if times < 0:
        raise located(ArgumentError(f"`diff` taken {times} times", help="give a number of at least 0"))
    joined = [lift(part) for part in (prepend, array, append) if part is not None]
    array = concat(joined, axis=at) if len(joined) > 1 else array
    lead = (slice(None),) * at
    times = builtins.min(times, array.shape[at])
    lifting.check_steps("diff", times)
    for _ in range(times):
        later, earlier = array[(*lead, slice(1, None))], array[(*lead, slice(None, -1))]
        array = apply("bitwise_xor", later, earlier) if array.dtype.is_bool else subtract(later, earlier)
    return array

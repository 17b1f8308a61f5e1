"""Arrays from nothing, from numbers and from other arrays. `device` is taken for the Array API and must be None."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import dtypes, ops
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.functions_elementwise import add, greater_equal, less_equal, multiply, where
from tilewright.api.lifting import (
    ArrayLike,
    broadcast,
    cast,
    element_or_complex_type,
    element_type,
    emit,
    is_nested,
    is_scalar,
    lift,
    scalar_type,
    shape_of,
)
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import ArgumentError, ShapeError
from tilewright.primitives import MAX_RANK

# `Any`: what `isinstance` leaves of NumPy's scalar types would have an unknown width.
_REAL: tuple[type[Any], ...] = (int, float, np.integer, np.floating)


def _check_device(device: object) -> None:
    if device is not None:
        raise located(ArgumentError("a traced array has no device", help='choose one with `tw.jit(target="...")`'))


def full(shape: object, fill_value: ArrayLike, *, dtype: object = None, device: None = None) -> Array:
    """An array of one number, which may be traced. The type is that of the number: for Python's f32, i64, bool or
    complex64."""
    _check_device(device)
    sizes = shape_of(shape)
    if is_scalar(fill_value):
        kind = element_or_complex_type(dtype) if dtype else scalar_type(fill_value)
        return lifting.full(sizes, fill_value, kind)
    value = lift(fill_value)
    return broadcast(cast(value, element_or_complex_type(dtype) if dtype else value.dtype), sizes)


def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: None = None) -> Array:
    """An array of zeros, of `dtype` (default f32)."""
    return full(shape, 0, dtype=dtype or dtypes.f32, device=device)


def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: None = None) -> Array:
    """An array of ones, of `dtype` (default f32)."""
    return full(shape, 1, dtype=dtype or dtypes.f32, device=device)


def empty(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: None = None) -> Array:
    """An array of zeros: programs are functions, so nothing is left undefined."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: ArrayLike, /, fill_value: ArrayLike, *, dtype: object = None, device: None = None) -> Array:
    """An array of one number with the shape and type of `x`."""
    like = lift(x)
    return full(like.shape, fill_value, dtype=dtype or like.dtype, device=device)


def zeros_like(x: ArrayLike, /, *, dtype: object = None, device: None = None) -> Array:
    """Zeros with the shape and type of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: None = None) -> Array:
    """Ones with the shape and type of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: None = None) -> Array:
    """Zeros with the shape and type of `x`."""
    return zeros_like(x, dtype=dtype, device=device)


def asarray(obj: object, /, *, dtype: DTypeLike | None = None, device: None = None, copy: bool | None = None) -> Array:
    """An array from an array, a number, or nested lists of numbers and arrays.

    Python numbers are converted to `dtype` at once; without it floats become f32, integers i64 and complex numbers
    complex64. `copy` is taken for
    the Array API: results are always new.

    Raises:
        DTypeError: a Python integer does not fit the type.
        ShapeError: nested lists are ragged.
    """
    _check_device(device)
    wanted = element_or_complex_type(dtype) if dtype else None
    if is_scalar(obj):
        return _from_number(obj, wanted or scalar_type(obj))
    found = _from_list(obj, wanted) if is_nested(obj) else lift(obj)
    return cast(found, wanted or found.dtype)


array = asarray


def _from_number(number: object, dtype: DType) -> Array:
    """One Python number: exact where the type has it, and cut off where floats become integers."""
    if isinstance(number, float) and dtype.is_integer:
        return cast(lifting.full((), number, dtypes.f64), dtype)
    return lifting.full((), number, dtype)


def _from_list(items: Sequence[object], dtype: DType | None) -> Array:
    flat: list[Any] = []
    _flatten(items, flat)
    if any(isinstance(item, Array) for item in flat):
        from tilewright.api.functions_manipulation import stack

        return stack([asarray(item, dtype=dtype) for item in items])
    try:
        stored = np.asarray(items)
    except ValueError as error:
        raise located(ShapeError("the nested lists are ragged", help="make all rows the same length")) from error
    if not flat or not all(is_scalar(item) for item in flat):
        return lifting.constant(stored)
    if dtype is None:
        default = {"f": np.float32, "c": np.complex64}.get(stored.dtype.kind)
        return lifting.constant(stored if default is None else stored.astype(default))
    if dtype.is_complex:
        return lifting.constant(np.array(flat, dtype.numpy).reshape(stored.shape))
    return _from_numbers(flat, stored.shape, dtype)


def _from_numbers(numbers: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Array:
    """Python numbers as a constant of a type, as `_from_number` converts each."""
    if dtype.is_integer and all(isinstance(n, int) for n in numbers):
        outside = [n for n in numbers if not int(dtype.lowest) <= n <= int(dtype.highest)]
        if outside:
            lifting.full((), outside[0], dtype)  # which says what is wrong
        return lifting.constant(np.array(numbers, dtype.numpy).reshape(shape))
    stored = np.array([float(n) for n in numbers]).reshape(shape)
    with np.errstate(over="ignore"):
        return lifting.constant(ops.cast(stored, dtype))


def _flatten(items: Sequence[object], flat: list[Any], depth: int = 1) -> None:
    if depth > MAX_RANK:
        message = f"lists are nested more than {MAX_RANK} deep"
        raise located(ShapeError(message, help="an array has no more axes than that"))
    for item in items:
        if is_nested(item):
            _flatten(item, flat, depth + 1)
        else:
            flat.append(item)


def from_dlpack(x: Any, /, *, device: None = None, copy: bool | None = None) -> Array:
    """An array of another library as a constant of the program."""
    _check_device(device)
    return lift(x)


def iota(shape: int | Sequence[int], axis: int = 0, *, dtype: DTypeLike = dtypes.i64) -> Array:
    """Indices 0, 1, 2 ... along `axis`, repeated along the others."""
    sizes = shape_of(shape)
    return emit("iota", shape=sizes, axis=lifting.axis_of(axis, len(sizes)), dtype=element_type(dtype).name)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: DTypeLike | None = None, device: None = None
) -> Array:
    """Numbers from `start` (0 when only one is given) below `stop`, `step` apart. All three are Python numbers.

    Raises:
        ArgumentError: a bound is no finite number, or the step is 0.
    """
    _check_device(device)
    bounds = (0, start, step) if stop is None else (start, stop, step)
    first, limit, step = _numbers("arange", *bounds)
    if step == 0:
        raise located(ArgumentError("the step of `arange` is 0", help="give a step above or below 0"))
    count = max(0, math.ceil((limit - first) / step))
    floats = any(isinstance(n, float) for n in (first, limit, step))
    kind = element_type(dtype) if dtype else (dtypes.f32 if floats else dtypes.i64)
    return _ramp(count, first, step, kind)


def _numbers(name: str, *numbers: Any) -> list[float]:
    for number in numbers:
        if not isinstance(number, _REAL) or not math.isfinite(number):
            message = f"`{name}` takes finite Python numbers, got {number!r}"
            raise located(ArgumentError(message, help="the length of an array must be known while tracing"))
    plain: list[Any] = [number.item() if isinstance(number, np.generic) else number for number in numbers]
    return plain


def _ramp(count: int, first: float, step: float, dtype: DType) -> Array:
    """`first + i * step` for `count` values of i, computed in the compute type (f32 for 16-bit floats)."""
    if dtype.is_integer and not (float(first).is_integer() and float(step).is_integer()):
        lifting.check_table("arange", count)
        return lifting.constant((first + step * np.arange(count)).astype(dtype.numpy))
    wide = dtype if dtype in (dtypes.i32, dtypes.i64) else dtypes.i64
    indices = iota((count,), dtype=wide if dtype.is_integer else dtype.compute)
    scaled = indices if step == 1 else multiply(indices, _plain(step))
    return cast(scaled if first == 0 else add(scaled, _plain(first)), dtype)


def _plain(number: float) -> float | int:
    """A whole float as an integer, so that it fits integer types; NumPy scalars as Python's."""
    return int(number) if float(number).is_integer() and abs(number) < 2**63 else float(number)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: None = None,
    endpoint: bool = True,
) -> Array:
    """`num` numbers evenly from `start` to `stop`, which is left out unless `endpoint`.

    Raises:
        ArgumentError: a bound is no finite number, or `num` is negative.
    """
    _check_device(device)
    first, last = _numbers("linspace", start, stop)
    count = lifting.integer(num, "the length")
    if count < 0:
        raise located(ArgumentError(f"`linspace` of {count} numbers", help="give a length of at least 0"))
    kind = element_type(dtype) if dtype else dtypes.f32
    if not kind.is_float:
        lifting.check_table("linspace", count)
        return lifting.constant(np.linspace(first, last, count, endpoint=endpoint).astype(kind.numpy))
    steps = count - 1 if endpoint else count
    ramp = _ramp(count, float(first), (last - first) / steps if steps > 0 else 0.0, kind)
    if not endpoint or count < 2:
        return ramp
    return where(iota((count,)) == count - 1, lifting.full((), float(last), kind), ramp)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike | None = None, device: None = None
) -> Array:
    """Ones on diagonal `k` (above the main one when positive), zeros elsewhere; f32 by default."""
    _check_device(device)
    shape = shape_of((n_rows, n_rows if n_cols is None else n_cols))
    on_diagonal = _diagonal_distance(shape) == lifting.integer(k, "the diagonal")
    return cast(on_diagonal, element_or_complex_type(dtype) if dtype else dtypes.f32)


def _diagonal_distance(shape: tuple[int, ...]) -> Array:
    """Column minus row of each element of a matrix."""
    rows, columns = iota((shape[-2], 1)), iota((1, shape[-1]), 1)
    return columns - rows


def tril(x: ArrayLike, /, *, k: int = 0) -> Array:
    """`x` with zeros above diagonal `k` of its last two axes.

    Raises:
        ShapeError: `x` has fewer than two axes.
        ArgumentError: `k` is not one integer.
    """
    matrix = _matrix("tril", x)
    return where(less_equal(_diagonal_distance(matrix.shape), _diagonal(k)), matrix, lifting.full((), 0, matrix.dtype))


def triu(x: ArrayLike, /, *, k: int = 0) -> Array:
    """`x` with zeros below diagonal `k` of its last two axes.

    Raises:
        ShapeError: `x` has fewer than two axes.
        ArgumentError: `k` is not one integer.
    """
    matrix = _matrix("triu", x)
    return where(
        greater_equal(_diagonal_distance(matrix.shape), _diagonal(k)), matrix, lifting.full((), 0, matrix.dtype)
    )


def _diagonal(k: object) -> int | Array:
    """The number of a diagonal, which may be traced."""
    if isinstance(k, Array) and k.dtype.is_integer and not k.shape:
        return k
    return lifting.integer(k, "the diagonal")


def _matrix(name: str, x: ArrayLike) -> Array:
    matrix = lift(x)
    if matrix.ndim < 2:
        message = f"`{name}` takes an array of at least two axes, got shape {matrix.shape}"
        raise located(ShapeError(message, help="reshape the array to a matrix"))
    return matrix


def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid from one vector per axis. "xy" exchanges the first two axes, "ij" does not.

    Raises:
        ArgumentError: `indexing` is neither.
        ShapeError: an array has more than one axis.
    """
    if indexing not in ("xy", "ij"):
        raise located(ArgumentError(f"the indexing of `meshgrid` is {indexing!r}", help='use "xy" or "ij"'))
    vectors = [lift(a) for a in arrays]
    if any(v.ndim > 1 for v in vectors):
        raise located(ShapeError("`meshgrid` takes vectors", help="flatten the arrays"))
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = [1, 0]
    sizes = [1] * len(vectors)
    for vector, axis in zip(vectors, axes, strict=True):
        sizes[axis] = vector.size
    shape = tuple(sizes)
    return tuple(_along(vector, axis, shape) for vector, axis in zip(vectors, axes, strict=True))


def _along(vector: Array, axis: int, shape: tuple[int, ...]) -> Array:
    return emit("broadcast", lifting.reshape(vector, (vector.size,)), shape=shape, axes=(axis,))


def one_hot(x: ArrayLike, num_classes: int, *, dtype: DTypeLike = dtypes.f32, axis: int = -1) -> Array:
    """A new axis of size `num_classes` with 1 at the index that `x` holds; all 0 where it is outside.

    Raises:
        DTypeError: `x` is not of integers.
    """
    from tilewright.api.indexing import as_indices

    indices = as_indices(x, "one_hot")
    at = lifting.axis_of(axis, indices.ndim + 1)
    shape = (*indices.shape[:at], lifting.integer(num_classes, "the number of classes"), *indices.shape[at:])
    classes = iota(shape, at, dtype=indices.dtype)
    spread = lifting.reshape(indices, (*indices.shape[:at], 1, *indices.shape[at:]))
    return cast(spread == classes, element_type(dtype))

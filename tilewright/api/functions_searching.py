"""Order and search: extremes' places, sorting, binary search; and what a fixed shape cannot hold."""

from __future__ import annotations

from typing import NoReturn

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.functions_creation import iota
from tilewright.api.functions_elementwise import isnan, logical_not, where
from tilewright.api.functions_manipulation import moveaxis
from tilewright.api.indexing import take
from tilewright.api.lifting import ArrayLike, axis_of, emit, emit_all, lift, promoted
from tilewright.errors import ArgumentError, DataDependentShapeError, ShapeError


def argmax(x: ArrayLike, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Index (i64) of the first largest element along `axis`, or in the flattened array; the first NaN wins.

    Raises:
        ShapeError: there is no element to choose from.
    """
    return _arg_reduce("maximum", x, axis, keepdims)


def argmin(x: ArrayLike, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Index (i64) of the first smallest element along `axis`, or in the flattened array; the first NaN wins.

    Raises:
        ShapeError: there is no element to choose from.
    """
    return _arg_reduce("minimum", x, axis, keepdims)


def _arg_reduce(fn: str, x: ArrayLike, axis: int | None, keepdims: bool) -> Array:
    array = lift(x)
    if axis is None:
        flat = emit("arg_reduce", lifting.reshape(array, (array.size,)), fn=fn, axis=0)
        return lifting.reshape(flat, (1,) * array.ndim) if keepdims else flat
    at = axis_of(axis, array.ndim)
    found = emit("arg_reduce", array, fn=fn, axis=at)
    return lifting.reshape(found, (*array.shape[:at], 1, *array.shape[at + 1 :])) if keepdims else found


def sort(x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Elements in order along `axis`; NaN counts as the largest. The order is always stable."""
    array = lift(x)
    return emit("sort", array, axis=axis_of(axis, array.ndim), descending=bool(descending))


def argsort(x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Indices (i64) that sort `x` along `axis`; NaN counts as the largest. The order is always stable."""
    array = lift(x)
    at = axis_of(axis, array.ndim)
    places = iota(array.shape, at)
    return emit_all("sort", array, places, axis=at, descending=bool(descending))[1]


def top_k(x: ArrayLike, k: int, /, *, axis: int = -1) -> tuple[Array, Array]:
    """The `k` largest elements along `axis`, largest first, and their indices (i64); NaN counts as the largest.

    Raises:
        ShapeError: there are fewer than `k` elements.
    """
    array = lift(x)
    at = axis_of(axis, array.ndim)
    count = lifting.integer(k, "the number of elements")
    if not 0 <= count <= array.shape[at]:
        message = f"`top_k` of {count} elements along an axis of size {array.shape[at]}"
        raise located(ShapeError(message, help="ask for at most the size of the axis"))
    values, indices = emit_all("top_k", moveaxis(array, at, -1), k=count)
    return moveaxis(values, -1, at), moveaxis(indices, -1, at)


def searchsorted(x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: ArrayLike | None = None) -> Array:
    """Insertion indices (i64) of the elements of `x2` in the sorted vector `x1`: before equal elements ("left") or
    after.

    Raises:
        ArgumentError: `side` is neither.
        ShapeError: `x1` is no vector.
    """
    if side not in ("left", "right"):
        raise located(ArgumentError(f"the side of `searchsorted` is {side!r}", help='use "left" or "right"'))
    ordered, wanted = promoted(x1 if sorter is None else take(x1, sorter), x2)
    if ordered.ndim != 1:
        raise located(ShapeError(f"`searchsorted` in an array of shape {ordered.shape}", help="search in a vector"))
    left = ordered.shape[0]
    # Positions as narrow as they may be: a vector holds more of them.
    counts = dtypes.i32 if left < 2**31 else dtypes.i64
    found = lifting.full(wanted.shape, 0, counts)
    # The elements from `found` on, `left` of them, are halved until one is left.
    while left > 0:
        half = max(left // 2, 1)
        probe = emit("gather", ordered, found + lifting.full((), half - 1, counts), axes=(0,))
        passed = _before(probe, wanted) if side == "left" else logical_not(_before(wanted, probe))
        found = where(passed, found + lifting.full((), half, counts), found)
        left = left - half if left > 1 else 0
    return lifting.cast(found, dtypes.i64)


def _before(a: Array, b: Array) -> Array:
    """`a` sorts before `b`, with NaN last."""
    if not a.dtype.is_float:
        return a < b
    return where(isnan(b), logical_not(isnan(a)), a < b)


def nonzero(x: ArrayLike, /) -> NoReturn:
    """Not available: see the error's help."""
    _refuse("nonzero", "use `tw.where(x != 0, ...)`, or `tw.argsort` of the mask with a fixed number of elements")


def unique_all(x: ArrayLike, /) -> NoReturn:
    """Not available: see the error's help."""
    _refuse("unique_all", "use `tw.sort`, which keeps the size")


def unique_counts(x: ArrayLike, /) -> NoReturn:
    """Not available: see the error's help."""
    _refuse("unique_counts", "use `tw.sort`, which keeps the size")


def unique_inverse(x: ArrayLike, /) -> NoReturn:
    """Not available: see the error's help."""
    _refuse("unique_inverse", "use `tw.sort`, which keeps the size")


def unique_values(x: ArrayLike, /) -> NoReturn:
    """Not available: see the error's help."""
    _refuse("unique_values", "use `tw.sort`, which keeps the size")


def _refuse(name: str, help: str) -> NoReturn:
    raise located(DataDependentShapeError(f"the size of `{name}` depends on the contents of the array", help=help))

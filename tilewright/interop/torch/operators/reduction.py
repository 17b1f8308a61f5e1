"""Reductions and running totals. No axes, or an empty list of them, are all axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.functions_statistics import moments
from tilewright.api.lifting import emit
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.casts import convert
from tilewright.interop.smallest import smallest
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import dtype_of, widened

Axes = int | Sequence[int] | None


def axes_of(x: Array, dim: Axes) -> tuple[int, ...] | None:
    """Axes as the array functions take them: None for all. A scalar counts as a vector of one element."""
    if dim is None or not x.ndim:
        return None
    listed = (dim,) if isinstance(dim, int) else tuple(dim)
    return listed or None


@operator("sum", "sum.dim_IntList")
def sum_(x: Array, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Array:
    """Sum, of integers and bools as i64."""
    return tw.sum(convert(x, _total_type(x, dtype)), axes_of(x, dim), keepdims=keepdim)


def _total_type(x: Array, dtype: object) -> Any:
    if dtype is not None:
        return dtype_of(dtype)
    return x.dtype if x.dtype.is_float or x.dtype.is_complex else tw.i64


@operator("mean", "mean.dim")
def mean(x: Array, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Array:
    """Arithmetic mean of floats."""
    return tw.mean(x if dtype is None else convert(x, dtype_of(dtype)), axes_of(x, dim), keepdims=keepdim)


@operator("prod", "prod.dim_int")
def prod(x: Array, dim: int | None = None, keepdim: bool = False, *, dtype: object = None) -> Array:
    """The product of the elements, of integers and bools as i64."""
    return tw.prod(convert(x, _total_type(x, dtype)), axes_of(x, dim), keepdims=keepdim)


@operator("amax")
def amax(x: Array, dim: Axes = (), keepdim: bool = False) -> Array:
    """The largest element."""
    return _extreme(tw.max, tw.any, x, dim, keepdim)


@operator("amin")
def amin(x: Array, dim: Axes = (), keepdim: bool = False) -> Array:
    """The smallest element."""
    return _extreme(tw.min, tw.all, x, dim, keepdim)


@operator("max")
def max_(x: Array) -> Array:
    """The largest of all elements."""
    return amax(x)


@operator("min")
def min_(x: Array) -> Array:
    """The smallest of all elements."""
    return amin(x)


def _extreme(fn: Callable[..., Array], of_bools: Callable[..., Array], x: Array, dim: Axes, keepdim: bool) -> Array:
    return (of_bools if x.dtype.is_bool else fn)(x, axes_of(x, dim), keepdims=keepdim)


@operator("max.dim")
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The largest elements along an axis, and their indices."""
    return amax(x, dim, keepdim), argmax(x, dim, keepdim)


@operator("min.dim")
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest elements along an axis, and their indices."""
    return amin(x, dim, keepdim), argmin(x, dim, keepdim)


@operator("argmax")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the first largest element."""
    return _place(tw.argmax, x, dim, keepdim)


@operator("argmin")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the first smallest element."""
    return _place(tw.argmin, x, dim, keepdim)


def _place(fn: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    if not x.ndim:
        return tw.full((), 0, dtype=tw.i64)
    return fn(tw.astype(x, tw.u8) if x.dtype.is_bool else x, axis=dim, keepdims=keepdim)


@operator("any", "any.dim", "any.dims")
def any_(x: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    """Whether an element is non-zero."""
    return _in_truth_type(x, tw.any(x, _truth_axes(x, dim), keepdims=keepdim))


@operator("all", "all.dim", "all.dims")
def all_(x: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    """Whether all elements are non-zero."""
    return _in_truth_type(x, tw.all(x, _truth_axes(x, dim), keepdims=keepdim))


def _truth_axes(x: Array, dim: Axes) -> tuple[int, ...] | None:
    # Unlike elsewhere, an empty list of axes is none of them.
    return () if isinstance(dim, Sequence) and not dim and x.ndim else axes_of(x, dim)


def _in_truth_type(x: Array, result: Array) -> Array:
    return tw.astype(result, tw.u8) if x.dtype == tw.u8 else result


@operator("var.correction")
def var(x: Array, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """Variance over (number of elements - `correction`), 1 unless given."""
    return tw.var(x, axes_of(x, dim), correction=1.0 if correction is None else float(correction), keepdims=keepdim)


@operator("var.dim")
def var_dim(x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False) -> Array:
    """Variance over the number of elements, less one if `unbiased`."""
    return var(x, dim, correction=float(unbiased), keepdim=keepdim)


@operator("std.correction")
def std(x: Array, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """The square root of `var`."""
    return tw.std(x, axes_of(x, dim), correction=1.0 if correction is None else float(correction), keepdims=keepdim)


@operator("var_mean.correction")
def var_mean(
    x: Array, dim: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Variance, and the mean from which it takes distances."""
    exact, _ = moments(widened(x), axes_of(x, dim))
    shape = mean(x, dim, keepdim).shape
    return var(x, dim, correction=correction, keepdim=keepdim), tw.astype(tw.reshape(exact, shape), x.dtype)


@operator("logsumexp")
def logsumexp(x: Array, dim: Axes, keepdim: bool = False) -> Array:
    """`log(sum(exp(x)))`."""
    return tw.logsumexp(x, axes_of(x, dim), keepdims=keepdim)


@operator("linalg_vector_norm")
def vector_norm(x: Array, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: object = None) -> Array:
    """`sum(abs(x) ** ord) ** (1 / ord)` of floats; the extremes of magnitudes for infinite orders."""
    y = x if dtype is None else convert(x, dtype_of(dtype))
    axes = axes_of(y, dim)
    size = tw.abs(widened(y))
    if ord == 2:
        # Squares need no magnitudes.
        result = tw.sqrt(tw.sum(tw.square(widened(y)), axes, keepdims=keepdim))
    elif ord == 1:
        result = tw.sum(size, axes, keepdims=keepdim)
    elif ord == 0:
        result = tw.sum(tw.astype(size != 0, size.dtype), axes, keepdims=keepdim)
    elif ord in (float("inf"), float("-inf")):
        result = (tw.max if ord > 0 else tw.min)(size, axes, keepdims=keepdim)
    else:
        result = tw.pow(tw.sum(tw.pow(size, float(ord)), axes, keepdims=keepdim), 1.0 / ord)
    return tw.astype(result, y.dtype)


# ---- running totals -------------------------------------------------------------------------------------------------


@operator("cumsum")
def cumsum(x: Array, dim: int, *, dtype: object = None) -> Array:
    """Sums of the elements so far along an axis."""
    y = convert(x, _total_type(x, dtype))
    # Totals start from 0, so that none is a negative zero.
    return (tw.cumsum(y, axis=dim) if x.ndim else y) + 0


@operator("cumprod")
def cumprod(x: Array, dim: int, *, dtype: object = None) -> Array:
    """Products of the elements so far along an axis."""
    y = convert(x, _total_type(x, dtype))
    return tw.cumprod(y, axis=dim) if x.ndim else y


def _running_extreme(x: Array, dim: int, fn: str) -> tuple[Array, Array]:
    if not x.ndim:
        return x, tw.full((), 0, dtype=tw.i64)
    axis = dim % x.ndim
    values = emit("scan", x, fn=fn, axis=axis, reverse=False)
    is_new = x == values
    if x.dtype.is_float:
        is_new = tw.logical_or(is_new, tw.isnan(x))
    seen = tw.where(is_new, tw.iota(x.shape, axis), 0)
    return values, emit("scan", seen, fn="maximum", axis=axis, reverse=False)


@operator("cummax")
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    """The largest elements so far along an axis, and the index of the last of them."""
    return _running_extreme(x, dim, "maximum")


@operator("cummin")
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    """The smallest elements so far along an axis, and the index of the last of them."""
    return _running_extreme(x, dim, "minimum")


# ---- order ----------------------------------------------------------------------------------------------------------


@operator("sort", "sort.stable")
def sort(x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> tuple[Array, Array]:
    """Elements in order along an axis, and the indices they come from."""
    if not x.ndim:
        return x, tw.full((), 0, dtype=tw.i64)
    if x.dtype.is_bool:
        values, places = sort(tw.astype(x, tw.u8), dim, descending)
        return tw.astype(values, tw.bool), places
    places = tw.argsort(x, axis=dim, descending=descending)
    return tw.sort(x, axis=dim, descending=descending), places


@operator("topk")
def top_k(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The `k` largest or smallest elements along an axis, in order, and their indices."""
    if not x.ndim:
        return x, tw.full((), 0, dtype=tw.i64)
    if largest:
        return tw.top_k(x, k, axis=dim)
    return smallest(x, k, dim)


@operator("kthvalue")
def kth_value(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The `k`-th smallest element along an axis, counted from 1, and its index."""
    if not x.ndim:
        return x, tw.full((), 0, dtype=tw.i64)
    at = (*(slice(None),) * (dim % x.ndim), slice(k - 1, k))
    values, places = (part[at] for part in sort(x, dim))
    return (values, places) if keepdim else (tw.squeeze(values, dim), tw.squeeze(places, dim))


@operator("median.dim")
def median_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower median along an axis and its index; the first that is not a number, if there is one."""
    if not x.ndim:
        return x, tw.full((), 0, dtype=tw.i64)
    values, places = kth_value(x, (x.shape[dim] + 1) // 2, dim, True)
    if x.dtype.is_float:
        unordered = tw.any(tw.isnan(x), dim, keepdims=True)
        first = tw.argmax(x, axis=dim, keepdims=True)
        values, places = tw.where(unordered, math.nan, values), tw.where(unordered, first, places)
    return (values, places) if keepdim else (tw.squeeze(values, dim), tw.squeeze(places, dim))


@operator("median")
def median(x: Array) -> Array:
    """The lower median of all elements."""
    return median_dim(tw.reshape(x, (x.size,)), 0)[0]


@operator("searchsorted.Tensor")
def searchsorted(
    ordered: Array,
    x: Array,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """The indices at which the elements of `x` would enter a sorted vector."""
    if ordered.ndim != 1:
        raise UnsupportedOperatorError("a search in more than one vector", help="search in each alone")
    found = tw.searchsorted(ordered, x, side="right" if right or side == "right" else "left", sorter=sorter)
    return tw.astype(found, tw.i32) if out_int32 else found


@operator("bucketize.Tensor")
def bucketize(x: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """The number of the bucket between sorted boundaries that holds each element."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)

"""`tw.nn`: the layers of neural networks, as plain compositions of array functions.

16-bit floats compute in f32 and round once at the end. Nothing here is special to the compiler: the same compositions
written by a user are fused in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.api import lifting
from tilewright.api.array import Array, Axis, located
from tilewright.api.functions_creation import iota
from tilewright.api.functions_elementwise import abs, divide, maximum, minimum, reciprocal, where
from tilewright.api.functions_linalg import Labels, join
from tilewright.api.functions_math import erf, exp, expm1, log, log1p, rsqrt, sigmoid, tanh
from tilewright.api.functions_statistics import moments
from tilewright.api.indexing import take
from tilewright.api.lifting import (
    ArrayLike,
    as_float,
    axes_of,
    broadcast_shapes,
    cast,
    emit,
    integer,
    lift,
    promoted,
    reshape,
)
from tilewright.api.transposed_conv import conv_transpose
from tilewright.api.window_geometry import padding_pairs, per_axis
from tilewright.errors import ArgumentError, DTypeError, ShapeError
from tilewright.primitives import Shape

__all__ = [
    "attention",
    "avg_pool",
    "conv",
    "conv_transpose",
    "elu",
    "embedding",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "max_pool",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def _wide(x: ArrayLike) -> tuple[Array, Array]:
    """An operand as floats, and in its compute type."""
    array = as_float(x)
    return array, cast(array, array.dtype.compute)


# ---- activations ----------------------------------------------------------------------------------------------------


def relu(x: ArrayLike, /) -> Array:
    """`max(x, 0)`."""
    return maximum(x, 0)


def leaky_relu(x: ArrayLike, /, negative_slope: float = 0.01) -> Array:
    """`x` where it is positive, `negative_slope * x` elsewhere."""
    array = as_float(x)
    return where(array > 0, array, array * negative_slope)


def elu(x: ArrayLike, /, alpha: float = 1.0) -> Array:
    """`alpha * (exp(x) - 1)` where `x` is negative, `x` elsewhere."""
    array, wide = _wide(x)
    # The exponential of a large positive element would overflow unseen.
    return cast(where(wide < 0, expm1(minimum(wide, 0)) * alpha, wide), array.dtype)


def silu(x: ArrayLike, /) -> Array:
    """`x * sigmoid(x)`."""
    array, wide = _wide(x)
    return cast(wide * sigmoid(wide), array.dtype)


def softplus(x: ArrayLike, /) -> Array:
    """`log(1 + exp(x))`, without overflow."""
    array, wide = _wide(x)
    return cast(maximum(wide, 0) + log1p(exp(-abs(wide))), array.dtype)


def gelu(x: ArrayLike, /, approximate: str = "none") -> Array:
    """`x * Phi(x)` with the normal distribution function Phi, or its approximation by "tanh".

    Raises:
        ArgumentError: there is no such approximation.
    """
    array, wide = _wide(x)
    if approximate == "none":
        return cast(wide * 0.5 * (1.0 + erf(wide * _SQRT_HALF)), array.dtype)
    if approximate == "tanh":
        inner = (wide + wide**3 * 0.044715) * _SQRT_2_OVER_PI
        return cast(wide * 0.5 * (1.0 + tanh(inner)), array.dtype)
    raise located(ArgumentError(f"`gelu` has no approximation {approximate!r}", help='use "none" or "tanh"'))


# ---- normalisation --------------------------------------------------------------------------------------------------


def softmax(x: ArrayLike, /, axis: Axis = -1) -> Array:
    """`exp(x) / sum(exp(x))` along `axis`, without overflow. Elements of -inf give 0; all -inf give NaN."""
    array, wide = _wide(x)
    weights = exp(wide - _largest(wide, axis))
    return cast(weights * reciprocal(weights.sum(axis, keepdims=True)), array.dtype)


def log_softmax(x: ArrayLike, /, axis: Axis = -1) -> Array:
    """`log(softmax(x))`, without overflow."""
    array, wide = _wide(x)
    shifted = wide - _largest(wide, axis)
    return cast(shifted - log(exp(shifted).sum(axis, keepdims=True)), array.dtype)


def _largest(x: Array, axis: Axis) -> Array:
    """The maximum with its axes kept; -inf over no elements, so that empty arrays pass."""
    axes = axes_of(axis, x.ndim)
    reduced = emit("reduce", x, fn="maximum", axes=axes) if axes else x
    return reshape(reduced, tuple(1 if d in axes else n for d, n in enumerate(x.shape)))


def layer_norm(
    x: ArrayLike, /, weight: ArrayLike | None = None, bias: ArrayLike | None = None, axis: Axis = -1, eps: float = 1e-5
) -> Array:
    """`(x - mean) / sqrt(variance + eps)` over `axis`, times `weight`, plus `bias`, which broadcast. Equal elements
    give 0, before the bias."""
    array, wide = _wide(x)
    mean, squares = moments(wide, axis)
    count = float(math.prod(wide.shape[d] for d in axes_of(axis, wide.ndim)))
    return _affine(array, (wide - mean) * rsqrt(divide(squares, count) + eps), weight, bias)


def rms_norm(x: ArrayLike, /, weight: ArrayLike | None = None, axis: Axis = -1, eps: float = 1e-6) -> Array:
    """`x / sqrt(mean(x**2) + eps)` over `axis`, times `weight`, which broadcasts."""
    array, wide = _wide(x)
    return _affine(array, wide * rsqrt((wide * wide).mean(axis, keepdims=True) + eps), weight, None)


def _affine(like: Array, x: Array, weight: ArrayLike | None, bias: ArrayLike | None) -> Array:
    if weight is not None:
        x = x * weight
    if bias is not None:
        x = x + bias
    return cast(x, like.dtype)


# ---- attention and lookup -------------------------------------------------------------------------------------------


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    /,
    mask: ArrayLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """`softmax(q @ k.mT * scale + mask) @ v` over arrays of shape (..., heads, length, size).

    `q` may have a multiple of the heads of `k` and `v`; neighbours share one. `mask` broadcasts to (..., heads,
    queries, keys): bools, true where a key takes part, or numbers to add. `causal` lets query i see keys up to i + keys
    - queries. `scale` is 1 / sqrt(size) unless given. Logits and weights of 16-bit floats are f32; weights are rounded
    for the second matmul.

    Raises:
        ShapeError: the shapes do not fit together.
    """
    queries, keys, values = promoted(q, k, v)
    _check_attention(queries, keys, values)
    heads, shared = queries.shape[-3], keys.shape[-3]
    factor = scale if scale is not None else queries.shape[-1] ** -0.5
    dtype, compute = queries.dtype, queries.dtype.compute
    # Query heads that share a key head are one more axis of rows: keys are never repeated.
    group, sizes = ((), ()) if heads == shared else (("group",), (heads // shared,))
    grouped = reshape(queries, (*queries.shape[:-3], shared, *sizes, *queries.shape[-2:]))
    batch: Labels = tuple(range(queries.ndim - 2))
    rows: Labels = (*batch, *group, "query")
    logits = join(grouped, (*rows, "size"), keys, (*batch, "key", "size"), (*rows, "key"), compute) * factor
    if mask is not None:
        logits = _masked(logits, _grouped_mask(mask, (*queries.shape[:-1], keys.shape[-2]), shared))
    if causal:
        visible = iota((1, keys.shape[-2]), 1) <= iota((queries.shape[-2], 1)) + (keys.shape[-2] - queries.shape[-2])
        logits = _masked(logits, visible)
    weights = cast(softmax(logits, axis=-1), dtype)
    result = join(weights, (*rows, "key"), values, (*batch, "key", "value"), (*rows, "value"), dtype)
    return reshape(result, (*queries.shape[:-1], values.shape[-1]))


def _check_attention(q: Array, k: Array, v: Array) -> None:
    if not q.dtype.is_float:
        raise located(DTypeError(f"`attention` of {q.dtype}", help="use floats"))
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if min(q.ndim, k.ndim, v.ndim) < 3 or not q.ndim == k.ndim == v.ndim:
        message = f"`attention` takes arrays of one rank and shape (..., heads, length, size), got {shapes}"
        raise located(ShapeError(message, help="add axes of size 1 with `tw.expand_dims`"))
    same_batch = q.shape[:-3] == k.shape[:-3] == v.shape[:-3]
    if not same_batch or k.shape[-3:-1] != v.shape[-3:-1] or q.shape[-1] != k.shape[-1]:
        raise located(
            ShapeError(f"the shapes of `attention` do not fit: {shapes}", help="check heads, length and size")
        )
    if q.shape[-3] != k.shape[-3] and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        message = f"{q.shape[-3]} query heads are not a multiple of {k.shape[-3]} key heads"
        raise located(ShapeError(message, help="use a multiple, so that neighbours share a key head"))


def _masked(logits: Array, mask: Array) -> Array:
    return where(mask, logits, -math.inf) if mask.dtype.is_bool else logits + cast(mask, logits.dtype)


def _grouped_mask(mask: ArrayLike, full_shape: Shape, shared: int) -> Array:
    """A mask that broadcasts to `full_shape`, (..., heads, queries, keys), for heads split into (shared, group)."""
    given = lift(mask)
    if broadcast_shapes(given.shape, full_shape) != full_shape:
        message = f"a mask of shape {given.shape} for logits of shape {full_shape}"
        raise located(ShapeError(message, help="give a mask that broadcasts to (..., heads, queries, keys)"))
    if full_shape[-3] == shared or given.ndim < 3:
        return given
    heads = given.shape[-3]
    split = (1, 1) if heads == 1 else (shared, heads // shared)
    return reshape(given, (*given.shape[:-3], *split, *given.shape[-2:]))


def embedding(table: ArrayLike, ids: ArrayLike, /) -> Array:
    """Rows of `table` (entries, size) at integer `ids`: the shape of `ids` with the size added."""
    return take(table, ids, axis=0)


# ---- windows --------------------------------------------------------------------------------------------------------


def _padding(
    padding: Any, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements before and after each spatial axis. "same" gives ceil(size / stride) results, the odd one after."""
    rank = len(sizes)
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        geometry = zip(sizes, window, strides, dilation, strict=True)
        totals = [max(0, (-(-n // s) - 1) * s + (w - 1) * d + 1 - n) for n, w, s, d in geometry]
        return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    if isinstance(padding, str):
        raise located(ArgumentError(f"there is no padding {padding!r}", help='use "same", "valid" or numbers'))
    return padding_pairs(padding, rank)


def conv(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[object] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Correlation of `x` (N, C, *spatial) with `w` (O, C / groups, *window), giving (N, O, *spatial), in 1 to 3 dims.

    `padding` is a number, numbers or pairs (before, after) per spatial axis, "same" or "valid". CPUs compute large ones
    of f32 with windows of 3 by 3, and gradients of such weights, with fewer multiplications (Winograd's F(2x2, 3x3)):
    errors are small next to the largest terms of 4 by 4 elements of the image, or of the 9 taps of a gradient, and an
    infinity, or a sum of 4 elements that overflows, gives NaN in all results of these.

    Raises:
        ShapeError, DTypeError: the operands do not fit together.
        ArgumentError: a stride, dilation or padding is malformed.
    """
    image, kernel = promoted(x, w)
    rank = image.ndim - 2
    if rank < 1 or rank > 3 or kernel.ndim != image.ndim:
        message = f"`conv` takes (N, C, *spatial) and (O, C/groups, *window), got {image.shape} and {kernel.shape}"
        raise located(ShapeError(message, help="use 1 to 3 spatial axes in both"))
    strides = per_axis("stride", stride, rank, 1)
    spread = per_axis("dilation", dilation, rank, 1)
    low, high = _padding(padding, image.shape[2:], kernel.shape[2:], strides, spread)
    count = integer(groups, "the number of groups")
    return emit("convolve", image, kernel, strides=strides, low=low, high=high, dilation=spread, groups=count)


def _pooled(
    fn: str, x: Array, window: int | Sequence[int], stride: int | Sequence[int] | None, padding: object
) -> tuple[Array, dict[str, tuple[int, ...]]]:
    if x.ndim < (len(window) if isinstance(window, Sequence) else 3):
        message = f"pooling with window {window} over an array of shape {x.shape}"
        raise located(ShapeError(message, help="give (N, C, *spatial), or one window size per pooled axis"))
    rank = len(window) if isinstance(window, Sequence) else x.ndim - 2
    sizes = per_axis("window", window, rank, 1)
    strides = sizes if stride is None else per_axis("stride", stride, rank, 1)
    low, high = _padding(padding, x.shape[x.ndim - rank :], sizes, strides, (1,) * rank)
    lead = x.ndim - rank
    geometry = {
        "window": (1,) * lead + sizes,
        "strides": (1,) * lead + strides,
        "low": (0,) * lead + low,
        "high": (0,) * lead + high,
        "dilation": (1,) * x.ndim,
    }
    return emit("window_reduce", x, fn=fn, **geometry), geometry


def max_pool(
    x: ArrayLike,
    /,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[object] | str = 0,
) -> Array:
    """The largest element under a window that slides over the last axes of (N, C, *spatial).

    `stride` is the window unless given; padding never wins.

    Raises:
        ShapeError, ArgumentError: window, stride or padding do not fit the array.
    """
    return _pooled("maximum", lift(x), window, stride, padding)[0]


def avg_pool(
    x: ArrayLike,
    /,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[object] | str = 0,
    count_padding: bool = True,
) -> Array:
    """The mean under a window that slides over the last axes of (N, C, *spatial); padding counts as 0, or not at all.

    Raises:
        ShapeError, ArgumentError: window, stride or padding do not fit the array.
    """
    array, wide = _wide(x)
    total, geometry = _pooled("add", wide, window, stride, padding)
    if count_padding:
        return cast(divide(total, float(math.prod(geometry["window"]))), array.dtype)
    sizes = [n for n, window in zip(total.shape, geometry["window"], strict=True) if window > 1]
    lifting.check_table("avg_pool", math.prod(sizes))
    counts = np.ones((), np.float64)
    for axis, size in enumerate(array.shape):
        window, stride_here, low = (geometry[k][axis] for k in ("window", "strides", "low"))
        starts = np.arange(total.shape[axis] if window > 1 else 1) * stride_here - low
        counts = np.multiply.outer(counts, np.minimum(starts + window, size) - np.maximum(starts, 0))
    return cast(divide(total, lifting.constant(counts.astype(wide.dtype.numpy))), array.dtype)

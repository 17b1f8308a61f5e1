"""Pooling over the last axes of (N, C, *spatial) or (C, *spatial), and its gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import constant, emit
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.operators.padding import padded
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened
from tilewright.records import dataclass

Sizes = tuple[int, ...]
# Windows are looked at one element after the other, all places at once.
_MAX_WINDOW = 512
# Elements of a window whose places are found: each is one more comparison in the same kernel.
_MAX_COMPARED = 128
_SMALLER = "use smaller windows"


@dataclass(frozen=True)
class Windows:
    """Windows over the last axes of an array of shape `shape`; `counts` of them along each."""

    shape: Sizes
    window: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    counts: Sizes

    @staticmethod
    def of(
        shape: Sizes,
        window: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        dilation: int | Sequence[int],
        ceil_mode: bool,
        rank: int,
    ) -> Windows:
        """One number for all axes is repeated, in a list or by itself; without strides windows follow each other.

        Raises:
            UnsupportedOperatorError: the window has very many elements.
        """
        sizes, gaps, around, apart = (
            _for_each_axis(given, rank) for given in (window, stride or window, padding, dilation)
        )
        if math.prod(sizes) > _MAX_WINDOW:
            raise UnsupportedOperatorError(f"windows of {math.prod(sizes)} elements", help=_SMALLER)
        parts = zip(shape[-rank:], sizes, gaps, around, apart, strict=True)
        counts = tuple(_count(*part, ceil_mode) for part in parts)
        return Windows(shape, sizes, gaps, around, apart, counts)

    @property
    def rank(self) -> int:
        """The number of pooled axes."""
        return len(self.window)

    @property
    def high(self) -> Sizes:
        """How many elements the last windows reach beyond the end; negative where elements are left over."""
        parts = zip(
            self.shape[-self.rank :], self.window, self.stride, self.padding, self.dilation, self.counts, strict=True
        )
        return tuple((c - 1) * s + (w - 1) * d + 1 - n - p for n, w, s, p, d, c in parts)

    def elements(self) -> Iterator[tuple[Sizes, tuple[Any, ...]]]:
        """For each element of a window, in order, its position in the window and where all windows have it in the
        padded array."""
        for place in itertools.product(*map(range, self.window)):
            starts = [p * d for p, d in zip(place, self.dilation, strict=True)]
            bounds = zip(starts, self.stride, self.counts, strict=True)
            yield place, (..., *(slice(a, a + (c - 1) * s + 1, s) for a, s, c in bounds))

    def padded(self, x: Array, value: float) -> Array:
        """The array with a number where windows reach beyond it."""
        lead = (0,) * (x.ndim - self.rank)
        return padded(x, (*lead, *self.padding), (*lead, *self.high), value)

    def flat_places(self, place: Sizes) -> np.ndarray:
        """The position in the flattened spatial axes of one element of all windows, of shape `counts`; -1 outside."""
        along = [
            np.arange(c) * s - p + at * d
            for c, s, p, at, d in zip(self.counts, self.stride, self.padding, place, self.dilation, strict=True)
        ]
        flat, inside = np.zeros((), np.int64), np.ones((), np.bool_)
        for axis, size in zip(along, self.shape[-self.rank :], strict=True):
            flat = np.add.outer(flat * size, axis)
            inside = np.logical_and.outer(inside, (axis >= 0) & (axis < size))
        return np.where(inside, flat, -1)


def _for_each_axis(given: int | Sequence[int], rank: int) -> Sizes:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    return sizes * rank if len(sizes) == 1 else sizes


def _count(size: int, window: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    reach = size + 2 * padding - dilation * (window - 1) - 1
    if not ceil_mode:
        return reach // stride + 1
    count = -(-reach // stride) + 1
    # The last window starts inside the array or its padding before.
    return count - 1 if (count - 1) * stride >= size + padding else count


def _of_ranks(name: str, *ranks: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule with the parameter `rank` for an operator that has a name for each number of pooled axes: sizes
    that are the same for all axes do not indicate it."""

    def register(rule: Callable[..., object]) -> Callable[..., Any]:
        for rank in ranks:
            operator(name.format(rank))(functools.partial(rule, rank=rank))
        return rule

    return register


def _max_pool(x: Array, windows: Windows) -> tuple[Array, Array]:
    """The largest element under each window, and its position in the flattened spatial axes.

    Raises:
        UnsupportedOperatorError: the window has more elements than one program compares in reasonable compile time.
    """
    if math.prod(windows.window) > _MAX_COMPARED:
        raise UnsupportedOperatorError(f"places in windows of {math.prod(windows.window)} elements", help=_SMALLER)
    source = windows.padded(x, x.dtype.lowest)
    best: Array | None = None
    where: Array | None = None
    for place, key in windows.elements():
        seen, at = source[key], constant(windows.flat_places(place))
        if best is None or where is None:
            best, where = seen, tw.broadcast_to(at, seen.shape)
            continue
        is_better = seen > best
        if x.dtype.is_float:
            is_better = tw.logical_or(is_better, tw.isnan(seen))
        if any(windows.padding):
            # The first element of the window may lie in the padding, which must not win a tie.
            is_better = tw.logical_or(is_better, where < 0)
        best, where = tw.where(is_better, seen, best), tw.where(is_better, at, where)
    assert best is not None
    assert where is not None
    return best, where


@_of_ranks("max_pool{}d_with_indices", 2, 3)
def max_pool(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    rank: int,
) -> tuple[Array, Array]:
    """`_max_pool` over the last axes."""
    return _max_pool(x, Windows.of(x.shape, kernel_size, stride, padding, dilation, ceil_mode, rank))


@_of_ranks("max_pool{}d_with_indices_backward", 2, 3)
def max_pool_backward(
    grad: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
    *,
    rank: int,
) -> Array:
    """The gradient at the positions that the pooling took its elements from."""
    lead, spatial = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    rows, size = math.prod(lead), math.prod(spatial)
    seen = math.prod(grad.shape[x.ndim - rank :])
    at = tw.reshape(indices, (rows, seen)), tw.reshape(widened(grad), (rows, seen))
    flat = tw.zeros((rows, size), dtype=at[1].dtype)
    total = flat.at[tw.iota((rows, 1)), at[0]].add(at[1])
    return tw.astype(tw.reshape(total, x.shape), x.dtype)


# ---- means ----------------------------------------------------------------------------------------------------------


def _divisors(windows: Windows, count_include_pad: bool, override: int | None) -> np.ndarray:
    """How many elements count under each window."""
    if override is not None:
        return np.full(windows.counts, float(override))
    found = np.ones((), np.float64)
    parts = zip(windows.shape[-windows.rank :], windows.window, windows.stride, windows.padding, strict=True)
    for (size, window, stride, padding), count in zip(parts, windows.counts, strict=True):
        starts = np.arange(count) * stride - padding
        # Padding counts, but not what `ceil_mode` lets the last window reach beyond it.
        low, high = (-padding, size + padding) if count_include_pad else (0, size)
        found = np.multiply.outer(found, np.minimum(starts + window, high) - np.maximum(starts, low))
    return found


def _avg_pool(x: Array, windows: Windows, count_include_pad: bool, override: int | None) -> Array:
    wide = widened(x)
    lead = (1,) * (x.ndim - windows.rank)
    none = (0,) * len(lead)
    source = windows.padded(wide, 0)
    total = emit(
        "window_reduce",
        source,
        fn="add",
        window=(*lead, *windows.window),
        strides=(*lead, *windows.stride),
        low=(*none, *(0,) * windows.rank),
        high=(*none, *(0,) * windows.rank),
        dilation=(1,) * x.ndim,
    )
    divisors = _divisors(windows, count_include_pad, override).astype(wide.dtype.numpy)
    return tw.astype(total / constant(divisors), x.dtype)


@_of_ranks("avg_pool{}d", 1, 2, 3)
def avg_pool(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int,
) -> Array:
    """The mean under each window."""
    windows = Windows.of(x.shape, kernel_size, stride, padding, (1,), ceil_mode, rank)
    return _avg_pool(x, windows, count_include_pad, divisor_override)


@_of_ranks("avg_pool{}d_backward", 2, 3)
def avg_pool_backward(
    grad: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    rank: int,
) -> Array:
    """Each gradient shared among the elements of its window."""
    windows = Windows.of(x.shape, kernel_size, stride, padding, (1,), ceil_mode, rank)
    wide = widened(grad)
    divisors = _divisors(windows, count_include_pad, divisor_override).astype(wide.dtype.numpy)
    share = wide / constant(divisors)
    lead = (0,) * (x.ndim - windows.rank)
    interior = (*lead, *(s - 1 for s in windows.stride))
    spans = [w - 1 for w in windows.window]
    # Sums under a window that slides over the shares, set apart: each element sees the windows that saw it.
    low = (*lead, *(span - p for span, p in zip(spans, windows.padding, strict=True)))
    sizes = zip(x.shape[-windows.rank :], windows.counts, windows.stride, spans, windows.padding, strict=True)
    high = (*lead, *(n + p - (c - 1) * s - 1 for n, c, s, _, p in sizes))
    source = padded(share, low, high, interior=interior)
    ones = (1,) * len(lead)
    total = emit(
        "window_reduce",
        source,
        fn="add",
        window=(*ones, *windows.window),
        strides=(1,) * x.ndim,
        low=(0,) * x.ndim,
        high=(0,) * x.ndim,
        dilation=(1,) * x.ndim,
    )
    return tw.astype(total, x.dtype)


# ---- windows that cover an axis in a given number -------------------------------------------------------------------


def _shares(size: int, count: int) -> np.ndarray:
    """A matrix (count, size): the part of each element in the mean of each window."""
    starts = np.arange(count) * size // count
    ends = -(-(np.arange(1, count + 1) * size) // count)
    places = np.arange(size)
    inside = (places >= starts[:, None]) & (places < ends[:, None])
    return inside / (ends - starts)[:, None]


@operator("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(x: Array, output_size: Sequence[int]) -> Array:
    """The mean under windows that cover each axis in the given number."""
    rank = len(output_size)
    spatial = x.shape[-rank:]
    wide = widened(x)
    if all(n == 1 for n in output_size):
        return tw.mean(x, tuple(range(x.ndim - rank, x.ndim)), keepdims=True)
    if all(n and size % n == 0 for size, n in zip(spatial, output_size, strict=True)):
        split = [part for size, n in zip(spatial, output_size, strict=True) for part in (n, size // n)]
        lead = x.ndim - rank
        axes = tuple(lead + 2 * n + 1 for n in range(rank))
        return tw.astype(tw.mean(tw.reshape(wide, (*x.shape[:lead], *split)), axes), x.dtype)
    return tw.astype(_along_each(wide, [_shares(s, n) for s, n in zip(spatial, output_size, strict=True)]), x.dtype)


@operator("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad: Array, x: Array) -> Array:
    """Each gradient shared among the elements of its window."""
    return _shared(grad, x, 2)


@operator("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad: Array, x: Array) -> Array:
    """Each gradient shared among the elements of its window."""
    return _shared(grad, x, 3)


def _shared(grad: Array, x: Array, rank: int) -> Array:
    sizes = zip(x.shape[-rank:], grad.shape[-rank:], strict=True)
    return tw.astype(_along_each(widened(grad), [_shares(s, n).T for s, n in sizes]), x.dtype)


def _along_each(x: Array, matrices: Sequence[np.ndarray]) -> Array:
    """The last axes, each multiplied by a matrix (new size, size)."""
    for n, matrix in enumerate(matrices):
        axis = x.ndim - len(matrices) + n
        moved = tw.matmul(tw.moveaxis(x, axis, -1), constant(np.ascontiguousarray(matrix.T).astype(x.dtype.numpy)))
        x = tw.moveaxis(moved, -1, axis)
    return x

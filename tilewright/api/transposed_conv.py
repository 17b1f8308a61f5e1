"""`tw.nn.conv_transpose`, by phases: the results at one offset between two input elements form a convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.api.array import Array, located
from tilewright.api.functions_manipulation import flip
from tilewright.api.lifting import ArrayLike, emit, full, integer, promoted, reshape, transpose
from tilewright.api.window_geometry import padding_pairs, per_axis
from tilewright.errors import ArgumentError, ShapeError

Sizes = tuple[int, ...]


def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[object] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """The transpose of `conv` with regard to its image: `x` (N, C, *spatial) with `w` (C, O / groups, *window) gives
    (N, O, *spatial) of `(n - 1) * stride + (window - 1) * dilation + 1 - low - high + output_padding` places.

    `padding` is a number, or numbers or pairs (low, high) per spatial axis: how much is cut off at each end.
    `output_padding` adds places at the ends.

    Raises:
        ShapeError, DTypeError: the operands do not fit together.
        ArgumentError: a stride, dilation or padding is malformed.
    """
    image, kernel = promoted(x, w)
    rank = image.ndim - 2
    if rank < 1 or rank > 3 or kernel.ndim != image.ndim:
        wanted = "(N, C, *spatial) and (C, O/groups, *window)"
        message = f"`conv_transpose` takes {wanted}, got {image.shape} and {kernel.shape}"
        raise located(ShapeError(message, help="use 1 to 3 spatial axes in both"))
    strides, spread = per_axis("stride", stride, rank, 1), per_axis("dilation", dilation, rank, 1)
    extra = per_axis("output padding", output_padding, rank, 0)
    low, high = padding_pairs(padding, rank)
    count = integer(groups, "the number of groups")
    if count < 1 or kernel.shape[0] != image.shape[1] or image.shape[1] % count:
        message = f"{count} groups do not divide channels of {image.shape} and {kernel.shape}"
        raise located(ShapeError(message, help="the kernel's first axis has the image's channels"))
    spans = [(n - 1) * d + 1 for n, d in zip(kernel.shape[2:], spread, strict=True)]
    sizes = [(n - 1) * s + span for n, s, span in zip(image.shape[2:], strides, spans, strict=True)]
    if any(n - a - b + e < 0 for n, a, b, e in zip(sizes, low, high, extra, strict=True)):
        message = f"the padding {padding} cuts off more than the {tuple(sizes)} places that there are"
        raise located(ArgumentError(message, help="use less padding"))
    if 0 in image.shape or 0 in kernel.shape:
        shape = tuple(n - a - b + e for n, a, b, e in zip(sizes, low, high, extra, strict=True))
        return full((image.shape[0], kernel.shape[1] * count, *shape), 0, image.dtype)
    left_out = _left_out(sizes, spans, strides, low, [b - e for b, e in zip(high, extra, strict=True)])
    if max(spread) == 1 < max(strides):
        result = _by_phases(image, kernel, strides, count)
    else:
        result = _by_holes(image, kernel, strides, spread, count, left_out)
    before = [n for n, _ in left_out]
    ends = tuple(n - b + e - cut for n, b, e, cut in zip(sizes, high, extra, before, strict=True))
    return _cut(result, [n - cut for n, cut in zip(low, before, strict=True)], ends)


def _left_out(
    sizes: Sequence[int], spans: Sequence[int], strides: Sizes, low: Sequence[int], high: Sequence[int]
) -> list[tuple[int, int]]:
    """How many results at each end of each axis are not computed, of those that are cut off: as many as the window
    reaches beyond the image, where image elements are next to each other."""
    if max(strides) > 1:
        return [(0, 0)] * len(sizes)
    found: list[tuple[int, int]] = []
    for size, span, before, after in zip(sizes, spans, low, high, strict=True):
        ends = min(before, span - 1), min(max(after, 0), span - 1)
        found.append(ends if sum(ends) < size else (0, 0))
    return found


def _by_phases(x: Array, w: Array, strides: Sizes, groups: int) -> Array:
    """Results at `i * stride + phase` are a convolution of their own, with every `stride`-th element of the window:
    that of all phases is one convolution with as many times the channels."""
    rank = x.ndim - 2
    taps = [-(-n // s) for n, s in zip(w.shape[2:], strides, strict=True)]
    missing = [t * s - n for t, s, n in zip(taps, strides, w.shape[2:], strict=True)]
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    zero = full((), 0, w.dtype)
    padded = emit("pad", w, zero, low=(0,) * w.ndim, high=(0, 0, *missing), interior=(0,) * w.ndim)
    split = [each for pair in zip(taps, strides, strict=True) for each in pair]
    kernel = reshape(padded, (groups, inputs, outputs, *split))
    # (groups, *phases, outputs, inputs, *taps): phases before channels, which are then next to each other in a result.
    phases, places = range(4, 4 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    kernel = transpose(kernel, (0, *phases, 2, 1, *places))
    kernel = reshape(kernel, (groups * math.prod(strides) * outputs, inputs, *taps))
    around = tuple(t - 1 for t in taps)
    y = _correlated(x, flip(kernel, axis=tuple(range(2, 2 + rank))), around, around, (1,) * rank, groups)
    steps = y.shape[2:]
    y = reshape(y, (y.shape[0], groups, *strides, outputs, *steps))
    order = [each for d in range(rank) for each in (3 + rank + d, 2 + d)]
    y = transpose(y, (0, 1, 2 + rank, *order))
    return reshape(y, (y.shape[0], groups * outputs, *(n * s for n, s in zip(steps, strides, strict=True))))


def _by_holes(
    x: Array, w: Array, strides: Sizes, dilation: Sizes, groups: int, left_out: Sequence[tuple[int, int]]
) -> Array:
    """A convolution of the image with zeros between its elements."""
    rank = x.ndim - 2
    spread = x
    if max(strides) > 1:
        interior = (0, 0, *(s - 1 for s in strides))
        spread = emit("pad", x, full((), 0, x.dtype), low=(0,) * x.ndim, high=(0,) * x.ndim, interior=interior)
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    if groups == 1:
        kernel = transpose(w, (1, 0, *range(2, 2 + rank)))
    else:
        kernel = transpose(reshape(w, (groups, inputs, outputs, *w.shape[2:])), (0, 2, 1, *range(3, 3 + rank)))
        kernel = reshape(kernel, (groups * outputs, inputs, *w.shape[2:]))
    kernel = flip(kernel, axis=tuple(range(2, 2 + rank)))
    around = [(n - 1) * d for n, d in zip(w.shape[2:], dilation, strict=True)]
    low, high = (tuple(n - ends[side] for n, ends in zip(around, left_out, strict=True)) for side in (0, 1))
    return _correlated(spread, kernel, low, high, dilation, groups)


def _correlated(x: Array, w: Array, low: Sizes, high: Sizes, dilation: Sizes, groups: int) -> Array:
    return emit("convolve", x, w, strides=(1,) * len(low), low=low, high=high, dilation=dilation, groups=groups)


def _cut(y: Array, starts: Sequence[int], ends: Sequence[int]) -> Array:
    """Places from `starts` to `ends` of each spatial axis, 0 where there are none."""
    have = y.shape[2:]
    limits = (*y.shape[:2], *(max(a, min(e, n)) for a, e, n in zip(starts, ends, have, strict=True)))
    first = tuple(min(a, n) for a, n in zip(starts, limits[2:], strict=True))
    kept = emit("slice", y, starts=(0, 0, *first), limits=limits, strides=(1,) * y.ndim)
    missing = tuple(e - a - n for a, e, n in zip(starts, ends, kept.shape[2:], strict=True))
    if not any(missing):
        return kept
    zero = full((), 0, y.dtype)
    return emit("pad", kept, zero, low=(0,) * y.ndim, high=(0, 0, *missing), interior=(0,) * y.ndim)

"""Windows that slide over arrays: reductions, convolutions, and where the chosen elements came from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright import dtypes, ops
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, cast, emit, full
from tilewright.interop.stablehlo.operators.manipulation import padded, sliced
from tilewright.interop.stablehlo.operators.reduction import combined, halves, is_identity, with_start, zeros
from tilewright.interop.stablehlo.regions import combiner
from tilewright.interop.stablehlo.registry import Node, operation
from tilewright.primitives import Shape, window_sizes
from tilewright.records import dataclass

# Windows that are taken apart place by place make a few operations for each.
_MAX_PLACES = 4096
# Windows of more places than these are combined from smaller windows.
_FEW_PLACES = 16


@dataclass(frozen=True)
class Geometry:
    """A window over all axes."""

    window: Shape
    strides: Shape
    dilation: Shape
    base: Shape
    low: Shape
    high: Shape


def geometry_of(node: Node, rank: int) -> Geometry:
    ones = (1,) * rank
    pads = node.pairs("padding", rank)
    geometry = Geometry(
        node.integers("window_dimensions", ones),
        node.integers("window_strides", ones),
        node.integers("window_dilations", ones),
        node.integers("base_dilations", ones),
        tuple(low for low, _ in pads),
        tuple(high for _, high in pads),
    )
    parts = (geometry.window, geometry.strides, geometry.dilation, geometry.base)
    if any(len(part) != rank or any(n < 1 for n in part) for part in parts):
        raise node.malformed(f"a window over other than {rank} axes, or of sizes below 1")
    return geometry


@operation("stablehlo.reduce_window")
def reduce_window(node: Node, *operands: Array) -> Any:
    """Elements under each position of a window, and an initial one, combined by a region."""
    inputs, starts = halves(node, operands)
    geometry = geometry_of(node, inputs[0].ndim)
    (region,) = node.regions
    fn = combiner(region, inputs[0].dtype) if len(inputs) == 1 else None
    if fn is None:
        return _by_region(node, inputs, starts, geometry)
    x, start = inputs[0], starts[0]
    if math.prod(node.type.shape) == 0:
        return zeros(node)
    running = _running(x, fn, geometry)
    if running is not None and is_identity(fn, start):
        return running
    low, high = geometry.low, geometry.high
    if min((*low, *high), default=0) < 0 or max(geometry.base, default=1) > 1:
        # What is added counts for nothing, as XLA has it, whatever the first element.
        x = padded(x, _identity(fn, x), low, high, tuple(n - 1 for n in geometry.base))
        low = high = (0,) * x.ndim
    if x.ndim == 0:
        return with_start(fn, x, start)
    result = emit(
        "window_reduce",
        x,
        fn=fn,
        window=geometry.window,
        strides=geometry.strides,
        low=low,
        high=high,
        dilation=geometry.dilation,
    )
    return with_start(fn, result, start)


def _identity(fn: str, x: Array) -> Array:
    identity = ops.FUNCTIONS[fn].identity
    assert identity is not None, "regions are recognised as functions that reduce"
    return full((), identity(x.dtype), x.dtype)


def _running(x: Array, fn: str, geometry: Geometry) -> Array | None:
    """A running total, which is what a window is that reaches back, or forward, over all of one axis."""
    wide = [axis for axis, size in enumerate(geometry.window) if size > 1]
    ones = (1,) * x.ndim
    if len(wide) != 1 or (geometry.strides, geometry.dilation, geometry.base) != (ones, ones, ones):
        return None
    (axis,) = wide
    reach = geometry.window[axis] - 1
    one_sided = tuple(reach if d == axis else 0 for d in range(x.ndim))
    none = (0,) * x.ndim
    if reach + 1 != x.shape[axis] or (geometry.low, geometry.high) not in ((one_sided, none), (none, one_sided)):
        return None
    return emit("scan", x, fn=fn, axis=axis, reverse=geometry.high == one_sided)


def places_of(node: Node, window: Shape) -> list[Shape]:
    """The positions in a window, in order."""
    if math.prod(window) > _MAX_PLACES:
        raise node.unsupported(f"a window of {window} with such a region")
    return list(itertools.product(*(range(n) for n in window)))


def under(x: Array, place: Shape, geometry: Geometry, sizes: Shape) -> Array:
    """The elements of a padded array that one position of the window sees."""
    starts = tuple(p * d for p, d in zip(place, geometry.dilation, strict=True))
    spans = zip(starts, sizes, geometry.strides, strict=True)
    limits = tuple(start + (n - 1) * stride + 1 for start, n, stride in spans)
    return sliced(x, starts, limits, geometry.strides)


def _by_region(node: Node, inputs: Sequence[Array], starts: Sequence[Array], geometry: Geometry) -> tuple[Array, ...]:
    """Windows combined by any associative region: small ones place by place, others by windows of half their size."""
    sizes = node.types[0].shape
    if math.prod(sizes) == 0:
        return tuple(broadcast(start, sizes) for start in starts)
    interior = tuple(n - 1 for n in geometry.base)
    arrays = [padded(x, s, geometry.low, geometry.high, interior) for x, s in zip(inputs, starts, strict=True)]
    inside = None
    if any((*geometry.low, *geometry.high, *interior)):
        inside = inside_of(inputs[0].shape, geometry.low, geometry.high, interior)
    first = _Elements([broadcast(start, sizes) for start in starts], None)
    if math.prod(geometry.window) > _FEW_PLACES:
        windows = _Elements(arrays, inside)
        for axis in reversed(range(inputs[0].ndim)):
            windows = _windows_along(node, windows, axis, geometry, sizes[axis])
        return tuple(_merged(node, first, windows).arrays)
    for place in places_of(node, geometry.window):
        cut = [under(x, place, geometry, sizes) for x in arrays]
        first = _merged(node, first, _Elements(cut, None if inside is None else under(inside, place, geometry, sizes)))
    return tuple(first.arrays)


@dataclass(frozen=True)
class _Elements:
    """Arrays that a region combines, and which of their elements count; all of them where `counts` is None."""

    arrays: list[Array]
    counts: Array | None

    def along(self, axis: int, start: int, limit: int, stride: int = 1) -> _Elements:
        """The elements from `start` to `limit` of one axis."""
        arrays = [_cut(x, axis, start, limit, stride) for x in self.arrays]
        return _Elements(arrays, None if self.counts is None else _cut(self.counts, axis, start, limit, stride))


def _cut(x: Array, axis: int, start: int, limit: int, stride: int) -> Array:
    starts = tuple(start if d == axis else 0 for d in range(x.ndim))
    limits = tuple(limit if d == axis else n for d, n in enumerate(x.shape))
    return sliced(x, starts, limits, tuple(stride if d == axis else 1 for d in range(x.ndim)))


def _merged(node: Node, left: _Elements, right: _Elements) -> _Elements:
    """Elements combined by the region; those that do not count, as XLA has it of padding, are left out."""
    (region,) = node.regions
    made = combined(node, region, left.arrays, right.arrays)
    if right.counts is not None:
        made = [tw.where(right.counts, m, x) for m, x in zip(made, left.arrays, strict=True)]
    if left.counts is None:
        return _Elements(made, None)
    made = [tw.where(left.counts, m, y) for m, y in zip(made, right.arrays, strict=True)]
    return _Elements(made, left.counts if right.counts is None else tw.logical_or(left.counts, right.counts))


def _windows_along(node: Node, elements: _Elements, axis: int, geometry: Geometry, size: int) -> _Elements:
    """Combine windows along one axis, `size` of them: windows of 1, 2, 4, ... places, and of these those that make up
    the window, so that the region is copied about twice the logarithm of the window's places."""
    places, dilation, stride = geometry.window[axis], geometry.dilation[axis], geometry.strides[axis]
    extent = elements.arrays[0].shape[axis]
    run, length = elements, 1
    total, covered = None, 0
    while covered < places:
        if places & length:
            end = extent - (covered + length - 1) * dilation
            part = run.along(axis, covered * dilation, covered * dilation + end)
            total = part if total is None else _merged(node, total.along(axis, 0, end), part)
            covered += length
        if covered < places:
            end = extent - (2 * length - 1) * dilation
            shift = length * dilation
            run = _merged(node, run.along(axis, 0, end), run.along(axis, shift, shift + end))
            length *= 2
    return elements if total is None else total.along(axis, 0, (size - 1) * stride + 1, stride)


def inside_of(shape: Shape, low: Shape, high: Shape, interior: Shape) -> Array:
    """True for the elements of an array, False for what is added to it."""
    return padded(full(shape, True, dtypes.bool_), full((), False, dtypes.bool_), low, high, interior)


# ---- convolutions ---------------------------------------------------------------------------------------------------


@operation("stablehlo.convolution")
def convolution(node: Node, x: Array, w: Array) -> Array:
    """Sums of products with windows, for any order of axes, dilations and groups."""
    numbers = node.get("dimension_numbers")
    spatial = sorted((axis for axis in numbers["input"] if axis.isdigit()), key=int)
    orders = [
        tuple(numbers[operand].index(axis) for axis in (*first, *spatial))
        for operand, first in (("input", "bf"), ("kernel", "oi"), ("output", "bf"))
    ]
    if any(len(order) != len(numbers[o]) for order, o in zip(orders, ("input", "kernel", "output"), strict=True)):
        raise node.malformed(f"the axes {numbers} do not belong together")
    wanted = node.type.dtype
    image, kernel = lifting.transpose(x, orders[0]), lifting.transpose(w, orders[1])
    image, kernel = cast(image, wanted), cast(kernel, wanted)
    made = _convolved(node, image, kernel, len(spatial))
    return lifting.transpose(made, tuple(int(n) for n in np.argsort(orders[2])))


def _convolved(node: Node, image: Array, kernel: Array, rank: int) -> Array:
    ones = (1,) * rank
    strides = node.integers("window_strides", ones)
    pads = node.pairs("padding", rank)
    apart = node.integers("lhs_dilation", ones)
    dilation = node.integers("rhs_dilation", ones)
    flips = node.integers("window_reversal", (0,) * rank)
    groups, batches = node.integer("feature_group_count", 1), node.integer("batch_group_count", 1)
    if any(len(part) != rank for part in (strides, apart, dilation, flips)) or min((*apart, groups, batches)) < 1:
        raise node.malformed(f"a window over other than {rank} axes, or of sizes below 1")
    if any(flips):
        kernel = emit("reverse", kernel, axes=tuple(2 + d for d, flip in enumerate(flips) if flip))
    low, high = (tuple(pair[side] for pair in pads) for side in (0, 1))
    if max(apart, default=1) > 1 or min((*low, *high), default=0) < 0:
        interior = tuple(n - 1 for n in apart)
        image = padded(image, full((), 0, image.dtype), (0, 0, *low), (0, 0, *high), (0, 0, *interior))
        low = high = (0,) * rank
    if batches > 1:
        if groups > 1 or image.shape[0] % batches:
            raise node.malformed(f"{batches} groups of {image.shape[0]} batches")
        image, groups = _batches_as_features(image, batches), batches
    return _plain(image, kernel, strides, low, high, dilation, groups)


def _batches_as_features(image: Array, batches: int) -> Array:
    """Groups of batches as groups of features: each has its own kernels."""
    size, features = image.shape[0] // batches, image.shape[1]
    apart = lifting.reshape(image, (batches, size, *image.shape[1:]))
    moved = lifting.transpose(apart, (1, 0, *range(2, apart.ndim)))
    return lifting.reshape(moved, (size, batches * features, *image.shape[2:]))


def _plain(image: Array, kernel: Array, strides: Shape, low: Shape, high: Shape, dilation: Shape, groups: int) -> Array:
    rank = image.ndim - 2
    sizes = window_sizes(image.shape[2:], kernel.shape[2:], strides, low, high, dilation)
    shape = (image.shape[0], kernel.shape[0], *sizes)
    # An axis with one place under a window of one element carries no geometry, but costs as the innermost axis.
    kept = [d for d in range(rank) if (image.shape[2 + d], kernel.shape[2 + d], low[d], high[d]) != (1, 1, 0, 0)]
    padding = (1,) if not kept else ()

    def reduced(x: Array) -> Array:
        return lifting.reshape(x, (*x.shape[:2], *(x.shape[2 + d] for d in kept), *padding))

    made = emit(
        "convolve",
        reduced(image),
        reduced(kernel),
        strides=tuple(strides[d] for d in kept) or (1,),
        low=tuple(low[d] for d in kept) or (0,),
        high=tuple(high[d] for d in kept) or (0,),
        dilation=tuple(dilation[d] for d in kept) or (1,),
        groups=groups,
    )
    return lifting.reshape(made, shape)

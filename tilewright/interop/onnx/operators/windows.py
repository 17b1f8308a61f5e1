"""Convolutions and pooling over (N, C, *spatial)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import emit
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.registry import Node, lifted, operator
from tilewright.records import dataclass

Sizes = tuple[int, ...]
# What is tabulated while tracing must fit into memory.
_MAX_PLACES = 1 << 26


@dataclass(frozen=True)
class Geometry:
    """A window that slides over the spatial axes; `low` and `high` elements are added before and after each."""

    window: Sizes
    strides: Sizes
    dilations: Sizes
    low: Sizes
    high: Sizes

    @property
    def spans(self) -> Sizes:
        """From the first to the last element under a window."""
        return tuple((w - 1) * d + 1 for w, d in zip(self.window, self.dilations, strict=True))


def geometry_of(node: Node, sizes: Sequence[int], window: Sequence[int]) -> Geometry:
    """The attributes of a convolution or pooling over axes of given sizes."""
    rank = len(sizes)
    strides = tuple(node.get("strides", (1,) * rank))
    dilations = tuple(node.get("dilations", (1,) * rank))
    pads = tuple(node.get("pads", (0,) * 2 * rank))
    if {len(strides), len(dilations), len(window)} != {rank} or len(pads) != 2 * rank:
        raise node.unsupported(f"`{node.op}` with attributes of other than {rank} axes")
    geometry = Geometry(tuple(window), strides, dilations, pads[:rank], pads[rank:])
    auto = node.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        counts = [-(-n // s) for n, s in zip(sizes, strides, strict=True)]
        totals = [
            max(0, (c - 1) * s + span - n) for c, s, span, n in zip(counts, strides, geometry.spans, sizes, strict=True)
        ]
        half = tuple(t // 2 for t in totals)
        rest = tuple(t - t // 2 for t in totals)
        low, high = (half, rest) if auto == "SAME_UPPER" else (rest, half)
        return Geometry(tuple(window), strides, dilations, low, high)
    if auto == "VALID":
        return Geometry(tuple(window), strides, dilations, (0,) * rank, (0,) * rank)
    if auto != "NOTSET":
        raise node.unsupported(f"`{node.op}` with auto_pad={auto!r}")
    return geometry


def _with_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + tw.reshape(bias, (-1, *(1,) * (y.ndim - 2)))


@operator("Conv")
def conv(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Correlation with windows, in groups of channels."""
    if node.get("kernel_shape", w.shape[2:]) != w.shape[2:]:
        raise node.unsupported(f"`Conv` of weights for windows {w.shape[2:]}, not `kernel_shape`")
    geometry = geometry_of(node, x.shape[2:], w.shape[2:])
    return _with_bias(_convolved(x, w, geometry, node.get("group", 1)), bias)


def _convolved(x: Array, w: Array, geometry: Geometry, groups: int) -> Array:
    low, high = (tuple(max(n, 0) for n in pads) for pads in (geometry.low, geometry.high))
    # A negative width cuts elements off.
    key = tuple(
        slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(geometry.low, geometry.high, x.shape[2:], strict=True)
    )
    image = x[(slice(None), slice(None), *key)]
    # An axis with one place under a window of one element carries no geometry, but costs as the innermost axis.
    kept = [d for d, n in enumerate(image.shape[2:]) if (n, w.shape[2 + d], low[d], high[d]) != (1, 1, 0, 0)] or [0]
    y = tw.nn.conv(
        tw.reshape(image, (*image.shape[:2], *(image.shape[2 + d] for d in kept))),
        tw.reshape(w, (*w.shape[:2], *(w.shape[2 + d] for d in kept))),
        stride=[geometry.strides[d] for d in kept],
        padding=[(low[d], high[d]) for d in kept],
        dilation=[geometry.dilations[d] for d in kept],
        groups=groups,
    )
    sizes = iter(y.shape[2:])
    return tw.reshape(y, (*y.shape[:2], *(next(sizes) if d in kept else 1 for d in range(image.ndim - 2))))


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    """The transpose of `Conv`: a correlation of elements set apart with reversed windows."""
    rank = x.ndim - 2
    groups = node.get("group", 1)
    window = w.shape[2:]
    if node.get("kernel_shape", window) != window:
        raise node.unsupported(f"`ConvTranspose` of weights for windows {window}, not `kernel_shape`")
    strides, dilations = node.get("strides", (1,) * rank), node.get("dilations", (1,) * rank)
    spans = [(n - 1) * d + 1 for n, d in zip(window, dilations, strict=True)]
    extra = node.get("output_padding", (0,) * rank)
    low, high = _transposed_pads(node, x.shape[2:], strides, spans, extra)
    # Negative amounts add places.
    pads = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    ends = [e + max(-b, 0) for e, b in zip(extra, high, strict=True)]
    y = tw.nn.conv_transpose(x, w, stride=strides, padding=pads, output_padding=ends, dilation=dilations, groups=groups)
    before = [(max(-a, 0), 0) for a in low]
    return _with_bias(tw.pad(y, ((0, 0), (0, 0), *before)), bias)


def _transposed_pads(
    node: Node, sizes: Sequence[int], strides: Sequence[int], spans: Sequence[int], extra: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    rank = len(sizes)
    auto = node.get("auto_pad", "NOTSET")
    wanted = node.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(sizes, strides, strict=True)]
    if wanted is None:
        pads = node.get("pads", (0,) * 2 * rank) if auto == "NOTSET" else (0,) * 2 * rank
        return pads[:rank], pads[rank:]
    totals = [
        (n - 1) * s + e + span - out
        for n, s, e, span, out in zip(sizes, strides, extra, spans, wanted[-rank:], strict=True)
    ]
    half, rest = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (half, rest) if auto == "SAME_UPPER" else (rest, half)


# ---- pooling --------------------------------------------------------------------------------------------------------


def _pooling_of(node: Node, x: Array) -> Geometry:
    """The geometry of a pooling; `ceil_mode` lets the last window reach beyond the end, but not start there."""
    geometry = geometry_of(node, x.shape[2:], node.required("kernel_shape"))
    if not node.get("ceil_mode", 0):
        return geometry
    high: list[int] = []
    parts = zip(x.shape[2:], geometry.low, geometry.high, geometry.spans, geometry.strides, strict=True)
    for size, before, after, span, stride in parts:
        count = -(-(size + before + after - span) // stride) + 1
        if (count - 1) * stride >= size + before:
            count -= 1
        high.append(max(after, (count - 1) * stride + span - size - before))
    return Geometry(geometry.window, geometry.strides, geometry.dilations, geometry.low, tuple(high))


def _windowed(fn: str, x: Array, geometry: Geometry) -> Array:
    return emit(
        "window_reduce",
        x,
        fn=fn,
        window=(1, 1, *geometry.window),
        strides=(1, 1, *geometry.strides),
        low=(0, 0, *geometry.low),
        high=(0, 0, *geometry.high),
        dilation=(1, 1, *geometry.dilations),
    )


def _places(geometry: Geometry, sizes: Sequence[int], axis: int) -> np.ndarray:
    """The indices that each window reads along an axis: shape (windows, elements of one)."""
    extent = sizes[axis] + geometry.low[axis] + geometry.high[axis]
    count = max(0, (extent - geometry.spans[axis]) // geometry.strides[axis] + 1)
    if count * geometry.window[axis] > _MAX_PLACES:
        raise ValueError(f"{count} windows of {geometry.window[axis]} elements along one axis")
    starts = np.arange(count) * geometry.strides[axis] - geometry.low[axis]
    return starts[:, None] + np.arange(geometry.window[axis]) * geometry.dilations[axis]


@operator("MaxPool")
def max_pool(node: Node, x: Array) -> Any:
    """The largest element under each window, and its position where that is named."""
    geometry = _pooling_of(node, x)
    if len(node.wanted) < 2 or not node.wanted[1]:
        return _windowed("maximum", x, geometry)
    return _max_with_places(node, x, geometry)


def _max_with_places(node: Node, x: Array, geometry: Geometry) -> tuple[Array, Array]:
    sizes = x.shape[2:]
    rank = len(sizes)
    along = [_places(geometry, sizes, d) for d in range(rank)]
    counts = [a.shape[0] for a in along]
    grids = np.meshgrid(*(np.arange(a.size) for a in along), indexing="ij")
    spread = [a.reshape(-1)[g] for a, g in zip(along, grids, strict=True)]
    order = [n for d in range(rank) for n in (counts[d], geometry.window[d])]

    def arranged(flat: np.ndarray) -> np.ndarray:
        split = flat.reshape(order).transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        return split.reshape(*counts, math.prod(geometry.window))

    inside = arranged(np.all([(p >= 0) & (p < n) for p, n in zip(spread, sizes, strict=True)], axis=0))
    clipped = [np.clip(p, 0, n - 1) for p, n in zip(spread, sizes, strict=True)]
    flat = arranged(np.ravel_multi_index(clipped, sizes))
    listed = flat if node.get("storage_order", 0) == 0 else arranged(np.ravel_multi_index(clipped, sizes, order="F"))
    batch, channels = x.shape[:2]
    seen = tw.take(tw.reshape(x, (batch, channels, math.prod(sizes))), lifted(flat), axis=2)
    masked = tw.where(lifted(inside), seen, tw.full((), x.dtype.lowest, dtype=x.dtype))
    chosen = tw.argmax(masked, -1, keepdims=True)
    values = tw.take_along_axis(masked, chosen, axis=-1)[..., 0]
    spread_places = tw.broadcast_to(lifted(listed), seen.shape)
    found = tw.take_along_axis(spread_places, chosen, axis=-1)[..., 0]
    lead = tw.reshape(tw.iota((batch * channels,)), (batch, channels, *(1,) * rank))
    return values, found + lead * math.prod(sizes)


@operator("AveragePool")
def average_pool(node: Node, x: Array) -> Array:
    """The mean under each window; elements beyond the array count where `count_include_pad` states it."""
    geometry = _pooling_of(node, x)
    rank = len(geometry.window)
    pads = geometry_of(node, x.shape[2:], geometry.window)
    counts = np.ones((), np.float64)
    for axis in range(rank):
        places = _places(geometry, x.shape[2:], axis)
        low, high = (pads.low[axis], pads.high[axis]) if node.get("count_include_pad", 0) else (0, 0)
        seen = ((places >= -low) & (places < x.shape[2 + axis] + high)).sum(1)
        counts = np.multiply.outer(counts, seen)
    y = wide(x)
    return tw.astype(_windowed("add", y, geometry) / lifted(counts.astype(y.dtype.numpy)), x.dtype)


@operator("LpPool", since=2)
def lp_pool(node: Node, x: Array) -> Array:
    """The norm of order `p` of the elements under each window."""
    order = node.get("p", 2)
    geometry = _pooling_of(node, x)
    y = tw.abs(wide(x))
    total = _windowed("add", y if order == 1 else tw.pow(y, order), geometry)
    return tw.astype(total if order == 1 else tw.pow(total, 1.0 / order), x.dtype)


def _spatial(x: Array) -> Sizes:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Array) -> Array:
    """The mean of each channel."""
    return tw.mean(x, _spatial(x), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Array) -> Array:
    """The largest element of each channel."""
    return tw.max(x, _spatial(x), keepdims=True)


@operator("GlobalLpPool", since=2)
def global_lp_pool(node: Node, x: Array) -> Array:
    """The norm of order `p` of each channel."""
    order = node.get("p", 2)
    total = tw.sum(tw.pow(tw.abs(wide(x)), order), _spatial(x), keepdims=True)
    return tw.astype(tw.pow(total, 1.0 / order), x.dtype)


@operator("MaxUnpool")
def max_unpool(node: Node, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    """Elements written at the positions that a `MaxPool` gave, zeros elsewhere."""
    rank = x.ndim - 2
    window = node.required("kernel_shape")
    strides, pads = node.get("strides", (1,) * rank), node.get("pads", (0,) * 2 * rank)
    natural = [
        (n - 1) * s + w - pads[d] - pads[d + rank]
        for d, (n, s, w) in enumerate(zip(x.shape[2:], strides, window, strict=True))
    ]
    inner = (*x.shape[:2], *natural)
    flat = tw.zeros((math.prod(inner),), dtype=x.dtype)
    placed = tw.reshape(flat.at[tw.reshape(indices, (x.size,))].set(tw.reshape(x, (x.size,))), inner)
    if output_shape is None:
        return placed
    # The places are those in the array that the windows cover; what is larger is filled up with zeros.
    shape = node.known_ints(output_shape, "output_shape")
    if any(wanted < n for wanted, n in zip(shape, inner, strict=True)):
        raise node.unsupported(f"`MaxUnpool` of {inner} to {shape}")
    return tw.pad(placed, [(0, wanted - n) for wanted, n in zip(shape, inner, strict=True)])

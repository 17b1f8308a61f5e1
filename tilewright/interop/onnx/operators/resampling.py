"""Resizing, and sampling at points, as matmuls with matrices that are known while tracing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axes_of
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.registry import Node, lifted, operator
from tilewright.interop.sampling import MODES, PADDINGS, sampled

Matrix = np.ndarray[Any, Any]
# Interpolation along an axis is a product with a matrix, which must fit into memory.
_MAX_WEIGHTS = 1 << 26
# Attributes that have no effect in modes other than their own.
_OF_SOME_MODES = ("antialias", "cubic_coeff_a", "exclude_outside", "extrapolation_value", "nearest_mode")


# ---- resizing -------------------------------------------------------------------------------------------------------


@operator("Resize", since=11)
def resize(
    node: Node, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    """Other sizes of axes, by the nearest element, linear or cubic interpolation."""
    axes = axes_of(node.get("axes"), x.ndim)
    factors, wanted = _sizes(node, x, axes, scales, sizes)
    regions = [(0.0, 1.0)] * len(axes)
    if node.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        if roi is None:
            raise node.unsupported("`Resize` of a region that is not given")
        ends = [float(r) for r in node.known(roi, "roi").reshape(-1)]
        regions = list(zip(ends[: len(axes)], ends[len(axes) :], strict=True))
    return _resized(node, x, list(zip(axes, factors, wanted, regions, strict=True)))


@operator("Upsample", since=7)
def upsample_by_attribute(node: Node, x: Array) -> Array:
    """As `Upsample` was while its scales were an attribute."""
    return resize_by_scales(node, x, lifted(np.array(node.get("scales"), np.float32)))


@operator("Resize", since=10)
@operator("Upsample", since=9)
def resize_by_scales(node: Node, x: Array, scales: Array) -> Array:
    """As `Resize` was before it had modes of coordinates."""
    axes = tuple(range(x.ndim))
    factors, wanted = _sizes(node, x, axes, scales, None)
    node.attributes.setdefault("coordinate_transformation_mode", "asymmetric")
    node.attributes.setdefault("nearest_mode", "floor")
    return _resized(node, x, [(d, factors[d], wanted[d], (0.0, 1.0)) for d in axes])


def _sizes(
    node: Node, x: Array, axes: Sequence[int], scales: Array | None, sizes: Array | None
) -> tuple[list[float], list[int]]:
    """The scale and the size of each axis."""
    old = [x.shape[d] for d in axes]
    if scales is not None and scales.size:
        factors = [float(s) for s in node.known(scales, "scales").reshape(-1)]
        return factors, [math.floor(n * f) for n, f in zip(old, factors, strict=True)]
    if sizes is None:
        raise node.unsupported("`Resize` without scales and sizes")
    wanted = list(node.known_ints(sizes, "sizes"))
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    factors = [w / n for w, n in zip(wanted, old, strict=True)]
    if policy != "stretch":
        factor = min(factors) if policy == "not_larger" else max(factors)
        factors = [factor] * len(old)
        wanted = [math.floor(n * factor + 0.5) for n in old]
    return factors, wanted


def _resized(node: Node, x: Array, plan: Sequence[tuple[int, float, int, tuple[float, float]]]) -> Array:
    mode = node.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise node.unsupported(f"`{node.op}` of mode {mode!r}")
    node.ignore(*_OF_SOME_MODES)
    outside: Array | None = None
    result = x if mode == "nearest" else _as_float(x)
    for axis, factor, size, region in plan:
        if factor == 1.0 and size == x.shape[axis] and region == (0.0, 1.0):
            continue
        places = _coordinates(node, x.shape[axis], factor, size, region)
        if node.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            beyond = lifted((places < 0) | (places > x.shape[axis] - 1))
            shaped = tw.reshape(beyond, (-1, *(1,) * (x.ndim - axis - 1)))
            outside = shaped if outside is None else tw.logical_or(outside, shaped)
        if mode == "nearest":
            result = tw.take(result, lifted(_nearest(node, places, x.shape[axis])), axis=axis)
            continue
        if size * x.shape[axis] > _MAX_WEIGHTS:
            raise node.unsupported(f"`{node.op}` of an axis from {x.shape[axis]} to {size} elements")
        weights = lifted(_weights(node, mode, places, factor, x.shape[axis]).astype(result.dtype.numpy))
        result = tw.moveaxis(tw.matmul(tw.moveaxis(result, axis, -1), weights.mT), -1, axis)
    if outside is not None:
        result = tw.where(outside, node.get("extrapolation_value", 0.0), result)
    return _from_float(result, x)


def _as_float(x: Array) -> Array:
    return wide(x) if x.dtype.is_float else tw.astype(x, tw.f32)


def _from_float(result: Array, x: Array) -> Array:
    if result.dtype.is_float and x.dtype.is_integer:
        return tw.astype(tw.round(tw.clip(result, float(x.dtype.lowest), float(x.dtype.highest))), x.dtype)
    return tw.astype(result, x.dtype)


def _coordinates(node: Node, old: int, factor: float, size: int, region: tuple[float, float]) -> Matrix:
    """The coordinate of each new element among the old ones."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    new = np.arange(size, dtype=np.float64)
    length = old * factor
    if mode == "half_pixel":
        return (new + 0.5) / factor - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = size / length
        centre = old / 2
        return centre * (1 - adjustment) + (new + 0.5) / factor - 0.5
    if mode == "pytorch_half_pixel":
        return (new + 0.5) / factor - 0.5 if length > 1 else np.zeros(size)
    if mode == "align_corners":
        return new * (old - 1) / (length - 1) if length != 1 else np.zeros(size)
    if mode == "asymmetric":
        return new / factor
    if mode == "tf_crop_and_resize":
        start, end = region
        if size <= 1:
            return np.full(size, 0.5 * (start + end) * (old - 1))
        return start * (old - 1) + new * (end - start) * (old - 1) / (length - 1)
    raise node.unsupported(f"`{node.op}` with coordinates {mode!r}")


def _nearest(node: Node, places: Matrix, old: int) -> Matrix:
    mode = node.get("nearest_mode", "round_prefer_floor")
    rounding: dict[str, Callable[[Matrix], Matrix]] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: np.floor(p + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if mode not in rounding:
        raise node.unsupported(f"`{node.op}` with rounding {mode!r}")
    return np.clip(rounding[mode](places), 0, old - 1).astype(np.int64)


def _weights(node: Node, mode: str, places: Matrix, factor: float, old: int) -> Matrix:
    """The share of each old element in each new one: shape (new, old)."""
    # When an axis shrinks, antialiasing widens the filter so that no element is left out.
    stretch = min(factor, 1.0) if node.get("antialias", 0) else 1.0
    reach = 1.0 if mode == "linear" else 2.0
    span = math.ceil(reach / stretch)
    base = np.floor(places)
    offsets = np.arange(-span + 1, span + 1)
    if node.get("antialias", 0):
        offsets = np.arange(-span, span + 2)
    taps = base[:, None] + offsets
    distance = np.abs(taps - places[:, None]) * stretch
    shares = np.maximum(0.0, 1 - distance) if mode == "linear" else _cubic(distance, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        shares = np.where((taps < 0) | (taps >= old), 0.0, shares)
    shares = shares / shares.sum(1, keepdims=True)
    result = np.zeros((len(places), old))
    rows = np.arange(len(places))
    for tap, share in zip(np.clip(taps, 0, old - 1).astype(np.int64).T, shares.T, strict=True):
        np.add.at(result, (rows, tap), share)
    return result


def _cubic(distance: Matrix, a: float) -> Matrix:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


# ---- sampling at points ---------------------------------------------------------------------------------------------


@operator("GridSample", since=16)
def grid_sample(node: Node, x: Array, grid: Array) -> Array:
    """Elements of (N, C, *spatial) at points (N, *places, axes), which are -1 and 1 at the ends, last axis first."""
    mode, padding = node.get("mode", "linear"), node.get("padding_mode", "zeros")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in MODES:
        raise node.unsupported(f"`GridSample` of mode {mode!r}")
    if padding not in PADDINGS:
        raise node.unsupported(f"`GridSample` with padding {padding!r}")
    return tw.astype(sampled(wide(x), wide(grid), mode, padding, bool(node.get("align_corners", 0))), x.dtype)

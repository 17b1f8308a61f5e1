"""Quantisation: numbers as small integers or floats, times a scale, from a zero point."""

from __future__ import annotations

import math

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axis_of
from tilewright.dtypes import DType
from tilewright.interop.narrow import Coded, decoded, is_integer, limits
from tilewright.interop.onnx.operators.elementwise import (
    ElementType,
    convert,
    dtype_of,
    element_type_of,
    type_of,
    wide,
)
from tilewright.interop.onnx.operators.windows import Geometry, geometry_of
from tilewright.interop.onnx.registry import Node, operator


def _spread(node: Node, parameter: Array, shape: tuple[int, ...]) -> Array:
    """A scale or zero point for each element: one, one for each position along `axis`, or one for each block of it."""
    node.ignore("axis", "block_size")
    if parameter.size == 1 and parameter.ndim <= 1:
        return tw.reshape(parameter, ())
    at = axis_of(node.get("axis", 1), len(shape))
    if parameter.ndim == 1:
        return tw.reshape(parameter, (-1, *(1,) * (len(shape) - at - 1)))
    block = node.get("block_size", 0)
    if block == 0:
        raise node.unsupported(f"`{node.op}` with a scale of shape {parameter.shape} and no block size")
    repeated = tw.repeat(parameter, block, axis=at)
    return repeated[(*(slice(None),) * at, slice(0, shape[at]))]


def _saturated(node: Node, x: Array, to: ElementType) -> Array | Coded:
    """Whole numbers, or floats of any size, as the nearest of a type."""
    if isinstance(to, DType) and to.is_integer:
        # The bounds of integers of 8 and 16 bits are exact as f32.
        return tw.astype(tw.clip(x, float(to.lowest), float(to.highest)), to)
    if not isinstance(to, DType) and is_integer(to):
        lowest, highest = limits(to)
        x = tw.clip(x, float(lowest), float(highest))
    return convert(node, x, to)


def _numbers(x: Array | Coded) -> Array:
    return decoded(x) if isinstance(x, Coded) else x


@operator("QuantizeLinear", narrow=True)
def quantize(node: Node, x: Array, scale: Array, zero_point: Array | Coded | None = None) -> Array | Coded:
    """`round(x / scale) + zero_point`, as large as the type holds."""
    to: ElementType = tw.uint8
    if zero_point is not None:
        to = type_of(zero_point)
    elif node.get("output_dtype", 0):
        to = element_type_of(node, node.get("output_dtype"))
    compute = dtype_of(node, node.get("precision")) if node.get("precision", 0) else scale.dtype
    given = x if x.dtype.is_float else tw.astype(x, tw.f32)
    ratio = wide(tw.divide(tw.astype(given, compute), _spread(node, tw.astype(scale, compute), x.shape)))
    if not (to.is_integer if isinstance(to, DType) else is_integer(to)):
        return convert(node, ratio, to)
    rounded = tw.round(ratio)
    if zero_point is not None:
        rounded = rounded + tw.astype(_spread(node, _numbers(zero_point), x.shape), rounded.dtype)
    return _saturated(node, rounded, to)


@operator("DequantizeLinear", narrow=True)
def dequantize(node: Node, x: Array | Coded, scale: Array | Coded, zero_point: Array | Coded | None = None) -> Array:
    """`(x - zero_point) * scale`."""
    scales = _numbers(scale)
    result = scales.dtype
    if node.get("output_dtype", 0):
        result = dtype_of(node, node.get("output_dtype"))
    centred = _numbers(x)
    if zero_point is not None:
        exact = tw.i32 if centred.dtype.is_integer else tw.f32
        centred = tw.astype(centred, exact) - tw.astype(_spread(node, _numbers(zero_point), x.shape), exact)
    factor = wide(_spread(node, scales, x.shape))
    return tw.astype(tw.astype(centred, factor.dtype) * factor, result)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(node: Node, x: Array) -> tuple[Array, Array, Array]:
    """To u8 by the largest and smallest element, with the scale and zero point that they give."""
    low, high = tw.minimum(tw.min(x), 0.0), tw.maximum(tw.max(x), 0.0)
    scale = (high - low) / 255.0
    divisor = tw.where(tw.equal(scale, 0.0), 1.0, scale)
    zero = tw.round(tw.clip(-low / divisor, 0.0, 255.0))
    y = tw.clip(tw.round(x / divisor) + zero, 0.0, 255.0)
    return tw.astype(y, tw.uint8), scale, tw.astype(zero, tw.uint8)


def _centred(x: Array, zero_point: Array | None, *, rows: bool) -> Array:
    """Integers as i32 without their zero point, which a vector gives for each row, or each column."""
    y = tw.astype(x, tw.i32)
    if zero_point is None:
        return y
    zero = tw.astype(zero_point, tw.i32)
    if zero.ndim == 1 and zero.size > 1 and rows:
        zero = tw.reshape(zero, (-1, 1))
    return y - (tw.reshape(zero, ()) if zero.size == 1 else zero)


@operator("MatMulInteger")
def matmul_integer(node: Node, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """The matmul of integers without their zero points, as i32."""
    return tw.matmul(_centred(a, a_zero, rows=True), _centred(b, b_zero, rows=False))


@operator("QLinearMatMul")
def quantised_matmul(
    node: Node,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array | Coded:
    """The matmul of quantised matrices, quantised."""
    if y_zero.dtype.is_float:
        raise node.unsupported("`QLinearMatMul` of floats of 8 bits")
    product = tw.matmul(_centred(a, a_zero, rows=True), _centred(b, b_zero, rows=False))
    left = tw.reshape(a_scale, (-1, 1)) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factor = wide(left) * wide(b_scale) / wide(y_scale)
    factor = tw.reshape(factor, ()) if factor.size == 1 else factor
    scaled = tw.round(tw.astype(product, tw.f32) * factor) + tw.astype(_scalar(y_zero), tw.f32)
    return _saturated(node, scaled, y_zero.dtype)


def _scalar(x: Array) -> Array:
    return tw.reshape(x, ()) if x.size == 1 else x


def _integer_conv(node: Node, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    geometry = geometry_of(node, x.shape[2:], node.get("kernel_shape", w.shape[2:]))
    image = _centred(x, x_zero, rows=False)
    kernel = tw.astype(w, tw.i32)
    if w_zero is not None:
        zero = tw.astype(w_zero, tw.i32)
        kernel = kernel - (_scalar(zero) if zero.size == 1 else tw.reshape(zero, (-1, *(1,) * (w.ndim - 1))))
    _check_exact(node, geometry, w)
    return tw.nn.conv(
        image,
        kernel,
        stride=geometry.strides,
        padding=list(zip(geometry.low, geometry.high, strict=True)),
        dilation=geometry.dilations,
        groups=node.get("group", 1),
    )


def _check_exact(node: Node, geometry: Geometry, w: Array) -> None:
    terms = math.prod(geometry.window) * w.shape[1]
    if terms > 2**31 // (2 * 255 * 255):
        raise node.unsupported(f"`{node.op}` of {terms} terms, whose sum may overflow i32")


@operator("ConvInteger")
def conv_integer(node: Node, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    """The correlation of integers without their zero points, as i32."""
    return _integer_conv(node, x, w, x_zero, w_zero)


@operator("QLinearConv")
def quantised_conv(
    node: Node,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Array | Coded:
    """The correlation of quantised arrays, quantised; the scale of the bias is that of `x` times that of `w`."""
    total = _integer_conv(node, x, w, x_zero, w_zero)
    channels = (-1, *(1,) * (x.ndim - 2))
    if bias is not None:
        total = total + tw.reshape(bias, channels)
    scale = tw.reshape(x_scale, ()) * w_scale
    scale = _scalar(scale) if scale.size == 1 else tw.reshape(scale, channels)
    ratio = scale / tw.reshape(y_scale, ())
    rounded = tw.round(tw.astype(total, tw.f32) * ratio) + tw.astype(tw.reshape(y_zero, ()), tw.f32)
    return _saturated(node, rounded, y_zero.dtype)

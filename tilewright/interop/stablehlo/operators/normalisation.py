"""Batch normalisation over one axis of features."""

from __future__ import annotations

from tilewright.api.array import Array
from tilewright.api.functions_statistics import moments
from tilewright.api.lifting import cast, emit, full, reshape
from tilewright.interop.stablehlo.operators.elementwise import mapped
from tilewright.interop.stablehlo.registry import Node, operation


def _spread(node: Node, x: Array, values: Array) -> Array:
    axis = node.integer("feature_index")
    return emit("broadcast", values, shape=x.shape, axes=(axis,))


def _total(node: Node, x: Array) -> Array:
    axes = tuple(d for d in range(x.ndim) if d != node.integer("feature_index"))
    return emit("reduce", x, fn="add", axes=axes) if axes else x


def _inverse_deviation(node: Node, variance: Array) -> Array:
    return mapped("rsqrt", variance + full(variance.shape, node.get("epsilon"), variance.dtype))


@operation("stablehlo.batch_norm_inference")
def inference(node: Node, x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset` for each feature."""
    wide = x.dtype.compute
    scale, offset, mean, variance = (cast(v, wide) for v in (scale, offset, mean, variance))
    centred = cast(x, wide) - _spread(node, x, mean)
    return cast(_normalised(node, centred, scale, offset, variance), x.dtype)


def _normalised(node: Node, centred: Array, scale: Array, offset: Array, variance: Array) -> Array:
    factor = _spread(node, centred, _inverse_deviation(node, variance))
    return centred * factor * _spread(node, centred, scale) + _spread(node, centred, offset)


@operation("stablehlo.batch_norm_training")
def training(node: Node, x: Array, scale: Array, offset: Array) -> tuple[Array, Array, Array]:
    """Batch normalisation with the mean and variance of `x`, which are results too."""
    wide = x.dtype.compute
    narrow, x = x, cast(x, wide)
    scale, offset = cast(scale, wide), cast(offset, wide)
    axes = tuple(d for d in range(x.ndim) if d != node.integer("feature_index"))
    mean, squares = (reshape(v, scale.shape) for v in moments(x, axes))
    variance = mapped("divide", squares, full(scale.shape, x.size // max(scale.size, 1), x.dtype))
    made = _normalised(node, x - _spread(node, x, mean), scale, offset, variance)
    return tuple(cast(v, narrow.dtype) for v in (made, mean, variance))  # pyright: ignore[reportReturnType]


@operation("stablehlo.batch_norm_grad")
def gradient(
    node: Node, x: Array, scale: Array, mean: Array, variance: Array, grad: Array
) -> tuple[Array, Array, Array]:
    """Gradients of `x`, of the scale and of the offset."""
    narrow, wide = x.dtype, x.dtype.compute
    x, scale, mean, variance, grad = (cast(v, wide) for v in (x, scale, mean, variance, grad))
    centred = x - _spread(node, x, mean)
    inverse = _inverse_deviation(node, variance)
    grad_offset = _total(node, grad)
    product = _total(node, grad * centred)
    count = full(scale.shape, x.size // max(scale.size, 1), wide)
    share = grad - _spread(node, x, grad_offset / count)
    share = share - centred * _spread(node, x, product * inverse * inverse / count)
    grad_x = share * _spread(node, x, scale * inverse)
    return cast(grad_x, narrow), cast(product * inverse, narrow), cast(grad_offset, narrow)

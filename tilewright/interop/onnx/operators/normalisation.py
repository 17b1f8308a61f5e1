"""Normalisation over batches, instances, groups and layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.functions_statistics import moments
from tilewright.api.lifting import emit
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.registry import Node, operator


def _from_wide(x: Array, result: Array) -> Array:
    return tw.astype(result, x.dtype)


def _count(x: Array, axes: Sequence[int]) -> float:
    return float(math.prod(x.shape[d] for d in axes))


@operator("BatchNormalization")
def batch_normalization(node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
    """By given statistics, or by those of the batch where `training_mode` asks for it."""
    node.ignore("momentum")
    if (node.version < 7 and not node.get("is_test", 0)) or not node.get("spatial", 1):
        raise node.unsupported("`BatchNormalization` in training, or of single elements, of a version before 9")
    shape = (1, -1, *(1,) * max(x.ndim - 2, 0)) if x.ndim > 1 else (-1,)
    y = wide(x)
    training = node.get("training_mode", 0)
    if not training and len([name for name in node.wanted if name]) > 1:
        raise node.unsupported("`BatchNormalization` of a batch in training, of a version before 14")
    used_mean, used_variance = wide(mean), wide(variance)
    running: tuple[Array, ...] = ()
    if training:
        axes = tuple(d for d in range(x.ndim) if d != 1)
        exact_mean, squares = moments(y, axes)
        used_mean = tw.reshape(exact_mean, mean.shape)
        used_variance = tw.reshape(squares / _count(y, axes), mean.shape)
        momentum = node.get("momentum", 0.9)
        pairs = ((mean, used_mean), (variance, used_variance))
        running = tuple(tw.astype(wide(old) * momentum + new * (1 - momentum), old.dtype) for old, new in pairs)
    factor = wide(scale) * tw.rsqrt(used_variance + node.get("epsilon", 1e-5))
    centred = y - tw.reshape(used_mean, shape)
    result = _from_wide(x, centred * tw.reshape(factor, shape) + tw.reshape(wide(bias), shape))
    return (result, *running)[: max(len(node.wanted), 1)]


@operator("InstanceNormalization")
def instance_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Each channel of each instance by its own statistics."""
    shape = (-1, *(1,) * (x.ndim - 2))
    axes = tuple(range(2, x.ndim))
    return tw.nn.layer_norm(
        x, tw.reshape(scale, shape), tw.reshape(bias, shape), axis=axes, eps=node.get("epsilon", 1e-5)
    )


@operator("LayerNormalization")
def layer_normalization(node: Node, x: Array, scale: Array, bias: Array | None = None) -> Any:
    """Over all axes from `axis` on; gives the mean and the inverse deviation too where they are named."""
    if node.get("stash_type", 1) != 1:
        raise node.unsupported("`LayerNormalization` that computes in another type than f32")
    first = node.get("axis", -1) % max(x.ndim, 1)
    axes = tuple(range(first, x.ndim))
    y = wide(x)
    mean, squares = moments(y, axes)
    inverse = tw.rsqrt(squares / _count(y, axes) + node.get("epsilon", 1e-5))
    result = (y - mean) * inverse * wide(scale)
    if bias is not None:
        result = result + wide(bias)
    return (_from_wide(x, result), mean, inverse)[: max(len(node.wanted), 1)]


@operator("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Array) -> Array:
    """`(x - mean) / (deviation + 1e-9)` over `axes`."""
    axes = node.get("axes", (0, 2, 3))
    y = wide(x)
    mean, squares = moments(y, axes)
    deviation = tw.sqrt(squares / _count(y, axes))
    return _from_wide(x, (y - mean) / (deviation + 1e-9))


@operator("LpNormalization")
def lp_normalization(node: Node, x: Array) -> Array:
    """Along `axis` by the norm of order `p`, 1 or 2; what has norm 0 stays 0."""
    axis, order = node.get("axis", -1), node.get("p", 2)
    y = wide(x)
    squares = tw.sum(tw.abs(y) if order == 1 else y * y, axis, keepdims=True)
    norm = squares if order == 1 else tw.sqrt(squares)
    return _from_wide(x, tw.where(tw.equal(norm, 0.0), 0.0, y / norm))


@operator("LRN")
def local_response_normalization(node: Node, x: Array) -> Array:
    """By the squares of `size` neighbouring channels."""
    size = node.required("size")
    y = wide(x)
    before = (size - 1) // 2
    rest = (0,) * (x.ndim - 2)
    total = emit(
        "window_reduce",
        y * y,
        fn="add",
        window=(1, size, *(1 for _ in rest)),
        strides=(1,) * x.ndim,
        low=(0, before, *rest),
        high=(0, size - 1 - before, *rest),
        dilation=(1,) * x.ndim,
    )
    scale = total * (node.get("alpha", 0.0001) / size) + node.get("bias", 1.0)
    return _from_wide(x, y / tw.pow(scale, node.get("beta", 0.75)))


@operator("GroupNormalization", since=21)
def group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Groups of channels by their own statistics; one scale and bias for each channel."""
    return _grouped(node, x, scale, bias)


@operator("GroupNormalization", since=18)
def group_normalization_by_groups(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Groups of channels by their own statistics; one scale and bias for each group."""
    times = x.shape[1] // node.required("num_groups")
    return _grouped(node, x, tw.repeat(scale, times), tw.repeat(bias, times))


def _grouped(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    groups = node.required("num_groups")
    y = tw.reshape(wide(x), (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    normal = tw.reshape(tw.nn.layer_norm(y, eps=node.get("epsilon", 1e-5)), x.shape)
    shape = (-1, *(1,) * (x.ndim - 2))
    return _from_wide(x, normal * tw.reshape(wide(scale), shape) + tw.reshape(wide(bias), shape))

"""Normalisation over axes, groups of channels, and the batch, with the statistics that gradients read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.functions_statistics import moments
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened


def _moments(x: Array, axes: Sequence[int]) -> tuple[Array, Array, Array]:
    """Distances from the mean, the mean and the variance over axes, which are kept."""
    mean, squares = moments(x, tuple(axes))
    return x - mean, mean, squares / float(math.prod(x.shape[d] for d in axes))


def _affine(x: Array, weight: Array | None, bias: Array | None, shape: Sequence[int]) -> Array:
    if weight is not None:
        x = x * tw.reshape(widened(weight), tuple(shape))
    return x if bias is None else x + tw.reshape(widened(bias), tuple(shape))


@operator("native_layer_norm")
def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """`(x - mean) * rstd * weight + bias` over the last axes; the result, the mean and the inverse deviation.

    The statistics have the type of `x`, as torch states in graphs; its kernels for a CPU give them in the type of
    `weight`."""
    axes = range(x.ndim - len(shape), x.ndim)
    centred, mean, variance = _moments(widened(x), axes)
    inverse = tw.rsqrt(variance + eps)
    y = _affine(centred * inverse, weight, bias, shape)
    return tw.astype(y, x.dtype), tw.astype(mean, x.dtype), tw.astype(inverse, x.dtype)


@operator("native_group_norm")
def group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    """As `native_layer_norm`, over groups of channels; the statistics are of shape (batch, groups)."""
    grouped = tw.reshape(widened(x), (batch, groups, channels // groups * size))
    centred, mean, variance = _moments(grouped, (2,))
    inverse = tw.rsqrt(variance + eps)
    normal = tw.reshape(centred * inverse, (batch, channels, size))
    y = tw.reshape(_affine(normal, weight, bias, (channels, 1)), x.shape)
    flat = (batch, groups)
    mean, inverse = tw.reshape(mean, flat), tw.reshape(inverse, flat)
    return tw.astype(y, x.dtype), tw.astype(mean, x.dtype), tw.astype(inverse, x.dtype)


def _channel_shape(x: Array) -> tuple[int, ...]:
    return (1, x.shape[1], *(1,) * (x.ndim - 2))


def _batch_axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


@operator("_native_batch_norm_legit_functional")
def batch_norm_functional(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """Batch normalisation: the result, mean and inverse deviation of the batch, and the new running statistics."""
    if not training:
        y, *_ = batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)
        empty = tw.zeros((0,), dtype=x.dtype)
        return y, empty, empty, running_mean, running_var
    y, mean, inverse, variance = _trained(x, weight, bias, eps)
    count = x.size // x.shape[1] if x.size else 0
    unbiased = variance * (count / (count - 1)) if count > 1 else variance
    return (
        y,
        tw.astype(mean, x.dtype),
        tw.astype(inverse, x.dtype),
        _moved(running_mean, mean, momentum),
        _moved(running_var, unbiased, momentum),
    )


def _moved(running: Array, seen: Array, momentum: float) -> Array:
    mixed = widened(running) * (1.0 - momentum) + widened(seen) * momentum
    return tw.astype(mixed, running.dtype)


def _trained(x: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array, Array]:
    """The result, and the mean, inverse deviation and variance of each channel."""
    centred, mean, variance = _moments(widened(x), _batch_axes(x))
    inverse = tw.rsqrt(variance + eps)
    y = _affine(centred * inverse, weight, bias, _channel_shape(x))
    flat = (x.shape[1],)
    return tw.astype(y, x.dtype), tw.reshape(mean, flat), tw.reshape(inverse, flat), tw.reshape(variance, flat)


@operator("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """Batch normalisation by the batch alone."""
    y, mean, inverse, _ = _trained(x, weight, bias, eps)
    return y, tw.astype(mean, x.dtype), tw.astype(inverse, x.dtype)


@operator("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Batch normalisation by the running statistics: one factor and one term per channel."""
    shape = _channel_shape(x)
    inverse = tw.rsqrt(widened(running_var) + eps)
    factor = inverse if weight is None else inverse * widened(weight)
    offset = -widened(running_mean) * factor
    if bias is not None:
        offset = offset + widened(bias)
    y = widened(x) * tw.reshape(factor, shape) + tw.reshape(offset, shape)
    empty = tw.zeros((0,), dtype=x.dtype)
    return tw.astype(y, x.dtype), empty, empty


@operator("native_batch_norm_backward")
def batch_norm_backward(
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    """Gradients of the operand, the weight and the bias of a batch normalisation."""
    shape, axes = _channel_shape(x), _batch_axes(x)
    mean, inverse = save_mean, save_invstd
    if not train:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse = widened(running_mean), tw.rsqrt(widened(running_var) + eps)
    assert mean is not None
    assert inverse is not None
    wide = widened(grad)
    mean, inverse = (tw.reshape(widened(s), shape) for s in (mean, inverse))
    normal = (widened(x) - mean) * inverse
    grad_bias = tw.sum(wide, axes)
    grad_weight = tw.sum(wide * normal, axes)
    factor = inverse if weight is None else inverse * tw.reshape(widened(weight), shape)
    if train:
        count = float(math.prod(x.shape[d] for d in axes))
        common = tw.reshape(grad_bias, shape) + normal * tw.reshape(grad_weight, shape)
        wide = wide - common / count
    kept = x.dtype if weight is None else weight.dtype
    found = (tw.astype(wide * factor, x.dtype), tw.astype(grad_weight, kept), tw.astype(grad_bias, kept))
    return tuple(part if wanted else None for part, wanted in zip(found, output_mask, strict=True))

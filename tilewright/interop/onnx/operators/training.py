"""Operators of training: derivatives, and steps of optimisers."""

from __future__ import annotations

from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import emit
from tilewright.errors import ModelFileError
from tilewright.interop.onnx.gradient import gradients
from tilewright.interop.onnx.registry import Node, operator

_DOMAIN = "ai.onnx.preview.training"


@operator("Gradient", domain=_DOMAIN)
def gradient(node: Node, *inputs: Any) -> tuple[Array, ...]:
    """Derivatives of the value called `y` by those called `xs`, when `inputs` are the values of `xs` and `zs`."""
    xs, zs, y = node.required("xs"), node.get("zs", ()), node.required("y")
    names = (*xs, *zs)
    if len(inputs) != len(names) or len(set(names)) != len(names):
        raise ModelFileError(f"{len(inputs)} inputs for the values {names}", help="export the model again")
    floats = [isinstance(value, Array) and value.dtype.is_float for value in inputs[: len(xs)]]
    if not all(floats):
        raise node.unsupported("`Gradient` by other than arrays of floats")
    # Values of their own, so that the same array may be given for several.
    given = [emit("reshape", x, shape=x.shape) if isinstance(x, Array) else x for x in inputs]
    result = node.retrace(y, dict(zip(names, given, strict=True)))
    if not isinstance(result, Array) or not result.dtype.is_float:
        raise node.unsupported("`Gradient` of other than an array of floats")
    return tuple(gradients(result, given[: len(xs)], node.work))


def _in_groups(node: Node, tensors: tuple[Array, ...], each: int) -> list[tuple[Array, ...]]:
    """Operands that come as all parameters, then all their gradients and so on, by parameter."""
    count, rest = divmod(len(tensors), each)
    if rest:
        raise ModelFileError(f"{len(tensors)} arrays, not {each} for each parameter", help="export the model again")
    return [tuple(tensors[n + k * count] for k in range(each)) for n in range(count)]


def _by_result(rows: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(array for column in zip(*rows, strict=True) for array in column)


def _regularised(node: Node, x: Array, g: Array) -> Array:
    return g + x * node.get("norm_coefficient", 0.0)


@operator("Adagrad", domain=_DOMAIN)
def adagrad(node: Node, rate: Array, trips: Array, *tensors: Array) -> tuple[Array, ...]:
    """A step of Adagrad: parameters, then sums of squares."""
    decay, epsilon = node.get("decay_factor", 0.0), node.get("epsilon", 0.0)
    rows: list[tuple[Array, ...]] = []
    for x, g, squares in _in_groups(node, tensors, 3):
        step = tw.astype(tw.astype(rate, tw.f64) / (1.0 + tw.astype(trips, tw.f64) * decay), x.dtype)
        slope = _regularised(node, x, g)
        total = squares + slope * slope
        rows.append((x - tw.reshape(step, ()) * slope / (tw.sqrt(total) + epsilon), total))
    return _by_result(rows)


@operator("Adam", domain=_DOMAIN)
def adam(node: Node, rate: Array, trips: Array, *tensors: Array) -> tuple[Array, ...]:
    """A step of Adam: parameters, then averages of gradients, then those of their squares."""
    alpha, beta, epsilon = node.get("alpha", 0.9), node.get("beta", 0.999), node.get("epsilon", 0.0)
    rows: list[tuple[Array, ...]] = []
    after = node.get("norm_coefficient_post", 0.0)
    for x, g, mean, square in _in_groups(node, tensors, 4):
        slope = _regularised(node, x, g)
        means = mean * alpha + slope * (1.0 - alpha)
        squares = square * beta + slope * slope * (1.0 - beta)
        count = tw.astype(trips, tw.f64)
        bias = tw.sqrt(1.0 - tw.pow(beta, count)) / (1.0 - tw.pow(alpha, count))
        corrected = tw.where(count > 0.0, tw.astype(rate, tw.f64) * bias, tw.astype(rate, tw.f64))
        step = tw.reshape(tw.astype(corrected, x.dtype), ())
        moved = x - step * means / (tw.sqrt(squares) + epsilon)
        rows.append((moved * (1.0 - after), means, squares))
    return _by_result(rows)


@operator("Momentum", domain=_DOMAIN)
def momentum(node: Node, rate: Array, trips: Array, *tensors: Array) -> tuple[Array, ...]:
    """A step of gradient descent with momentum: parameters, then momenta."""
    alpha, beta = node.required("alpha"), node.required("beta")
    mode = node.required("mode")
    if mode not in ("standard", "nesterov"):
        raise node.unsupported(f"`Momentum` of mode {mode!r}")
    rows: list[tuple[Array, ...]] = []
    for x, g, before in _in_groups(node, tensors, 3):
        slope = _regularised(node, x, g)
        # The first step takes the gradient whole.
        share = tw.reshape(tw.astype(tw.where(trips > 0, beta, 1.0), x.dtype), ())
        moved = before * alpha + slope * share
        direction = slope + moved * alpha if mode == "nesterov" else moved
        rows.append((x - tw.reshape(tw.astype(rate, x.dtype), ()) * direction, moved))
    return _by_result(rows)

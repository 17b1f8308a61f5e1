"""Arrays from attributes, sizes and numbers."""

from __future__ import annotations

import math

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.onnx.operators.elementwise import dtype_of
from tilewright.interop.onnx.registry import Node, lifted, operator


@operator("Constant")
def constant(node: Node) -> Array:
    """The constant that one of the attributes holds."""
    if "value" in node.attributes:
        return lifted(node.required("value"))
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32)):
        if name in node.attributes:
            return lifted(np.asarray(node.required(name), dtype))
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            return lifted(np.asarray(node.required(name), np.int64))
    raise node.unsupported("`Constant` of strings, or of a sparse tensor")


@operator("ConstantOfShape")
def constant_of_shape(node: Node, shape: Array) -> Array:
    """One number, 0 of f32 by default, of a given shape."""
    value = node.get("value", np.zeros(1, np.float32))
    return tw.broadcast_to(lifted(value.reshape(())), node.known_ints(shape, "input"))


@operator("Range")
def range_(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    """Numbers from `start` to below `limit`, `delta` apart."""
    first, last, step = (
        node.known(x, what).reshape(-1)[0] for x, what in zip((start, limit, delta), _BOUNDS, strict=True)
    )
    exact = int if start.dtype.is_integer else float
    count = max(0, math.ceil((exact(last) - exact(first)) / exact(step)))
    numbers = tw.multiply(tw.astype(tw.iota((count,)), start.dtype), tw.reshape(delta, ()))
    return tw.add(numbers, tw.reshape(start, ()))


_BOUNDS = ("start", "limit", "delta")


@operator("EyeLike")
def eye_like(node: Node, x: Array) -> Array:
    """Ones on a diagonal of a matrix of the same shape."""
    dtype = x.dtype if "dtype" not in node.attributes else dtype_of(node, node.required("dtype"))
    rows, columns = x.shape
    return tw.eye(rows, columns, k=node.get("k", 0), dtype=dtype)


@operator("OneHot")
def one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    """A new axis with the second value where its index is the index, with the first elsewhere."""
    (count,) = node.known_ints(depth, "depth")
    places = tw.astype(indices, tw.i64)
    wrapped = tw.where(places < 0, places + count, places)
    chosen = tw.one_hot(wrapped, count, dtype=tw.bool, axis=node.get("axis", -1))
    return tw.where(chosen, values[1], values[0])


def _window(node: Node, size: object, weights: tuple[float, float, float]) -> Array:
    (count,) = node.known_ints(size, "size")
    dtype = dtype_of(node, node.get("output_datatype", 1))
    steps = count if node.get("periodic", 1) else count - 1
    turns = np.arange(count) * (2 * np.pi / max(steps, 1))
    a, b, c = weights
    return lifted((a - b * np.cos(turns) + c * np.cos(2 * turns)).astype(dtype.numpy))


@operator("HannWindow")
def hann_window(node: Node, size: Array) -> Array:
    """A window of raised cosines."""
    return _window(node, size, (0.5, 0.5, 0.0))


@operator("HammingWindow")
def hamming_window(node: Node, size: Array) -> Array:
    """A window of raised cosines that does not reach 0."""
    return _window(node, size, (25 / 46, 1 - 25 / 46, 0.0))


@operator("BlackmanWindow")
def blackman_window(node: Node, size: Array) -> Array:
    """A window of three cosines."""
    return _window(node, size, (0.42, 0.5, 0.08))

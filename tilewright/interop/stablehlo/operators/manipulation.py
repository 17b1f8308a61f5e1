"""Operations that move elements."""

from __future__ import annotations

from typing import Any

from tilewright import api as tw
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.lifting import emit
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.operators.elementwise import codes_like
from tilewright.interop.stablehlo.registry import Node, operation


@operation("stablehlo.reshape", moves=True)
def reshape(node: Node, x: Array) -> Array:
    """Row-major, to another shape of as many elements."""
    return lifting.reshape(x, node.type.shape)


@operation("stablehlo.dynamic_reshape", moves=True)
def dynamic_reshape(node: Node, x: Array, shape: Array) -> Array:
    """A reshape to the static type of the result."""
    return lifting.reshape(x, node.type.shape)


@operation("stablehlo.transpose", moves=True)
def transpose(node: Node, x: Array) -> Array:
    """Axes in another order."""
    return lifting.transpose(x, node.integers("permutation"))


@operation("stablehlo.broadcast_in_dim", moves=True, elementwise=True)
def broadcast_in_dim(node: Node, x: Array) -> Array:
    """Repeated along new axes, and along those of size 1. In a region over scalars there is nothing to repeat."""
    axes = node.integers("broadcast_dimensions")
    shape = node.type.shape
    if len(axes) != x.ndim and not shape and not axes:
        return x
    order = sorted(range(len(axes)), key=lambda d: axes[d])
    moved = lifting.transpose(x, order)
    return x if moved.shape == shape and not axes else _broadcast(moved, shape, [axes[d] for d in order])


@operation("stablehlo.dynamic_broadcast_in_dim", moves=True)
def dynamic_broadcast_in_dim(node: Node, x: Array, shape: Array) -> Array:
    """As `broadcast_in_dim`, to the static type of the result."""
    return broadcast_in_dim(node, x)


def _broadcast(x: Array, shape: tuple[int, ...], axes: list[int]) -> Array:
    if x.shape == shape and axes == list(range(len(shape))):
        return x
    return emit("broadcast", x, shape=shape, axes=tuple(axes))


@operation("stablehlo.broadcast", moves=True)
def broadcast(node: Node, x: Array) -> Array:
    """Repeated along new axes in front."""
    sizes = node.integers("broadcast_sizes")
    return _broadcast(x, (*sizes, *x.shape), list(range(len(sizes), len(sizes) + x.ndim)))


@operation("stablehlo.slice", moves=True)
def slice_(node: Node, x: Array) -> Array:
    """A strided slice of each axis."""
    starts, limits, strides = (node.integers(key) for key in ("start_indices", "limit_indices", "strides"))
    return sliced(x, starts, limits, strides)


def sliced(x: Array, starts: Any, limits: Any, strides: Any = None) -> Array:
    """A strided slice of each axis."""
    steps = tuple(strides) if strides is not None else (1,) * x.ndim
    if (tuple(starts), tuple(limits), steps) == ((0,) * x.ndim, x.shape, (1,) * x.ndim):
        return x
    return emit("slice", x, starts=tuple(starts), limits=tuple(limits), strides=steps)


@operation("stablehlo.reverse", moves=True)
def reverse(node: Node, x: Array) -> Array:
    """Axes from the end."""
    axes = node.integers("dimensions")
    return emit("reverse", x, axes=axes) if axes else x


@operation("stablehlo.concatenate", narrow=True)
def concatenate(node: Node, *operands: Any) -> Any:
    """One after the other along an axis."""
    axis = node.integer("dimension")
    if isinstance(operands[0], Coded):
        storage = operands[0].storage
        return Coded(emit("concat", *(codes_like(node, o, storage) for o in operands), axis=axis), storage)
    return operands[0] if len(operands) == 1 else emit("concat", *operands, axis=axis)


@operation("stablehlo.pad")
def pad(node: Node, x: Array, value: Array) -> Array:
    """Elements added around and between; negative amounts take elements away at the ends."""
    low, high = node.integers("edge_padding_low"), node.integers("edge_padding_high")
    return padded(x, value, low, high, node.integers("interior_padding"))


def padded(x: Array, value: Array, low: Any, high: Any, interior: Any) -> Array:
    """As `pad`."""
    if any((*low, *high, *interior)):
        added = [tuple(max(n, 0) for n in amounts) for amounts in (low, high)]
        x = emit("pad", x, value, low=added[0], high=added[1], interior=tuple(interior))
    starts = tuple(max(-n, 0) for n in low)
    limits = tuple(n - max(-h, 0) for n, h in zip(x.shape, high, strict=True))
    return sliced(x, starts, limits)


@operation("stablehlo.dynamic_slice", moves=True)
def dynamic_slice(node: Node, x: Array, *starts: Array) -> Array:
    """A window at places that the program computes, kept inside."""
    return emit("dynamic_slice", x, *starts, sizes=node.integers("slice_sizes"))


@operation("stablehlo.dynamic_update_slice", narrow=True)
def dynamic_update_slice(node: Node, x: Any, update: Any, *starts: Array) -> Any:
    """The array with a window written at places that the program computes, kept inside."""
    if isinstance(x, Coded):
        return Coded(emit("dynamic_update_slice", x.codes, codes_like(node, update, x.storage), *starts), x.storage)
    return emit("dynamic_update_slice", x, update, *starts)


@operation("stablehlo.get_dimension_size")
def get_dimension_size(node: Node, x: Array) -> Array:
    """The size of an axis."""
    return tw.full((), x.shape[lifting.axis_of(node.integer("dimension"), x.ndim)], dtype=node.type.dtype)

"""Reading and writing at indices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axis_of
from tilewright.interop.onnx.registry import Node, lifted, operator


@operator("Gather")
def gather(node: Node, x: Array, indices: Array) -> Array:
    """Slices along `axis` at indices."""
    return tw.take(x, indices, axis=node.get("axis", 0))


@operator("GatherElements")
def gather_elements(node: Node, x: Array, indices: Array) -> Array:
    """Elements whose place along `axis` an index states; other axes may be cut short by the indices."""
    at = axis_of(node.get("axis", 0), x.ndim)
    key = tuple(slice(None) if d == at else slice(0, n) for d, n in enumerate(indices.shape))
    return tw.take_along_axis(x[key], indices, axis=at)


def _batched(x: Array, indices: Array, batch: int) -> tuple[Array, ...]:
    """A key of `x` for index tuples along the last axis, each with the positions of its batch axes."""
    lead = indices.shape[:-1]
    places = [tw.iota(lead, d) for d in range(batch)]
    return (*places, *(indices[..., n] for n in range(indices.shape[-1])))


@operator("GatherND")
def gather_nd(node: Node, x: Array, indices: Array) -> Array:
    """Slices at tuples of indices, after `batch_dims` shared axes."""
    return x[_batched(x, indices, node.get("batch_dims", 0))]


_UPDATES: dict[str, str] = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _update(node: Node, x: Array, key: object, values: Array) -> Array:
    how = _UPDATES.get(node.get("reduction", "none"))
    if how is None:
        raise node.unsupported(f"`{node.op}` of reduction {node.get('reduction')!r}")
    function: Callable[[Array], Array] = getattr(x.at[key], how)
    return function(values)


@operator("ScatterElements")
@operator("Scatter")
def scatter_elements(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    """Elements written at places along `axis` that an index states."""
    at = axis_of(node.get("axis", 0), x.ndim)
    key = tuple(indices if d == at else tw.iota(indices.shape, d) for d in range(x.ndim))
    return _update(node, x, key, updates)


@operator("ScatterND")
def scatter_nd(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    """Slices written at tuples of indices."""
    return _update(node, x, _batched(x, indices, 0), updates)


@operator("Compress")
def compress(node: Node, x: Array, condition: Array) -> Array:
    """The slices along `axis`, or elements, where a condition holds that is known by value."""
    (places,) = np.nonzero(node.known(condition, "condition").reshape(-1))
    if "axis" not in node.attributes:
        return tw.reshape(x, (x.size,))[places]
    return tw.take(x, lifted(places), axis=node.required("axis"))


@operator("NonZero")
def non_zero(node: Node, x: Array) -> Array:
    """The positions of elements that are not 0, of an array that is known by value."""
    return lifted(np.asarray(np.nonzero(node.known(x, "X")), np.int64))


@operator("TensorScatter")
def tensor_scatter(node: Node, cache: Array, update: Array, starts: Array | None = None) -> Array:
    """A window written along `axis`, at its own position for each batch; `circular` wraps around its end."""
    at = axis_of(node.get("axis", -2), cache.ndim)
    shape = update.shape
    size = cache.shape[at]
    first = tw.zeros((shape[0],), dtype=tw.i64) if starts is None else tw.astype(starts, tw.i64)
    places = tw.iota(shape, at) + tw.reshape(first, (-1, *(1,) * (cache.ndim - 1)))
    if node.get("mode", "linear") == "circular":
        places = tw.remainder(places, size)
    key = tuple(places if d == at else tw.iota(shape, d) for d in range(cache.ndim))
    return cache.at[key].set(update)


@operator("Col2Im")
def column_to_image(node: Node, x: Array, image: Array, block: Array) -> Array:
    """Columns of windows added up at their positions in an image."""
    sizes, window = node.known_ints(image, "image_shape"), node.known_ints(block, "block_shape")
    rank = len(sizes)
    strides, dilations = node.get("strides", (1,) * rank), node.get("dilations", (1,) * rank)
    pads = node.get("pads", (0,) * 2 * rank)
    padded = [n + pads[d] + pads[d + rank] for d, n in enumerate(sizes)]
    counts = [(n - d * (w - 1) - 1) // s + 1 for n, w, s, d in zip(padded, window, strides, dilations, strict=True)]
    grids = np.indices((*window, *counts))
    places = [grids[d] * dilations[d] + grids[d + rank] * strides[d] for d in range(rank)]
    batch, channels = x.shape[0], x.shape[1] // math.prod(window)
    values = tw.reshape(x, (batch, channels, *window, *counts))
    total = tw.zeros((batch, channels, *padded), dtype=x.dtype)
    total = total.at[(slice(None), slice(None), *places)].add(values)
    return total[(..., *(slice(pads[d], pads[d] + n) for d, n in enumerate(sizes)))]

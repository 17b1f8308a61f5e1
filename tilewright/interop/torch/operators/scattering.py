"""Stores at indices that arrays hold. Indices beyond an axis are left out, as everywhere in compiled programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast_shapes, constant, is_scalar
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.operators.indexing import Indices, key_of, places
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import filled, widened


@operator("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(x: Array, indices: Indices, values: Array, accumulate: bool = False, unsafe: bool = False) -> Array:
    """A copy with values set, or added, at index arrays; a mask alone takes one value."""
    first = indices[0] if indices else None
    if first is not None and first.dtype.is_bool and len(indices) == 1 and values.size == 1:
        mask = tw.reshape(first, (*first.shape, *(1,) * (x.ndim - first.ndim)))
        value = tw.reshape(values, ())
        return tw.where(mask, x + value if accumulate else value, x)
    updates = x.at[key_of(indices)]
    return updates.add(values) if accumulate else updates.set(values)


@operator("embedding_dense_backward")
def embedding_dense_backward(
    grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """The rows of a gradient added up by the entry of the table that they were read from."""
    if scale_grad_by_freq:
        raise UnsupportedOperatorError("gradients scaled by frequency", help="leave `scale_grad_by_freq` out")
    flat = tw.reshape(indices, (indices.size,))
    rows = widened(tw.reshape(grad, (indices.size, grad.shape[-1])))
    if padding_idx >= 0:
        rows = tw.where(tw.reshape(flat == padding_idx, (indices.size, 1)), 0.0, rows)
    total = tw.zeros((num_weights, grad.shape[-1]), dtype=rows.dtype).at[flat].add(rows)
    return tw.astype(total, grad.dtype)


def _source(source: Any, index: Array, x: Array) -> Array:
    """The stored values: a number, or the part of an array that `index` covers."""
    if is_scalar(source):
        return filled(index.shape, source, x.dtype)
    if source.shape == index.shape:
        return source
    return source[tuple(slice(0, n) for n in index.shape)]


_REDUCTIONS = {"add": "add", "sum": "add", "multiply": "multiply", "prod": "multiply", "amax": "max", "amin": "min"}


def _scattered(x: Array, dim: int, index: Array, source: object, method: str) -> Array:
    if index.size == 0:
        return x
    flat = x if x.ndim else tw.reshape(x, (1,))
    at = index if index.ndim else tw.reshape(index, (1,))
    values = _source(source, index, x)
    written = getattr(flat.at[places(at, dim, flat.ndim)], method)(tw.reshape(values, at.shape))
    return tw.reshape(written, x.shape)


@operator("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(x: Array, dim: int, index: Array, source: object, *, reduce: str | None = None) -> Array:
    """A copy with `result[index[i, j], j] = source[i, j]` for axis 0, or combined with what is there."""
    return _scattered(x, dim, index, source, "set" if reduce is None else _REDUCTIONS[reduce])


@operator("scatter_add")
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    """A copy with the elements of `source` added."""
    return _scattered(x, dim, index, source, "add")


@operator("scatter_reduce.two")
def scatter_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    """A copy with the elements of `source` combined with what is there, or with each other alone."""
    start = x if include_self else _scattered(x, dim, index, _identity(x, reduce), "set")
    if reduce != "mean":
        return _scattered(start, dim, index, source, _REDUCTIONS[reduce])
    total = _scattered(start, dim, index, source, "add")
    ones = tw.full(x.shape, 1, dtype=x.dtype)
    count = _scattered(ones if include_self else _scattered(ones, dim, index, 0, "set"), dim, index, 1, "add")
    count = tw.maximum(count, 1)
    return total / count if x.dtype.is_float else tw.floor_divide(total, count)


def _identity(x: Array, reduce: str) -> Any:
    if reduce == "prod":
        return 1
    if reduce in ("sum", "mean"):
        return 0
    return x.dtype.lowest if reduce == "amax" else x.dtype.highest


@operator("index_add")
def index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    """A copy with slices of `source` added to slices of an axis."""
    scaled = source if alpha == 1 else source * alpha
    if not x.ndim:
        return x + tw.reshape(scaled, ())
    at = index if index.ndim else tw.reshape(index, (1,))
    return x.at[(*(slice(None),) * (dim % x.ndim), at)].add(tw.reshape(scaled, _with_size(x, dim, at.size)))


@operator("index_reduce")
def index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    """A copy with slices of `source` combined with slices of an axis, or with each other alone."""
    flat = x if x.ndim else tw.reshape(x, (1,))
    axis = dim % flat.ndim
    values = tw.reshape(source, _with_size(flat, axis, index.size))
    lead = tw.reshape(index, (*(1,) * axis, index.size, *(1,) * (flat.ndim - axis - 1)))
    spread = tw.broadcast_to(lead, values.shape)
    found = scatter_reduce(flat, axis, spread, values, reduce, include_self=include_self)
    return tw.reshape(found, x.shape)


@operator("index_copy")
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    """A copy with slices of an axis replaced."""
    if not x.ndim:
        return tw.reshape(source, ())
    at = index if index.ndim else tw.reshape(index, (1,))
    return x.at[(*(slice(None),) * (dim % x.ndim), at)].set(tw.reshape(source, _with_size(x, dim, at.size)))


@operator("index_fill.int_Scalar")
def index_fill(x: Array, dim: int, index: Array, value: float) -> Array:
    """A copy with slices of an axis filled with a number."""
    if not x.ndim:
        return filled((), value, x.dtype)
    at = index if index.ndim else tw.reshape(index, (1,))
    return x.at[(*(slice(None),) * (dim % x.ndim), at)].set(filled((), value, x.dtype))


def _with_size(x: Array, dim: int, size: int) -> tuple[int, ...]:
    axis = dim % x.ndim
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


@operator("masked_scatter")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    """A copy with the elements where the mask holds taken, in order, from `source`."""
    shape = broadcast_shapes(x.shape, mask.shape)
    x, spread = tw.broadcast_to(x, shape), tw.broadcast_to(mask, shape)
    if x.size == 0 or source.size == 0:
        return x
    taken = tw.take(tw.reshape(source, (source.size,)), tw.clip(_order(spread), 0, source.size - 1))
    return tw.where(spread, tw.reshape(taken, x.shape), x)


def _order(mask: Array) -> Array:
    """How many elements of a flattened mask hold before each that does."""
    return tw.cumsum(tw.astype(tw.reshape(mask, (mask.size,)), tw.i64), axis=0) - 1


@operator("masked_scatter_backward")
def masked_scatter_backward(grad: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """The elements of the gradient where the mask holds, in order, before zeros."""
    count = math.prod(sizes)
    spread = tw.broadcast_to(mask, grad.shape)
    result = tw.zeros((count,), dtype=grad.dtype)
    if grad.size and count:
        given = tw.where(spread, grad, 0)
        places = tw.clip(_order(spread), 0, count - 1)
        result = result.at[places].add(tw.reshape(given, (grad.size,)))
    return tw.reshape(result, tuple(sizes))


@operator("diagonal_scatter")
def diagonal_scatter(x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """A copy with a diagonal of two axes replaced."""
    moved = tw.moveaxis(x, (dim1, dim2), (-2, -1))
    count = source.shape[-1]
    rows = np.arange(count) + max(-offset, 0)
    columns = np.arange(count) + max(offset, 0)
    if not math.prod(source.shape):
        return x
    written = moved.at[(..., constant(rows), constant(columns))].set(source)
    return tw.moveaxis(written, (-2, -1), (dim1, dim2))

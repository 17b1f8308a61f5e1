"""Reading at places that arrays hold. Indices beyond an axis are clamped to it, as everywhere in compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.errors import DataDependentShapeError
from tilewright.interop.torch.registry import operator

Indices = Sequence[Array | None]


@operator("embedding")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    """Rows of a table."""
    return tw.nn.embedding(weight, indices)


def key_of(indices: Indices) -> tuple[Any, ...]:
    """Index arrays, None for whole axes, as the key of a subscript.

    Raises:
        DataDependentShapeError: an index is a mask.
    """
    if any(index is not None and (index.dtype.is_bool or index.dtype == tw.u8) for index in indices):
        message = "a mask selects as many elements as it holds, which is not known before the program runs"
        raise DataDependentShapeError(message, help="use `torch.where`")
    return tuple(slice(None) if index is None else index for index in indices)


@operator("index.Tensor", "_unsafe_index.Tensor")
def index(x: Array, indices: Indices) -> Array:
    """Elements at index arrays, which broadcast."""
    return x[key_of(indices)]


@operator("index_select")
def index_select(x: Array, dim: int, index: Array) -> Array:
    """Slices of an axis at a vector of indices."""
    if not x.ndim:
        return x
    return tw.take(x, index if index.ndim else tw.reshape(index, (1,)), axis=dim)


def places(index: Array, dim: int, rank: int) -> tuple[Any, ...]:
    """For each axis of an array where the elements of `index`, along `dim`, are."""
    axis = dim % rank
    return tuple(index if d == axis else tw.iota(index.shape, d) for d in range(rank))


@operator("gather")
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """`result[i, j] = x[index[i, j], j]` for axis 0; `index` may be smaller along the other axes."""
    if not x.ndim:
        return tw.broadcast_to(x, index.shape)
    if index.size == 0:
        return tw.zeros(index.shape, dtype=x.dtype)
    if not index.ndim:
        return tw.reshape(x[index], ())
    return x[places(index, dim, x.ndim)]


@operator("take")
def take(x: Array, index: Array) -> Array:
    """Elements of the flattened array."""
    return tw.take(tw.reshape(x, (x.size,)), index)


@operator("as_strided")
def as_strided(x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Array:
    """Elements of an array in row-major order, so many apart along each axis."""
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, step in enumerate(stride):
        places += step * np.arange(size[axis]).reshape(-1, *(1,) * (len(size) - axis - 1))
    return tw.reshape(x, (x.size,))[places]

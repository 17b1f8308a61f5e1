"""Matmuls."""

from __future__ import annotations

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.torch.operators.reduction import vector_norm
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened


@operator("mm", "bmm", "mv", "dot")
def product(x: Array, y: Array) -> Array:
    """A matmul of matrices, stacks of them, or vectors."""
    return tw.matmul(x, y)


@operator("addmm", "baddbmm", "addmv")
def added_product(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """`beta * bias + alpha * (x @ y)`, rounded once."""
    dtype = x.dtype
    if not dtype.is_float:
        alpha, beta = int(alpha), int(beta)
    total = tw.matmul(x, y, dtype=dtype.compute)
    if alpha != 1:
        total = total * alpha
    # A factor of 0 leaves out even what is not a number.
    if beta != 0:
        total = total + (widened(bias) if beta == 1 else widened(bias) * beta)
    return tw.astype(total, dtype)


@operator("addbmm")
def added_product_of_stacks(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """`beta * bias + alpha * sum(x[i] @ y[i])`."""
    rows = tw.reshape(tw.moveaxis(x, 0, 1), (x.shape[1], -1))
    return added_product(bias, rows, tw.reshape(y, (-1, y.shape[-1])), beta=beta, alpha=alpha)


@operator("_cdist_forward")
def distances(x: Array, y: Array, p: float, compute_mode: int | None) -> Array:
    """The norm of order `p` of the difference of all pairs of rows."""
    pairs = tw.expand_dims(x, -2) - tw.expand_dims(y, -3)
    return vector_norm(pairs, p, -1)


@operator("_pdist_forward")
def distances_within(x: Array, p: float = 2) -> Array:
    """The norms of order `p` of the differences of each two rows, those of the first row first."""
    first, second = np.triu_indices(x.shape[0], 1)
    return vector_norm(x[first] - x[second], p, -1)


@operator("_cdist_backward")
def distances_backward(grad: Array, x: Array, y: Array, p: float, distance: Array) -> Array:
    """The gradient of the rows of `x` for those of their distances: `d |v|_p / dv = sign(v) (|v| / |v|_p) ** (p - 1)`,
    which is zero at a distance of zero."""
    if not grad.size:
        return tw.zeros_like(x)
    pairs = tw.expand_dims(x, -2) - tw.expand_dims(y, -3)
    far, size = tw.expand_dims(distance, -1), tw.abs(pairs)
    if p == float("inf"):
        share = tw.astype(size == far, x.dtype)
    elif p == 0:
        share = tw.zeros_like(pairs)
    else:
        counts = (far != 0) & (size != 0)
        share = tw.where(counts, tw.pow(size / tw.where(counts, far, 1.0), float(p) - 1.0), 0.0)
    return tw.sum(tw.expand_dims(grad, -1) * tw.sign(pairs) * share, -2)


@operator("outer")
def outer(x: Array, y: Array) -> Array:
    """The outer product of two vectors."""
    return tw.outer(x, y)

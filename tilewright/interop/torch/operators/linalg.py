"""Matrix products."""

from __future__ import annotations

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened


@operator("mm", "bmm", "mv", "dot")
def product(x: Array, y: Array) -> Array:
    """A product of matrices, stacks of them, or vectors."""
    return tw.matmul(x, y)


@operator("addmm", "baddbmm", "addmv")
def added_product(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    """`beta * bias + alpha * (x @ y)`, rounded once."""
    dtype = x.dtype
    total = tw.matmul(x, y, dtype=dtype.compute)
    if alpha != 1:
        total = total * alpha
    # A factor of 0 leaves out even what is not a number.
    if beta != 0:
        total = total + (widened(bias) if beta == 1 else widened(bias) * beta)
    return tw.astype(total, dtype)


@operator("outer")
def outer(x: Array, y: Array) -> Array:
    """All products of two vectors."""
    return tw.outer(x, y)

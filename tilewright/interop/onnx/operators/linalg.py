"""Matmuls and general contractions."""

from __future__ import annotations

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.registry import Node, operator

# Larger determinants would be long programs.
_UNROLLED_ROWS = 16


@operator("MatMul")
def matmul(node: Node, a: Array, b: Array) -> Array:
    """As NumPy's."""
    return tw.matmul(a, b)


@operator("Gemm")
def gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    """`alpha * a @ b + beta * c`, with transposes."""
    node.ignore("broadcast")
    left = a.mT if node.get("transA", 0) else a
    right = b.mT if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if not a.dtype.is_float and (alpha != 1.0 or beta != 1.0):
        raise node.unsupported("`Gemm` of integers with factors")
    product = tw.matmul(left, right)
    if alpha != 1.0:
        product = product * alpha
    if c is None or beta == 0.0:
        return product
    return tw.add(product, c if beta == 1.0 else c * beta)


@operator("Einsum")
def einsum(node: Node, *arrays: Array) -> Array:
    """A sum of products in index notation."""
    return tw.einsum(node.required("equation").replace(" ", ""), *arrays)


@operator("Det")
def determinant(node: Node, x: Array) -> Array:
    """By elimination with the largest pivot of each column; of large matrices by LAPACK."""
    rows = x.shape[-1]
    y = wide(x)
    if rows > _UNROLLED_ROWS:
        return tw.astype(tw.linalg.det(y), x.dtype)
    result = tw.ones(x.shape[:-2], dtype=y.dtype)
    for step in range(rows):
        size = rows - step
        pivot = tw.argmax(tw.abs(y[..., 0]), -1)[..., None]
        at_pivot = tw.iota((size,)) == pivot
        row = tw.sum(tw.where(at_pivot[..., None], y, 0.0), -2)
        swapped = tw.where(at_pivot[..., None], y[..., :1, :], y)
        head = row[..., 0]
        result = result * head * tw.where(tw.equal(pivot[..., 0], 0), 1.0, -1.0)
        factors = swapped[..., 1:, :1] / tw.where(tw.equal(head, 0.0), 1.0, head)[..., None, None]
        y = swapped[..., 1:, 1:] - factors * row[..., None, 1:]
    return tw.astype(result, x.dtype)

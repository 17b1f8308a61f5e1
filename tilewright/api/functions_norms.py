"""Norms, traces and cross products."""

from __future__ import annotations

import math
from typing import Any

from tilewright.api.array import Array, located
from tilewright.api.functions_decompositions import matrices, svdvals
from tilewright.api.functions_elementwise import abs as absolute
from tilewright.api.functions_elementwise import multiply, not_equal, pow, square, subtract
from tilewright.api.functions_linalg import diagonal
from tilewright.api.functions_manipulation import stack
from tilewright.api.functions_math import sqrt
from tilewright.api.functions_statistics import max as highest
from tilewright.api.functions_statistics import min as lowest
from tilewright.api.functions_statistics import sum as total
from tilewright.api.lifting import (
    ArrayLike,
    as_float,
    axes_of,
    axis_of,
    broadcast,
    broadcast_shapes,
    cast,
    promoted,
    reshape,
)
from tilewright.dtypes import DTypeLike
from tilewright.errors import ArgumentError, ShapeError

Axes = int | tuple[int, ...] | None


def vector_norm(x: ArrayLike, /, *, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The norm over the given axes, by default all: the `ord`-th root of the sum of the `ord`-th powers of the sizes.
    `inf` gives the largest size, `-inf` the smallest, 0 how many are not zero."""
    array = as_float(x)
    axes, sizes = axes_of(axis, array.ndim), absolute(array)
    if ord == math.inf:
        return highest(sizes, axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return lowest(sizes, axis=axes, keepdims=keepdims)
    if ord == 0:
        return cast(total(cast(not_equal(array, 0), array.dtype), axis=axes, keepdims=keepdims), array.dtype)
    if ord == 1:
        return total(sizes, axis=axes, keepdims=keepdims)
    if ord == 2:
        return sqrt(total(square(array), axis=axes, keepdims=keepdims))
    return pow(total(pow(sizes, float(ord)), axis=axes, keepdims=keepdims), 1 / float(ord))


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of each matrix: "fro" of all elements, "nuc" the sum of the singular values, 2 and -2 the largest and
    the smallest one, 1 and -1 the largest and smallest sum of the sizes in a column, inf and -inf in a row.

    Raises:
        ArgumentError: there is no such norm.
        LinearAlgebraError: when the program runs, where singular values do not converge.
    """
    if ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        help = 'use "fro", "nuc", 1, -1, 2, -2, inf or -inf'
        raise located(ArgumentError(f"`matrix_norm` has no norm {ord!r}", help=help))
    if ord in ("nuc", 2, -2):
        array = matrices("matrix_norm", x)
        values = svdvals(array)
        reduced = total(values, axis=-1) if ord == "nuc" else (highest if ord == 2 else lowest)(values, axis=-1)
        return reshape(reduced, (*reduced.shape, 1, 1)) if keepdims else reduced
    array = as_float(x)
    if array.ndim < 2:
        message = f"`matrix_norm` takes matrices, got an array of shape {array.shape}"
        raise located(ShapeError(message, help="use `vector_norm`, or reshape it to at least two axes"))
    if ord == "fro":
        return vector_norm(array, axis=(-2, -1), keepdims=keepdims)
    summed, extreme = (-2, -1) if ord in (1, -1) else (-1, -2)
    sums = total(absolute(array), axis=summed, keepdims=True)
    reduced = (highest if ord > 0 else lowest)(sums, axis=extreme, keepdims=True)
    return reduced if keepdims else reshape(reduced, reduced.shape[:-2])


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """The sum of a diagonal of each matrix. Small integers add in i64 or u64, as with `sum`."""
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three elements along `axis`; the other axes broadcast.

    Raises:
        ShapeError: an operand does not have three elements along the axis.
    """
    a, b = promoted(x1, x2)
    shape = broadcast_shapes(a.shape, b.shape)
    place = axis_of(axis, len(shape))
    behind = len(shape) - place
    if any(x.ndim < behind or x.shape[x.ndim - behind] != 3 for x in (a, b)):
        message = f"`cross` of shapes {a.shape} and {b.shape} along axis {axis}"
        raise located(ShapeError(message, help="give both operands three elements along the axis"))
    a, b = broadcast(a, shape), broadcast(b, shape)
    first, second = ([x[(slice(None),) * place + (i,)] for i in range(3)] for x in (a, b))
    parts = [
        subtract(multiply(first[i], second[j]), multiply(first[j], second[i])) for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return stack(parts, axis=place)

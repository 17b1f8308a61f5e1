"""Linear systems and matrix factorisations over the last two axes; leading axes are batch axes.

They call LAPACK on the CPU (`tilewright.routines`), in f32 or f64. A program raises `LinearAlgebraError`, a subclass of
NumPy's `LinAlgError`, in the same cases as NumPy, such as for the inverse of a singular matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.complex_primitives import from_pairs
from tilewright.api.functions_creation import arange, eye, triu
from tilewright.api.functions_elementwise import abs as absolute
from tilewright.api.functions_elementwise import greater, multiply, not_equal, sign, where
from tilewright.api.functions_linalg import diagonal, matmul
from tilewright.api.functions_manipulation import concat, matrix_transpose
from tilewright.api.functions_math import log
from tilewright.api.functions_statistics import max as highest
from tilewright.api.functions_statistics import prod
from tilewright.api.functions_statistics import sum as total
from tilewright.api.lifting import (
    ArrayLike,
    as_float,
    as_operand,
    broadcast,
    broadcast_shapes,
    cast,
    emit_all,
    full,
    integer,
    lift,
    promoted,
    reshape,
)
from tilewright.errors import ArgumentError, DTypeError, ShapeError


class EigResult(NamedTuple):
    """Complex eigenvalues in no order, and complex eigenvectors of length 1 in the columns."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Ascending eigenvalues, and eigenvectors in the columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """The determinant's sign, and the logarithm of its size."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Left vectors in the columns, descending singular values, right vectors in the rows."""

    U: Any
    S: Any
    Vh: Any


class LU(NamedTuple):
    """Both factors in one matrix, the rows that were exchanged (counted from 1), and LAPACK's status."""

    factors: Array
    pivots: Array
    info: Array


def matrices(name: str, x: ArrayLike, *, square: bool = False) -> Array:
    """An operand of a function of matrices; integers and bools become f32.

    Raises:
        ShapeError: it has fewer than two axes, or its matrices are not square and must be.
        DTypeError: it is of narrow floats.
    """
    array = as_float(x)
    if array.ndim < 2:
        message = f"`{name}` takes matrices, got an array of shape {array.shape}"
        raise located(ShapeError(message, help="reshape it to at least two axes"))
    if square and array.shape[-1] != array.shape[-2]:
        message = f"`{name}` takes square matrices, got an array of shape {array.shape}"
        raise located(ShapeError(message, help="make the last two sizes equal"))
    if array.dtype not in (dtypes.f32, dtypes.f64):
        message = f"`{name}` of {array.dtype}: LAPACK computes in f32 and f64"
        raise located(DTypeError(message, help="cast it with `.astype(tw.f32)`, and the results back"))
    return array


def call(routine: str, *operands: Array, **attributes: object) -> tuple[Array, ...]:
    """Results of a library routine."""
    return emit_all("library_call", *operands, routine=routine, **attributes)


# ---- systems of equations -------------------------------------------------------------------------------------------


def lu(x: Array) -> LU:
    """LU factors with rows exchanged, of matrices of any shape."""
    return LU(*call("getrf", x))


def inv(x: ArrayLike, /) -> Array:
    """The inverse of each matrix.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, of a singular matrix.
    """
    return call("getri", matrices("inv", x, square=True), must_succeed=True)[0]


def solve(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """The `y` of `x1 @ y = x2`, for each matrix; `x2` is one vector, or matrices.

    Raises:
        ShapeError: the matrices of `x1` are not square, or `x2` has other rows.
        LinearAlgebraError: when the program runs, of a singular matrix.
    """
    a, b = promoted(x1, x2)
    a = matrices("solve", a, square=True)
    b = cast(b, a.dtype)
    is_vector = b.ndim == 1
    if b.ndim == 0 or b.shape[0 if is_vector else -2] != a.shape[-1]:
        message = f"`solve` of shapes {a.shape} and {b.shape}: the rows differ"
        raise located(ShapeError(message, help="give `x2` as many rows as the matrices have"))
    b = reshape(b, (*b.shape, 1)) if is_vector else b
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = broadcast(a, (*batch, *a.shape[-2:])), broadcast(b, (*batch, *b.shape[-2:]))
    solution, _ = call("gesv", a, b, must_succeed=True)
    return reshape(solution, solution.shape[:-1]) if is_vector else solution


def det(x: ArrayLike, /) -> Array:
    """The determinant of each matrix."""
    factors, pivots, _ = lu(matrices("det", x, square=True))
    return multiply(prod(diagonal(factors), axis=-1), _parity(pivots, factors))


def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """Sign and logarithm of the size of each determinant: 0 and -inf of a singular matrix."""
    factors, pivots, _ = lu(matrices("slogdet", x, square=True))
    values = diagonal(factors)
    signs = multiply(prod(sign(values), axis=-1), _parity(pivots, factors))
    return SlogdetResult(signs, total(log(absolute(values)), axis=-1))


def _parity(pivots: Array, like: Array) -> Array:
    """1 for an even number of exchanged rows, -1 for an odd one."""
    rows = arange(1, pivots.shape[-1] + 1, dtype=dtypes.i32)
    exchanged = cast(not_equal(pivots, rows), dtypes.i32)
    odd = total(exchanged, axis=-1) % 2
    return cast(1 - 2 * odd, like.dtype)


def matrix_power(x: ArrayLike, n: int, /) -> Array:
    """The n-th power of a square matrix; of its inverse when `n` is negative.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, of a negative power of a singular matrix.
    """
    base, count = lift(x), integer(n, "a power")
    if base.ndim < 2 or base.shape[-1] != base.shape[-2]:
        message = f"`matrix_power` takes square matrices, got an array of shape {base.shape}"
        raise located(ShapeError(message, help="make the last two sizes equal"))
    if count < 0:
        base, count = inv(base), -count
    if count == 0:
        return broadcast(eye(base.shape[-1], dtype=base.dtype), base.shape)
    result = None
    while True:
        if count % 2:
            result = base if result is None else matmul(result, base)
        count //= 2
        if not count:
            return base if result is None else result
        base = matmul(base, base)


# ---- factorisations -------------------------------------------------------------------------------------------------


def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Array:
    """The triangle L with `L @ L.mT = x`, or U with `U.mT @ U = x`; only that triangle of `x` is read.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, of a matrix that is not positive definite.
    """
    return call("potrf", matrices("cholesky", x, square=True), lower=not upper, must_succeed=True)[0]


def qr(x: ArrayLike, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal columns Q and an upper triangle R with `Q @ R = x`: `min(m, n)` columns, or all m ("complete").

    Raises:
        ArgumentError: there is no such mode.
    """
    if mode not in ("reduced", "complete"):
        raise located(ArgumentError(f"`qr` has no mode {mode!r}", help='use "reduced" or "complete"'))
    a = matrices("qr", x)
    packed, tau = call("geqrf", a)
    kept = a.shape[-2] if mode == "complete" else min(a.shape[-2:])
    return QRResult(householder_product(packed, tau, kept), triu(packed[..., :kept, :]))


def householder_product(packed: Array, tau: Array, columns: int) -> Array:
    """The first columns of the matrix Q of Householder reflectors stored below the diagonal, one for each element of
    `tau`."""
    *batch, rows, own = packed.shape
    vectors = packed[..., : min(own, columns)]
    if columns > own:
        vectors = concat([vectors, full((*batch, rows, columns - own), 0, packed.dtype)], axis=-1)
    return call("orgqr", vectors, tau)[0]


def eig(x: ArrayLike, /) -> EigResult:
    """Eigenvalues and eigenvectors of real matrices, which are complex numbers.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, where the values do not converge.
    """
    values, vectors, _ = call("geev", matrices("eig", x, square=True), vectors=True, must_succeed=True)
    return EigResult(from_pairs(values), from_pairs(vectors))


def eigvals(x: ArrayLike, /) -> Array:
    """Eigenvalues of real matrices, which are complex numbers, in no order.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, where they do not converge.
    """
    return from_pairs(call("geev", matrices("eigvals", x, square=True), vectors=False, must_succeed=True)[0])


def eigh(x: ArrayLike, /) -> EighResult:
    """Ascending eigenvalues and eigenvectors of symmetric matrices, of which the lower triangle is read.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, where the values do not converge.
    """
    a = matrices("eigh", x, square=True)
    vectors, values, _ = call("syevd", a, lower=True, vectors=True, must_succeed=True)
    return EighResult(values, vectors)


def eigvalsh(x: ArrayLike, /) -> Array:
    """Ascending eigenvalues of symmetric matrices, of which the lower triangle is read.

    Raises:
        ShapeError: the matrices are not square.
        LinearAlgebraError: when the program runs, where the values do not converge.
    """
    a = matrices("eigvalsh", x, square=True)
    return call("syevd", a, lower=True, vectors=False, must_succeed=True)[0]


def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular vectors and descending singular values: `U[..., :k] * S[..., None, :] @ Vh[..., :k, :]` is `x`.

    Raises:
        LinearAlgebraError: when the program runs, where the values do not converge.
    """
    a = matrices("svd", x)
    left, values, right, _ = call("gesdd", a, full=bool(full_matrices), vectors=True, must_succeed=True)
    return SVDResult(left, values, right)


def svdvals(x: ArrayLike, /) -> Array:
    """Descending singular values.

    Raises:
        LinearAlgebraError: when the program runs, where they do not converge.
    """
    return call("gesdd", matrices("svdvals", x), full=False, vectors=False, must_succeed=True)[0]


def _cutoff(values: Array, shape: tuple[int, ...], rtol: ArrayLike | None) -> Array:
    """The threshold of each matrix below which singular values count as 0, with an axis of size 1 for the values."""
    largest = highest(values, axis=-1, keepdims=True)
    if rtol is None:
        return multiply(largest, max(shape[-2:]) * values.dtype.epsilon)
    tolerance = as_operand(rtol)
    if isinstance(tolerance, Array):
        tolerance = reshape(cast(tolerance, values.dtype), (*tolerance.shape, 1))
    return multiply(largest, tolerance)


def pinv(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Array:
    """The Moore-Penrose inverse. Singular values up to `rtol` times the largest one count as zero; by default
    `max(m, n)` units in the last place of 1.

    Raises:
        LinearAlgebraError: when the program runs, where the singular values do not converge.
    """
    a = matrices("pinv", x)
    if a.size == 0:
        return full((*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
    left, values, right = svd(a, full_matrices=False)
    is_kept = greater(values, _cutoff(values, a.shape, rtol))
    inverted = where(is_kept, 1 / where(is_kept, values, 1), 0)
    scaled = multiply(matrix_transpose(right), reshape(inverted, (*inverted.shape[:-1], 1, inverted.shape[-1])))
    return matmul(scaled, matrix_transpose(left))


def matrix_rank(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Array:
    """How many singular values are above `rtol` times the largest one, as i64; `rtol` is by default that of `pinv`.

    Raises:
        LinearAlgebraError: when the program runs, where the singular values do not converge.
    """
    a = matrices("matrix_rank", x)
    if a.size == 0:
        return full(a.shape[:-2], 0, dtypes.i64)
    values = svdvals(a)
    return total(cast(greater(values, _cutoff(values, a.shape, rtol)), dtypes.i64), axis=-1)

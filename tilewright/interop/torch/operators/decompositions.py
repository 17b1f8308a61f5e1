"""Factorisations and systems of equations.

Operators that end in `_ex` give a status, which torch checks by an operator of its own; the others raise where LAPACK
fails, which is `LinearAlgebraError` here.
"""

from __future__ import annotations

from typing import Any

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.functions_decompositions import call, householder_product, lu
from tilewright.api.lifting import broadcast, broadcast_shapes
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.registry import operator

linalg = tw.linalg


def _together(a: Array, b: Array) -> tuple[Array, Array]:
    """Matrices of both operands for one batch."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return broadcast(a, (*batch, *a.shape[-2:])), broadcast(b, (*batch, *b.shape[-2:]))


def _nothing(like: Array) -> Array:
    """The empty tensor that torch returns in place of an output that is not computed."""
    return tw.zeros((0,), dtype=like.dtype)


# ---- systems of equations -------------------------------------------------------------------------------------------


@operator("_linalg_check_errors")
def check_errors(info: Array, api_name: str, *, is_matrix: bool) -> None:
    """Have the routine whose status this is raise where it fails."""
    node = info.value.producer
    if node is None or node.op != "library_call":
        raise located(UnsupportedOperatorError("the check of a status from elsewhere", help="run it in torch"))
    node.attributes = {**node.attributes, "must_succeed": True}


@operator("linalg_inv_ex")
def inverse(x: Array, *, check_errors: bool = False) -> tuple[Array, ...]:
    """The inverse and a status."""
    return call("getri", x, **_checked(check_errors))


def _checked(check_errors: bool) -> dict[str, Any]:
    return {"must_succeed": True} if check_errors else {}


@operator("_linalg_solve_ex")
def solution(a: Array, b: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, ...]:
    """The solution, the LU factors, the rows that were exchanged, and a status."""
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    right = tw.expand_dims(b, -1) if is_vector else b
    factors, pivots, _ = lu(a)
    matrices, right = _together(a, right)
    if left or is_vector:
        x, info = call("gesv", matrices, right, **_checked(check_errors))
    else:
        x, info = call("gesv", matrices.mT, right.mT, **_checked(check_errors))
        x = x.mT
    # torch has a status for each matrix of `a`, and so the LU factors.
    if matrices.shape[:-2] != a.shape[:-2]:
        info = factors_status(a, check_errors)
    return (tw.squeeze(x, -1) if is_vector else x), factors, pivots, info


def factors_status(a: Array, check_errors: bool) -> Array:
    """LAPACK's status for the LU factors of each matrix."""
    return call("getrf", a, **_checked(check_errors))[2]


@operator("_linalg_det")
def determinant(a: Array) -> tuple[Array, ...]:
    """The determinant, the LU factors, and the rows that were exchanged."""
    return (linalg.det(a), *lu(a)[:2])


@operator("_linalg_slogdet")
def logarithm_of_determinant(a: Array) -> tuple[Array, ...]:
    """Sign and logarithm of the determinant, the LU factors, and the rows that were exchanged."""
    return (*linalg.slogdet(a), *lu(a)[:2])


@operator("linalg_lu_factor_ex")
def lu_factors(a: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, ...]:
    """Both factors in one matrix, the rows that were exchanged, and a status."""
    _with_pivots(pivot)
    return call("getrf", a, **_checked(check_errors))


def _with_pivots(pivot: bool) -> None:
    if not pivot:
        raise ValueError("LU factors without exchanged rows")


@operator("linalg_lu")
def lu_parts(a: Array, *, pivot: bool = True) -> tuple[Array, ...]:
    """A matrix of the permutation, and both factors: `P @ L @ U` is `a`."""
    _with_pivots(pivot)
    factors, pivots, _ = lu(a)
    return unpacked_lu(factors, pivots)


@operator("lu_unpack")
def unpacked_lu(
    factors: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, ...]:
    """A matrix of the permutation, and both factors."""
    rows, columns = factors.shape[-2:]
    least = min(rows, columns)
    lower, upper, permutation = _nothing(factors), _nothing(factors), _nothing(factors)
    if unpack_data:
        lower = tw.tril(factors[..., :least], k=-1) + tw.eye(rows, least, dtype=factors.dtype)
        upper = tw.triu(factors[..., :least, :])
    if unpack_pivots:
        order = _permutation(pivots, rows)
        places = tw.arange(rows, dtype=dtypes.i32)
        permutation = tw.astype(tw.expand_dims(places, -1) == tw.expand_dims(order, -2), factors.dtype)
    return permutation, lower, upper


def _permutation(pivots: Array, rows: int) -> Array:
    return call("lu_permutation", pivots, size=rows)[0]


@operator("linalg_lu_solve")
def lu_solution(factors: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    """The solution of a system of which the LU factors are known."""
    if not left:
        return lu_solution(factors, pivots, b.mT, adjoint=not adjoint).mT
    order = tw.expand_dims(_permutation(pivots, factors.shape[-1]), -1)
    factors, b = _together(factors, b)
    order = broadcast(order, b.shape)
    lower = {"left": True, "lower": True, "transposed": adjoint, "unit": True}
    upper = {"left": True, "lower": False, "transposed": adjoint, "unit": False}
    if adjoint:
        (x,) = call("trsm", factors, call("trsm", factors, b, **upper)[0], **lower)
        return tw.take_along_axis(x, tw.argsort(order, axis=-2), axis=-2)
    rows = tw.take_along_axis(b, order, axis=-2)
    return call("trsm", factors, call("trsm", factors, rows, **lower)[0], **upper)[0]


@operator("linalg_solve_triangular")
def triangular_solution(a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    """The solution of a system with a triangular matrix."""
    a, b = _together(a, b)
    return call("trsm", a, b, left=left, lower=not upper, transposed=False, unit=unitriangular)[0]


@operator("triangular_solve")
def triangular_solution_and_matrix(
    b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, ...]:
    """The solution of a system with a triangular matrix, and that matrix."""
    a, b = _together(a, b)
    return call("trsm", a, b, left=True, lower=not upper, transposed=transpose, unit=unitriangular)[0], a


# ---- factorisations -------------------------------------------------------------------------------------------------


@operator("linalg_cholesky_ex")
def cholesky_and_status(x: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, ...]:
    """The triangular factor and a status."""
    # An upper factor is that of the upper triangle's transpose.
    return call("potrf", x, lower=not upper, **_checked(check_errors))


@operator("cholesky")
def cholesky(x: Array, upper: bool = False) -> Array:
    """The triangular factor."""
    return linalg.cholesky(x, upper=upper)


@operator("cholesky_solve")
def cholesky_solution(b: Array, factor: Array, upper: bool = False) -> Array:
    """The solution of a system of which the triangular factor is known."""
    factor, b = _together(factor, b)
    settings = {"left": True, "lower": not upper, "unit": False}
    (x,) = call("trsm", factor, b, transposed=upper, **settings)
    return call("trsm", factor, x, transposed=not upper, **settings)[0]


@operator("cholesky_inverse")
def cholesky_inverse(factor: Array, upper: bool = False) -> Array:
    """The inverse of a matrix of which the triangular factor is known."""
    return cholesky_solution(tw.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


@operator("linalg_qr")
def qr(x: Array, mode: str = "reduced") -> tuple[Array, ...]:
    """Orthonormal columns and an upper triangle."""
    if mode == "r":
        return _nothing(x), linalg.qr(x).R
    return tuple(linalg.qr(x, mode=mode))


@operator("geqrf")
def reflectors(x: Array) -> tuple[Array, ...]:
    """R with the reflectors below it, and their factors."""
    return call("geqrf", x)


@operator("linalg_householder_product")
def orthonormal_columns(packed: Array, tau: Array) -> Array:
    """The first columns of the matrix that the reflectors form."""
    return householder_product(packed, tau, packed.shape[-1])


@operator("ormqr")
def reflected(packed: Array, tau: Array, x: Array, left: bool = True, transpose: bool = False) -> Array:
    """The matmul of a matrix with the one that reflectors form, from the left or from the right."""
    basis = householder_product(packed, tau, packed.shape[-2])
    basis = basis.mT if transpose else basis
    return tw.matmul(basis, x) if left else tw.matmul(x, basis)


@operator("_linalg_eigh")
def symmetric_eigenvalues(x: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, ...]:
    """Ascending eigenvalues, and eigenvectors in the columns."""
    found = call("syevd", x, lower=UPLO.upper() == "L", vectors=compute_v, must_succeed=True)
    return (found[1], found[0]) if compute_v else (found[0], _nothing(x))


@operator("_linalg_svd")
def singular_values(
    x: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, ...]:
    """Left vectors, descending values, right vectors."""
    if compute_uv:
        return tuple(linalg.svd(x, full_matrices=full_matrices))
    return _nothing(x), linalg.svdvals(x), _nothing(x)


@operator("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(x: Array, *, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False) -> Array:
    """The Moore-Penrose inverse; values up to the larger of both tolerances count as zero."""
    if hermitian:
        values, u = linalg.eigh(x)
        s = tw.abs(values)
        vh = u.mT * tw.expand_dims(tw.sign(values), -1)
    else:
        u, s, vh = linalg.svd(x, full_matrices=False)
    epsilon = max(x.shape[-2:]) * x.dtype.epsilon
    if not s.shape[-1]:
        return tw.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype)
    largest = tw.max(s, axis=-1, keepdims=True)
    least = tw.expand_dims(tw.astype(atol, s.dtype), -1) if atol is not None else tw.zeros((1,), dtype=s.dtype)
    if rtol is not None:
        relative = tw.expand_dims(tw.astype(rtol, s.dtype), -1)
    else:
        # Where an absolute tolerance is given, it replaces the default.
        relative = tw.where(least > 0, 0.0, epsilon) if atol is not None else tw.full((1,), epsilon, dtype=s.dtype)
    kept = s > tw.maximum(least, tw.astype(relative, s.dtype) * largest)
    inverted = tw.where(kept, 1 / tw.where(kept, s, 1.0), 0.0)
    return tw.matmul(vh.mT * tw.expand_dims(inverted, -2), u.mT)

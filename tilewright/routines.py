"""The library routines that `array.library_call` may name: static attributes, result types and work of each.

Operands and results are dense and row-major. The leading dims are batch dims: a routine is called for each matrix, or
for each line. Complex numbers are reals with a trailing dim of 2, the real and the imaginary part. Routines of linear
algebra carry LAPACK's names without the letter of the element type; those that can fail give LAPACK's `info` as their
last result, an i32 for each matrix, and matrices of NaN where it is not 0.

    potrf           A[n, n] -> L[n, n], info; reads the triangle `lower` names, zeros in the other
    getrf           A[m, n] -> LU[m, n], pivots i32[min(m, n)] from 1 on, info; no NaN where U is singular
    lu_permutation  pivots i32[k] -> i32[size]: the rows of A in the order of those of L U
    gesv            A[n, n], B[n, k] -> X[n, k], info; A X = B
    getri           A[n, n] -> inverse[n, n], info
    trsm            A[n, n], B[m, k] -> X[m, k]; op(A) X = B, or X op(A) = B unless `left`; `unit`: ones on the diagonal
    geqrf           A[m, n] -> R with the reflectors below it [m, n], tau[min(m, n)]
    orgqr           reflectors[m, n], tau[k] -> the first n columns of Q [m, n]; m >= n >= k
    syevd           A[n, n] -> vectors[n, n] in columns (with `vectors`), ascending values[n], info
    gesdd           A[m, n] -> U, values[min(m, n)], V^T (both with `vectors`; `full`: square ones), info
    geev            A[n, n] -> complex values[n, 2], complex vectors[n, n, 2] in columns (with `vectors`), info
    fft.c2c         x[n, 2] -> [n, 2], times `scale`; `inverse`: of the opposite sign in the exponent
    fft.r2c         x[n] -> [n // 2 + 1, 2], times `scale`
    fft.c2r         x[m, 2] -> [size] of the inverse transform, times `scale`; m >= size // 2 + 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DTypeError, ShapeError

Shape = tuple[int, ...]
Form = tuple[Shape, DType]
"""Shape and element type of an array."""
Attributes = Mapping[str, Any]
Rule = Callable[[Sequence[Form], Attributes], list[Form]]


class Routine(msgspec.Struct, frozen=True):
    """One routine.

    Attributes:
        attributes: names and types of its static attributes.
        types: forms of its results from those of its operands, which it checks.
        flops: floating-point operations for one matrix or line, from the forms of operands and results.
        trailing: how many trailing dims of each operand belong to one matrix or line.
        reports: its last result is `info`.
    """

    name: str
    attributes: Mapping[str, type]
    types: Rule
    flops: Callable[[Sequence[Form], Sequence[Form]], float]
    trailing: tuple[int, ...]
    reports: bool = False

    def batch(self, operands: Sequence[Form]) -> Shape:
        """The batch dims."""
        shape = operands[0][0]
        return shape[: len(shape) - self.trailing[0]]


ROUTINES: dict[str, Routine] = {}


class _Registered(msgspec.Struct, frozen=True):
    """The registration of a rule: name, rank, cost and attributes."""

    name: str
    trailing: tuple[int, ...]
    flops: Callable[[Sequence[Form], Sequence[Form]], float]
    reports: bool = False
    attributes: Mapping[str, type] = msgspec.field(default_factory=dict[str, type])

    def __call__(self, rule: Rule) -> Rule:
        ROUTINES[self.name] = Routine(self.name, self.attributes, rule, self.flops, self.trailing, self.reports)
        return rule


def result_forms(name: str, operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    """Forms of the results of a routine.

    Raises:
        ShapeError, DTypeError, ArgumentError: operands or attributes do not fit.
    """
    routine = ROUTINES.get(name)
    if routine is None:
        raise ArgumentError(f"there is no library routine `{name}`", help=f"use one of {', '.join(ROUTINES)}")
    plain = {key: value for key, value in attributes.items() if key not in ("routine", "must_succeed")}
    if {key: type(value) for key, value in plain.items()} != dict(routine.attributes):
        expected = ", ".join(f"{key}: {kind.__name__}" for key, kind in routine.attributes.items()) or "none"
        raise ArgumentError(f"`{name}` has the attributes {plain}", help=f"pass {expected}")
    if attributes.get("must_succeed") and not routine.reports:
        raise ArgumentError(f"`{name}` does not report whether it succeeds")
    if len(operands) != len(routine.trailing):
        raise ArgumentError(f"`{name}` takes {len(routine.trailing)} operands, got {len(operands)}")
    for (shape, _), trailing in zip(operands, routine.trailing, strict=True):
        if len(shape) < trailing:
            raise ShapeError(
                f"`{name}` of an array of shape {shape}", help=f"give it at least {trailing} dims, the last of a matrix"
            )
    batch = routine.batch(operands)
    if any(shape[: len(shape) - n] != batch for (shape, _), n in zip(operands, routine.trailing, strict=True)):
        shapes = " and ".join(str(shape) for shape, _ in operands)
        raise ShapeError(f"`{name}` of shapes {shapes}", help="the leading dims of all operands are the same")
    cores = [(shape[len(shape) - n :], dtype) for (shape, dtype), n in zip(operands, routine.trailing, strict=True)]
    results = routine.types(cores, plain)
    if routine.reports:
        results.append(((), dtypes.i32))
    return [((*batch, *shape), dtype) for shape, dtype in results]


def _float(name: str, operands: Sequence[Form]) -> DType:
    dtype = operands[0][1]
    if dtype not in (dtypes.f32, dtypes.f64) or any(other != dtype for _, other in operands):
        found = " and ".join(repr(dtype) for _, dtype in operands)
        raise DTypeError(f"`{name}` takes operands of f32 or of f64, got {found}", help="cast them with `.astype`")
    return dtype


def _square(name: str, shape: Shape) -> int:
    if shape[0] != shape[1]:
        raise ShapeError(f"`{name}` of matrices of {shape[0]} by {shape[1]}", help="give square matrices")
    return shape[0]


def _cubic(factor: float) -> Callable[[Sequence[Form], Sequence[Form]], float]:
    """Work of so many times m n min(m, n)."""

    def flops(operands: Sequence[Form], results: Sequence[Form]) -> float:
        rows, columns = operands[0][0][-2:]
        return factor * rows * columns * min(rows, columns)

    return flops


def _solve_flops(operands: Sequence[Form], results: Sequence[Form]) -> float:
    rows, columns = operands[1][0][-2:]
    n = operands[0][0][-1]
    return 2.0 * n**3 / 3 + 2.0 * n * rows * columns


def _triangular_flops(operands: Sequence[Form], results: Sequence[Form]) -> float:
    rows, columns = operands[1][0][-2:]
    return float(operands[0][0][-1]) * rows * columns


def _transform_flops(operands: Sequence[Form], results: Sequence[Form]) -> float:
    sizes = [shape[-1] if len(shape) == 1 else shape[-2] for shape, _ in (operands[0], results[0])]
    length = max(max(sizes), 2)
    return 5.0 * length * math.log2(length)


# ---- factorisations -------------------------------------------------------------------------------------------------


@_Registered("potrf", (2,), _cubic(1 / 3), reports=True, attributes={"lower": bool})
def _potrf(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("potrf", operands)
    _square("potrf", operands[0][0])
    return [(operands[0][0], dtype)]


@_Registered("getrf", (2,), _cubic(2 / 3), reports=True)
def _getrf(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("getrf", operands)
    return [(operands[0][0], dtype), ((min(operands[0][0]),), dtypes.i32)]


@_Registered("lu_permutation", (1,), lambda operands, results: 0.0, attributes={"size": int})
def _lu_permutation(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    ((shape, dtype),) = operands
    if dtype != dtypes.i32:
        raise DTypeError(f"`lu_permutation` takes pivots of i32, got {dtype}", help="cast them with `.astype`")
    if shape[0] > attributes["size"]:
        raise ShapeError(f"`lu_permutation` of {shape[0]} pivots of {attributes['size']} rows")
    return [((attributes["size"],), dtypes.i32)]


@_Registered("gesv", (2, 2), _solve_flops, reports=True)
def _gesv(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("gesv", operands)
    (matrix, _), (right, _) = operands
    if _square("gesv", matrix) != right[0]:
        raise ShapeError(f"`gesv` of matrices of shapes {matrix} and {right}", help="give both the same rows")
    return [(right, dtype)]


@_Registered("getri", (2,), _cubic(2), reports=True)
def _getri(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("getri", operands)
    _square("getri", operands[0][0])
    return [(operands[0][0], dtype)]


@_Registered(
    "trsm",
    (2, 2),
    _triangular_flops,
    attributes={"left": bool, "lower": bool, "transposed": bool, "unit": bool},
)
def _trsm(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("trsm", operands)
    (matrix, _), (right, _) = operands
    if _square("trsm", matrix) != right[0 if attributes["left"] else 1]:
        raise ShapeError(f"`trsm` of matrices of shapes {matrix} and {right}", help="give sizes that fit")
    return [(right, dtype)]


@_Registered("geqrf", (2,), _cubic(2))
def _geqrf(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("geqrf", operands)
    return [(operands[0][0], dtype), ((min(operands[0][0]),), dtype)]


@_Registered("orgqr", (2, 1), _cubic(2))
def _orgqr(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("orgqr", operands)
    (matrix, _), (tau, _) = operands
    if not matrix[0] >= matrix[1] >= tau[0]:
        raise ShapeError(
            f"`orgqr` of {tau[0]} reflectors in a matrix of {matrix[0]} by {matrix[1]}",
            help="give no more reflectors than columns, and no more columns than rows",
        )
    return [(matrix, dtype)]


@_Registered("syevd", (2,), _cubic(9), reports=True, attributes={"lower": bool, "vectors": bool})
def _syevd(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("syevd", operands)
    n = _square("syevd", operands[0][0])
    values: list[Form] = [((n,), dtype)]
    return [((n, n), dtype), *values] if attributes["vectors"] else values


@_Registered("gesdd", (2,), _cubic(12), reports=True, attributes={"full": bool, "vectors": bool})
def _gesdd(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("gesdd", operands)
    rows, columns = operands[0][0]
    least = min(rows, columns)
    if not attributes["vectors"]:
        return [((least,), dtype)]
    left, right = (rows, columns) if attributes["full"] else (least, least)
    return [((rows, left), dtype), ((least,), dtype), ((right, columns), dtype)]


@_Registered("geev", (2,), _cubic(25), reports=True, attributes={"vectors": bool})
def _geev(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("geev", operands)
    n = _square("geev", operands[0][0])
    values: list[Form] = [((n, 2), dtype)]
    return [*values, ((n, n, 2), dtype)] if attributes["vectors"] else values


# ---- Fourier transforms ---------------------------------------------------------------------------------------------


def _pairs(name: str, shape: Shape) -> int:
    if shape[1] != 2:
        raise ShapeError(
            f"`{name}` of {shape[1]} parts of a number", help="the last dim is the real and imaginary part"
        )
    return _line(name, shape[0])


def _line(name: str, length: int) -> int:
    if length < 1:
        raise ShapeError(f"`{name}` of lines without elements", help="transform at least one element")
    return length


@_Registered("fft.c2c", (2,), _transform_flops, attributes={"inverse": bool, "scale": float})
def _complex_transform(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("fft.c2c", operands)
    _pairs("fft.c2c", operands[0][0])
    return [(operands[0][0], dtype)]


@_Registered("fft.r2c", (1,), _transform_flops, attributes={"scale": float})
def _real_transform(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("fft.r2c", operands)
    return [((_line("fft.r2c", operands[0][0][0]) // 2 + 1, 2), dtype)]


@_Registered("fft.c2r", (2,), _transform_flops, attributes={"size": int, "scale": float})
def _transform_to_reals(operands: Sequence[Form], attributes: Attributes) -> list[Form]:
    dtype = _float("fft.c2r", operands)
    size = _line("fft.c2r", attributes["size"])
    if _pairs("fft.c2r", operands[0][0]) < size // 2 + 1:
        raise ShapeError(
            f"`fft.c2r` of {operands[0][0][0]} numbers to {size}", help=f"pad the line to {size // 2 + 1} numbers"
        )
    return [((size,), dtype)]


# ---- failures -------------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[str, str]] = {
    "potrf": (
        "`cholesky` of a matrix that is not positive definite",
        "add a multiple of the identity to the matrix, or use `eigh`",
    ),
    "getrf": ("the factorisation of a singular matrix", "use `pinv`, or add a multiple of the identity to the matrix"),
    "gesv": ("`solve` with a singular matrix", "use `pinv(a) @ b`, or add a multiple of the identity to the matrix"),
    "getri": ("`inv` of a singular matrix", "use `pinv`, or add a multiple of the identity to the matrix"),
    "syevd": ("the eigenvalues of a matrix did not converge", "check the matrix for NaN and infinities"),
    "gesdd": ("the singular values of a matrix did not converge", "check the matrix for NaN and infinities"),
    "geev": ("the eigenvalues of a matrix did not converge", "check the matrix for NaN and infinities"),
}
"""What the failure of a routine means, and what to do: of those that report it."""

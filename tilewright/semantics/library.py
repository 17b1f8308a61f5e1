"""The definition of every library routine in NumPy and SciPy: what `array.library_call` gives for each matrix or line.

NumPy's own transforms and decompositions where it has them, SciPy's wrappers of LAPACK for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import dtypes, routines
from tilewright.errors import LinearAlgebraError
from tilewright.runtime.cpu.library_functions import scipy_module

Tensor = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]


def call(operands: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Results of the routine that the attributes name.

    Raises:
        LinearAlgebraError: it fails for a matrix, and must succeed.
        ResourceUnavailable: SciPy is not installed.
    """
    name = attributes["routine"]
    routine, define = routines.ROUTINES[name], _DEFINITIONS[name]
    forms = [(operand.shape, dtypes.from_numpy(operand.dtype)) for operand in operands]
    plain = {key: attributes[key] for key in routine.attributes}
    results = [np.zeros(shape, dtype.numpy) for shape, dtype in routines.result_forms(name, forms, attributes)]
    with np.errstate(all="ignore"):
        for index in np.ndindex(routine.batch(forms)):
            parts = define([operand[index] for operand in operands], plain)
            for result, part in zip(results, parts, strict=True):
                result[index] = part
    if attributes.get("must_succeed") and results[-1].any():
        raise failure(name)
    return tuple(results)


def failure(name: str) -> LinearAlgebraError:
    """The error of a routine that must succeed and did not."""
    text, help = routines.FAILURES[name]
    return LinearAlgebraError(text, help=help)


def _lapack(name: str, matrix: Tensor) -> Callable[..., Any]:
    """SciPy's wrapper of a routine for the matrix's element type."""
    letter = "s" if matrix.dtype == np.float32 else "d"
    return getattr(scipy_module("scipy.linalg.lapack"), letter + name)


def _potrf(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    (matrix,) = operands
    triangle = np.tril(matrix) if a["lower"] else np.triu(matrix).T
    try:
        factor = np.linalg.cholesky(triangle)
    except np.linalg.LinAlgError:
        return np.nan, 1
    return (factor if a["lower"] else factor.T), 0


def _getrf(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    (matrix,) = operands
    if matrix.size == 0:
        return matrix, np.zeros(0), 0
    factors, pivots, info = _lapack("getrf", matrix)(matrix)
    return factors, pivots + 1, info


def _lu_permutation(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    rows = list(range(a["size"]))
    for row, pivot in enumerate(operands[0].tolist()):
        rows[row], rows[pivot - 1] = rows[pivot - 1], rows[row]
    return (rows,)


def _gesv(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    matrix, right = operands
    try:
        return np.linalg.solve(matrix, right), 0
    except np.linalg.LinAlgError:
        return np.nan, 1


def _getri(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    try:
        return np.linalg.inv(operands[0]), 0
    except np.linalg.LinAlgError:
        return np.nan, 1


def _trsm(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    matrix, right = operands
    if right.size == 0:
        return (right,)
    letter = "s" if matrix.dtype == np.float32 else "d"
    solve = getattr(scipy_module("scipy.linalg.blas"), f"{letter}trsm")
    flags = {"side": not a["left"], "lower": a["lower"], "trans_a": a["transposed"], "diag": a["unit"]}
    return (solve(1, matrix, right, **flags),)


def _geqrf(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    (matrix,) = operands
    if matrix.size == 0:
        return matrix, np.zeros(0)
    packed, tau, _, _ = _lapack("geqrf", matrix)(matrix)
    return packed, tau


def _orgqr(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    """Multiply the reflectors, one after the other."""
    packed, tau = operands
    rows, columns = packed.shape
    result = np.eye(rows, columns)
    for k in reversed(range(len(tau))):
        vector = np.concatenate([np.zeros(k), [1.0], packed[k + 1 :, k]])
        result -= tau[k] * np.outer(vector, vector @ result)
    return (result,)


def _syevd(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    uplo = "L" if a["lower"] else "U"
    try:
        if not a["vectors"]:
            return np.linalg.eigvalsh(operands[0], uplo), 0
        values, vectors = np.linalg.eigh(operands[0], uplo)
    except np.linalg.LinAlgError:
        return (np.nan, np.nan, 1) if a["vectors"] else (np.nan, 1)
    return vectors, values, 0


def _gesdd(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    try:
        if not a["vectors"]:
            return np.linalg.svd(operands[0], compute_uv=False), 0
        return *np.linalg.svd(operands[0], full_matrices=a["full"]), 0
    except np.linalg.LinAlgError:
        return (np.nan, np.nan, np.nan, 1) if a["vectors"] else (np.nan, 1)


def _geev(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    try:
        if not a["vectors"]:
            return _parts(np.linalg.eigvals(operands[0])), 0
        values, vectors = np.linalg.eig(operands[0])
    except np.linalg.LinAlgError:
        return (np.nan, np.nan, 1) if a["vectors"] else (np.nan, 1)
    return _parts(values), _parts(vectors), 0


def _parts(numbers: Tensor) -> Tensor:
    """Complex numbers as reals with a trailing dim of 2."""
    return np.stack([numbers.real, numbers.imag], axis=-1)


def _numbers(parts: Tensor) -> Tensor:
    """Complex numbers of twice the element size, from reals with a trailing dim of 2."""
    return np.ascontiguousarray(parts).view(f"c{2 * parts.itemsize}")[..., 0]


def _complex_transform(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    line = _numbers(operands[0])
    # The inverse without its own factor.
    result = np.fft.ifft(line, norm="forward") if a["inverse"] else np.fft.fft(line)
    return (_parts(result * a["scale"]),)


def _real_transform(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    return (_parts(np.fft.rfft(operands[0]) * a["scale"]),)


def _transform_to_reals(operands: Sequence[Tensor], a: Attributes) -> Sequence[Any]:
    return (np.fft.irfft(_numbers(operands[0]), a["size"], norm="forward") * a["scale"],)


_DEFINITIONS: dict[str, Callable[[Sequence[Tensor], Attributes], Sequence[Any]]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "lu_permutation": _lu_permutation,
    "gesv": _gesv,
    "getri": _getri,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
    "geev": _geev,
    "fft.c2c": _complex_transform,
    "fft.r2c": _real_transform,
    "fft.c2r": _transform_to_reals,
}

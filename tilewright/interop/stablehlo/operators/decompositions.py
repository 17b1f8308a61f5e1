"""Factorisations and systems of equations: StableHLO's own two, and the calls of LAPACK that JAX makes on CPUs.

As JAX has them, nothing is raised: the results of what fails are NaN, and LAPACK's status states it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.api.array import Array
from tilewright.api.complex_primitives import from_pairs
from tilewright.api.functions_decompositions import call
from tilewright.api.lifting import full
from tilewright.interop.stablehlo.registry import Node, operation

_TRANSPOSES = {"NO_TRANSPOSE": False, "TRANSPOSE": True, "ADJOINT": True}


@operation("stablehlo.cholesky")
def cholesky(node: Node, a: Array) -> Array:
    """The triangular factor, zeros in the other triangle; NaN where the matrix is not positive definite."""
    return call("potrf", a, lower=_flag(node.get("lower", False)))[0]


@operation("stablehlo.triangular_solve")
def triangular_solve(node: Node, a: Array, b: Array) -> Array:
    """Systems of equations with a triangular matrix, on either side of the unknowns."""
    transpose = node.get("transpose_a")
    if transpose not in _TRANSPOSES:
        raise node.malformed(f"`transpose_a` is {transpose!r}")
    left, lower, unit = (_flag(node.get(name)) for name in ("left_side", "lower", "unit_diagonal"))
    return call("trsm", a, b, left=left, lower=lower, transposed=_TRANSPOSES[transpose], unit=unit)[0]


def _flag(value: object) -> bool:
    return bool(value)


# ---- calls of LAPACK ------------------------------------------------------------------------------------------------


def _letter(node: Node, name: str) -> str:
    """A letter among a call's settings, which are integers of 8 bits."""
    settings: dict[str, Any] = node.get("mhlo.backend_config", {})
    value = settings.get(name) if isinstance(settings, dict) else None  # pyright: ignore[reportUnnecessaryIsInstance]  damaged texts have others
    if not isinstance(value, int) or not 0 <= value < 128:
        raise node.malformed(f"the call of LAPACK has no setting `{name}`")
    return chr(value)


def _absent(node: Node, index: int) -> Array:
    """A result that LAPACK does not compute."""
    type = node.types[index]
    return full(type.shape, 0, type.dtype)


def _potrf(node: Node, a: Array) -> Sequence[Array]:
    return call("potrf", a, lower=_letter(node, "uplo") == "L")


def _getrf(node: Node, a: Array) -> Sequence[Array]:
    return call("getrf", a)


def _geqrf(node: Node, a: Array) -> Sequence[Array]:
    return call("geqrf", a)


def _orgqr(node: Node, a: Array, tau: Array) -> Sequence[Array]:
    return call("orgqr", a, tau)


def _trsm(node: Node, a: Array, b: Array) -> Sequence[Array]:
    side, uplo, transpose, diagonal = (_letter(node, name) for name in ("side", "uplo", "trans_x", "diag"))
    return call("trsm", a, b, left=side == "L", lower=uplo == "L", transposed=transpose != "N", unit=diagonal == "U")


def _syevd(node: Node, a: Array) -> Sequence[Array]:
    lower = _letter(node, "uplo") == "L"
    if _letter(node, "mode") == "V":
        return call("syevd", a, lower=lower, vectors=True)
    return (_absent(node, 0), *call("syevd", a, lower=lower, vectors=False))


def _gesdd(node: Node, a: Array) -> Sequence[Array]:
    mode = _letter(node, "mode")
    if mode not in "ASN":
        raise node.unsupported(f"a call of LAPACK's `gesdd` in the mode {mode!r}")
    if mode == "N":
        values, info = call("gesdd", a, full=False, vectors=False)
        return _absent(node, 0), values, _absent(node, 2), _absent(node, 3), info
    left, values, right, info = call("gesdd", a, full=mode == "A", vectors=True)
    return _absent(node, 0), values, left, right, info


def _geev(node: Node, a: Array) -> Sequence[Array]:
    if _letter(node, "compute_left") == "V":
        raise node.unsupported("left eigenvectors by LAPACK's `geev`", "use those of the transpose")
    if _letter(node, "compute_right") == "V":
        pairs, vectors, info = call("geev", a, vectors=True)
        right: Array = from_pairs(vectors)
    else:
        pairs, info = call("geev", a, vectors=False)
        right = _absent(node, 3)
    values = from_pairs(pairs)
    return values.real, values.imag, _absent(node, 2), right, info


Rule = Callable[..., Sequence[Array]]
_ROUTINES: dict[str, Rule] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "trsm": _trsm,
    "syevd": _syevd,
    "gesdd": _gesdd,
    "geev": _geev,
}
# Custom calls by their targets, of f32 and of f64.
LAPACK_CALLS: dict[str, Rule] = {
    f"lapack_{letter}{name}_ffi": rule for name, rule in _ROUTINES.items() for letter in "sd"
}

"""Factorisations and systems of equations of JAX programs, against JAX itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.interop.targets import CPU
from tilewright.errors import UnsupportedOperatorError

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.lax.linalg import triangular_solve  # noqa: E402
from jax.scipy import linalg as scipy_linalg  # noqa: E402

_RANDOM = np.random.default_rng(3)


def compare(function: Any, *arguments: Any, tolerance: float = 2e-4, target: str = "interp") -> None:
    """Leaves are equal in type and shape and near in value. `interp` compiles nothing: most tests are of the rules."""
    found = jax.tree.leaves(tw.from_jax(function, *arguments, target=target)(*arguments))
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(found, expected, strict=True):
        wanted = np.asarray(theirs)
        assert (np.asarray(ours).dtype, np.shape(ours)) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance)


def _square(x: Any, b: Any) -> Any:
    symmetric = x @ x.mT + jnp.eye(4, dtype=x.dtype)
    factor = jnp.linalg.cholesky(symmetric)
    values, vectors = jnp.linalg.eigh(symmetric)
    return (
        (jnp.linalg.inv(x), jnp.linalg.solve(x, b), jnp.linalg.det(x), jnp.linalg.slogdet(x)),
        (factor, values, jnp.abs(vectors), jnp.linalg.eigvalsh(symmetric), jnp.linalg.matrix_power(x, -2)),
        (scipy_linalg.cho_solve((factor, True), b), scipy_linalg.lu(x)),
    )


def _rectangular(x: Any) -> Any:
    u, s, vh = jnp.linalg.svd(x)
    return (
        (jnp.linalg.qr(x), jnp.linalg.qr(x, mode="complete"), jnp.linalg.pinv(x), jnp.linalg.matrix_rank(x)),
        (jnp.abs(u[..., :3]), s, jnp.abs(vh), jnp.linalg.svdvals(x), jnp.linalg.svd(x, full_matrices=False)[1]),
    )


def _triangular(a: Any, b: Any, c: Any) -> Any:
    a = a / 8 + 2 * jnp.eye(4, dtype=a.dtype)
    return [
        triangular_solve(a, b if left else c, left_side=left, lower=lower, transpose_a=transposed, unit_diagonal=unit)
        for left in (False, True)
        for lower in (False, True)
        for transposed in (False, True)
        for unit in (False, True)
    ]


def _normal(dtype: Any, *shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(dtype)


def test_functions_of_numpy_and_scipy() -> None:
    x, b = _normal(np.float32, 2, 4, 4), _normal(np.float32, 2, 4, 2)
    compare(jax.vmap(_square), x, b)
    compare(_rectangular, _normal(np.float32, 5, 3))
    with jax.enable_x64(True):
        wide = (_normal(np.float64, 4, 4), _normal(np.float64, 4, 2))
        compare(lambda x, b: (jnp.linalg.solve(x, b), jnp.linalg.svdvals(x)), *wide, tolerance=1e-9)


def test_triangular_systems() -> None:
    operands = [_normal(np.float32, 2, *shape) for shape in ((4, 4), (4, 3), (3, 4))]
    compare(_triangular, *operands, target=CPU)


def test_gradients_and_batches() -> None:
    x = _RANDOM.standard_normal((3, 4, 4)).astype(np.float32)
    definite = x @ np.swapaxes(x, -1, -2) + 2 * np.eye(4, dtype=np.float32)

    def loss(a: Any) -> Any:
        factor = jnp.linalg.cholesky(a)
        values, _ = jnp.linalg.eigh(a)
        q, r = jnp.linalg.qr(a)
        determinant = jnp.linalg.slogdet(a)[1]
        return (
            jnp.sum(jnp.sin(factor))
            + jnp.sum(values**2)
            + determinant
            + jnp.sum(jnp.abs(q @ r))
            + jnp.trace(jnp.linalg.inv(a))
        )

    compare(jax.vmap(jax.grad(loss)), definite, tolerance=1e-3, target=CPU)


def test_samples_of_a_normal_distribution() -> None:
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)

    def samples(key: Any, covariance: Any) -> Any:
        return jax.random.multivariate_normal(key, jnp.zeros(2), covariance, (5,))

    compare(samples, jax.random.key(1), covariance)


def test_failures_are_nan_as_jax_has_them() -> None:
    indefinite = np.array([[1.0, 2.0], [2.0, 1.0]], np.float32)
    singular = np.array([[1.0, 2.0], [2.0, 4.0]], np.float32)
    compare(lambda a, b: (jnp.linalg.cholesky(a), jnp.linalg.det(b), jnp.linalg.slogdet(b)), indefinite, singular)


def test_the_operations_of_stablehlo_themselves() -> None:
    """As exports for other devices have them."""
    text = """
module {
  func.func @main(%a: tensor<2x3x3xf32>, %b: tensor<2x3x1xf32>) -> (tensor<2x3x3xf32>, tensor<2x3x1xf32>) {
    %0 = stablehlo.cholesky %a, lower = true : tensor<2x3x3xf32>
    %1 = "stablehlo.triangular_solve"(%0, %b) <{left_side = true, lower = true, unit_diagonal = false,
      transpose_a = #stablehlo<transpose TRANSPOSE>}> : (tensor<2x3x3xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    return %0, %1 : tensor<2x3x3xf32>, tensor<2x3x1xf32>
  }
}
"""
    x = _RANDOM.standard_normal((2, 3, 3)).astype(np.float32)
    definite, b = x @ np.swapaxes(x, -1, -2) + np.eye(3, dtype=np.float32), np.ones((2, 3, 1), np.float32)
    factor, solution = tw.from_stablehlo(text)(definite, b)
    expected = np.linalg.cholesky(definite.astype(np.float64))
    np.testing.assert_allclose(factor, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(solution, np.linalg.solve(np.swapaxes(expected, -1, -2), b), rtol=1e-4, atol=1e-5)


def test_other_routines_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperatorError, match="lapack_sgees_ffi"):
        tw.from_jax(scipy_linalg.schur, np.eye(3, dtype=np.float32))

"""Linear algebra: factorisations, systems of equations, eigenvalues."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.interop.stablehlo.programs.registry import program


@program(lambda r: (np.sort(r.uniform(-3, 3, 12)), r.standard_normal(12), np.linspace(-3, 3, 9)), wide=True, bound=1e-9)
def gaussian_process(x: Any, y: Any, at: Any) -> Any:
    """Regression: mean, variance, likelihood and its gradient, by Cholesky."""

    def kernel(a: Any, b: Any, scale: Any) -> Any:
        return jnp.exp(-0.5 * ((a[:, None] - b) / scale) ** 2)

    def likelihood(scale: Any) -> Any:
        root = jnp.linalg.cholesky(kernel(x, x, scale) + 0.1 * jnp.eye(x.size))
        z = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        return -0.5 * z @ z - jnp.log(jnp.diag(root)).sum()

    factor = jax.scipy.linalg.cho_factor(kernel(x, x, 1.0) + 0.1 * jnp.eye(x.size), lower=True)
    across = kernel(at, x, 1.0)
    mean = across @ jax.scipy.linalg.cho_solve(factor, y)
    variance = 1 - jnp.sum(across * jax.scipy.linalg.cho_solve(factor, across.T).T, 1)
    return mean, variance, jax.value_and_grad(likelihood)(1.3)


@program(lambda r: (r.standard_normal((20, 6)),), wide=True, bound=1e-9)
def principal_components(x: Any) -> Any:
    """PCA by the singular value decomposition: variances, and the data from three components."""
    centred = x - x.mean(0)
    _, values, rows = jnp.linalg.svd(centred, full_matrices=False)
    projected = centred @ rows[:3].T
    return values**2 / 19, projected @ rows[:3], jnp.abs(projected)


@program(lambda r: (r.standard_normal((15, 4)), r.standard_normal(15)), wide=True, bound=1e-9)
def least_squares(a: Any, b: Any) -> Any:
    """Least squares by QR, by normal equations and with a ridge."""
    q, r = jnp.linalg.qr(a)
    by_qr = jax.scipy.linalg.solve_triangular(r, q.T @ b)
    by_normal = jnp.linalg.solve(a.T @ a, a.T @ b)
    ridge = jnp.linalg.solve(a.T @ a + 0.5 * jnp.eye(4), a.T @ b)
    return by_qr, by_normal, ridge, jnp.linalg.inv(a.T @ a), jnp.linalg.slogdet(a.T @ a), jnp.linalg.det(a[:4])


@program(lambda r: (r.standard_normal((8, 8)),), wide=True, bound=1e-9)
def eigenvalues(a: Any) -> Any:
    """Eigenvalues of a symmetric matrix, functions of it by them, and their gradient."""
    symmetric = a + a.T
    values, vectors = jnp.linalg.eigh(symmetric)
    exponential = vectors @ jnp.diag(jnp.exp(values / 8)) @ vectors.T
    return values, exponential, jax.grad(lambda m: jnp.linalg.eigvalsh(m + m.T)[-1])(a)


@program(lambda r: (np.array([0.5, 0.5, 0.5]),), wide=True, bound=1e-10)
def newton_system(start: Any) -> Any:
    """A system of nonlinear equations by Newton's method, with Jacobians by `jacfwd`."""

    def function(x: Any) -> Any:
        return jnp.array([x[0] ** 2 + x[1] - 1.5, jnp.sin(x[1]) + x[2] - 1, x[0] * x[2] - 0.25])

    def advance(_: Any, x: Any) -> Any:
        return x - jnp.linalg.solve(jax.jacfwd(function)(x), function(x))

    return jax.lax.fori_loop(0, 6, advance, start)


@program(lambda r: (r.standard_normal((30, 3)), (r.uniform(size=30) > 0.5).astype(np.float64)), wide=True, bound=1e-9)
def logistic_newton(x: Any, y: Any) -> Any:
    """Logistic regression by Newton's method with the Hessian, and standard errors."""

    def loss(w: Any) -> Any:
        return jnp.sum(jax.nn.softplus(x @ w) - y * (x @ w)) + 0.5 * w @ w

    def advance(w: Any, _: Any) -> Any:
        return w - jnp.linalg.solve(jax.hessian(loss)(w), jax.grad(loss)(w)), loss(w)

    w, losses = jax.lax.scan(advance, jnp.zeros(3), None, length=6)
    return w, losses, jnp.sqrt(jnp.diag(jnp.linalg.inv(jax.hessian(loss)(w))))


@program(lambda r: (r.standard_normal((40, 12)),), wide=True, bound=1e-8, why="the iteration converges linearly")
def power_iteration(x: Any) -> Any:
    """The leading singular vectors by subspace iteration with Gram-Schmidt, without a library."""

    def orthonormal(v: Any) -> Any:
        columns: list[Any] = []
        for column in v.T:
            for other in columns:
                column = column - (other @ column) * other
            columns.append(column / jnp.linalg.norm(column))
        return jnp.stack(columns, 1)

    start = orthonormal(jnp.cos(jnp.arange(36.0) ** 2).reshape(12, 3))
    final = jax.lax.fori_loop(0, 40, lambda _, v: orthonormal(x.T @ (x @ v)), start)
    return jnp.linalg.norm(x @ final, axis=0), final @ final.T

"""`tw.linalg` against NumPy in f64: batches, shapes without elements, both element types, interpreted and native.

`python tests/unit/api/test_api_decompositions.py` compares random matrices of more shapes.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError, LinearAlgebraError, ShapeError

linalg = tw.linalg
SHAPES = [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 4), (2, 0, 3, 3), (0, 0), (0, 3), (3, 0), (2, 3, 0)]


def matrix(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def near(found: Any, expected: Any, dtype: Any) -> None:
    """Of a type and shape, within a hundred units in the last place of 1 or of the largest element."""
    expected = np.asarray(expected, np.float64)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    scale = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=500 * scale * np.finfo(dtype).eps)


def identity(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.broadcast_to(np.eye(size), (*shape, size, size))


def check_factors(shape: tuple[int, ...], dtype: Any, target: str, seed: int = 0) -> None:
    """Products of the factors, orthonormal columns, triangles, values that NumPy finds."""
    x = matrix(shape, dtype, seed)
    wide, least, batch = x.astype(np.float64), min(shape[-2:]), shape[:-2]

    def factors(x: Any) -> Any:
        modes = (linalg.qr(x), linalg.qr(x, mode="complete"))
        return modes, (linalg.svd(x), linalg.svd(x, full_matrices=False)), linalg.svdvals(x), linalg.pinv(x)

    qrs, svds, values, inverse = tw.jit(factors, target=target)(x)
    for q, r in qrs:
        near(q @ r, wide, dtype)
        near(np.swapaxes(q, -1, -2) @ q, identity(batch, q.shape[-1]), dtype)
        assert not np.tril(r, -1).any()
    assert [q.shape[-1] for q, _ in qrs] == [least, shape[-2]]
    expected = np.linalg.svd(wide, compute_uv=False)
    near(values, expected, dtype)
    for u, s, vh in svds:
        near(s, expected, dtype)
        near(u[..., :least] * s[..., None, :] @ vh[..., :least, :], wide, dtype)
        near(np.swapaxes(u, -1, -2) @ u, identity(batch, u.shape[-1]), dtype)
        near(vh @ np.swapaxes(vh, -1, -2), identity(batch, vh.shape[-2]), dtype)
    assert [u.shape[-1] for u, _, _ in svds] == [shape[-2], least]
    near(x @ inverse @ x, wide, dtype)


def check_square(shape: tuple[int, ...], dtype: Any, target: str, seed: int = 0) -> None:
    size = shape[-1]
    x = matrix(shape, dtype, seed) + 3 * np.eye(size, dtype=dtype)
    symmetric = (x + np.swapaxes(x, -1, -2)) / 2
    definite = (x @ np.swapaxes(x, -1, -2) + np.eye(size)).astype(dtype)
    right = matrix((*shape[:-1], 2), dtype, seed + 1)
    wide = x.astype(np.float64)

    def program(x: Any, symmetric: Any, definite: Any, right: Any) -> Any:
        return (
            (linalg.det(x), linalg.slogdet(x), linalg.inv(x), linalg.solve(x, right)),
            (linalg.solve(x, right[..., 0]) if right.ndim == 2 else None),
            (linalg.cholesky(definite), linalg.cholesky(definite, upper=True)),
            (linalg.eigh(symmetric), linalg.eigvalsh(symmetric), linalg.matrix_rank(x)),
        )

    (det, slogdet, inverse, solution), vector, (lower, upper), (eigh, values, rank) = tw.jit(program, target=target)(
        x, symmetric, definite, right
    )
    near(det, np.linalg.det(wide), dtype)
    sign, logarithm = np.linalg.slogdet(wide)
    near(slogdet.sign, sign, dtype)
    near(slogdet.logabsdet, logarithm, dtype)
    near(inverse, np.linalg.inv(wide), dtype)
    near(solution, np.linalg.solve(wide, right.astype(np.float64)), dtype)
    if vector is not None:
        near(vector, np.linalg.solve(wide, right[..., 0].astype(np.float64)), dtype)
    near(lower, np.linalg.cholesky(definite.astype(np.float64)), dtype)
    near(upper, np.swapaxes(lower, -1, -2), dtype)
    near(values, np.linalg.eigvalsh(symmetric.astype(np.float64)), dtype)
    near(eigh.eigenvalues, values, dtype)
    near(eigh.eigenvectors * values[..., None, :] @ np.swapaxes(eigh.eigenvectors, -1, -2), symmetric, dtype)
    assert rank.dtype == np.int64
    np.testing.assert_array_equal(rank, np.full(shape[:-2], size))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_factorisations(target, dtype):
    for shape in SHAPES if dtype is np.float64 else SHAPES[2:5]:
        check_factors(shape, dtype, target)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_functions_of_square_matrices(target, dtype):
    shapes = ((1, 1), (4, 4), (2, 3, 3), (0, 0), (2, 0, 0), (0, 3, 3))
    for shape in shapes if dtype is np.float64 else shapes[1:3]:
        check_square(shape, dtype, target)


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_singular_matrices(target):
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    stacked = np.stack([np.eye(2), singular])
    found = tw.jit(lambda x: (linalg.det(x), linalg.slogdet(x), linalg.pinv(x), linalg.matrix_rank(x)), target=target)(
        stacked
    )
    np.testing.assert_array_equal(found[0], [1, 0])
    np.testing.assert_array_equal(found[1].sign, [1, 0])
    np.testing.assert_array_equal(found[1].logabsdet, [0, -np.inf])
    np.testing.assert_allclose(found[2], np.linalg.pinv(stacked))
    np.testing.assert_array_equal(found[3], [2, 1])
    for function in (linalg.inv, lambda x: linalg.solve(x, x), lambda x: linalg.matrix_power(x, -1)):
        with pytest.raises(LinearAlgebraError, match="singular") as caught:
            tw.jit(function, target=target)(stacked)
        assert isinstance(caught.value, np.linalg.LinAlgError)
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        tw.jit(linalg.cholesky, target=target)(-np.eye(2))


def test_tolerances():
    x = np.diag([1.0, 1e-3, 1e-9])
    stacked = np.stack([x, 2 * x])
    ranks = tw.jit(lambda x: [linalg.matrix_rank(x, rtol=r) for r in (1e-2, 1e-6, 1e-12)])(stacked)
    np.testing.assert_array_equal(ranks, [[1, 1], [2, 2], [3, 3]])
    each = tw.jit(lambda x, r: (linalg.matrix_rank(x, rtol=r), linalg.pinv(x, rtol=r)))(stacked, np.array([1e-2, 1e-6]))
    np.testing.assert_array_equal(each[0], [1, 2])
    np.testing.assert_allclose(each[1], [np.diag([1, 0, 0]), np.diag([0.5, 500, 0])], atol=1e-12)


def test_calls_fuse_with_what_surrounds_them_and_run_in_loops():
    """A Newton iteration with a system in each step, whose carried arrays keep their memory."""
    a = matrix((4, 4), np.float64) + 4 * np.eye(4)

    def program(a: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            return linalg.solve(a + tw.tanh(x) * 0.1, x) * 2.0 + 1.0

        return tw.fori_loop(0, 5, step, tw.ones((4, 4), dtype=tw.f64))

    expected = np.ones((4, 4))
    for _ in range(5):
        expected = np.linalg.solve(a + np.tanh(expected) * 0.1, expected) * 2 + 1
    np.testing.assert_allclose(tw.jit(program)(a), expected, rtol=1e-10)


def test_integers_and_numbers_captured():
    captured = np.array([[2, 1], [1, 3]])
    found = tw.jit(lambda x: (linalg.inv(captured), linalg.matrix_power(x, 3), linalg.det(x)))(captured)
    np.testing.assert_allclose(found[0], np.linalg.inv(captured), rtol=1e-6)
    assert found[0].dtype == found[2].dtype == np.float32
    np.testing.assert_array_equal(found[1], np.linalg.matrix_power(captured, 3))
    assert found[1].dtype == np.int64


def test_mistakes():
    square = np.eye(3)
    for error, function, arrays in (
        (ShapeError, linalg.inv, (square[:2],)),
        (ShapeError, linalg.cholesky, (square[0],)),
        (ShapeError, linalg.solve, (square, square[:2])),
        (ShapeError, linalg.solve, (np.stack([square] * 2), np.stack([square] * 3))),
        (ShapeError, linalg.matrix_power, (square[:2], 2)),
        (ShapeError, linalg.cross, (square[:, :2], square[:, :2])),
        (ShapeError, linalg.matrix_norm, (square[0],)),
        (DTypeError, linalg.det, (square.astype(np.float16),)),
        (ArgumentError, lambda x: linalg.qr(x, mode="r"), (square,)),
        (ArgumentError, lambda x: linalg.matrix_norm(x, ord=3), (square,)),
    ):
        numbers = [a for a in arrays if not isinstance(a, np.ndarray)]
        with pytest.raises(error) as caught:
            tw.jit(lambda *x, f=function, n=tuple(numbers): f(*x, *n))(
                *(a for a in arrays if isinstance(a, np.ndarray))
            )
        assert caught.value.help
        assert caught.value.location is not None


def test_the_example_of_the_page():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "linear-algebra.md").read_text()
    names: dict[str, Any] = {}
    source = page.split("```python")[1].split("```")[0]
    exec(compile(source, "linear-algebra.md", "exec"), names)
    np.testing.assert_allclose(names["weights"], np.arange(4.0), atol=1e-8)


def main() -> None:
    for seed, (batch, rows, columns) in enumerate(itertools.product(((), (3,), (2, 2)), (1, 2, 7, 40), (1, 3, 17, 90))):
        for dtype in (np.float32, np.float64):
            check_factors((*batch, rows, columns), dtype, "cpu", seed)
        print(batch, rows, columns, "agree")


if __name__ == "__main__":
    main()

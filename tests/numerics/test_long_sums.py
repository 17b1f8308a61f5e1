"""Rounding errors of long sums grow with the number of blocks, not with the number of terms."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@pytest.mark.parametrize("shape", [(1, 2**18, 1), (40, 2**15, 24), (3, 2**17, 100)])
def test_products_of_great_depth(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    generator = np.random.default_rng(0)
    # Terms of one sign: rounding errors are not hidden by cancellation.
    a, b = (generator.random(size, dtype=np.float32) for size in ((rows, depth), (depth, columns)))
    exact = a.astype(np.float64) @ b
    found = tw.jit(lambda a, b: a @ b, target="cpu")(a, b)
    # One chain of additions would be off by some 1e-5 at these depths.
    assert np.max(np.abs(found - exact) / exact) < 2e-6


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sums_of_many_terms(axis: int | None) -> None:
    x = np.random.default_rng(0).random((1500, 3000), dtype=np.float32)
    exact = x.sum(axis=axis, dtype=np.float64)
    found = tw.jit(lambda x: tw.sum(x, axis=axis), target="cpu")(x)
    assert np.max(np.abs(found - exact) / exact) < 2e-5


def few_rows(a, b):
    return a @ b


def few_rows_of_transposed(a, b):
    return a @ b.T


def columns_of_transposed(a, b):
    return a.T @ b


@pytest.mark.parametrize(
    ("product", "left", "right", "kernels"),
    [
        (few_rows, (1, 1024), (1024, 1100), 2),
        (few_rows, (3, 2048), (2048, 640), 2),
        (few_rows_of_transposed, (2, 4096), (700, 4096), 1),
        (few_rows_of_transposed, (8, 65536), (8, 65536), 2),
        (columns_of_transposed, (65536, 9), (65536, 10), 2),
    ],
)
def test_products_in_parts_read_their_operands_where_they_lie(product, left, right, kernels: int) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype("f4") for shape in (left, right))
    compiled = tw.jit(product, target="cpu").lower(a, b).compile()
    assert compiled.ir("scheduled").count("tile.kernel") == kernels
    exact = product(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(compiled(a, b), exact, rtol=1e-4, atol=1e-5 * np.sqrt(left[1] * left[0]))

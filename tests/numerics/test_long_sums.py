"""Rounding errors of long sums grow with the number of blocks, not with the number of terms."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops


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
    assert np.max(np.abs(found - exact) / exact) < 1e-6


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


EQUAL = [
    ((10_000_000,), None),
    ((3001, 3333), None),
    ((10, 1_000_003), 1),
    ((1_000_000, 10), 0),
    ((10_000, 1000), 0),
    ((300, 20, 1000), (0, 2)),
    ((100_000, 10, 7), (0, 2)),
]


@pytest.mark.parametrize(("shape", "axis"), EQUAL, ids=str)
def test_sums_of_equal_elements(shape: tuple[int, ...], axis: int | tuple[int, ...] | None) -> None:
    """The worst case: all additions to a running sum round alike."""
    total = tw.jit(lambda x: tw.sum(x, axis=axis), target="cpu")
    average = tw.jit(lambda x: tw.mean(x, axis=axis), target="cpu")
    for value in (0.1, 1000.123):
        x = np.full(shape, value, np.float32)
        exact = float(x.flat[0])
        found = np.asarray(total(x))
        np.testing.assert_allclose(found, exact * (x.size / found.size), rtol=1e-6)
        np.testing.assert_allclose(average(x), exact, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)], ids=str)
def test_the_definition_adds_in_pairs(axis: int | tuple[int, ...]) -> None:
    x = np.full((100_000, 10) if axis == 0 else (10, 100_000), 0.1, np.float32)
    found = np.asarray(tw.jit(lambda x: tw.sum(x, axis=axis), target="interp")(x))
    np.testing.assert_allclose(found, float(x.flat[0]) * (x.size / found.size), rtol=5e-7)


def test_half_precision_sums_in_f32() -> None:
    x = np.full(1_000_000, 0.0625 + 0.000061, np.float16)
    mean = tw.jit(lambda x: tw.mean(x), target="cpu")(x)
    assert float(mean) == float(x[0])


@pytest.mark.parametrize("seed", range(12))
def test_random_long_sums_keep_the_stated_bound(seed: int) -> None:
    """Against exactly rounded sums: each term is rounded with the sums that it goes through, and no others."""
    generator = np.random.default_rng(seed)
    dtype = np.float32 if generator.random() < 0.7 else np.float64
    rank = int(generator.integers(1, 4))
    shape = tuple(int(n) for n in np.exp(generator.uniform(0, 12.0 / rank, rank)).astype(int) + 1)
    axes = tuple(d for d in range(rank) if generator.random() < 0.6) or (int(generator.integers(rank)),)
    x = (generator.standard_normal(shape) * np.exp(generator.uniform(-3, 3, shape)) + generator.uniform(-2, 2)).astype(
        dtype
    )
    found = np.asarray(tw.jit(lambda x: tw.sum(x, axis=axes), target="cpu")(x), np.float64)
    kept = [d for d in range(rank) if d not in axes]
    count = int(np.prod([shape[d] for d in axes]))
    rows = np.transpose(x, (*kept, *axes)).reshape(-1, count).astype(np.float64)
    allowed = (ops.summation_depth(count) + 1) * np.finfo(dtype).eps / 2
    # Some of the rows: exactly rounded sums are slow.
    for row, total in list(zip(rows, found.reshape(-1), strict=True))[:: max(1, len(rows) // 20)]:
        assert abs(total - math.fsum(row)) <= allowed * math.fsum(np.abs(row)), (shape, axes)

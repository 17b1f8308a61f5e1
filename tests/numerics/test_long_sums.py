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

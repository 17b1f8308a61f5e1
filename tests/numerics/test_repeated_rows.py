"""Rows of a few elements that are repeated, with what computes them, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilewright as tw

DTYPES = ["f4", "f8", "f2", "u1", "i4", "i8", "?"]
SHAPES = [(1, 2), (7, 2), (1001, 2), (1600, 1), (33, 4), (333, 3), (64, 5), (12, 40, 2), (1000, 1, 2)]
COUNTS = [1, 2, 3, 4, 8]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 100, shape)
    return values > 50 if dtype == "?" else values.astype(dtype)


@pytest.mark.parametrize(("dtype", "shape", "count"), list(itertools.product(DTYPES, SHAPES, COUNTS)), ids=repr)
def test_tiled_rows_repeated_elements_and_repeated_arrays(dtype: str, shape: tuple[int, ...], count: int) -> None:
    x = numbers(shape, dtype)
    rows = (*[1] * (len(shape) - 1), count)

    def views(xp, x):
        y = x | x[..., :1] if dtype == "?" else x + x[..., :1]
        return xp.tile(x, rows), xp.tile(y, rows), xp.repeat(y, count, axis=-1), xp.broadcast_to(y, (count, *shape))

    for found, expected in zip(tw.jit(lambda x: views(tw, x))(x), views(np, x), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["u1", "f2", "i8"])
@pytest.mark.parametrize("shape", [(3, 40, 50), (4, 17, 301), (2, 300, 100), (3, 14, 14, 30)])
def test_all_dims_reversed(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    np.testing.assert_array_equal(tw.jit(lambda x: tw.transpose(x) * 2)(x), x.T * np.array(2, dtype))

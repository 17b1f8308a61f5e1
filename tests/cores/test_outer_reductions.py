"""Reductions over dimensions outside of the pages of an array, in parts of which the last one reaches beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

FUNCTIONS = ("max", "min", "sum")
# Shapes and reduced axes: lengths that the parts of a reduction divide and do not, pages that are full and are not,
# parts by one core and by several.
CASES: list[tuple[tuple[int, ...], int | tuple[int, ...]]] = [
    ((17, 5, 32), 0),
    ((32, 5, 32), 0),
    ((40, 5, 32), 0),
    ((33, 2, 33), 0),
    ((100, 7, 9), 0),
    ((2, 33, 5, 31), 1),
    ((33, 5, 32), (0, 2)),
    ((33, 40, 7), (0, 1)),
]


def exact(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Numbers whose sums every type has, none of them the 0 that padding could be."""
    return np.random.default_rng(0).integers(1, 5, shape).astype(dtype)


@pytest.mark.parametrize("target", ["grid:wormhole", "grid:blackhole"])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_what_is_beyond_the_array_does_not_count(target: str, shape: tuple[int, ...], axis: Any) -> None:
    x = exact(shape, "float32")

    def reduced(x: Any) -> Any:
        return tuple(getattr(tw, name)(each, axis=axis) for name in FUNCTIONS for each in (x, -x))

    for found, expected in zip(tw.jit(reduced, target=target)(x), _by_numpy(x, axis), strict=True):
        np.testing.assert_array_equal(found, expected)


def _by_numpy(x: np.ndarray[Any, Any], axis: Any) -> list[np.ndarray[Any, Any]]:
    return [getattr(np, name)(each, axis=axis) for name in FUNCTIONS for each in (x, -x)]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "float16"])
def test_every_type_has_its_own_filling(dtype: str) -> None:
    x = exact((33, 5, 32), dtype)
    for name in ("max", "min"):
        found = tw.jit(lambda x, name=name: getattr(tw, name)(x, axis=0), target="grid:wormhole")(x)
        np.testing.assert_array_equal(found, getattr(np, name)(x, axis=0))

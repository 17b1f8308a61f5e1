"""Which elements of a reshaped padded array are real, against a reshape of an array that says which are."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from tilewright.frontend.sizes.axes import Axes, is_padded, joined, plain, reshaped
from tilewright.frontend.sizes.family import NotUniform, Sizes

# Each size in two traces: of the padded array, and of the real one.
FACTORS: list[Sizes] = [(1, 1), (2, 2), (3, 3), (4, 3), (5, 2), (6, 6), (8, 7), (8, 4)]


def real(axes: Axes, sizes: list[Sizes]) -> np.ndarray:
    """Which elements of the padded array are real."""
    result = np.ones((), bool)
    for axis, size in zip(axes, sizes, strict=True):
        along = np.ones((), bool)
        for padded, extent in (size,) if axis is None else axis:
            along = np.multiply.outer(along, np.arange(padded) < extent)
        result = np.multiply.outer(result, along.reshape(-1))
    return result


def total(sizes: list[Sizes]) -> Sizes:
    return tuple(math.prod(each) for each in zip(*sizes, strict=True))


def regrouped(generator: random.Random, sizes: list[Sizes]) -> list[Sizes]:
    """The same factors, merged or split at random."""
    result: list[Sizes] = []
    for size in sizes:
        if result and generator.random() < 0.5:
            result[-1] = tuple(a * b for a, b in zip(result[-1], size, strict=True))
        else:
            result.append(size)
    return result


@pytest.mark.parametrize("seed", range(200))
def test_reshapes_keep_what_is_real(seed: int) -> None:
    generator = random.Random(seed)
    factors = [generator.choice(FACTORS) for _ in range(generator.randint(1, 5))]
    source, middle, target = (regrouped(generator, factors) for _ in range(3))
    axes = tuple(plain(size) for size in factors)
    for before, after in itertools.pairwise([factors, source, middle, target]):
        try:
            moved = reshaped(axes, before, after)
        except NotUniform:
            return
        shape = [size[0] for size in after]
        np.testing.assert_array_equal(real(axes, before).reshape(shape), real(moved, after))
        axes = moved


def test_reshapes_that_cut_across() -> None:
    with pytest.raises(NotUniform):
        reshaped((plain((8, 4)),), [(8, 4)], [(2, 2), (4, 2)])
    with pytest.raises(NotUniform):
        reshaped((plain((8, 6)),), [(8, 6)], [(4, 3), (2, 2), (2, 1)])
    assert reshaped((plain((8, 4)),), [(8, 4)], [(4, 2), (2, 2)]) == (plain((4, 2)), plain((2, 2)))
    assert reshaped((None,), [(8, 4)], [(8, 4), (1, 1)]) == (plain((8, 4)), plain((1, 1)))


def test_axes_that_meet() -> None:
    rows = plain((8, 4))
    assert joined((None, rows), (rows, None)) == (rows, rows)
    assert not is_padded(plain((3, 3)))
    with pytest.raises(NotUniform):
        joined((rows,), (((2, 2), (4, 2)),))

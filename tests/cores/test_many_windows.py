"""Kernels that read more windows of arrays than a core has queues."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES


@tw.kernel
def powers(x: tw.In["N M"], y: tw.Out["N"], *, n: int = 3):
    """The third power of the sum of `n` columns, each product of columns by itself."""
    for i in tw.grid(y, 16):
        total = tw.zeros((16,), tw.f32)
        for a in range(n):
            for b in range(n):
                for c in range(n):
                    total = total + x[i, a] * x[i, b] * x[i, c]
        y[i] = total


@pytest.mark.parametrize("machine", MACHINES)
def test_equal_loads_of_a_kernel_are_one(machine: str) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (40, 3)).astype(np.float32)
    y = np.empty(40, np.float32)
    powers.lower(x, y, n=3).compile(f"grid:{machine}")(x, y)
    np.testing.assert_array_equal(y, x.sum(axis=1) ** 3)


def windows(x: Any) -> Any:
    return sum(x[i : i + 16, j : j + 16] for i in range(0, 48, 8) for j in range(0, 48, 8))


def test_windows_of_one_array_are_added_up_in_several_kernels() -> None:
    x = np.random.default_rng(0).integers(-9, 10, (64, 64)).astype(np.float32)
    program = tw.jit(windows).lower(x).compile("grid:wormhole")
    np.testing.assert_array_equal(program(x), windows(x))
    assert "more than 24 windows of arrays" in program.explain()
    # A window takes nothing but an address on a cpu.
    assert "windows of arrays" not in tw.jit(windows).lower(x).compile("cpu").explain()


def test_padding_between_elements_is_generated_by_kernels_of_their_own() -> None:
    """Positions of each padded dimension take queues too: those of nine windows were 101."""
    x = np.random.default_rng(0).integers(-9, 10, (6, 6)).astype(np.float32)

    def spread(x: Any) -> Any:
        y = sum(tw.pad(x * n, ((n, 8 - n), (8 - n, n))) for n in range(9))
        for row in range(3):
            for column in range(3):
                place = tw.zeros((14, 14)).at[row : row + 11 : 2, column : column + 11 : 2].set(x)
                y = y + place * (row + 3 * column)
        return y

    expected = sum(np.pad(x * n, ((n, 8 - n), (8 - n, n))) for n in range(9))
    for row in range(3):
        for column in range(3):
            expected[row : row + 11 : 2, column : column + 11 : 2] += x * (row + 3 * column)
    np.testing.assert_array_equal(tw.jit(spread).lower(x).compile("grid:wormhole")(x), expected)


def test_elements_chosen_along_one_of_seven_dimensions() -> None:
    """A weighted loss: index arrays along the other six dimensions took a queue each, and their bounds others."""
    generator = np.random.default_rng(0)
    x = generator.integers(-9, 10, (3, 5, 6, 6, 5, 3, 4)).astype(np.float32)
    places = generator.integers(0, 5, (3, 1, 6, 6, 5, 3, 4))
    weights = np.arange(1, 6, dtype=np.float32)

    def loss(library: Any, x: Any, places: Any, weights: Any) -> Any:
        chosen = library.take_along_axis(x, places, axis=1)[:, 0]
        scale = weights[places[:, 0]]
        return library.sum(-chosen * scale) / library.sum(scale)

    found = tw.jit(partial(loss, tw)).lower(x, places, weights).compile("grid:wormhole")(x, places, weights)
    np.testing.assert_allclose(found, loss(np, x.astype(np.float64), places, weights), rtol=1e-2, atol=1e-2)


def test_a_window_larger_than_the_memory_of_a_core() -> None:
    x = np.random.default_rng(0).integers(-99, 100, (1, 1, 90, 70)).astype(np.float32)
    expected = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (7, 8), (3, 2)), constant_values=-np.inf), (48, 45), axis=(2, 3)
    ).max(axis=(-2, -1))[:, :, ::7, ::5]
    pool = tw.jit(lambda x: tw.nn.max_pool(x, (48, 45), stride=(7, 5), padding=((7, 8), (3, 2))))
    np.testing.assert_array_equal(pool.lower(x).compile("grid:wormhole")(x), expected)


def test_a_window_that_no_part_divides() -> None:
    """Of 37 x 37 elements, one at a time; of a type that is computed in another one."""
    x = np.random.default_rng(0).integers(-99, 100, (1, 1, 40, 45)).astype(tw.bf16.numpy)
    views = np.lib.stride_tricks.sliding_window_view(x.astype(np.float32), (37, 37), axis=(2, 3))
    found = tw.jit(lambda x: tw.nn.max_pool(x, (37, 37), stride=1)).lower(x).compile("grid:wormhole")(x)
    np.testing.assert_array_equal(found.astype(np.float32), views.max(axis=(-2, -1)))

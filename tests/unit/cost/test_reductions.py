"""Tiles of reductions: what is considered, that the least predicted time is chosen, and choices that were measured."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from tilewright import dtypes
from tilewright.cost.tiles import reread_tile
from tilewright.cost.vectors.reductions import (
    THREADS,
    Reduction,
    best_reduction_tile,
    reduction_seconds,
    reduction_tiles,
)
from tilewright.machines.machine import load

MACHINE = load("x86-64-amx")


def random_reductions(count: int) -> Iterator[Reduction]:
    generator = random.Random(3)
    for _ in range(count):
        rank = generator.randint(1, 4)
        shape = tuple(int(2 ** generator.uniform(0, 22 / rank)) for _ in range(rank))
        axes = tuple(sorted(generator.sample(range(rank), generator.randint(1, rank))))
        yield Reduction(shape, axes, generator.choice([dtypes.f32, dtypes.f64, dtypes.i32]), generator.random() < 0.5)


REDUCTIONS = tuple(random_reductions(60))


def of(*shape: int, axes: tuple[int, ...], adds: bool = True) -> Reduction:
    return Reduction(shape, axes, dtypes.f32, adds)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_tiles_are_parts_of_the_shape_and_one_has_all_that_is_reduced(reduction: Reduction) -> None:
    tiles = list(reduction_tiles(reduction, MACHINE))
    assert all(1 <= n <= size for tile in tiles for n, size in zip(tile, reduction.shape, strict=True))
    assert any(all(tile[d] == reduction.shape[d] for d in reduction.axes) for tile in tiles)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_no_tile_is_predicted_to_be_quicker(reduction: Reduction) -> None:
    chosen = best_reduction_tile(reduction, MACHINE, THREADS)
    least = min(reduction_seconds(reduction, tile, MACHINE, THREADS) for tile in reduction_tiles(reduction, MACHINE))
    assert 0 < reduction_seconds(reduction, chosen, MACHINE, THREADS) == least


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_the_order_of_a_sum_does_not_depend_on_the_number_of_threads(reduction: Reduction) -> None:
    lanes = MACHINE.lanes(reduction.dtype)
    alone, *others = (best_reduction_tile(reduction, MACHINE, threads) for threads in (1, 2, 5, 64))
    for tile in others:
        assert all(tile[d] == alone[d] for d in reduction.axes)
        assert tile == alone or min(tile[-1], alone[-1]) >= lanes


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_more_threads_and_fewer_elements_take_no_longer(threads: int) -> None:
    tile = (1, 4096)
    most = reduction_seconds(of(64, 4096, axes=(1,)), tile, MACHINE, threads)
    assert reduction_seconds(of(64, 4096, axes=(1,)), tile, MACHINE, 2 * threads) <= most
    assert reduction_seconds(of(32, 4096, axes=(1,)), tile, MACHINE, threads) < most


@pytest.mark.parametrize(
    ("reduction", "steps"),
    [
        (of(40, 16378, axes=(0,)), 1),  # columns near the threads: all rows at once
        (of(4096, 1024, axes=(0,)), 1),  # many rows of some vectors, one after the other
        (of(4096, 8, axes=(0,)), 1),
        (of(25, 107259, axes=(1,)), 1),  # long rows whole
        (of(4, 222, 127, axes=(1,)), 1),
        (of(11162, 2, axes=(0,), adds=False), 1),  # column by column
        (of(162, 36, 14, axes=(1,), adds=False), 1),  # rows shorter than a vector
    ],
)
def test_steps_that_were_measured_to_be_good(reduction: Reduction, steps: int) -> None:
    tile = best_reduction_tile(reduction, MACHINE, 2)
    assert math.prod(-(-reduction.shape[d] // tile[d]) for d in reduction.axes) == steps


def test_narrow_columns_of_maxima_are_taken_one_by_one() -> None:
    assert best_reduction_tile(of(57, 11162, 2, axes=(1,), adds=False), MACHINE, 2)[-1] == 1
    assert best_reduction_tile(of(57, 11162, 14, axes=(1,), adds=False), MACHINE, 2)[-1] == 14


def test_rows_shorter_than_a_vector_are_taken_in_whole_vectors() -> None:
    """Of maxima of 687 rows of 5, parts of 86 took 2.8 us, which are masked one by one, and parts of 96 1.7."""
    lanes = MACHINE.lanes(dtypes.f32)
    for rows, length in ((687, 5), (752, 4), (69501, 2)):
        assert best_reduction_tile(of(rows, length, axes=(1,), adds=False), MACHINE, 2)[0] % lanes == 0


def test_results_of_a_tile_stay_near() -> None:
    """Sums of 2 x 372742 took 57 us with 93 KiB of results a tile and 47 us with less."""
    tile = best_reduction_tile(of(2, 372742, axes=(0,)), MACHINE, 2)
    assert tile[1] * 4 <= MACHINE.memory("l1").bytes / 2


def test_rows_that_are_read_again_stay_near() -> None:
    assert reread_tile((4096, 256), (1,)) == (4, 256)
    assert reread_tile((4096, 100000), (1,))[0] == 1

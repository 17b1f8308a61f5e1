"""Tiles of loops that read rows in another order than they store them, and of matmuls that read an operand once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes, schedules
from tilewright.cost.tiles import dividing_split
from tilewright.cost.vectors.reductions import THREADS, Reduction, best_reduction_tile
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.cost.vectors.tiles import (
    EXCHANGED_RUN,
    TURNED_LINE,
    TURNED_ROWS,
    exchanged_tile,
    read_once_tile,
    turned_reduction_tile,
    turned_tile,
)
from tilewright.machines.machine import load
from tilewright.options import options
from tilewright.passes.kernels.tile_builder import held_window


@pytest.mark.parametrize("shape", [(57, 2210, 56), (3, 57, 2210, 56), (12, 64, 8), (2, 5, 5000)])
def test_both_kinds_of_rows_are_neighbours_in_a_tile(shape: tuple[int, ...]) -> None:
    exchanged = len(shape) - 3
    tile = exchanged_tile(shape, exchanged, 4096, dtypes.f32)
    assert all(1 <= extent <= size for extent, size in zip(tile, shape, strict=True))
    row_bytes = 4 * tile[-1]
    assert row_bytes * tile[exchanged] >= min(EXCHANGED_RUN, 4 * shape[-1] * shape[exchanged]) // 2
    assert tile[-2] > 1 or row_bytes * tile[exchanged] >= 4096


def test_narrow_elements_take_more_rows() -> None:
    wide, narrow = (exchanged_tile((512, 512, 8), 0, 4096, dtype) for dtype in (dtypes.f32, dtypes.i8))
    assert narrow[0] > wide[0]


@pytest.mark.parametrize("shape", [(64, 49, 640), (1000, 3000), (384, 197, 64), (50, 8, 7, 2000), (20, 30, 50, 40)])
def test_reductions_of_transposed_arrays_use_lines_whole(shape: tuple[int, ...]) -> None:
    machine, dims = load("x86-64-amx"), range(len(shape))
    every = [axes for n in dims for axes in itertools.combinations(dims, n + 1)]
    for axes, turned in itertools.product(every, dims[:-1]):
        tile = best_reduction_tile(Reduction(shape, axes, dtypes.f32), machine, THREADS)
        chosen = turned_reduction_tile(tile, shape, axes, turned, THREADS)
        assert all(1 <= extent <= size for extent, size in zip(chosen, shape, strict=True))
        assert chosen[turned] >= 0.75 * min(TURNED_LINE, -(-shape[turned] // 2))
        assert chosen == tile or math.prod(chosen) // chosen[turned] <= 2 * TURNED_ROWS


SHORT_LAST = [(1000, 2048, 4), (640, 512, 3), (60, 100, 100, 4), (1000, 3000, 2), (9, 20, 11, 1, 3)]


@pytest.mark.parametrize("shape", SHORT_LAST)
def test_loops_that_read_far_from_a_short_last_dim_use_lines_whole(shape: tuple[int, ...]) -> None:
    """Of what is read along the first dim, and of what is written along the last two of more than one element."""
    tile = turned_tile(shape, 0, 4096, dtypes.f32, load("x86-64-amx"))
    assert all(1 <= extent <= size for extent, size in zip(tile, shape, strict=True))
    assert tile[0] >= min(16, shape[0])
    assert 4 * math.prod(tile[1:]) >= min(64, 4 * math.prod(shape[1:]))
    axes = tuple(range(len(shape)))[::-1]
    x = np.random.default_rng(3).random(shape[::-1], np.float32)
    lowered = tw.jit(lambda x: tw.sqrt(tw.permute_dims(x, axes))).lower(x)
    compiled = lowered.compile("cpu:x86-64-amx")
    (schedule,) = compiled.schedules.values()
    assert isinstance(schedule, schedules.Loop)
    assert math.prod(schedule.tile[-2:]) >= min(16, math.prod(shape[-2:]))
    np.testing.assert_allclose(lowered.compile("cpu")(x), np.sqrt(x.transpose(axes)), rtol=1e-6)


@pytest.mark.parametrize(("axes", "is_turned"), [((1,), True), ((2,), False)])
def test_a_short_last_dim_that_is_reduced_is_not_read_across(axes: tuple[int, ...], is_turned: bool) -> None:
    x, y = np.ones((3, 200, 190), np.float32), np.ones((190, 200, 3), np.float32)
    lowered = tw.jit(lambda x, y: tw.sum(tw.permute_dims(x, (2, 1, 0)) * y, axis=axes)).lower(x, y)
    (schedule,) = lowered.compile("cpu:x86-64-amx").schedules.values()
    assert isinstance(schedule, schedules.Loop)
    assert (schedule.tile[0] >= TURNED_LINE) == is_turned


@pytest.mark.parametrize("permutation", [(2, 1, 0), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_sums_of_a_transposed_array_and_another(permutation: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).random((70, 33, 130), np.float32)
    y = np.random.default_rng(6).random(tuple(x.shape[d] for d in permutation), np.float32)
    for function in (tw.sum, tw.max):
        result = tw.jit(lambda x, y, f=function: f(tw.permute_dims(x, permutation) * y, axis=axes))(x, y)
        exact = x.transpose(permutation).astype(np.float64) * y
        expected = exact.sum(axis=axes) if function is tw.sum else exact.max(axis=axes)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=2e-6)


def schedule_of(rows: int, depth: int, columns: int) -> schedules.VectorMatmul:
    arrays = tw.ShapeDtype((rows, depth), tw.f32), tw.ShapeDtype((depth, columns), tw.f32)
    program = tw.jit(lambda a, b: a @ b).lower(*arrays).compile("cpu:x86-64-v4")
    (found,) = [each for each in program.schedules.values() if isinstance(each, schedules.VectorMatmul)]
    return found


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(("rows", "columns"), [(7, 100), (16, 300), (4, 100)])
def test_no_line_of_a_right_operand_from_memory_is_read_for_two_tiles(rows: int, columns: int, threads: int) -> None:
    """In steps of one depth, whatever the threads: sums do not depend on their number."""
    with options(threads=threads):
        found = schedule_of(rows, 60000, columns)
    assert found.tile == (rows, columns, 128)
    assert found.right == "in_place"


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(17, 60000, 100), (7, 2000, 100), (7, 60000, 64), (7, 60000, 4096)]
)
def test_other_matmuls_have_the_tile_of_the_least_predicted_time(rows: int, depth: int, columns: int) -> None:
    """More rows, an operand that stays in the caches, one block of columns, results that do not."""
    assert schedule_of(rows, depth, columns).tile[2] != 128


def test_threads_without_parts_of_the_depth_share_the_columns() -> None:
    machine = load("x86-64-v4")
    block = max(register_blocks(dtypes.f32, machine), key=lambda each: each.columns)
    tiles = [read_once_tile(4, 1000, 9973, block, dtypes.f32, machine, threads) for threads in (1, 2, 4)]
    assert [tile and (tile.columns, tile.depth) for tile in tiles] == [(1024, 128), (512, 128), (256, 128)]


def dividing_split_by_trial(size: int, most: int) -> int:
    """`dividing_split`, which tries all counts of blocks."""
    blocks = max(1, -(-size // most))
    exact = next((n for n in range(blocks, 2 * blocks + 1) if size % n == 0), blocks)
    return -(-size // exact)


def test_sizes_are_divided_as_by_trying_all_counts() -> None:
    for size in (*range(200), *range(1000, 20000, 97), 20000):
        for most in (1, 2, 3, 7, 8, 31, 64, 100, 141, 142, 256, 1000, 16384):
            assert dividing_split(size, most) == dividing_split_by_trial(size, most), (size, most)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("size", "most", "extent"),
    [(2**40, 1024, 1024), (2**40 - 87, 1000, 1000), (3 * 2**40, 1000, 768), (2**61 - 1, 4, 4)],
)
def test_enormous_sizes_are_divided_at_once(size: int, most: int, extent: int) -> None:
    assert dividing_split(size, most) == extent
    assert held_window((size,), most) == (largest_divisor(size, most),)


def largest_divisor(size: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if size % n == 0)


# An axis that only its broadcast, padding or window makes this long: nothing of this size is ever stored.
LONG = 2**40


def padded(x: tw.Array) -> tw.Array:
    return tw.pad(x, ((0, 0), (0, LONG - 1)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.sum(padded(x), axis=1),
        lambda x: tw.nn.softmax(padded(x), axis=1),
        lambda x: tw.argmax(tw.broadcast_to(x, (4, LONG)), axis=1),
        lambda x: tw.nn.max_pool(tw.broadcast_to(x[:1], (1, LONG))[None, None], (1, LONG)),
        lambda x: tw.matmul(padded(x), tw.permute_dims(padded(x), (1, 0))),
        lambda x: tw.sort(padded(x), axis=1),
    ],
)
def test_programs_over_enormous_axes_are_compiled_at_once(function: Callable[[tw.Array], tw.Array]) -> None:
    tw.jit(function).lower(np.ones((4, 1), np.float32)).compile("cpu")

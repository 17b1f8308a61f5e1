"""Tiles of loops that read rows in another order than they store them, and of matmuls that read an operand once."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright import dtypes, schedules
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.cost.vectors.tiles import EXCHANGED_RUN, exchanged_tile, read_once_tile
from tilewright.machines.machine import load
from tilewright.options import options


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

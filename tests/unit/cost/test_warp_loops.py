"""Tiles of reductions on machines with warps: what a block holds, and how many blocks there are."""

from __future__ import annotations

from math import ceil, prod

import pytest

from tilewright.cost.warps.loops import warp_reduction_tile

CORES = 132


@pytest.mark.parametrize(
    ("shape", "axes", "tile"),
    [
        ((8, 1 << 19), (0,), (8, 512)),
        ((2, 1 << 19), (0,), (2, 2048)),
        ((16, 131072), (0,), (16, 256)),
        ((8, 4096), (0,), (8, 64)),  # few blocks as it is
        ((4096, 1024), (0,), (64, 64)),
        ((4096, 1024), (1,), (1, 1024)),
        ((1024, 48), (1,), (16, 48)),
        ((4, 40), (0,), (4, 40)),
    ],
    ids=str,
)
def test_tiles_of_reductions(shape: tuple[int, ...], axes: tuple[int, ...], tile: tuple[int, ...]) -> None:
    found = warp_reduction_tile(shape, axes, CORES)
    assert tuple(found[dim] for dim in range(len(shape))) == tile


@pytest.mark.parametrize("columns", [1 << power for power in range(13, 22)])
def test_few_rows_leave_a_block_for_each_core(columns: int) -> None:
    tile = warp_reduction_tile((4, columns), (0,), CORES)
    assert prod(tile.values()) <= 4096
    assert ceil(columns / tile[1]) >= min(CORES, columns // 64)

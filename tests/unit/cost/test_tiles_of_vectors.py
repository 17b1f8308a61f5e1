"""Tiles of loops that read rows in another order than they store them."""

from __future__ import annotations

import pytest

from tilewright import dtypes
from tilewright.cost.vectors.tiles import EXCHANGED_RUN, exchanged_tile


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

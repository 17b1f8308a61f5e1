"""Device tiles of 32 x 32 elements in the formats that a grid of cores stores: sizes, and their bytes.

A tile is four faces of 16 x 16, row-major, each row-major inside (`tile_faces`). Numbers of 16 and 32 bits are
contiguous. A block float of 8 bits (`bfp8`) has first an exponent for each row of 16 elements of a face, one byte each,
then for each element its sign and 7 bits of magnitude, the leading one among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

TILE = 32
FACE = 16


class TileFormat(msgspec.Struct, frozen=True):
    """One format: `dtype` is the name of the type that its elements are read as and that arithmetic sees."""

    name: str
    dtype: str
    bits: int
    exponent_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one tile."""
        return TILE * TILE * self.bits // 8 + self.exponent_bytes


FORMATS = {
    each.name: each
    for each in (
        TileFormat("f32", "f32", 32),
        TileFormat("bf16", "bf16", 16),
        TileFormat("f16", "f16", 16),
        TileFormat("bfp8", "bf16", 8, TILE * TILE // FACE),
        TileFormat("i32", "i32", 32),
        TileFormat("u32", "u32", 32),
    )
}


def same_pages(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether an array that is reshaped has the same pages in the same order: its rows are as long, and are cut into
    pages of the same rows."""
    first, second = ((*(1,) * (2 - len(shape)), *shape) for shape in (before, after))
    if first[-1] != second[-1]:
        return False
    return first[-2] == second[-2] or (first[-2] % TILE == 0 and second[-2] % TILE == 0)

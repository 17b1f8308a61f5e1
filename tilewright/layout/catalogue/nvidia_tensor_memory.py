"""NVIDIA tensor memory (tcgen05) and the register fragments of its loads and stores.

Tensor memory has 128 rows, `tmem.row` (warp w of a warpgroup reaches rows 32 w to 32 w + 31), and 512 columns of 32
bits, `tmem.col`; `tmem.part` counts the narrow elements that share a column. Register fragments are on `warp`, `lane`,
`reg` as in `nvidia_registers`. Tables: PTX ISA, "Data path layout organization" and "Data movement shape" of tcgen05.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.pieces import atom, one_of, repeated
from tilewright.layout.dims import is_integer
from tilewright.layout.layout import Layout

_PACKINGS = (1, 2, 4, 8)
_LOADS = {
    "32x32b": (1, "32@lane", "1"),
    "16x64b": (2, "2@lane 8@lane*4", "2@lane*2"),
    "16x128b": (4, "2@reg 8@lane*4", "4@lane"),
    "16x256b": (8, "2@reg*2 8@lane*4", "4@lane 2@reg"),
}
"""Per load: columns, digits of the rows, digits of the columns."""


def tensor_memory_accumulator(shape: Sequence[int], packing: int = 1, ctas: int = 1) -> Layout:
    """D with 128 rows for each CTA (M = 128, or M = 256 of a pair): shape (128 ctas m, packing n).

    `packing` elements share a 32-bit column: 1 for 32 bits or unpacked 16, 2 for packed 16; A operands are packed, 16
    (2), 8 (4) and 4 (8) bits. With `ctas` = 2 each CTA of the pair has 128 of the rows. Axes tmem.row, tmem.col,
    tmem.part, cta. PTX ISA, layouts D (one CTA) and A (pair).

    Raises:
        LayoutError: another packing or number of CTAs, or the shape is not made of whole tiles.
    """
    one_of(packing, _PACKINGS, "a number of elements of one column")
    one_of(ctas, (1, 2), "a number of CTAs of one tcgen05 operation")
    tile = atom(f"({128 * ctas}, {packing}) : [{ctas}@cta 128@tmem.row | {packing}@tmem.part]")
    return repeated(tile, shape, "an accumulator in tensor memory", "tmem.col")


def tensor_memory_half_lanes(shape: Sequence[int], packing: int = 1, *, folded: bool = True) -> Layout:
    """D with 64 rows (M = 64, one CTA): shape (64, n), 16 rows in the first half of the 32 of each warp.

    `folded`, as two operations leave it: the right half of the columns in the other half of those rows, n a multiple
    of 16. Else, as one operation leaves it, the other half is unused. `packing` elements share a column. Axes tmem.row,
    tmem.col, tmem.part. PTX ISA, layout F; folded: JAX Mosaic's half-lane layout.

    Raises:
        LayoutError: another packing, or another shape.
    """
    columns = _columns(shape, 64, packing, 16 if folded else packing)
    right = "2@tmem.row*16 " if folded else ""
    own = columns // packing // (2 if folded else 1)
    return atom(f"(64, {columns}) : [4@tmem.row*32 16@tmem.row | {right}{own}@tmem.col {packing}@tmem.part]")


def tensor_memory_column_halves(shape: Sequence[int], packing: int = 1, ctas: int = 1) -> Layout:
    """D with 64 rows for each CTA, the right half of the columns in rows 64-127: shape (64 ctas, 16 n).

    M = 128 of a pair (`ctas` = 2; 1 is the part of one CTA), and M = 64 of tcgen05.mma.ws. `packing` elements share a
    column. Axes tmem.row, tmem.col, tmem.part, cta. PTX ISA, layouts B and E.

    Raises:
        LayoutError: another packing or number of CTAs, or another shape.
    """
    one_of(ctas, (1, 2), "a number of CTAs of one tcgen05 operation")
    columns = _columns(shape, 64 * ctas, packing, 16)
    own = columns // packing // 2
    rows = f"{ctas}@cta 2@tmem.row*32 32@tmem.row"
    return atom(f"({64 * ctas}, {columns}) : [{rows} | 2@tmem.row*64 {own}@tmem.col {packing}@tmem.part]")


def tensor_memory_scales(shape: Sequence[int]) -> Layout:
    """Block scales of 8 bits: shape (128 r, 4 c); row r is in row r % 32 of each warp, column r / 32, four to a column.

    All four warps' rows hold copies. It is what a 32x128b copy with .warpx4 makes of `scale_blocks`. Axes tmem.row,
    tmem.col, tmem.part. PTX ISA, scale factors of tcgen05.mma with .block_scale.

    Raises:
        LayoutError: the shape is not made of 128 x 4 tiles.
    """
    tile = atom("(128, 4) : [4@tmem.col 32@tmem.row | 4@tmem.part] + replica[4@tmem.row*32]")
    return repeated(tile, shape, "scales in tensor memory", "tmem.col")


def tcgen05_registers(shape: Sequence[int], load: str, rows_per_warp: int = 32) -> Layout:
    """Registers that tcgen05.ld writes: shape (4 rows_per_warp m, columns of the load n), elements of 32 bits.

    `load`: "32x32b" (1 column), "16x64b" (2), "16x128b" (4), "16x256b" (8). The last three take 16 rows; with
    `rows_per_warp` 32 two of them, the second 16 rows in registers next to the first of the same columns; with 16 one,
    for `tensor_memory_half_lanes`. Axes warp, lane, reg. PTX ISA, matrix fragments of the shapes of tcgen05.ld.

    Raises:
        LayoutError: another load or number of rows, or the shape is not made of whole tiles.
    """
    one_of(load, _LOADS, "a shape of tcgen05.ld")
    one_of(rows_per_warp, (32,) if load == "32x32b" else (16, 32), f"the rows of a warp for {load}")
    columns, rows, across = _LOADS[load]
    own = columns // 2 if load != "32x32b" else 1
    second = f"2@reg*{own} " if load != "32x32b" and rows_per_warp == 32 else ""
    tile = atom(f"({4 * rows_per_warp}, {columns}) : [4@warp {second}{rows} | {across}]")
    return repeated(tile, shape, f"a fragment of tcgen05.ld.{load}")


def tcgen05_transposed(shape: Sequence[int]) -> Layout:
    """The 16x256b fragment with two rows of one column in a register pair: shape (128 m, 8 n), 16 or 32 bits.

    Axes warp, lane, reg. Tiling (128,8)(32,8)(8,8)(2,2)(2,1) of JAX Mosaic's TCGEN05_TRANSPOSED.

    Raises:
        LayoutError: the shape is not made of 128 x 8 tiles.
    """
    tile = atom("(128, 8) : [4@warp 4@reg*2 4@lane*8 2@reg | 4@lane 2@lane*4]")
    return repeated(tile, shape, "a transposed tcgen05 fragment")


def tcgen05_column_halves(shape: Sequence[int]) -> Layout:
    """The 16x256b fragment of `tensor_memory_column_halves`: shape (64, n), n a multiple of 16, elements of 32 bits.

    Warps 0 and 1 hold the left half of the columns, 2 and 3 the right. Axes warp, lane, reg. Tiling
    (64,n)(32,n/2)(8,8)(2) of JAX Mosaic's fa_m64_collective.

    Raises:
        LayoutError: another shape.
    """
    columns = _columns(shape, 64, 1, 16)
    rows = f"2@warp 4@reg*{columns // 8} 8@lane*4"
    return atom(f"(64, {columns}) : [{rows} | 2@warp*2 {columns // 16}@reg*2 4@lane 2@reg]")


def tcgen05_per_row(size: int) -> Layout:
    """One value per row of the 16x256b fragment: shape (128 m), four lanes hold copies.

    It is `reduce` of the matrix layout over its columns; values per column are as in `wgmma_per_column`. Axes warp,
    lane, reg.

    Raises:
        LayoutError: the size is not a multiple of 128.
    """
    tile = atom("(128) : [4@warp 4@reg 8@lane*4] + replica[4@lane]")
    return repeated(tile, (size,), "a value per row of a tcgen05 fragment")


def _columns(shape: Sequence[int], rows: int, packing: int, multiple: int) -> int:
    one_of(packing, _PACKINGS, "a number of elements of one column")
    is_matrix = len(shape) == 2 and shape[0] == rows and is_integer(shape[1]) and shape[1] > 0
    if not is_matrix or shape[1] % multiple:
        raise LayoutError(
            f"shape ({', '.join(map(str, shape))}) does not fit {rows} rows of tensor memory",
            help=f"use ({rows}, a multiple of {multiple})",
        )
    return shape[1]

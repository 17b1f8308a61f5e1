"""Tile sizes on a grid of cores: whole pages of 32 x 32, as many as keep all cores busy and fit their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid

# Pages of a tile: enough that a queue's step costs little beside them.
_LOOP_PAGES = 8
_REDUCED_PAGES = 16
# Of a row whose elements are read again, in one tile.
_ROW_PAGES = 32
# Pages along a side of a product's tile, and steps of its depth together.
_PRODUCT_SIDE = 8
_PRODUCT_DEPTH = 8
# What tiles of a product may take of a core's memory: what follows it has queues, too.
_PRODUCT_SHARE = 0.6
_SUM_BYTES = 4 * TILE * TILE


def _pages(size: int) -> int:
    return max(1, -(-size // TILE))


def _extent(size: int, pages: int) -> int:
    """Elements of so many pages; all of a dim that has no more."""
    return max(1, min(size, pages * TILE))


def even_pages(pages: int, most: int) -> int:
    """Pages of parts of equal size of at most `most`, the last one of which may be shorter."""
    parts = -(-pages // max(1, most))
    return -(-pages // parts)


def loop_extents(shape: Sequence[int], grid: CoreGrid) -> tuple[int, ...]:
    """Tile extents of a loop over a shape, of one page at least along the last two dims."""
    if not shape:
        return ()
    extents = [1] * len(shape)
    rows = _pages(shape[-2]) if len(shape) > 1 else 1
    columns = _pages(shape[-1])
    total = prod(max(1, n) for n in shape[:-2]) * rows * columns
    most = max(1, min(_LOOP_PAGES, total // (grid.rows * grid.columns)))
    wide = even_pages(columns, most)
    extents[-1] = _extent(shape[-1], wide)
    if len(shape) > 1:
        extents[-2] = _extent(shape[-2], even_pages(rows, most // wide))
    return tuple(extents)


def reduction_extents(shape: Sequence[int], axes: Sequence[int], is_read_again: bool, grid: CoreGrid) -> list[int]:
    """Tile extents of a reduction over some dims. Rows that are read again are in one tile, where they are not long."""
    extents = [1] * len(shape)
    last = len(shape) - 1
    left = _ROW_PAGES if is_read_again else _REDUCED_PAGES
    for dim in sorted(axes, reverse=True):
        if dim >= last - 1:
            most = even_pages(_pages(shape[dim]), left)
            extents[dim] = _extent(shape[dim], most)
            left //= most
        else:
            extents[dim] = max(1, min(shape[dim], left))
            left //= extents[dim]
        left = max(1, left)
    for dim in (last, last - 1):
        if 0 <= dim and dim not in axes:
            extents[dim] = _extent(shape[dim], 1)
    return extents


@dataclass(frozen=True)
class ProductTile:
    """Elements along rows, columns and depth."""

    rows: int
    columns: int
    depth: int


def product_tile(rows: int, columns: int, depth: int, batches: int, page_bytes: int, grid: CoreGrid) -> ProductTile:
    """A tile of a product: its share for each core along rows and columns of cores, made smaller while cores would be
    idle, and as deep as the memory of a core has room for twice."""
    high, wide, deep = _pages(rows), _pages(columns), _pages(depth)
    height = even_pages(high, min(_PRODUCT_SIDE, -(-high // grid.rows) if batches == 1 else high))
    width = even_pages(wide, min(_PRODUCT_SIDE, -(-wide // grid.columns) if batches == 1 else wide))

    def tiles() -> int:
        return batches * -(-high // height) * -(-wide // width)

    while tiles() < grid.rows * grid.columns and max(height, width) > 1:
        if height >= width:
            height = -(-height // 2)
        else:
            width = -(-width // 2)
    room = _PRODUCT_SHARE * grid.memory_bytes - height * width * _SUM_BYTES
    most = max(1, min(_PRODUCT_DEPTH, int(room // (2 * (height + width) * page_bytes))))
    exact = max(n for n in range(1, min(most, deep) + 1) if deep % n == 0)
    step = exact if 2 * exact >= min(most, deep) else even_pages(deep, most)
    return ProductTile(_extent(rows, height), _extent(columns, width), _extent(depth, step))


def attention_tile(queries: int, keys: int, others: int, grid: CoreGrid) -> tuple[int, int]:
    """Queries of a tile, and keys of a step: fewer queries while cores would be idle."""
    rows = 4
    while rows > 1 and others * -(-_pages(queries) // rows) < grid.rows * grid.columns:
        rows //= 2
    return _extent(queries, even_pages(_pages(queries), rows)), _extent(keys, even_pages(_pages(keys), 8))

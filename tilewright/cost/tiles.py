"""Extents of tiles on every machine: how a size is cut evenly, loops, reductions inside other work."""

from __future__ import annotations

import math

import msgspec


class MatmulTile(msgspec.Struct, frozen=True):
    """Block sizes of a matmul."""

    rows: int
    columns: int
    depth: int


def dividing_split(size: int, most: int) -> int:
    """Equal blocks of at most `most` that divide `size`, where at most twice as many as it takes do: then no block
    reaches beyond the end. Else blocks as equal as can be."""
    blocks = max(1, -(-size // most))
    if blocks <= most:
        counts = range(blocks, 2 * blocks + 1)
        exact = next((n for n in counts if size % n == 0), blocks)
        return -(-size // exact)
    # There are fewer extents to try than counts of blocks: of a size of 2**40, some thousands.
    extents = range(most, -(-size // (2 * blocks)) - 1, -1)
    return next((extent for extent in extents if size % extent == 0), -(-size // blocks))


def even_split(size: int, target: int, multiple: int = 1) -> int:
    """The block size near `target` that cuts `size` into equal blocks, rounded up to `multiple`."""
    blocks = max(1, -(-size // target))
    block = -(-size // blocks)
    return -(-block // multiple) * multiple


def loop_tile(shape: tuple[int, ...], elements: int, square: bool = False) -> tuple[int, ...]:
    """Tile extents for an elementwise loop: whole trailing dimensions up to `elements` in all; `square` bounds the last
    two dimensions evenly, for loops that read one and write the other contiguously."""
    if square and len(shape) >= 2:
        side = 64
        last, previous = even_split(shape[-1], side), even_split(shape[-2], side)
        return (*[1] * (len(shape) - 2), previous, last)
    extents: list[int] = []
    room = elements
    for n in reversed(shape):
        extent = even_split(n, max(1, room)) if n else 1
        extents.append(extent)
        room //= max(1, extent)
    return tuple(reversed(extents))


# Elements of the rows of a tile that are computed again once they are reduced, which stay in the first-level cache with
# what is stored; of such a tile's columns, where rows are added up.
REREAD_ELEMENTS, REREAD_COLUMNS = 1024, 512


def reread_tile(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The tile of a reduction over `axes` whose elements are needed again."""
    extents = dict.fromkeys(range(len(shape)), 1) | nested_extents(shape, axes)
    kept = [d for d in range(len(shape)) if d not in axes]
    if kept:
        inner = kept[-1]
        room = REREAD_COLUMNS if len(shape) - 1 not in axes else REREAD_ELEMENTS // math.prod(extents.values())
        extents[inner] = even_split(shape[inner], max(1, room))
    return tuple(extents[d] for d in range(len(shape)))


# Of a reduction inside other work: elements that it takes at a time, of which rows stay in near memory; elements of a
# row that is read in one go, and rows of that length that are added up at a time.
NESTED_ELEMENTS, NESTED_ROW, NESTED_ROWS = 16384, 256, 16


def nested_extents(shape: tuple[int, ...], axes: tuple[int, ...]) -> dict[int, int]:
    """Tile extents of the reduced dimensions of a reduction inside other work, whose tiles go by something else:
    innermost whole first. Of long rows that are added up a few are taken at a time: memory is read along them."""
    extents: dict[int, int] = {}
    rows = NESTED_ELEMENTS // max(1, shape[-1]) if shape[-1] < NESTED_ROW else NESTED_ROWS
    room = NESTED_ELEMENTS if len(shape) - 1 in axes else rows
    for d in sorted(axes, reverse=True):
        extents[d] = even_split(shape[d], max(1, room))
        room //= max(1, extents[d])
    return extents

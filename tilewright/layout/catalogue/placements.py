"""Placement of an array's pages on a grid of cores: over the banks of DRAM, or in shards in L1.

A user's request is text: a format, a placement, or both, such as `bfp8`, `l1 height`, `bf16 l1 block on 4x8`.

    place  = ["dram"] "row-major" | "dram" | "l1" [scheme] ["on" ROWSxCOLUMNS] ["by columns"]
    scheme = "interleaved" | "height" | "width" | "block" | ROWSxCOLUMNS, the tiles of a shard

Schemes are those of tt-metal's tensors: `height` gives each core whole rows, `width` whole columns, `block` a rectangle
to a core by its row and column, tiles of a shard (ND) go around the cores. All but the last dim of an array count as
its rows. Pages are device tiles, or, where an array is `row-major`, its rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.device_tiles import FORMATS, TILE
from tilewright.layout.catalogue.grid import block_sharded, fold_cores, nd_sharded, tilized
from tilewright.layout.construct import row_major
from tilewright.layout.layout import Layout
from tilewright.layout.operations import rename_axis

Numbers = np.ndarray[Any, Any]
DRAM, L1, ROW_MAJOR = "dram", "l1", "row-major"
INTERLEAVED, HEIGHT, WIDTH, BLOCK = "interleaved", "height", "width", "block"
_SCHEMES = (INTERLEAVED, HEIGHT, WIDTH, BLOCK)
_PAIR = re.compile(r"(\d+)x(\d+)")
_SIZE = r"([1-9]\d*)"
_PLACEMENT = re.compile(f"l1 (blocks of )?{_SIZE}x{_SIZE} on {_SIZE}x{_SIZE}( by columns)?")
_HELP = "write, for example, `bfp8`, `l1 height`, `bf16 l1 block on 4x8`, `l1 2x4 by columns`, `row-major` or `dram`"


class Placement(msgspec.Struct, frozen=True):
    """Shards of an array's pages in memories of cores.

    Attributes:
        shard: rows and columns of a shard, in pages.
        cores: rows and columns of cores that shards go to.
        is_block: the shard in row i and column j of shards is in the core of that row and column. Else shards, counted
            along rows, go around the cores, counted along rows.
        by_columns: cores are counted down columns; of blocks, that in row i and column j is in the core of row j and
            column i.
    """

    shard: tuple[int, int]
    cores: tuple[int, int]
    is_block: bool = False
    by_columns: bool = False

    def __str__(self) -> str:
        """Text in the type of an array: `Placement.parse` reads it."""
        (height, width), (rows, columns) = self.shard, self.cores
        how = f"l1 {'blocks of ' if self.is_block else ''}{height}x{width} on {rows}x{columns}"
        return f"{how} by columns" if self.by_columns else how

    @classmethod
    def parse(cls, text: str) -> Placement:
        """The placement whose text this is.

        Raises:
            LayoutError: it is no text of a placement.
        """
        found = _PLACEMENT.fullmatch(text)
        if found is None:
            raise LayoutError(f"`{text}` is no placement", help="write, for example, `l1 2x4 on 8x8`")
        sizes = [int(size) for size in found.group(2, 3, 4, 5)]
        return cls((sizes[0], sizes[1]), (sizes[2], sizes[3]), bool(found[1]), bool(found[6]))

    @property
    def count(self) -> int:
        """How many cores shards go to."""
        return prod(self.cores)

    def shards(self, pages: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of shards of an array of so many rows and columns of pages."""
        return -(-pages[0] // self.shard[0]), -(-pages[1] // self.shard[1])

    def core_pages(self, pages: tuple[int, int]) -> int:
        """How many pages each core has room for."""
        rounds = 1 if self.is_block else -(-prod(self.shards(pages)) // self.count)
        return rounds * prod(self.shard)

    def holders(self, pages: tuple[int, int]) -> tuple[Numbers, Numbers]:
        """Row and column of the core that holds each page, pages counted along rows."""
        row, column = np.indices(pages).reshape(2, -1)
        row, column = row // self.shard[0], column // self.shard[1]
        if self.is_block:
            return (column, row) if self.by_columns else (row, column)
        core = (row * self.shards(pages)[1] + column) % self.count
        if self.by_columns:
            return core % self.cores[0], core // self.cores[0]
        return core // self.cores[1], core % self.cores[1]

    def misfit(self, pages: tuple[int, int]) -> str | None:
        """Why an array of so many rows and columns of pages is not placed so; None where it can be."""
        rows, columns = self.shards(pages)[:: -1 if self.by_columns else 1]
        if self.is_block and (rows > self.cores[0] or columns > self.cores[1]):
            return f"{rows} x {columns} shards are more than {self.cores[0]} x {self.cores[1]} cores"
        return None

    def layout(self, shape: tuple[int, int]) -> Layout:
        """The layout of an array of rows and columns of elements. Axes core.y, core.x and mem.

        Raises:
            LayoutError: the core of a shard is no digit of a row or a column.
        """
        shard, tile = (self.shard[0] * TILE, self.shard[1] * TILE), (TILE, TILE)
        if self.is_block:
            return block_sharded(shape, shard, self.cores, tile, transposed=self.by_columns)
        count = min(self.count, prod(self.shards(page_matrix(shape))))
        line = nd_sharded(shape, shard, count, tile)
        return fold_cores(line, self.cores, column_major_cores=self.by_columns)


def page_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of an array's pages: all dims but the last are rows, the last two of them in whole tiles."""
    padded = (*(1,) * (2 - len(shape)), *shape)
    return prod(padded[:-2]) * -(-padded[-2] // TILE), -(-padded[-1] // TILE)


class Pages(msgspec.Struct, frozen=True):
    """The storage of an array's pages, as the type of the array declares it; the default is device tiles in DRAM.

    Attributes:
        format: one of `FORMATS`; empty is the format of the element type.
        placement: shards in the memories of cores; None is DRAM.
        is_row_major: pages are rows of the last dim, in DRAM.
    """

    format: str = ""
    placement: Placement | None = None
    is_row_major: bool = False

    def __str__(self) -> str:
        between = " " if self.is_row_major else " in "
        return between.join(filter(None, (self.format, self.place))) or DRAM

    @property
    def place(self) -> str:
        """Text of the placement, or `row-major`; empty for device tiles in DRAM."""
        return ROW_MAJOR if self.is_row_major else str(self.placement or "")

    @classmethod
    def parse(cls, format: str, place: str) -> Pages:
        """The storage whose format and `place` these are.

        Raises:
            LayoutError: there is no such format or placement.
        """
        if format and format not in FORMATS:
            raise LayoutError(f"`{format}` is no format of pages", help=f"use one of {', '.join(FORMATS)}")
        if place == ROW_MAJOR:
            return cls(format, None, True)
        return cls(format, Placement.parse(place) if place else None)

    def layout(self, shape: tuple[int, int]) -> Layout:
        """The layout of an array of rows and columns of elements. Axes core.y, core.x and mem, or mem.dram.

        Raises:
            LayoutError: the core of a shard is no digit of a row or a column.
        """
        if self.placement is not None:
            return self.placement.layout(shape)
        return row_major(shape, "mem.dram") if self.is_row_major else rename_axis(tilized(shape), "mem", "mem.dram")


class Storage(msgspec.Struct, frozen=True):
    """A requested storage: a format and a placement; empty fields are defaults.

    Attributes:
        format: one of `FORMATS`.
        memory: `dram` or `l1`.
        scheme: how shards are cut, of given tiles where it is empty.
        shard: those tiles.
        cores: rows and columns of cores; all of the machine's, if None.
        by_rows: pages are rows of the last dim, in DRAM.
    """

    format: str = ""
    memory: str = ""
    scheme: str = ""
    shard: tuple[int, int] | None = None
    cores: tuple[int, int] | None = None
    by_columns: bool = False
    by_rows: bool = False

    def placement(self, shape: Sequence[int], machine: tuple[int, int]) -> Placement | None:
        """The layout of an array's pages on a machine with the given rows and columns of cores; None in DRAM.

        Raises:
            LayoutError: the machine has fewer cores, or shards have no room on them.
        """
        if self.memory != L1:
            return None
        cores = self.cores or machine
        if not all(0 < wanted <= there for wanted, there in zip(cores, machine, strict=True)):
            raise LayoutError(f"the machine has {machine[0]}x{machine[1]} cores, not {cores[0]}x{cores[1]}", help=_HELP)
        pages = page_matrix(shape)
        shard = self.shard or self._shard(pages, cores)
        return Placement(shard, cores, self.scheme == BLOCK, self.by_columns)

    def pages(self, shape: Sequence[int], machine: tuple[int, int]) -> Pages:
        """The storage of an array of a shape on a machine with the given rows and columns of cores.

        Raises:
            LayoutError: the machine has fewer cores, or shards have no room on them.
        """
        return Pages(self.format, self.placement(shape, machine), self.by_rows)

    def _shard(self, pages: tuple[int, int], cores: tuple[int, int]) -> tuple[int, int]:
        (rows, columns), count = (max(1, pages[0]), max(1, pages[1])), prod(cores)
        if self.scheme == HEIGHT:
            return -(-rows // count), columns
        if self.scheme == WIDTH:
            return rows, -(-columns // count)
        if self.scheme == BLOCK:
            down, across = cores[::-1] if self.by_columns else cores
            return -(-rows // down), -(-columns // across)
        return 1, 1


def parse_storage(text: str) -> Storage:
    """Parse a user's text.

    Raises:
        LayoutError: the text names no known format or placement.
    """
    words = text.split()
    format = words.pop(0) if words and words[0] in FORMATS else ""
    memory = words.pop(0) if words and words[0] in (DRAM, L1) else ""
    by_rows = bool(words) and words[-1] == ROW_MAJOR
    if by_rows:
        words.pop()
        _check_rows(text, format, memory)
    if not format and not memory and not by_rows:
        raise _unread(text, words)
    scheme, shard, cores, by_columns = "", None, None, False
    if memory == L1:
        scheme = INTERLEAVED
        if words and words[0] in _SCHEMES:
            scheme = words.pop(0)
        elif words and _PAIR.fullmatch(words[0]):
            scheme, shard = "", _pair(words.pop(0))
        if len(words) > 1 and words[0] == "on" and _PAIR.fullmatch(words[1]):
            cores = _pair(words[1])
            del words[:2]
        if words == ["by", "columns"]:
            by_columns = True
            words.clear()
    if words or (shard is not None and 0 in shard):
        raise _unread(text, words)
    return Storage(format, memory, scheme, shard, cores, by_columns, by_rows)


def _check_rows(text: str, format: str, memory: str) -> None:
    if memory == L1:
        raise LayoutError(f"`{text}`: row-major arrays are in DRAM only", help=f"write `{ROW_MAJOR}`, or leave it out")
    if format and FORMATS[format].exponent_bytes:
        what = f"`{text}`: numbers of {format} share exponents within device tiles, and are not stored by rows"
        raise LayoutError(what, help=f"write `bf16 {ROW_MAJOR}`, or `{format}`")


def _unread(text: str, words: Sequence[str]) -> LayoutError:
    where = f" at `{' '.join(words)}`" if words else ""
    return LayoutError(f"`{text}` is no storage of an array on a grid of cores{where}", help=_HELP)


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split("x")
    return int(first), int(second)

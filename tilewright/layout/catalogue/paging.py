"""The paging of tiles on a grid of cores: how a tile is cut into device tiles, which are the pages of a queue.

A paging names dims of a tile, and is worked out before tiles and queues exist; with a shape it gives a `Layout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
from msgspec.structs import replace

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.grid import paged_tile
from tilewright.layout.layout import Layout

ABSENT = -1


class Paging(msgspec.Struct, frozen=True):
    """The dims of a tile that run along the rows and the columns of pages, and the order of the pages.

    Attributes:
        rows, columns: the dims; `ABSENT` where none runs along them, and the tile is in the first row, or column, of
            its pages. The other dims count pages, row-major, before rows and columns of pages do.
        is_column_major: pages of a matrix are in column-major order.
    """

    rows: int
    columns: int
    is_column_major: bool = False

    @classmethod
    def default(cls, shape: Sequence[int]) -> Paging:
        """The last two dims along rows and columns."""
        rank = len(shape)
        return cls(rank - 2 if rank > 1 else ABSENT, rank - 1 if rank else ABSENT).of(shape)

    def of(self, shape: Sequence[int]) -> Paging:
        """The paging of a tile of a shape: a dim of one element along rows or columns is equal to none."""
        rows = ABSENT if self.rows != ABSENT and shape[self.rows] == 1 else self.rows
        columns = ABSENT if self.columns != ABSENT and shape[self.columns] == 1 else self.columns
        return Paging(rows, columns, self.is_column_major and ABSENT not in (rows, columns))

    def completed(self, shape: Sequence[int]) -> Paging:
        """The paging with pages in row-major order, and with the last dim of more than one element that is left along
        what no dim runs along."""
        rows, columns = self.rows, self.columns
        left = [d for d, size in enumerate(shape) if size > 1 and d not in (rows, columns)]
        if columns == ABSENT and left and (rows == ABSENT or len(shape) > 1):
            columns = left.pop()
        if rows == ABSENT and left:
            rows = left.pop()
        return Paging(rows, columns).of(shape)

    def renamed(self, names: Mapping[int, int]) -> Paging:
        """The paging with dims renumbered; dims without a number are absent."""
        return Paging(names.get(self.rows, ABSENT), names.get(self.columns, ABSENT), self.is_column_major)

    @property
    def dims(self) -> tuple[int, int]:
        """The dims along rows and columns."""
        return self.rows, self.columns

    @property
    def row_major(self) -> Paging:
        """The paging with pages in row-major order."""
        return replace(self, is_column_major=False)

    @property
    def transposed(self) -> Paging:
        """The paging whose pages are the transposes."""
        return replace(self, rows=self.columns, columns=self.rows)

    @property
    def corner(self) -> tuple[int, int]:
        """Rows and columns of each page that hold elements: one along what no dim runs along."""
        rows, columns = (1 if dim == ABSENT else TILE for dim in self.dims)
        return rows, columns

    def outer(self, rank: int) -> list[int]:
        """The dims that count pages."""
        dims = self.dims
        return [dim for dim in range(rank) if dim not in dims]

    def extent(self, shape: Sequence[int], dim: int) -> int:
        """Pages that a tile has along a dim."""
        if dim == ABSENT:
            return 1
        return -(-shape[dim] // TILE) if dim in self.dims else shape[dim]

    def counts(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Pages of a tile along the outer dims, rows and columns."""
        outer = prod([shape[dim] for dim in self.outer(len(shape))])
        return outer, self.extent(shape, self.rows), self.extent(shape, self.columns)

    def pages(self, shape: Sequence[int]) -> int:
        """Pages of a tile."""
        return prod(self.counts(shape))

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout of a tile in its pages. Axes page and mem."""
        rows, columns = (None if dim == ABSENT else dim for dim in self.dims)
        return paged_tile(shape, rows, columns, column_major=self.is_column_major)

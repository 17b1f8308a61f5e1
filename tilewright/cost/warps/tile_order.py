"""Memory traffic of concurrent thread blocks beyond the second-level cache, by the order of their tiles.

A block does a tile of a grid of `rows` x `columns`, and reads the panel of its row and that of its column: what all
tiles of the row read of the left operand, and all of the column of the right one. `blocks` blocks run at once, in
waves, and move along the contracted dim together. So

    traffic = sum over waves of (distinct rows * row_bytes + distinct columns * column_bytes)

bytes are read from memory: the cache serves all blocks of a wave that read the same panel, and holds nothing from one
wave to the next, which overestimates the traffic of small panels. If the cache has room for all panels, each is read
once:

    traffic = rows * row_bytes + columns * column_bytes

The best of a wave is nearly square in bytes: a group of g rows meets blocks / g columns, and g * row_bytes + blocks / g
* column_bytes is least at g = sqrt(blocks * column_bytes / row_bytes).

If two blocks of consecutive ids may share a multicast panel, they do so in groups of an even number of rows that share
columns, or in groups of one that share rows, and load so much less from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilewright.records import dataclass

# Groups that are looked at are powers of two, and so many equal parts of all rows, which leave no smaller group.
_MOST_PARTS = 8
# How much more may come from the memory where pairs of blocks bring less from the cache: that is the nearer bound.
_NEARLY = 1.25


@dataclass(frozen=True)
class TileGrid:
    """Tiles in rows and columns, and the bytes of the panels of each."""

    rows: int
    columns: int
    row_bytes: int
    column_bytes: int

    @property
    def turned(self) -> TileGrid:
        """Rows for columns."""
        return TileGrid(self.columns, self.rows, self.column_bytes, self.row_bytes)

    @property
    def panel_bytes(self) -> int:
        """Bytes of all panels."""
        return self.rows * self.row_bytes + self.columns * self.column_bytes


@dataclass(frozen=True)
class TileOrder:
    """Groups of `group` rows, or of columns where it `is_turned`: in a group the other dim is outermost.
    `traffic_bytes`: what comes from the memory beyond the cache."""

    group: int
    is_turned: bool
    traffic_bytes: int


def plain_order(grid: TileGrid, blocks: int, cache_bytes: int) -> TileOrder:
    """Columns fastest, for so many blocks at once and so large a cache."""
    return TileOrder(1, False, traffic_bytes(grid, 1, blocks, cache_bytes))


def best_order(grid: TileGrid, blocks: int, cache_bytes: int, *, in_pairs: bool = False) -> TileOrder:
    """The order of least traffic: the plain one, unless another one has less. `in_pairs`: of those with nearly as
    little, that in which two blocks that follow each other share most."""
    found = [plain_order(grid, blocks, cache_bytes)]
    for is_turned, each in ((False, grid), (True, grid.turned)):
        for group in _groups(each.rows, blocks):
            found.append(TileOrder(group, is_turned, traffic_bytes(each, group, blocks, cache_bytes)))
    best = min(found, key=lambda order: order.traffic_bytes)
    if not in_pairs:
        return best
    near = [order for order in found if order.traffic_bytes <= _NEARLY * best.traffic_bytes]
    return min(near, key=lambda order: (-common_bytes(grid, order), order.traffic_bytes))


def common_bytes(grid: TileGrid, order: TileOrder) -> int:
    """The bytes of the panel that the blocks of a pair share: of numbers 2 n and 2 n + 1, for all n; 0 where some
    share none."""
    each = grid.turned if order.is_turned else grid
    if order.group % 2 == 0 and each.rows % 2 == 0:
        return each.column_bytes
    return each.row_bytes if order.group == 1 and each.columns % 2 == 0 else 0


def traffic_bytes(grid: TileGrid, group: int, blocks: int, cache_bytes: int) -> int:
    """Bytes read from beyond the cache, for groups of so many rows."""
    if grid.panel_bytes <= cache_bytes:
        return grid.panel_bytes
    total, tiles = 0, grid.rows * grid.columns
    for start in range(0, tiles, blocks):
        rows, columns = wave_panels(grid, group, start, min(start + blocks, tiles))
        total += rows * grid.row_bytes + columns * grid.column_bytes
    return total


def wave_panels(grid: TileGrid, group: int, start: int, stop: int) -> tuple[int, int]:
    """How many distinct rows and columns the tiles of numbers from `start` on, before `stop`, are in."""
    rows = 0
    spans: list[tuple[int, int]] = []
    size = group * grid.columns
    for number in range(start // size, (stop - 1) // size + 1):
        first, last = max(start - number * size, 0), min(stop - number * size, size)
        height = min(group, grid.rows - number * group)
        rows += min(height, last - first)
        spans.append((first // height, (last - 1) // height + 1))
    if len(spans) > 2:  # a whole group lies between
        return rows, grid.columns
    if len(spans) == 2:  # to the last column, and from the first one on
        return rows, min(grid.columns, grid.columns - spans[0][0] + spans[1][1])
    return rows, spans[0][1] - spans[0][0]


def _groups(rows: int, blocks: int) -> Iterator[int]:
    """Sizes of groups that are worth a look."""
    most = min(rows, blocks)
    powers = {1 << power for power in range(most.bit_length())}
    parts = {ceil(rows / count) for count in range(1, _MOST_PARTS + 1)}
    yield from sorted(size for size in powers | parts if size <= most)

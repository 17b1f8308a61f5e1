"""Holders of an array's pages: banks of DRAM in turn, or L1 of cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tilewright.layout.catalogue.placements import Placement, page_matrix
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass

# How many pages are in which bank or core.
Shares = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Holders:
    """`cores`: the id of the core that holds each page, counted along rows of the machine; None where pages are in
    `banks` of DRAM."""

    banks: int
    cores: tuple[int, ...] | None = None

    @property
    def in_dram(self) -> bool:
        return self.cores is None

    def of(self, page: int) -> int:
        return page % self.banks if self.cores is None else self.cores[page]

    def alike(self, page: int) -> int:
        """A key that is equal for pages from which runs of pages have the same holders."""
        return page % self.banks if self.cores is None else page

    def shares(self, pages: Sequence[int]) -> Shares:
        """How many of some pages each bank or core holds."""
        return tuple(Counter(map(self.of, pages)).items())


def holders_of(shape: Sequence[int], placement: Placement | None, grid: CoreGrid) -> Holders:
    """The holders of an array's pages on a machine."""
    if placement is None:
        return Holders(grid.dram_banks)
    row, column = placement.holders(page_matrix(shape))
    return Holders(grid.dram_banks, tuple((row * grid.columns + column).tolist()))

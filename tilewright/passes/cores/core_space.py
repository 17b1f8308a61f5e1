"""The layout space of arrays on a grid of cores: the placements that an array may have, and the cycles of accesses.

The costs are those of the busiest core, from the figures of the machine: pages that are moved whole take a transaction
each, other windows are gathered element by element, or scattered a row of a face at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.cost.cores.accesses import Access
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.layout.catalogue.device_tiles import FACE, FORMATS
from tilewright.layout.catalogue.placements import Placement
from tilewright.machines.core_grid import DRAM_READ, DRAM_WRITE, CoreGrid
from tilewright.passes.cores.page_windows import Window, window_of
from tilewright.passes.cores.tile_facts import settled, stored_format
from tilewright.records import dataclass


@dataclass(frozen=True)
class CoreSpace:
    """Candidates and costs for the cores of one machine."""

    grid: CoreGrid

    def seconds(self, cycles: float) -> float:
        return cycles / self.grid.clock_hertz

    # ---- accesses of tile kernels -----------------------------------------------------------------------------------

    def window(self, op: tile.LoadOp | tile.StoreOp, map: AffineMap, array: Sequence[int]) -> Window | None:
        """The pages of an array that an access by a map moves, None of one that moves single elements."""
        if any(not isinstance(symbol.type, IndexType) for symbol in op.symbols):
            return None
        whole = window_of(map, tile_shape(op), array, len(op.symbols))
        if whole is not None:
            return whole
        found = window_of(settled(map, op.symbols), tile_shape(op), array, len(op.symbols))
        return found if found is not None and self._page_cycles(op, found) <= self._element_cycles(op) else None

    def settle_indices(self, kernel: tile.KernelOp) -> None:
        """Replace indices of one value by 0 in the maps of a kernel, but in accesses that move their few elements in
        less time than whole pages."""
        for op in kernel.walk():
            if isinstance(op, tile.LoadOp | tile.StoreOp):
                shape = tile.ref_type(array_of(op)).shape
                after = settled(op.map, op.symbols)
                is_paged = window_of(after, tile_shape(op), shape, len(op.symbols)) is not None
                if not is_paged or self.window(op, op.map, shape) is not None:
                    op.map = after
            elif isinstance(op, tile.IotaOp | tile.FillPaddingOp):
                op.map = settled(op.map, op.symbols)

    def access_cycles(self, op: tile.LoadOp | tile.StoreOp, map: AffineMap, array: Sequence[int]) -> float:
        """Cycles that the core with most grid points spends on an access by a map to an array of a shape in DRAM."""
        window = self.window(op, map, array)
        one = self._element_cycles(op) if window is None else self._page_cycles(op, window)
        return self.runs(op) * one + self.grid.latency_cycles(_kind(op))

    def _page_cycles(self, op: tile.LoadOp | tile.StoreOp, window: Window) -> float:
        page_bytes = FORMATS[stored_format(array_of(op))].page_bytes
        return self.grid.occupancy_cycles(_kind(op), page_bytes, window.paging.pages(tile_shape(op)))

    def _element_cycles(self, op: tile.LoadOp | tile.StoreOp) -> float:
        """Cycles of an access in runs of elements, at most a row of a face each: they are transferred by themselves,
        and those that are read copied one by one."""
        shape = tile_shape(op)
        runs = prod(shape[:-1]) * -(-shape[-1] // FACE) if shape else 1
        bits = FORMATS[stored_format(array_of(op))].bits
        moved = self.grid.occupancy_cycles(_kind(op), -(-prod(shape) // runs) * bits // 8, runs)
        if isinstance(op, tile.StoreOp):
            return max(moved, self.grid.issue_cycles * runs)
        return moved + self.grid.element_cycles * prod(shape)

    def runs(self, op: tile.LoadOp | tile.StoreOp) -> int:
        """How often the core with most grid points runs an operation of a tile kernel."""
        count, parent = 1, op.parent_op()
        while parent is not None:
            if isinstance(parent, tile.ForOp):
                count *= parent.trips
            elif isinstance(parent, tile.KernelOp):
                count *= -(-prod(parent.grid) // (self.grid.rows * self.grid.columns))
            parent = parent.parent_op()
        return count

    # ---- placements of arrays ---------------------------------------------------------------------------------------

    def placements(self, shape: Sequence[int], accesses: Sequence[Access]) -> list[Placement | None]:
        """Candidates of an array: DRAM, interleaved over the memories of all cores, or with the cores that move its
        pages."""
        homes = {home for access in accesses if (home := access.home(shape, self.grid)) is not None}
        homes.add(Placement((1, 1), (self.grid.rows, self.grid.columns)))
        return [None, *sorted(homes, key=str)]

    def cycles(self, shape: Sequence[int], accesses: Sequence[Access], placement: Placement | None) -> float:
        return sum(access.cycles(shape, placement, self.grid) for access in accesses)


def array_of(op: tile.LoadOp | tile.StoreOp) -> SSAValue:
    """The array that an access loads from or stores to."""
    return op.source if isinstance(op, tile.LoadOp) else op.destination


def _kind(op: tile.LoadOp | tile.StoreOp) -> str:
    return DRAM_READ if isinstance(op, tile.LoadOp) else DRAM_WRITE


def tile_shape(op: tile.LoadOp | tile.StoreOp) -> tuple[int, ...]:
    """The shape of the tile that an access moves."""
    return array_type(op.result if isinstance(op, tile.LoadOp) else op.value).shape

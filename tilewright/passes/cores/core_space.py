"""The layout space of arrays on a grid of cores: the placements that an array may have, and the cycles of accesses.

The costs are those of the busiest core, from the figures of the machine: pages that are moved whole take a transaction
each, other windows are gathered element by element, or scattered a row of a face at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir.affine import AffineMap

from tilewright.cost.cores.accesses import Access
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.layout.catalogue.device_tiles import FACE, FORMATS
from tilewright.layout.catalogue.placements import Placement
from tilewright.machines.core_grid import DRAM_READ, DRAM_WRITE, CoreGrid
from tilewright.passes.cores.forms import Window, pages_of, window_of
from tilewright.passes.cores.tile_facts import settled, stored_format


@dataclass(frozen=True)
class CoreSpace:
    """Candidates and costs for the cores of one machine."""

    grid: CoreGrid

    def seconds(self, cycles: float) -> float:
        return cycles / self.grid.clock_hertz

    # ---- accesses of tile kernels -----------------------------------------------------------------------------------

    def window(self, op: tile.LoadOp | tile.StoreOp, map: AffineMap, array: Sequence[int]) -> Window | None:
        """The pages of an array that an access by a map is, None of one of single elements."""
        if any(not isinstance(symbol.type, IndexType) for symbol in op.symbols):
            return None
        return window_of(settled(map, op.symbols), tile_shape(op), array, len(op.symbols))

    def access_cycles(self, op: tile.LoadOp | tile.StoreOp, map: AffineMap, array: Sequence[int]) -> float:
        """Cycles that the core with most grid points spends on an access by a map to an array of a shape in DRAM."""
        shape, ref = tile_shape(op), op.source if isinstance(op, tile.LoadOp) else op.destination
        kind = DRAM_READ if isinstance(op, tile.LoadOp) else DRAM_WRITE
        page_bytes = FORMATS[stored_format(ref)].page_bytes
        window = self.window(op, map, array)
        if window is None and kind == DRAM_READ:
            one = self.grid.element_cycles * prod(shape)
        elif window is None:
            one = self.grid.issue_cycles * -(-prod(shape) // FACE)
        else:
            one = self.grid.occupancy_cycles(kind, page_bytes, pages_of(shape, window.form))
        return self.runs(op) * one + self.grid.latency_cycles(kind)

    def runs(self, op: tile.LoadOp | tile.StoreOp) -> int:
        """How often the core with most grid points runs an operation of a tile kernel."""
        count, parent = 1, op.parent_op()
        while parent is not None:
            if isinstance(parent, tile.ForOp):
                count *= parent.trips
            elif isinstance(parent, tile.KernelOp):
                count *= -(-prod(parent.grid_shape) // (self.grid.rows * self.grid.columns))
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


def tile_shape(op: tile.LoadOp | tile.StoreOp) -> tuple[int, ...]:
    """The shape of the tile that an access moves."""
    return array_type(op.result if isinstance(op, tile.LoadOp) else op.value).shape

"""Tensor memory of one block: its columns, and who touched them when (PTX ISA, 9.7.16.1 "Tensor Memory").

128 lanes of 512 columns of 32 bits. What is tracked are the 32 lanes of each warp of a warpgroup, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import Block
from tests.emulators.ptx.errors import TensorMemoryFault
from tests.emulators.ptx.ordering import Sent

LANES, COLUMNS, QUARTER = 128, 512, 32
_LEAST_COLUMNS = 32
_FREE = -1


@dataclass(frozen=True)
class Cells:
    """Columns of some quarters of the lanes."""

    quarters: slice
    columns: slice

    @property
    def index(self) -> tuple[slice, slice]:
        return self.quarters, self.columns


@dataclass
class TensorMemory:
    """`owner`: of each column the first column of its allocation. Counters tell how many operations are under way."""

    block: Block
    data: np.ndarray = field(default_factory=lambda: np.full((LANES, COLUMNS), 0xCDCDCDCD, np.uint32))
    owner: np.ndarray = field(default_factory=lambda: np.full(COLUMNS, _FREE))
    last_allocated: int = COLUMNS
    relinquished: bool = False

    def __post_init__(self) -> None:
        shape = (LANES // QUARTER, COLUMNS)
        self._writer, self._writer_clock = np.zeros(shape, np.int16), np.zeros(shape, np.int32)
        self._reads = np.zeros((self.block.ordering.most_agents, *shape), np.int32)
        self._multiplied, self._stored, self._loaded = (np.zeros(shape, np.int16) for _ in range(3))
        self.told: dict[int, Sent] = {}
        # What wrote last: a number for each thread and accumulator whose products did, 0 for stores.
        self._pipeline, self._numbers = np.zeros(shape, np.int32), dict[object, int]()

    def fault(self, thread: int, reason: str) -> TensorMemoryFault:
        return TensorMemoryFault(f"thread {thread}: {reason}, {self.block.where()}")

    # ---- allocation ----------------------------------------------------------------------------------------------

    def allocate(self, thread: int, columns: int) -> int | None:
        """The first column; None where there is not enough left. The last that fit: nobody may rely on column 0."""
        if self.relinquished:
            raise self.fault(thread, "an allocation after relinquish_alloc_permit")
        self._check_count(thread, columns)
        if columns > self.last_allocated:
            raise self.fault(thread, f"{columns} columns are allocated after {self.last_allocated}")
        for first in range(COLUMNS - columns, -1, -columns):
            if (self.owner[first : first + columns] == _FREE).all():
                self.owner[first : first + columns] = first
                self.last_allocated = columns
                return first
        return None

    def free(self, thread: int, address: int, columns: int) -> None:
        self._check_count(thread, columns)
        if address not in range(COLUMNS) or ((self.owner == address).sum() != columns):
            raise self.fault(thread, f"no allocation of {columns} columns is at {address:#x}")
        cells = (slice(None), slice(address, address + columns))
        if self._multiplied[cells].any() or self._stored[cells].any() or self._loaded[cells].any():
            raise self.fault(thread, "columns are deallocated that operations are under way on")
        ordering = self.block.ordering
        known = ordering.seen[self.block.agent(thread), : ordering.agents]
        unseen_reads = self._reads[: ordering.agents, :, address : address + columns] > known[:, None, None]
        if unseen_reads.any() or (self._writer_clock[cells] > known[self._writer[cells]]).any():
            raise self.fault(thread, "columns are deallocated that other warps use, with no barrier since")
        self.owner[self.owner == address] = _FREE

    def _check_count(self, thread: int, columns: int) -> None:
        if columns & (columns - 1) or not _LEAST_COLUMNS <= columns <= COLUMNS:
            raise self.fault(thread, f"{columns} columns are no power of two from 32 to 512")

    def end(self) -> None:
        if (self.owner != _FREE).any():
            raise TensorMemoryFault(f"the block ends with tensor memory allocated, {self.block.where()}")

    def cells(self, thread: int, address: int, columns: int, quarters: slice) -> Cells:
        """Columns from an address on, which have to be of one allocation."""
        first = address & 0xFFFF
        owners = self.owner[first : first + columns]
        if owners.size != columns or (owners == _FREE).any() or (owners != owners[0]).any():
            raise self.fault(thread, f"columns {first} to {first + columns - 1} are not allocated")
        return Cells(quarters, slice(first, first + columns))

    # ---- loads and stores of warps: `finish` is the wait ------------------------------------------------------------

    def start_load(self, thread: int, cells: Cells) -> None:
        self._check_written(thread, cells)
        self._loaded[cells.index] += 1

    def finish_load(self, warp: int, cells: Cells) -> None:
        self._loaded[cells.index] -= 1
        agent = self.block.first_warp + warp
        self._reads[agent][cells.index] = self.block.ordering.clocks[agent]

    def start_store(self, thread: int, cells: Cells) -> None:
        self._check_written(thread, cells)
        self._check_read(thread, cells)
        self._stored[cells.index] += 1
        self._pipeline[cells.index] = 0

    def finish_store(self, warp: int, cells: Cells) -> None:
        self._stored[cells.index] -= 1
        agent = self.block.first_warp + warp
        self._writer[cells.index] = agent
        self._writer_clock[cells.index] = self.block.ordering.clocks[agent]

    # ---- products ----------------------------------------------------------------------------------------------------

    def start_product(self, thread: int, cells: Cells, accumulator: object) -> None:
        """Products of a thread on one accumulator follow each other: "Pipelined tcgen05 Instructions"."""
        number = self._numbers.setdefault((thread, accumulator), len(self._numbers) + 1)
        if (self._pipeline[cells.index] != number).any():
            self._check_written(thread, cells)
        self._pipeline[cells.index] = number
        self._check_read(thread, cells)
        self._multiplied[cells.index] += 1

    def finish_product(self, cells: Cells, agent: int, clock: int) -> None:
        self._multiplied[cells.index] -= 1
        self._writer[cells.index], self._writer_clock[cells.index] = agent, clock

    def tell(self, thread: int, agent: int, clock: int) -> Sent:
        """What the mbarriers of a thread's commits pass on, with one more of its completions."""
        nothing_sent = self.block.ordering.nothing_sent
        sent = self.told.setdefault(thread, nothing_sent())
        for clocks in (sent.seen, sent.fenced, sent.tensor):
            clocks[agent] = clock
        copy = nothing_sent()
        copy.join(sent)
        return copy

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _known(self, thread: int) -> np.ndarray:
        """What comes before the tensor-memory operations of a thread's warp: what was fenced, and its own."""
        agent = self.block.agent(thread)
        known = self.block.ordering.tensor[agent].copy()
        known[agent] = self.block.ordering.clocks[agent]
        return known

    def _check_written(self, thread: int, cells: Cells) -> None:
        if self._multiplied[cells.index].any():
            raise self.fault(thread, "a tcgen05.mma whose commit nobody awaited still writes there")
        if self._stored[cells.index].any():
            raise self.fault(thread, "a tcgen05.st that nobody awaited still writes there")
        known = self._known(thread)
        if (self._writer_clock[cells.index] > known[self._writer[cells.index]]).any():
            raise self.fault(thread, "what was written there is not ordered before: a wait or a tcgen05.fence lacks")

    def _check_read(self, thread: int, cells: Cells) -> None:
        if self._loaded[cells.index].any():
            raise self.fault(thread, "a tcgen05.ld that nobody awaited still reads there")
        agents = self.block.ordering.agents
        known: Sequence[int] | np.ndarray = self._known(thread)[:agents]
        if (self._reads[:agents][(slice(None), *cells.index)] > np.asarray(known)[:, None, None]).any():
            raise self.fault(thread, "what was read there is not ordered before: a wait or a tcgen05.fence lacks")

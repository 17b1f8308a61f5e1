"""Shared state of the threads of a program: time, machine, arrays and counters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from heapq import heappop, heappush, heappushpop
from math import inf
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE, LOCAL, CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import Agent, Core, Mover, some_factor
from tilewright.semantics.cores.arrays import ArrayMemory
from tilewright.semantics.cores.holders import Shares
from tilewright.semantics.cores.timeline import Timeline

# An agent, or something that happens.
_Item = Agent | Callable[[], None]
# When, an order among what is at one time, a number that tells these apart, and what.
Entry = tuple[float, float, int, _Item | None]


@dataclass(eq=False)
class World:
    """`values`: whether tiles are computed; `checks`: whether hazards are looked for by vector clocks; `order`: the
    source of random times and orders, None for the nominal ones. `columns`: how many columns vectors have. `now`: the
    time, in cycles. `dram_banks`, and `memories` of cores by each network: until when they are busy with pages of
    arrays. `heap` always ends with an entry at infinite time."""

    grid: CoreGrid
    values: bool
    checks: bool
    order: random.Random | None
    timeline: Timeline | None
    narrow: np.dtype[Any] | None = None
    wide: bool = False
    columns: int = 0
    now: float = 0.0
    cores: dict[tuple[int, int], Core] = field(default_factory=dict[tuple[int, int], Core])
    arrays: dict[SSAValue, ArrayMemory] = field(default_factory=dict[SSAValue, ArrayMemory])
    queue_numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    semaphore_numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    heap: list[Entry] = field(default_factory=lambda: [(inf, 0.0, -1, None)])
    dram_banks: list[float] = field(default_factory=list[float])
    memories: list[list[float]] = field(default_factory=list[list[float]])
    tile_operations: int = 0
    moved_bytes: Counter[str] = field(default_factory=Counter[str])
    _number: int = 0
    _occupancies: dict[tuple[str, int, int], float] = field(default_factory=dict[tuple[str, int, int], float])

    def __post_init__(self) -> None:
        self.dram_banks = [0.0] * self.grid.dram_banks
        self.memories = [[0.0] * (self.grid.rows * self.grid.columns) for _ in range(self.grid.networks)]
        self.bank_bytes_per_cycle = self.grid.dram_bytes_per_second / self.grid.dram_banks / self.grid.clock_hertz

    # ---- what happens next ------------------------------------------------------------------------------------------

    def schedule(self, agent: Agent) -> None:
        """A thread continues at its time."""
        heappush(self.heap, self._entry(agent.time, agent))

    def at(self, time: float, happens: Callable[[], None]) -> None:
        heappush(self.heap, self._entry(time, happens))

    def _entry(self, time: float, item: _Item) -> Entry:
        self._number += 1
        return time, 0.0 if self.order is None else self.order.random(), self._number, item

    def run(self) -> None:
        """Let all happen that can, in the order of time."""
        heap, entry_of = self.heap, self._entry
        entry = heappop(heap)
        while (item := entry[3]) is not None:
            self.now = entry[0]
            if isinstance(item, Agent):
                assert item.generator is not None
                state = next(item.generator, None)
                if state:
                    entry = heappushpop(heap, entry_of(item.time, item))
                    continue
                item.ended = state is None
            else:
                item()
            entry = heappop(heap)
        heappush(heap, entry)

    def clear(self) -> None:
        """Drop all that the program had, at its end: cores, threads and queues, which know each other, would else be
        there until Python looks for garbage."""
        for core in self.cores.values():
            for agent in core.agents.values():
                agent.forget()
            core.agents.clear()
            core.queues.clear()
            core.semaphores.clear()
            core.came.clear()
            core.registers = core.sources = None
        self.cores.clear()
        self.arrays.clear()

    # ---- time -------------------------------------------------------------------------------------------------------

    def factor(self) -> float:
        """By how much a transfer's latency differs from the nominal one."""
        return 1.0 if self.order is None else some_factor(self.order)

    def hops(self, source: Core, destination: Core, noc: int) -> int:
        """Routers between two cores: each network goes around its rows and columns in one direction."""
        down, right = destination.row - source.row, destination.column - source.column
        if noc == 1:
            down, right = -down, -right
        return down % self.grid.rows + right % self.grid.columns

    def _occupancy(self, kind: str, transaction_bytes: int, count: int) -> float:
        key = kind, transaction_bytes, count
        found = self._occupancies.get(key)
        if found is None:
            found = self._occupancies[key] = self.grid.occupancy_cycles(kind, transaction_bytes, count)
        return found

    def transfer_with_array(
        self,
        mover: Mover,
        array: ArrayMemory,
        page_bytes: int,
        shares: Shares,
        reads: bool,
    ) -> float:
        """When pages, so many of each bank or core, have been moved to or from an array. The mover is busy as long as
        it takes to issue them. Pages in a core's own memory delay no other core."""
        issue = self.grid.issue_cycles
        if array.holders.in_dram:
            return self.transfer(mover, DRAM_READ if reads else DRAM_WRITE, page_bytes, _count(shares), shares, issue)
        here = mover.core.row * self.grid.columns + mover.core.column
        lands = mover.time
        own = tuple(share for share in shares if share[0] == here)
        others = tuple(share for share in shares if share[0] != here)
        for kind, chosen in ((LOCAL, own), (CORE_READ if reads else CORE_WRITE, others)):
            if chosen:
                lands = max(lands, self.transfer(mover, kind, page_bytes, _count(chosen), chosen, issue))
        return lands

    def transfer(
        self,
        mover: Mover,
        kind: str,
        transaction_bytes: int,
        count: int,
        shares: Shares,
        issue_cycles: float,
    ) -> float:
        """When `count` transactions of a kind that a mover begins have arrived. `shares`: how many of them go to which
        bank of DRAM, or core."""
        grid, core = self.grid, mover.core
        began = mover.time + grid.issue_cycles
        mover.spend(issue_cycles * count)
        done = max(core.ports[mover.noc], began) + self._occupancy(kind, transaction_bytes, count)
        core.ports[mover.noc] = done
        if kind != LOCAL:
            in_dram = kind in (DRAM_READ, DRAM_WRITE)
            until = self.dram_banks if in_dram else self.memories[mover.noc]
            each = transaction_bytes / (self.bank_bytes_per_cycle if in_dram else grid.network_bytes_per_cycle)
            for holder, pages in shares:
                until[holder] = busy = max(until[holder], began) + pages * each
                done = max(done, busy)
        lands = max(done, mover.time) + grid.latency_cycles(kind) * self.factor()
        self.moved_bytes[kind] += transaction_bytes * count
        if self.timeline is not None:
            self.timeline.transfer(mover, kind, transaction_bytes * count, began, lands)
        return lands

    def transfer_to_cores(self, mover: Mover, destinations: list[Core], bytes: int) -> dict[Core, float]:
        """When the same bytes that a mover sends to other cores have come to each; its end of the network is busy
        once."""
        grid, core = self.grid, mover.core
        began = mover.time + grid.issue_cycles
        mover.spend(grid.issue_cycles)
        free = max(core.ports[mover.noc], began) + self._occupancy(CORE_WRITE, bytes, 1)
        core.ports[mover.noc] = free
        lands: dict[Core, float] = {}
        for each in destinations:
            there = max(each.arriving[mover.noc] + bytes / grid.network_bytes_per_cycle, free)
            each.arriving[mover.noc] = there
            hops = self.hops(core, each, mover.noc) * grid.hop_cycles
            lands[each] = there + (grid.latency_cycles(CORE_WRITE) + hops) * self.factor()
        self.moved_bytes[CORE_WRITE] += bytes
        if self.timeline is not None:
            self.timeline.transfer(mover, CORE_WRITE, bytes, began, max(lands.values()))
        return lands


def _count(shares: Shares) -> int:
    return sum(pages for _, pages in shares)

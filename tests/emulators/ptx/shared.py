"""Shared memory of one block: who touched which byte when, and which bytes asynchronous operations have a claim on.

A touch is allowed when all that it conflicts with happened before (`Ordering`). Races are found between warps; within a
warp everything is in order. Copies arrive as late as the ISA allows: at the wait or the phase that covers them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulators.ptx.errors import SharedRace
from tests.emulators.ptx.memory import scatter
from tests.emulators.ptx.ordering import Ordering

WROTE, READ, UPDATED = (f"that another warp {verb}" for verb in ("wrote before it", "read before it", "updated"))
LANDED = "that an asynchronous copy wrote, whose completion the warp did not wait for"


@dataclass
class _Copy:
    """Copies of one cp.async: thread, bytes and group of each."""

    lanes: np.ndarray
    offsets: np.ndarray
    data: np.ndarray
    groups: np.ndarray

    def part(self, chosen: np.ndarray) -> _Copy:
        return _Copy(self.lanes[chosen], self.offsets[chosen], self.data[chosen], self.groups[chosen])


class SharedMemory:
    """`first_warp`: the number of the block's first warp among those of its cluster. `where`: what runs now, of
    whichever block."""

    def __init__(
        self, size_bytes: int, threads: int, first_warp: int, ordering: Ordering, where: Callable[[], str]
    ) -> None:
        self.data = np.full(size_bytes, 0xFF, np.uint8)
        self._first_warp = first_warp
        self._ordering = ordering
        # The agent that wrote a byte last and its clock then; the clock of each agent's last read and last update.
        self._writer = np.zeros(size_bytes, np.int16)
        self._writer_clock = np.zeros(size_bytes, np.int32)
        self._reads = np.zeros((ordering.most_agents, size_bytes), np.int32)
        self._updates: np.ndarray | None = None
        # How many asynchronous operations will write a byte, how many will read it, and where mbarriers are.
        self._arriving, self._pinned = np.zeros(size_bytes, np.uint16), np.zeros(size_bytes, np.uint16)
        self._objects = np.zeros(size_bytes, bool)
        self._claims = 0
        self._copies: list[_Copy] = []
        self._open_group = np.zeros(threads, np.int64)
        self._where = where

    # ---- loads, stores and atomic operations of threads ---------------------------------------------------------

    def note_read(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        touched, warps = self._touched(lanes, offsets, total_bytes)
        self._check_written(lanes, touched, warps)
        self._check_updated(lanes, touched, warps)
        self._reads[warps, touched] = self._ordering.clocks[warps]

    def note_write(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        touched, warps = self._written(lanes, offsets, total_bytes)
        self._writer[touched] = warps
        self._race(lanes, touched, self._writer[touched] != warps, "that another warp writes as well")
        self._writer_clock[touched] = self._ordering.clocks[warps]

    def note_update(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        """An atomic operation: it races with plain accesses alone."""
        touched, warps = self._touched(lanes, offsets, total_bytes)
        self._check_pinned(lanes, touched)
        self._check_written(lanes, touched, warps)
        self._race(lanes, touched, self._unseen(self._reads, touched, warps), READ)
        if self._updates is None:
            self._updates = np.zeros_like(self._reads)
        self._updates[warps, touched] = self._ordering.clocks[warps]

    def _written(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        touched, warps = self._touched(lanes, offsets, total_bytes)
        self._check_write(lanes, touched, warps)
        return touched, warps

    def _touched(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, their warps as a column) of an access, once those that will be written are ruled out."""
        touched = offsets[:, None] + np.arange(total_bytes)
        self._check_claimed(lanes, touched)
        return touched, self._warps(lanes)

    def _warps(self, lanes: np.ndarray) -> np.ndarray:
        """The warps of the block's threads, by their numbers in the cluster, as a column."""
        return self._first_warp + (lanes >> 5)[:, None]

    # ---- checks -------------------------------------------------------------------------------------------------

    def _race(self, lanes: np.ndarray, touched: np.ndarray, wrong: np.ndarray, reason: str) -> None:
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            byte = touched[row, column]
            raise SharedRace(f"thread {lanes[row]} touches byte {byte} of shared memory {reason}, {self._where()}")

    def _check_claimed(self, lanes: np.ndarray, touched: np.ndarray) -> None:
        if self._claims:
            self._race(lanes, touched, self._arriving[touched] > 0, "that a copy which nobody awaited will write")
            self._race(lanes, touched, self._objects[touched], "where an mbarrier is")

    def _check_pinned(self, lanes: np.ndarray, touched: np.ndarray) -> None:
        if self._claims:
            reason = "that an asynchronous operation which nobody awaited still reads"
            self._race(lanes, touched, self._pinned[touched] > 0, reason)

    def _check_write(self, lanes: np.ndarray, touched: np.ndarray, warps: np.ndarray) -> None:
        self._check_pinned(lanes, touched)
        self._check_written(lanes, touched, warps)
        self._race(lanes, touched, self._unseen(self._reads, touched, warps), READ)
        self._check_updated(lanes, touched, warps)

    def _check_written(self, lanes: np.ndarray, touched: np.ndarray, warps: np.ndarray) -> None:
        writer = self._writer[touched]
        wrong = self._writer_clock[touched] > self._ordering.seen[warps, writer]
        if wrong.any():
            landed = writer >= self._ordering.warps
            self._race(lanes, touched, wrong & landed, LANDED)
            self._race(lanes, touched, wrong, WROTE)

    def _check_updated(self, lanes: np.ndarray, touched: np.ndarray, warps: np.ndarray) -> None:
        if self._updates is not None:
            self._race(lanes, touched, self._unseen(self._updates, touched, warps), UPDATED)

    def _unseen(self, clocks: np.ndarray, touched: np.ndarray, warps: np.ndarray) -> np.ndarray:
        agents = self._ordering.agents
        known = self._ordering.seen[warps[:, 0], :agents].T[:, :, None]
        return (clocks[:agents][:, touched] > known).any(axis=0)

    # ---- cp.async -----------------------------------------------------------------------------------------------

    def start_copies(self, lanes: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> None:
        """`data` (lanes, bytes) is on its way to `offsets`, in the group that each thread has open."""
        touched, _ = self._written(lanes, offsets, data.shape[1])
        self._claims += 1
        np.add.at(self._arriving, touched.reshape(-1), np.uint16(1))
        self._race(lanes, touched, self._arriving[touched] > 1, "that another cp.async writes as well")
        self._copies.append(_Copy(lanes, offsets, data, self._open_group[lanes]))

    def commit_copies(self, lanes: np.ndarray) -> None:
        self._open_group[lanes] += 1

    def await_copies(self, lanes: np.ndarray, groups_left: int) -> None:
        """The copies of threads `lanes` arrive, but for those of the last `groups_left` groups and uncommitted ones."""
        waiting = np.zeros(self._open_group.size, bool)
        waiting[lanes] = True
        remaining = []
        arrived: dict[int, list[_Copy]] = {}
        for copy in self._copies:
            done = waiting[copy.lanes] & (copy.groups < self._open_group[copy.lanes] - groups_left)
            if done.any():
                arrived.setdefault(copy.data.shape[1], []).append(copy if done.all() else copy.part(done))
            if not done.all():
                remaining.append(copy.part(~done) if done.any() else copy)
        for copies in arrived.values():
            # No two of them write the same byte: they may arrive together.
            columns = [(copy.lanes, copy.offsets, copy.data) for copy in copies]
            self._arrive(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        self._claims -= len(self._copies) - len(remaining)
        self._copies = remaining

    def _arrive(self, lanes: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> None:
        self._arriving[offsets[:, None] + np.arange(data.shape[1])] = 0
        self.note_write(lanes, offsets, data.shape[1])
        scatter(self.data, offsets, data)

    # ---- mbarriers and the asynchronous proxy: `places` are numbers of bytes, `thread` is who issued --------------

    def place_object(self, thread: int, offset: int) -> None:
        """An mbarrier is initialised in the 8 bytes from `offset`, which is a write."""
        self.note_write(np.array([thread]), np.array([offset]), 8)
        self._objects[offset : offset + 8] = True
        self._claims += 1

    def remove_object(self, thread: int, offset: int) -> None:
        self._objects[offset : offset + 8] = False
        self._claims -= 1
        self.note_write(np.array([thread]), np.array([offset]), 8)

    def start_write(self, thread: int, warp: int, places: np.ndarray) -> None:
        """An asynchronous operation of a thread will write: nobody may touch the bytes until `finish_write`. The
        thread may be one of another block: `warp` is the number of its warp in the cluster."""
        lanes, touched = self._claim(thread, places)
        warps = np.array([[warp]])
        self._check_write(lanes, touched, warps)
        self._check_fenced(lanes, touched, warps)
        self._claims += 1
        self._arriving[places] += 1

    def finish_write(self, places: np.ndarray, data: np.ndarray, agent: int, clock: int) -> None:
        self._claims -= 1
        self._arriving[places] -= 1
        self.data[places] = data
        self._writer[places], self._writer_clock[places] = agent, clock

    def start_read(self, threads: int | np.ndarray, places: np.ndarray) -> None:
        """An asynchronous operation of `threads` will read: nobody may write the bytes until `finish_read`."""
        lanes, touched = self._claim(threads, places)
        warps = self._warps(lanes)
        self._check_written(lanes, touched, warps)
        self._check_updated(lanes, touched, warps)
        self._check_fenced(lanes, touched, warps)
        self._claims += 1
        # Some operands read a byte several times.
        self._pinned[np.unique(places)] += 1

    def finish_read(self, places: np.ndarray, agent: int, clock: int) -> None:
        self._claims -= 1
        self._pinned[np.unique(places)] -= 1
        self._reads[agent, places] = clock

    def _claim(self, threads: int | np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lanes = np.atleast_1d(threads)
        touched = np.broadcast_to(places.reshape(-1), (lanes.size, places.size))
        self._check_inside(int(lanes[0]), touched)
        self._check_claimed(lanes, touched)
        return lanes, touched

    def _check_inside(self, thread: int, touched: np.ndarray) -> None:
        if touched.size and not 0 <= touched.min() <= touched.max() < self.data.size:
            raise SharedRace(
                f"thread {thread} names bytes {touched.min()} to {touched.max()} of {self.data.size} bytes of shared "
                f"memory, {self._where()}"
            )

    def _check_fenced(self, lanes: np.ndarray, touched: np.ndarray, warps: np.ndarray) -> None:
        """What threads wrote before is visible to the asynchronous proxy: PTX ISA, "Async Proxy"."""
        writer = self._writer[touched]
        of_threads = writer < self._ordering.warps
        wrong = of_threads & (self._writer_clock[touched] > self._ordering.fenced[warps, writer])
        self._race(lanes, touched, wrong, "that threads wrote with no fence.proxy.async since")

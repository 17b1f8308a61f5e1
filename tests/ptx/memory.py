"""Addresses and bytes: global memory, variables, parameters, memory of each thread and shared memory with its checks.

All spaces lie in one numbering, so that generic addresses are the same numbers (PTX ISA, "State Spaces").
Each global array sits in the middle of a window of 2^40 bytes: whatever misses it hits nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.ptx.errors import SharedRace

SHARED_BASE = 0x0100_0000
LOCAL_BASE = 0x0200_0000
PARAMETER_BASE = 0x0300_0000
SMALL_END = 0x0400_0000
GLOBAL_BASE = 1 << 44
WINDOW_BITS = 40
_NOBODY = -1

Fault = Callable[[int, int, str], None]


def gather(data: np.ndarray, offsets: np.ndarray, width_bytes: int, count: int) -> np.ndarray:
    """`count` numbers of `width_bytes` from each of `offsets` on, multiples of the width: (offsets, count)."""
    return _numbers(data, width_bytes)[offsets[:, None] // width_bytes + np.arange(count)]


def scatter(data: np.ndarray, offsets: np.ndarray, values: np.ndarray) -> None:
    width_bytes = values.dtype.itemsize
    _numbers(data, width_bytes)[offsets[:, None] // width_bytes + np.arange(values.shape[1])] = values


def _numbers(data: np.ndarray, width_bytes: int) -> np.ndarray:
    return data[: data.size // width_bytes * width_bytes].view(f"uint{8 * width_bytes}")


class GlobalMemory:
    """The arrays that a kernel was given and the module's variables; nothing else exists."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._windows: list[np.ndarray] = []
        self.addresses = [self.add(array) for array in arrays]

    def add(self, array: np.ndarray) -> int:
        """The address of `array`, whose bytes are those of global memory from now on."""
        if not array.flags.c_contiguous:
            raise ValueError("an array of global memory is contiguous")
        self._windows.append(array.reshape(-1).view(np.uint8))
        return GLOBAL_BASE + ((len(self._windows) - 1) << WINDOW_BITS) + (1 << (WINDOW_BITS - 1))

    def parts(self, addresses: np.ndarray, total_bytes: int) -> list[tuple[np.ndarray | slice, np.ndarray, np.ndarray]]:
        """(which of `addresses`, the array's bytes, offsets in it) for each array that an access touches.

        Accesses that miss are in none: compare the sizes.
        """
        windows = (addresses - GLOBAL_BASE) >> WINDOW_BITS
        offsets = ((addresses - GLOBAL_BASE) & ((1 << WINDOW_BITS) - 1)) - (1 << (WINDOW_BITS - 1))
        result = []
        for window in np.unique(windows):
            if not 0 <= window < len(self._windows):
                continue
            data = self._windows[window]
            chosen = np.flatnonzero((windows == window) & (offsets >= 0) & (offsets + total_bytes <= data.size))
            result.append((chosen, data, offsets[chosen]))
        return result


@dataclass
class _Copy:
    """Asynchronous copies of one instruction: thread, bytes and group of each."""

    lanes: np.ndarray
    offsets: np.ndarray
    data: np.ndarray
    groups: np.ndarray


class SharedMemory:
    """Shared memory of one block, with who touched which byte since the last barrier, by warps.

    Copies of cp.async arrive as late as the ISA allows: at the wait that covers them.
    """

    def __init__(self, size_bytes: int, threads: int, where: Callable[[], str]) -> None:
        self.data = np.full(size_bytes, 0xFF, np.uint8)
        self._writer = np.full(size_bytes, _NOBODY, np.int16)
        self._readers = np.zeros(size_bytes, np.uint32)
        self._updaters = np.zeros(size_bytes, np.uint32)
        self._arriving = np.zeros(size_bytes, np.uint16)
        self._copies: list[_Copy] = []
        self._open_group = np.zeros(threads, np.int64)
        self._where = where

    def barrier(self) -> None:
        """All warps met: what they did before is seen by all that follows."""
        self._writer.fill(_NOBODY)
        self._readers.fill(0)
        self._updaters.fill(0)

    def _touched(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, their warps as a column) of an access, once the copies that are under way are ruled out."""
        touched = offsets[:, None] + np.arange(total_bytes)
        if self._copies and self._arriving[touched].any():
            self._race(lanes, touched, self._arriving[touched] > 0, "that a cp.async which nobody awaited will write")
        return touched, (lanes >> 5)[:, None]

    def _race(self, lanes: np.ndarray, touched: np.ndarray, wrong: np.ndarray, reason: str) -> None:
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            byte = touched[row, column]
            raise SharedRace(f"thread {lanes[row]} touches byte {byte} of shared memory {reason}, {self._where()}")

    def _others(self, mask: np.ndarray, warps: np.ndarray) -> np.ndarray:
        return (mask & ~(np.uint32(1) << warps.astype(np.uint32))) != 0

    def note_read(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        touched, warps = self._touched(lanes, offsets, total_bytes)
        writer = self._writer[touched]
        self._race(lanes, touched, (writer != _NOBODY) & (writer != warps), "that another warp wrote before it")
        self._race(lanes, touched, self._others(self._updaters[touched], warps), "that another warp updated")
        bits = np.broadcast_to(np.uint32(1) << warps.astype(np.uint32), touched.shape)
        np.bitwise_or.at(self._readers, touched.reshape(-1), bits.reshape(-1))

    def note_write(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        touched, warps = self._written(lanes, offsets, total_bytes)
        self._writer[touched] = warps
        self._race(lanes, touched, self._writer[touched] != warps, "that another warp writes as well")

    def _written(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        touched, warps = self._touched(lanes, offsets, total_bytes)
        writer = self._writer[touched]
        self._race(lanes, touched, (writer != _NOBODY) & (writer != warps), "that another warp wrote before it")
        self._race(lanes, touched, self._others(self._readers[touched], warps), "that another warp read before it")
        self._race(lanes, touched, self._others(self._updaters[touched], warps), "that another warp updated")
        return touched, warps

    def note_update(self, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int) -> None:
        """An atomic operation: it races with plain accesses alone."""
        touched, warps = self._touched(lanes, offsets, total_bytes)
        writer = self._writer[touched]
        self._race(lanes, touched, (writer != _NOBODY) & (writer != warps), "that another warp wrote before it")
        self._race(lanes, touched, self._others(self._readers[touched], warps), "that another warp read before it")
        bits = np.broadcast_to(np.uint32(1) << warps.astype(np.uint32), touched.shape)
        np.bitwise_or.at(self._updaters, touched.reshape(-1), bits.reshape(-1))

    def start_copies(self, lanes: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> None:
        """`data` (lanes, bytes) is on its way to `offsets`, in the group that each thread has open."""
        touched, _ = self._written(lanes, offsets, data.shape[1])
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
        for copy in self._copies:
            done = waiting[copy.lanes] & (copy.groups < self._open_group[copy.lanes] - groups_left)
            if done.any():
                self._arrive(copy.lanes[done], copy.offsets[done], copy.data[done])
            if not done.all():
                left = ~done
                remaining.append(_Copy(copy.lanes[left], copy.offsets[left], copy.data[left], copy.groups[left]))
        self._copies = remaining

    def _arrive(self, lanes: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> None:
        self._arriving[offsets[:, None] + np.arange(data.shape[1])] = 0
        self.note_write(lanes, offsets, data.shape[1])
        scatter(self.data, offsets, data)

"""Addresses and bytes of all spaces, and global memory.

All spaces lie in one numbering, so that generic addresses are the same numbers (PTX ISA, "State Spaces").
Each global array sits in the middle of a window of 2^40 bytes: whatever misses it hits nothing else.
"""

from collections.abc import Sequence

import numpy as np

SHARED_BASE = 0x0100_0000
# Behind a block's own shared memory, in the same window, that of each block of its cluster by rank.
CLUSTER_STRIDE = 0x0008_0000
LOCAL_BASE = 0x0200_0000
PARAMETER_BASE = 0x0300_0000
SMALL_END = 0x0400_0000
GLOBAL_BASE = 1 << 44
WINDOW_BITS = 40


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
        # Most accesses touch one array: a comparison tells so quicker than sorting does.
        is_one = windows.size > 0 and bool((windows == windows[0]).all())
        result = []
        for window in windows[:1] if is_one else np.unique(windows):
            if not 0 <= window < len(self._windows):
                continue
            data = self._windows[window]
            chosen = np.flatnonzero((windows == window) & (offsets >= 0) & (offsets + total_bytes <= data.size))
            result.append((chosen, data, offsets[chosen]))
        return result

"""What a kernel executed: instructions of warps, wavefronts of shared memory, sectors of global memory."""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4


@dataclass
class Counts:
    """`instructions` counts by opcode, once a warp and execution. `shared_conflicts` are wavefronts beyond the least.

    A global request is one warp's load or store; `global_sectors_by_line` and `shared_conflicts_by_line` tell where.
    """

    instructions: Counter[str] = field(default_factory=Counter)
    barriers: int = 0
    shared_wavefronts: int = 0
    shared_conflicts: int = 0
    shared_conflicts_by_line: Counter[int] = field(default_factory=Counter)
    global_requests: int = 0
    global_sectors: int = 0
    global_sectors_by_line: Counter[int] = field(default_factory=Counter)

    @property
    def sectors_per_request(self) -> float:
        return self.global_sectors / self.global_requests if self.global_requests else 0.0

    def add_shared(self, line: int, lanes: np.ndarray, offsets: np.ndarray, width_bytes: int) -> None:
        """One shared access of `width_bytes` at each of `offsets` by the threads `lanes`."""
        wavefronts, least = wavefronts_of(lanes, offsets, width_bytes)
        self.shared_wavefronts += wavefronts
        self.shared_conflicts += wavefronts - least
        if wavefronts > least:
            self.shared_conflicts_by_line[line] += wavefronts - least

    def add_global(self, line: int, lanes: np.ndarray, addresses: np.ndarray, width_bytes: int) -> None:
        warps = lanes >> 5
        sectors = _distinct((warps.astype(np.int64) << 50) + addresses // SECTOR_BYTES)
        self.global_requests += _distinct(warps)
        self.global_sectors += sectors
        self.global_sectors_by_line[line] += sectors


def _distinct(numbers: np.ndarray) -> int:
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1 if ordered.size else 0


def wavefronts_of(lanes: np.ndarray, offsets: np.ndarray, width_bytes: int) -> tuple[int, int]:
    """Wavefronts of one access and the least possible: 8 bytes a lane go by half warps, 16 bytes by quarter warps.

    In a wavefront each bank yields one word of 4 bytes, which any number of lanes may read.
    """
    return _wavefronts(lanes.astype(np.int64).tobytes(), offsets.astype(np.int64).tobytes(), width_bytes)


@lru_cache(maxsize=4096)
def _wavefronts(lane_bytes: bytes, offset_bytes: bytes, width_bytes: int) -> tuple[int, int]:
    """Loops repeat few patterns, so each is counted once."""
    lanes, offsets = np.frombuffer(lane_bytes, np.int64), np.frombuffer(offset_bytes, np.int64)
    lanes_together = 32 * BANK_BYTES // max(width_bytes, BANK_BYTES)
    groups = lanes // lanes_together
    words = offsets[:, None] // BANK_BYTES + np.arange(max(width_bytes // BANK_BYTES, 1))
    distinct = np.unique((groups[:, None] << 32) + words)
    group_count = int(groups.max()) + 1
    per_bank = np.bincount((distinct >> 32) * BANKS + distinct % BANKS, minlength=group_count * BANKS)
    return int(per_bank.reshape(-1, BANKS).max(axis=1).sum()), np.unique(groups).size

"""Fallbacks: the smaller plans of kernels whose buffers do not fit the memory of a thread block.

The buffers of a kernel are known to fit once each has an address. If they do not, the program is compiled again with a
smaller plan for that kernel: the planner of a group halves its tiles once for each level, copies ahead take fewer
stages and then none, and attention that does not fit in its smallest tiles is not fused. Kernels that fit keep their
plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import log2
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.machine import Machine

# Levels after which a plan gets no smaller: tiles of a sixty-fourth of the elements along one dimension.
MOST_LEVELS = 6
# From these levels on, loops copy ahead in two stages, and not at all.
FEWEST_STAGES, NO_STAGES = 1, 2
NO_ROOM_FOR_STAGES = "shared memory has no room for stages next to the other buffers of the block"


class Excess(msgspec.Struct, frozen=True):
    """A kernel that needs `needed_bytes` of a memory of which there are `room_bytes`."""

    kernel: str
    needed_bytes: int
    room_bytes: int
    machine: str

    def __str__(self) -> str:
        return f"needs {self.needed_bytes} bytes of shared memory, {self.machine} has {self.room_bytes}"

    @property
    def levels(self) -> int:
        """The fewest levels after which the kernel may fit: each halves two extents of a tile at most."""
        return max(1, int(log2(self.needed_bytes / max(1, self.room_bytes)) / 2))


class DoesNotFit(UnsupportedOnTargetError):
    """Kernels need more shared memory than a thread block has."""

    excesses: tuple[Excess, ...] = ()

    @classmethod
    def of(cls, excesses: Sequence[Excess]) -> DoesNotFit:
        """The error of some kernels, which names the first."""
        error = cls(f"`{excesses[0].kernel}` {excesses[0]}", help="use smaller tiles")
        error.excesses = tuple(excesses)
        return error


class Fallback(msgspec.Struct, frozen=True):
    """How many levels smaller a plan has to be, and why."""

    level: int = 0
    reason: str = ""

    NONE: ClassVar[Fallback]


Fallback.NONE = Fallback()


class Fallbacks(msgspec.Struct):
    """Fallbacks of a program's kernels. A kernel goes by the key of the group that it was lowered from, which
    stays when the program is compiled again; a kernel that the user wrote by its name."""

    by_key: dict[Hashable, Fallback] = msgspec.field(default_factory=dict[Hashable, Fallback])
    keys: dict[str, Hashable] = msgspec.field(default_factory=dict[str, Hashable])

    def of(self, key: Hashable) -> Fallback:
        """The fallback of a group."""
        return self.by_key.get(key, Fallback.NONE)

    def key_of(self, kernel: str) -> Hashable:
        """The key that a kernel goes by."""
        return self.keys.get(kernel, kernel)

    def level_of(self, kernel: str) -> int:
        """The level of a kernel."""
        return self.of(self.key_of(kernel)).level

    def stages(self, kernel: str, wanted: int) -> int:
        """The stages in which a kernel's loops copy ahead; 0 where they do not."""
        level = self.level_of(kernel)
        return 0 if level >= NO_STAGES else min(wanted, 2) if level >= FEWEST_STAGES else wanted

    def lower(self, misfit: DoesNotFit) -> bool:
        """Make the plans of kernels smaller; whether there is a smaller plan for each."""
        if any(self.level_of(excess.kernel) >= MOST_LEVELS for excess in misfit.excesses):
            return False
        for excess in misfit.excesses:
            key = self.key_of(excess.kernel)
            level = self.of(key).level
            self.by_key[key] = Fallback(min(MOST_LEVELS, level + excess.levels), str(excess))
        self.keys.clear()
        return True


def with_less_room(machine: Machine, level: int) -> Machine:
    """The machine that a planner sees at a level: with half the shared memory for each."""
    if level == 0:
        return machine
    near = replace(machine.memories[0], bytes=machine.memories[0].bytes >> level)
    return replace(machine, memories=(near, *machine.memories[1:]))


def halved(extents: Mapping[int, int], times: int, least: int = 1) -> dict[int, int]:
    """Extents of a tile with half the elements so many times: the largest extent is halved each time."""
    result = dict(extents)
    for _ in range(times):
        dim = max(result, key=lambda d: result[d], default=None)
        if dim is None or result[dim] <= least:
            break
        result[dim] = -(-result[dim] // 2)
    return result

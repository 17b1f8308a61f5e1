"""Hazards of thread blocks and of grids of cores: races, deadlocks, unmatched phases."""

from __future__ import annotations

from tilewright.errors import CompilerBug, SourceLocation


class HazardError(CompilerBug):
    """A scheduled kernel has a race, or waits for an event that is never signalled."""


class RaceError(HazardError):
    """Warps, copies and asynchronous MMAs touch the same memory in no order."""


class PhaseError(HazardError):
    """A barrier in memory is used other than its phases go: arrivals, bytes, or a phase that is over or far off."""


class DeadlockError(HazardError):
    """Deadlock: no thread of the block can make progress."""


class CoreHazard(HazardError):
    """A hazard of a program for a grid of cores.

    Attributes:
        kind: a name of this kind of mistake, which stays.
        core: row and column of the core; None where it is about the whole program.
        agent: the thread on that core: a mover, or a part of the thread that computes (unpack, math, pack).
        op: the operation, as text.
        trips: which trip it is of each loop around it, the outer ones first.
        cycle: who waits for what, where no thread can make progress.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        core: tuple[int, int] | None = None,
        agent: str = "",
        op: str = "",
        trips: tuple[int, ...] = (),
        location: SourceLocation | None = None,
        cycle: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, location=location)
        self.kind = kind
        self.core = core
        self.agent = agent
        self.op = op
        self.trips = trips
        self.cycle = cycle


class CoreRaceError(CoreHazard, RaceError):
    """Threads, or what they began, touch the same memory of a core, array or semaphore in no order."""


class CoreDeadlockError(CoreHazard, DeadlockError):
    """Threads of cores wait for events that are never signalled."""

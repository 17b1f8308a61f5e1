"""What can be wrong with the order of what a block of warps does."""

from __future__ import annotations

from tilewright.errors import CompilerBug


class HazardError(CompilerBug):
    """A scheduled kernel whose parts get in each other's way, or wait for what does not come."""


class RaceError(HazardError):
    """Warps, copies and asynchronous products touch the same memory in no order."""


class PhaseError(HazardError):
    """A barrier in memory is used other than its phases go: arrivals, bytes, or a phase that is over or far off."""


class DeadlockError(HazardError):
    """No agent of a block can go on."""

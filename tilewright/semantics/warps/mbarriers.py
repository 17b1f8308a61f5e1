"""Barriers in the memory of a block: phases that complete by arrivals and by bytes.

Dependences on the order of roles are checked by the clocks instead, so that one order of events shows errors of the
others: a thread that arrives must know that the phase before is complete, and one that completes a phase must know that
all waiters of the one before have continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from tilewright.records import dataclass
from tilewright.semantics.hazards import PhaseError, RaceError
from tilewright.semantics.warps.agents import Agent
from tilewright.semantics.warps.clocks import Clocked, Clocks, Sent


@dataclass
class _Passed:
    """Some warps continued at these clocks when a phase was complete."""

    who: str
    rows: Sequence[int]
    clocks: Clocked


class Mbarrier:
    """One barrier. `row`: the warp that made it. `column`: the column of the clocks in whose name its bytes arrive.
    `own`: the warps of its block. Arrivals from other blocks of a cluster need not know of the completion of the phase
    before, but happen after it."""

    def __init__(self, name: str, arrivals: int, clocks: Clocks, row: int, column: int, own: range) -> None:
        self.name = name
        self.column = column
        # What other blocks did here, of which the block knows before it ends.
        self.reached = clocks.nothing().came
        self._clocks = clocks
        self._own = own
        self._made = row, int(clocks.now[row])
        self._arrivals = self._pending = arrivals
        # How many phases are complete, and so the number of the present one.
        self.phase = 0
        # Bytes that the phase waits for, and those of them that are on their way.
        self._expected_bytes = self._coming_bytes = 0
        # Arrivals that come when products have been done.
        self._promised = 0
        self._stamp = 0
        self._gathered = clocks.nothing()
        self._completed: list[Sent] = []
        self._passed: dict[int, list[_Passed]] = {}

    def __str__(self) -> str:
        return (
            f"{self.name} (in phase {self.phase}, {self._pending} of {self._arrivals} arrivals and "
            f"{self._expected_bytes} bytes pending)"
        )

    # ---- arrivals ---------------------------------------------------------------------------------------------------

    def arrive(self, agent: Agent, who: str) -> None:
        """Each group of a role's warps arrives."""
        if agent.groups > self._pending - self._promised:
            raise PhaseError(f"{who} is {agent.groups} arrivals at {self}")
        size = agent.warps // agent.groups
        for first in range(agent.first, agent.first + agent.warps, size):
            self._check_arrival([*range(first, first + size), agent.rows[-1]], who)
        self._arrive(agent.rows, agent.groups, who)

    def _check_arrival(self, rows: Sequence[int], who: str) -> None:
        self._check_made(rows, who)
        knows = self._clocks.knows if self._is_own(rows[0]) else self._clocks.comes_after
        if self.phase and not knows(rows, self._completed[-1]):
            raise PhaseError(f"{who} arrives at {self} and does not know that phase {self.phase - 1} is complete")

    def _is_own(self, row: int) -> bool:
        return row in self._own

    def _arrive(self, rows: Sequence[int], count: int, who: str) -> None:
        if not self._is_own(rows[0]):
            self.reached[rows] = self._clocks.now[rows]
        self._gathered.join(self._clocks.release(rows))
        self._pending -= count
        self._complete(who)

    def expect(self, row: int, bytes: int, who: str) -> None:
        """An arrival of one warp, and the phase waits for some bytes more."""
        if self._pending == self._promised:
            raise PhaseError(f"{who} is an arrival at {self}")
        self._check_arrival([row], who)
        self._expected_bytes += bytes
        if self._coming_bytes > self._expected_bytes:
            raise PhaseError(f"{self._coming_bytes} bytes are on their way to {self} in {who}")
        self._arrive([row], 1, who)

    def coming(self, row: int, bytes: int, who: str) -> int:
        """A copy that one warp began is on its way, and completes this phase; gives the clock of what it copies."""
        self._check_made([row], who)
        if self._coming_bytes + bytes > self._expected_bytes:
            raise PhaseError(
                f"{who} copies {bytes} bytes to {self}, of which {self._coming_bytes} are already in flight"
            )
        return self._coming(bytes)

    def coming_in_part(self, row: int, bytes: int, came: Clocked, who: str) -> int:
        """A multicast copy, before which `came` arrived, is in flight. Copies of other blocks may arrive before they
        are waited for."""
        if self._is_own(row):
            stamp = self.coming(row, bytes, who)
        else:
            self._check_arrival([row], who)
            if self._pending == 0 and self._coming_bytes + bytes > self._expected_bytes:
                raise PhaseError(
                    f"{who} copies {bytes} bytes to {self}, of which {self._coming_bytes} are already in flight"
                )
            stamp = self._coming(bytes)
            self.reached[self.column] = stamp
        np.maximum(self._gathered.came, came, out=self._gathered.came)
        return stamp

    def _coming(self, bytes: int) -> int:
        self._coming_bytes += bytes
        self._stamp += 1
        self._gathered.seen[self.column] = self._gathered.came[self.column] = self._stamp
        return self._stamp

    def come(self, bytes: int, who: str) -> None:
        """Record the arrival of the bytes."""
        self._coming_bytes -= bytes
        self._expected_bytes -= bytes
        self._complete(who)

    def promise(self, row: int, before: Sent, who: str) -> int:
        """Register an arrival upon completion of the MMAs that one warp issued, which carries the knowledge in
        `before`; gives the clock of their end. Other barriers of the block at which the same warp has promised arrivals
        know of it too, for these arrivals are in order; in other blocks they arrive in any order."""
        self._check_arrival([row], who)
        if self._promised == self._pending:
            raise PhaseError(f"{who} is an arrival at {self}, {self._promised} of which are to come")
        self._promised += 1
        self._stamp += 1
        if self._is_own(row):
            for clocks in (before.seen, before.tensor, before.came):
                clocks[self.column] = self._stamp
        else:
            self._gathered.came[self.column] = self.reached[self.column] = self._stamp
        self._gathered.join(before)
        return self._stamp

    def keep(self, who: str) -> None:
        """Record the arrival."""
        self._promised -= 1
        self._pending -= 1
        self._complete(who)

    def _complete(self, who: str) -> None:
        if self._pending or self._expected_bytes:
            return
        self._check_passed(who)
        self._completed.append(self._gathered)
        self._gathered = self._clocks.nothing()
        self._pending = self._arrivals
        self.phase += 1

    def _check_passed(self, who: str) -> None:
        """Check that waiters for the phase before do not miss it, in any order of events."""
        if not self.phase:
            return
        before = self._passed.pop(self.phase - 1, [])
        if not before:
            raise PhaseError(
                f"{who} completes phase {self.phase} of {self.name}; no thread waited for the phase before it"
            )
        for passed in before:
            if (self._gathered.came[passed.rows] < passed.clocks).any():
                raise PhaseError(
                    f"{who} completes phase {self.phase} of {self.name}, when {passed.who} may still wait for the one "
                    f"before"
                )

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def is_complete(self, phase: int, who: str) -> bool:
        """Whether a phase is complete, of which the machine compares the last bit.

        Raises:
            PhaseError: the barrier is in a phase whose bit states something else.
        """
        if phase > self.phase or phase < self.phase - 1:
            raise PhaseError(
                f"{who} waits for phase {phase} of {self}: the machine sees only the last bit of the phase"
            )
        return phase < self.phase

    def check_waits(self, rows: Sequence[int], phase: int, who: str) -> None:
        """Some warps begin to wait for a phase: they know that the one before is complete."""
        self._check_made(rows, who)
        known = phase <= 0 or (
            phase <= self.phase and all(self._clocks.knows([row], self._completed[phase - 1]) for row in rows)
        )
        if not known:
            raise PhaseError(
                f"{who} waits for phase {phase} of {self} and does not know that the one before is complete"
            )

    def go_on(self, agent: Agent, phase: int, who: str) -> None:
        """The warps of a role know what happened before a phase was complete."""
        if phase >= 0:
            self._clocks.acquire(agent.rows, self._completed[phase])
            rows = agent.said_rows
            self._passed.setdefault(phase, []).append(_Passed(who, rows, self._clocks.now[rows]))

    def end(self) -> None:
        """The block ends.

        Raises:
            PhaseError: in the middle of a phase.
        """
        if self._pending != self._arrivals or self._expected_bytes:
            raise PhaseError(f"the block ends within a phase of {self}")

    def _check_made(self, rows: Sequence[int], who: str) -> None:
        maker, clock = self._made
        known = self._clocks.seen if self._is_own(rows[0]) else self._clocks.came
        if any(row != maker and known[row, maker] < clock for row in rows):
            raise RaceError(f"{who} uses {self.name}, which another warp made since the last barrier")


@dataclass
class Mbarriers:
    """The barriers of one operation, by index."""

    name: str
    barriers: list[Mbarrier] = field(default_factory=list[Mbarrier])

    def number(self, number: int) -> Mbarrier:
        if not 0 <= number < len(self.barriers):
            raise PhaseError(f"there is no barrier {number} of {len(self.barriers)} of {self.name}")
        return self.barriers[number]

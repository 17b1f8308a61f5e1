"""Vector clocks: what each warp of a block knows to have happened.

A column stands for a warp, or for a barrier in memory in whose name tensor copies arrive. What happened at clock c of
a column is known to a warp whose row has c or more there; to all of its lanes, so a warp does not know what it did
itself before it met at a barrier. A warp's clock moves on when it tells others what it knows and when it fences, so
that what it does later is told apart from what it did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Clocked = np.ndarray[Any, Any]


@dataclass
class Sent:
    """What is passed on: the clocks that are known, and those whose writes are seen by what works asynchronously."""

    seen: Clocked
    fenced: Clocked

    def join(self, other: Sent) -> None:
        np.maximum(self.seen, other.seen, out=self.seen)
        np.maximum(self.fenced, other.fenced, out=self.fenced)


class Clocks:
    """`seen` and `fenced`, of `warps` rows and a column for each warp and each barrier in memory; `now`: the clock of
    each warp."""

    def __init__(self, warps: int, barriers: int) -> None:
        self.warps = warps
        self.seen = np.zeros((warps, warps + barriers), np.int32)
        self.fenced = np.zeros_like(self.seen)
        self.now = np.ones(warps, np.int32)

    def nothing(self) -> Sent:
        """What is known in the beginning."""
        return Sent(np.zeros_like(self.seen[0]), np.zeros_like(self.seen[0]))

    def floor(self, rows: Sequence[int]) -> Clocked:
        """The clock of each column that all of some warps know."""
        return self.seen[rows].min(axis=0)

    def knows(self, rows: Sequence[int], sent: Sent) -> bool:
        """Whether some warps together were told all that was passed on, but for what they did themselves."""
        behind = self.seen[rows].max(axis=0) < sent.seen
        behind[rows] = False
        return not behind.any()

    def release(self, rows: Sequence[int]) -> Sent:
        """What some warps know together, and what they did."""
        sent = Sent(self.seen[rows].max(axis=0), self.fenced[rows].max(axis=0))
        sent.seen[rows] = self.now[rows]
        self.now[rows] += 1
        return sent

    def acquire(self, rows: Sequence[int], sent: Sent) -> None:
        """Some warps are told."""
        self.seen[rows] = np.maximum(self.seen[rows], sent.seen)
        self.fenced[rows] = np.maximum(self.fenced[rows], sent.fenced)

    def meet(self, rows: Sequence[int]) -> None:
        """Some warps tell each other."""
        self.acquire(rows, self.release(rows))

    def fence(self, rows: Sequence[int]) -> None:
        """What each of some warps did is seen by what works asynchronously, where a barrier lies between."""
        self.fenced[rows, rows] = self.now[rows]
        self.now[rows] += 1

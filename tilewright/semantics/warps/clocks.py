"""Vector clocks: what each warp of the blocks that run together knows to have happened.

A column stands for a warp, or for an mbarrier in whose name tensor copies arrive and MMAs end. An event at clock c of a
column is known to a warp whose row has c or more there; to all of its lanes, so a warp does not know its own events
before it met at a barrier. A warp's clock advances when it signals others and when it fences, so that later events are
distinguished from earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.records import dataclass

Clocked = np.ndarray[Any, Any]


@dataclass
class Sent:
    """The clocks that a signal passes on: those that are known, those whose writes are seen by what works
    asynchronously, those whose operations on tensor memory are known, and those that came before in time, known or
    not."""

    seen: Clocked
    fenced: Clocked
    tensor: Clocked
    came: Clocked

    def join(self, other: Sent) -> None:
        pairs = zip(self._tables, other._tables, strict=True)
        for mine, theirs in pairs:
            np.maximum(mine, theirs, out=mine)

    @property
    def _tables(self) -> tuple[Clocked, ...]:
        return self.seen, self.fenced, self.tensor, self.came


class Clocks:
    """`seen` and `fenced`, of `warps` rows and a column for each warp and each barrier in memory; `now`: the clock of
    each warp. Of operations on tensor memory `told` is what a warp was notified, `tensor` what comes before its own:
    what it was notified before it fenced; it signals others what it did there before it fenced. `came`: what came
    before in time, though the warp may not see what it did: the end of an MMA indicates of nothing else."""

    def __init__(self, warps: int, barriers: int) -> None:
        self.warps = warps
        self.seen = np.zeros((warps, warps + barriers), np.int32)
        self.fenced, self.told, self.tensor, self.came = (np.zeros_like(self.seen) for _ in range(4))
        self.now = np.ones(warps, np.int32)

    def nothing(self) -> Sent:
        """The initial clocks."""
        return Sent(*(np.zeros_like(self.seen[0]) for _ in range(4)))

    def floor(self, rows: Sequence[int]) -> Clocked:
        """The clock of each column that all of some warps know."""
        return self.seen[rows].min(axis=0)

    def knows(self, rows: Sequence[int], sent: Sent) -> bool:
        """Whether some warps together were notified all that was passed on, but for what they did themselves."""
        behind = self.seen[rows].max(axis=0) < sent.seen
        behind[rows] = False
        return not behind.any()

    def comes_after(self, rows: Sequence[int], sent: Sent) -> bool:
        """Whether all that came before what was passed on came before some warps together, but for what they did
        themselves."""
        behind = self.came[rows].max(axis=0) < sent.came
        behind[rows] = False
        return not behind.any()

    def release(self, rows: Sequence[int]) -> Sent:
        """The union of the clocks of some warps, including their own events."""
        sent = Sent(*(table[rows].max(axis=0) for table in (self.seen, self.fenced, self.tensor, self.came)))
        sent.seen[rows] = sent.came[rows] = self.now[rows]
        sent.tensor[rows] = self.told[rows, rows]
        self.now[rows] += 1
        return sent

    def acquire(self, rows: Sequence[int], sent: Sent) -> None:
        """Some warps are notified."""
        self.seen[rows] = np.maximum(self.seen[rows], sent.seen)
        self.fenced[rows] = np.maximum(self.fenced[rows], sent.fenced)
        self.told[rows] = np.maximum(self.told[rows], sent.tensor)
        self.came[rows] = np.maximum(self.came[rows], sent.came)

    def meet(self, rows: Sequence[int]) -> None:
        """Some warps indicate each other."""
        self.acquire(rows, self.release(rows))

    def meet_in_time(self, rows: Sequence[int]) -> None:
        """Some warps have come to where they are, and indicate each other nothing else."""
        self.came[rows, rows] = self.now[rows]
        self.came[rows] = self.came[rows].max(axis=0)
        self.now[rows] += 1

    def passed_in_time(self, row: int) -> Clocked:
        """The clocks before the current event of a warp."""
        came = self.came[row].copy()
        came[row] = self.now[row]
        self.now[row] += 1
        return came

    def fence(self, rows: Sequence[int]) -> None:
        """Make events of some warps visible to asynchronous operations that follow a barrier."""
        self.fenced[rows, rows] = self.now[rows]
        self.now[rows] += 1

    def fence_tensor_before(self, rows: Sequence[int]) -> None:
        """Pass tensor memory events of some warps on with their next signals."""
        self.told[rows, rows] = self.now[rows]
        self.now[rows] += 1

    def fence_tensor_after(self, rows: Sequence[int]) -> None:
        """Order tensor memory events that some warps were notified of before their own."""
        self.tensor[rows] = np.maximum(self.tensor[rows], self.told[rows])

    def of_products(self, row: int) -> Sent:
        """The clocks that the completion of a warp's MMAs passes on: arrivals only, no events of warps."""
        sent = self.release([row])
        for clocks in (sent.seen, sent.fenced, sent.tensor):
            clocks[: self.warps] = 0
        return sent

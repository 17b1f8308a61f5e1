"""Costs of pairs of values, found out no sooner than they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import Any, Protocol, runtime_checkable

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
PairCost = Callable[[Any, Any], "float | None"]


@runtime_checkable
class Bounded(Protocol):
    """A cost of pairs that is quicker to bound from below than to find out."""

    def __call__(self, first: object, second: object, /) -> float | None: ...

    def at_least(self, firsts: tuple[object, ...], seconds: tuple[object, ...], /) -> Array:
        """For each pair a number that its cost does not undercut; `inf` where the pair is impossible."""
        ...


class PairCosts:
    """The costs of all pairs of two domains, `inf` where a pair is impossible; for a `Bounded` cost lower bounds, until
    a pair is settled.

    Attributes:
        costs: what is known, one row per value of the first domain.
    """

    def __init__(self, cost: PairCost, firsts: tuple[Hashable, ...], seconds: tuple[Hashable, ...]) -> None:
        self._cost = cost
        self._firsts, self._seconds = firsts, seconds
        size = len(firsts), len(seconds)
        self._open: set[tuple[int, int]] = set()
        if isinstance(cost, Bounded):
            self.costs: Array = np.array(cost.at_least(firsts, seconds), np.float64).reshape(size)
            rows, columns = np.nonzero(np.isfinite(self.costs))
            self._open.update(zip(rows.tolist(), columns.tolist(), strict=True))
        else:
            costs = [[_seconds(cost(a, b)) for b in seconds] for a in firsts]
            self.costs = np.array(costs, np.float64).reshape(size)

    @property
    def is_open(self) -> bool:
        """Whether pairs are left that are not settled."""
        return bool(self._open)

    def settle(self, row: int, column: int) -> bool:
        """Find out what a pair costs; whether that is more than was known."""
        if (row, column) not in self._open:
            return False
        self._open.remove((row, column))
        known = self.costs[row, column]
        self.costs[row, column] = _seconds(self._cost(self._firsts[row], self._seconds[column]))
        return bool(self.costs[row, column] != known)


def _seconds(cost: float | None) -> float:
    return inf if cost is None else float(cost)

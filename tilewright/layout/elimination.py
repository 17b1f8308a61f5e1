"""The cheapest assignment of a network of cost tables, found exactly.

Variables are numbers, their values indices, tables NumPy arrays with one axis per variable, `inf` where something is
impossible. Variables are eliminated in order of their number of neighbours: all tables with the variable are added, and
its best value for each choice of its neighbours is remembered (Dechter, Bucket elimination, 1999). If even the best
variable's table would be too large, one variable is fixed to each of its values in turn, with branch and bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

LARGEST_TABLE = 1 << 16
# NumPy's arrays have at most 64 axes, some before version 2 half as many.
_MOST_AXES = 32


class OutOfBudget(Exception):
    """The search has used up its budget."""


class Table(NamedTuple):
    """Costs of the values of `variables`, one axis each; the variables rise."""

    variables: tuple[int, ...]
    costs: Array


class Found(NamedTuple):
    """The cheapest assignment."""

    values: dict[int, int]
    cost: float


class _Eliminated(NamedTuple):
    """A variable that is gone: its best value by the values of its neighbours."""

    variable: int
    neighbours: tuple[int, ...]
    best: np.ndarray[Any, np.dtype[np.intp]]


class Search:
    """Cheapest assignments, within a budget of partial assignments."""

    def __init__(self, sizes: Mapping[int, int], budget: int) -> None:
        self.sizes = sizes
        self.budget = budget
        self.nodes = 0

    def cheapest(self, tables: Sequence[Table], bound: float = inf) -> Found | None:
        """The cheapest assignment of the variables of `tables` that costs less than `bound`; None if there is none.

        Raises:
            OutOfBudget: too many partial assignments were needed.
        """
        self.nodes += 1
        if self.nodes > self.budget:
            raise OutOfBudget
        network = _Network(self.sizes, tables)
        gone: list[_Eliminated] = []
        while (variable := network.next_variable()) is not None:
            if network.table_size(variable) > LARGEST_TABLE:
                break
            gone.append(network.eliminate(variable))
            if network.constant >= bound:
                return None
        rest = self._branch(network, bound) if network.variables else Found({}, network.constant)
        if rest is None or rest.cost >= bound:
            return None
        values = dict(rest.values)
        for variable, neighbours, best in reversed(gone):
            values[variable] = int(best[tuple(values[n] for n in neighbours)])
        return Found(values, rest.cost)

    def _branch(self, network: _Network, bound: float) -> Found | None:
        """Fix the variable with the most neighbours."""
        variable = max(network.variables, key=lambda v: (len(network.neighbours(v)), -v))
        tables = network.remaining()
        best: Found | None = None
        choices = [[_fixed(table, variable, value) for table in tables] for value in range(self.sizes[variable])]
        optimistic = [network.constant + sum(float(t.costs.min()) for t in fixed) for fixed in choices]
        for value in sorted(range(len(choices)), key=optimistic.__getitem__):
            if optimistic[value] >= bound:
                break
            found = self.cheapest(choices[value], bound - network.constant)
            if found is not None:
                best = Found({**found.values, variable: value}, found.cost + network.constant)
                bound = best.cost
        return best


class _Network:
    """Tables while variables go one after another. `constant` is what no variable decides any more."""

    def __init__(self, sizes: Mapping[int, int], tables: Sequence[Table]) -> None:
        self.sizes = sizes
        self.constant = 0.0
        self.tables_of: dict[int, dict[int, Table]] = {}
        self._neighbours: dict[int, set[int]] = {}
        self._made = 0
        for table in tables:
            self._add(table)
        self._queue = [(self.table_size(v), v) for v in self.tables_of]
        heapq.heapify(self._queue)

    @property
    def variables(self) -> list[int]:
        return list(self.tables_of)

    def _add(self, table: Table) -> None:
        if not table.variables:
            self.constant += float(table.costs)
            return
        for variable in table.variables:
            self.tables_of.setdefault(variable, {})[self._made] = table
            near = self._neighbours.setdefault(variable, set())
            near.update(table.variables)
            near.discard(variable)
        self._made += 1

    def neighbours(self, variable: int) -> tuple[int, ...]:
        return tuple(sorted(self._neighbours[variable]))

    def table_size(self, variable: int) -> int:
        """Entries of the table that eliminating the variable looks at."""
        return self.sizes[variable] * prod([self.sizes[n] for n in self._neighbours[variable]])

    def next_variable(self) -> int | None:
        """The variable with the smallest table; the queue holds old sizes of some, which only ever were too small or
        are corrected here."""
        while self._queue:
            size, variable = heapq.heappop(self._queue)
            if variable not in self.tables_of:
                continue
            now = self.table_size(variable)
            if now == size:
                heapq.heappush(self._queue, (size, variable))
                return variable
            heapq.heappush(self._queue, (now, variable))
        return None

    def eliminate(self, variable: int) -> _Eliminated:
        """Replace the variable's tables by one over its neighbours."""
        neighbours = self.neighbours(variable)
        taken = self.tables_of.pop(variable)
        # Arrays have only so many axes: where there are more neighbours, most have one value, and are left out.
        kept = neighbours if len(neighbours) < _MOST_AXES else tuple(n for n in neighbours if self.sizes[n] > 1)
        for key, table in taken.items():
            for other in table.variables:
                if other != variable:
                    del self.tables_of[other][key]
        self._forget(variable, neighbours, kept)
        axes = (variable, *kept)
        total: Array = np.zeros([self.sizes[v] for v in axes])
        for table in taken.values():
            total = total + _spread(_among(table, axes), axes)
        best = total.argmin(axis=0)
        self._add(Table(kept, total.min(axis=0)))
        for other in neighbours:
            heapq.heappush(self._queue, (self.table_size(other), other))
        return _Eliminated(variable, kept, best)

    def _forget(self, variable: int, neighbours: Sequence[int], kept: Sequence[int]) -> None:
        """Take an eliminated variable out of the neighbours of others. Neighbours that are kept become neighbours of
        each other by the table that follows; the sets of others are made again."""
        del self._neighbours[variable]
        for other in neighbours:
            self._neighbours[other].discard(variable)
        if len(kept) < len(neighbours):
            for other in neighbours:
                near = {v for table in self.tables_of[other].values() for v in table.variables}
                self._neighbours[other] = near - {other}

    def remaining(self) -> list[Table]:
        found = {key: table for tables in self.tables_of.values() for key, table in tables.items()}
        return [found[key] for key in sorted(found)]


def _spread(table: Table, axes: Sequence[int]) -> Array:
    """The costs with one axis per entry of `axes`, of size 1 where the table has none; all but the first rise."""
    costs, variables = table.costs, table.variables
    if len(variables) > 1 and variables[0] != axes[0] and axes[0] in variables:
        first = variables.index(axes[0])
        order = (first, *(k for k in range(len(variables)) if k != first))
        costs, variables = costs.transpose(order), tuple(variables[k] for k in order)
    if len(variables) == len(axes):
        return costs
    sizes = dict(zip(variables, costs.shape, strict=True))
    return costs.reshape([sizes.get(v, 1) for v in axes])


def _among(table: Table, axes: Container[int]) -> Table:
    """A table without the axes of variables that are not among `axes`, and have one value."""
    kept = [k for k, v in enumerate(table.variables) if v in axes]
    if len(kept) == len(table.variables):
        return table
    costs = table.costs.reshape([table.costs.shape[k] for k in kept])
    return Table(tuple(table.variables[k] for k in kept), costs)


def _fixed(table: Table, variable: int, value: int) -> Table:
    if variable not in table.variables:
        return table
    axis = table.variables.index(variable)
    rest = (*table.variables[:axis], *table.variables[axis + 1 :])
    return Table(rest, np.take(table.costs, value, axis=axis))

"""The cheapest assignment of a network of cost tables, found exactly.

Variables are numbers, their values indices, tables NumPy arrays with one axis per variable, `inf` where something is
impossible. Variables are eliminated in order of their number of neighbours: all tables with the variable are added, and
its best value for each choice of its neighbours is remembered (Dechter, Bucket elimination, 1999). If even the best
variable's table would be too large, one variable is fixed to each of its values in turn, with branch and bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
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


class Search:
    """Cheapest assignments, within a budget of partial assignments. It may be asked again with other costs of some
    tables: an elimination is found out once for all tables of the same variables, and done again where costs differ."""

    def __init__(self, sizes: Mapping[int, int], budget: int) -> None:
        self.sizes = sizes
        self.budget = budget
        self.nodes = 0
        self._eliminations: dict[tuple[tuple[int, ...], ...], _Elimination] = {}  # by the variables of the tables

    def cheapest(self, tables: Sequence[Table], bound: float = inf) -> Found | None:
        """The cheapest assignment of the variables of `tables` that costs less than `bound`; None if there is none.

        Raises:
            OutOfBudget: too many partial assignments were needed.
        """
        self.nodes += 1
        if self.nodes > self.budget:
            raise OutOfBudget
        variables = tuple(table.variables for table in tables)
        elimination = self._eliminations.get(variables)
        if elimination is None:
            elimination = self._eliminations[variables] = _Elimination(self.sizes, variables)
        elimination.run([table.costs for table in tables])
        constant = elimination.constant
        if constant >= bound:
            return None
        rest = self._branch(elimination, constant, bound) if elimination.variables else Found({}, constant)
        if rest is None or rest.cost >= bound:
            return None
        return Found(elimination.extended(rest.values), rest.cost)

    def _branch(self, elimination: _Elimination, constant: float, bound: float) -> Found | None:
        """Fix the variable with the most neighbours."""
        variable = max(elimination.variables, key=lambda v: (elimination.neighbour_count(v), -v))
        tables = elimination.remaining()
        best: Found | None = None
        choices = [[_fixed(table, variable, value) for table in tables] for value in range(self.sizes[variable])]
        optimistic = [constant + sum(float(t.costs.min()) for t in fixed) for fixed in choices]
        for value in sorted(range(len(choices)), key=optimistic.__getitem__):
            if optimistic[value] >= bound:
                break
            found = self.cheapest(choices[value], bound - constant)
            if found is not None:
                best = Found({**found.values, variable: value}, found.cost + constant)
                bound = best.cost
        return best


class _Term(NamedTuple):
    """A table that is added to others: its number, and the order and the sizes of its axes in the sum, None where they
    are these already."""

    table: int
    order: tuple[int, ...] | None
    sizes: tuple[int, ...] | None

    def of(self, tables: Sequence[Array]) -> Array:
        costs = tables[self.table]
        if self.order is not None:
            costs = costs.transpose(self.order)
        return costs if self.sizes is None else costs.reshape(self.sizes)


class _Step(NamedTuple):
    """A variable goes: the sum of its tables becomes a table over its neighbours, of the cost of its best value."""

    variable: int
    neighbours: tuple[int, ...]
    terms: tuple[_Term, ...]
    tables: frozenset[int]


class _Elimination:
    """Tables whose variables go one after another, until the smallest table would be too large. The order follows from
    the sizes alone, so that it is the same whatever the costs are. The tables that steps make have the numbers after
    those that are given.

    Attributes:
        variables: those that are left.
    """

    def __init__(self, sizes: Mapping[int, int], tables: Sequence[tuple[int, ...]]) -> None:
        self.sizes = sizes
        self._steps: list[_Step] = []
        self._variables_of: list[tuple[int, ...]] = []  # of each table
        self._tables_of: dict[int, dict[int, None]] = {}
        self._neighbours: dict[int, set[int]] = {}
        for variables in tables:
            self._add(variables)
        self._queue = [(self._table_size(v), v) for v in self._tables_of]
        heapq.heapify(self._queue)
        while (variable := self._next_variable()) is not None and self._table_size(variable) <= LARGEST_TABLE:
            self._steps.append(self._eliminate(variable))
        self.variables = list(self._tables_of)
        self._constants = [number for number, variables in enumerate(self._variables_of) if not variables]
        self._costs: list[Any] = [None] * len(self._variables_of)
        self._best: list[Any] = [None] * len(self._steps)

    def run(self, costs: Sequence[Array]) -> None:
        """Eliminate the variables. Steps whose tables are those of the last time keep what they made."""
        changed = {number for number, table in enumerate(costs) if table is not self._costs[number]}
        self._costs[: len(costs)] = costs
        for number, (variable, _, terms, tables) in enumerate(self._steps):
            if changed.isdisjoint(tables):
                continue
            total = terms[0].of(self._costs)
            for term in terms[1:]:
                total = total + term.of(self._costs)
            made = len(costs) + number
            if self.sizes[variable] == 1:
                self._costs[made] = total[0]
            else:
                self._best[number] = total.argmin(axis=0)
                self._costs[made] = np.minimum.reduce(total, axis=0)
            changed.add(made)

    @property
    def constant(self) -> float:
        """The cost that no variable decides any more."""
        return sum((float(self._costs[number]) for number in self._constants), start=0.0)

    def extended(self, values: Mapping[int, int]) -> dict[int, int]:
        """An assignment of the variables that are left, and the best values of the others."""
        found = dict(values)
        for (variable, neighbours, _, _), best in zip(reversed(self._steps), reversed(self._best), strict=True):
            found[variable] = 0 if best is None else int(best[tuple([found[n] for n in neighbours])])
        return found

    def neighbour_count(self, variable: int) -> int:
        return len(self._neighbours[variable])

    def remaining(self) -> list[Table]:
        """The tables of the variables that are left."""
        numbers = {number for tables in self._tables_of.values() for number in tables}
        return [Table(self._variables_of[number], self._costs[number]) for number in sorted(numbers)]

    def _add(self, variables: tuple[int, ...]) -> None:
        number = len(self._variables_of)
        self._variables_of.append(variables)
        for variable in variables:
            self._tables_of.setdefault(variable, {})[number] = None
            near = self._neighbours.setdefault(variable, set())
            near.update(variables)
            near.discard(variable)

    def _table_size(self, variable: int) -> int:
        """Entries of the table that eliminating the variable looks at."""
        return self.sizes[variable] * prod([self.sizes[n] for n in self._neighbours[variable]])

    def _next_variable(self) -> int | None:
        """The variable with the smallest table; the queue holds old sizes of some, which only ever were too small or
        are corrected here."""
        while self._queue:
            size, variable = heapq.heappop(self._queue)
            if variable not in self._tables_of:
                continue
            now = self._table_size(variable)
            heapq.heappush(self._queue, (now, variable))
            if now == size:
                return variable
        return None

    def _eliminate(self, variable: int) -> _Step:
        """Replace the variable's tables by one over its neighbours."""
        neighbours = tuple(sorted(self._neighbours[variable]))
        taken = self._tables_of.pop(variable)
        # Arrays have only so many axes: where there are more neighbours, most have one value, and are left out.
        kept = neighbours if len(neighbours) < _MOST_AXES else tuple(n for n in neighbours if self.sizes[n] > 1)
        for number in taken:
            for other in self._variables_of[number]:
                if other != variable:
                    del self._tables_of[other][number]
        self._forget(variable, neighbours, kept)
        terms = tuple([self._term(number, (variable, *kept)) for number in taken])
        self._add(kept)
        for other in neighbours:
            heapq.heappush(self._queue, (self._table_size(other), other))
        return _Step(variable, kept, terms, frozenset(taken))

    def _forget(self, variable: int, neighbours: Sequence[int], kept: Sequence[int]) -> None:
        """Take an eliminated variable out of the neighbours of others. Neighbours that are kept become neighbours of
        each other by the table that follows; the sets of others are made again."""
        del self._neighbours[variable]
        for other in neighbours:
            self._neighbours[other].discard(variable)
        if len(kept) < len(neighbours):
            for other in neighbours:
                near = {v for number in self._tables_of[other] for v in self._variables_of[number]}
                self._neighbours[other] = near - {other}

    def _term(self, table: int, axes: tuple[int, ...]) -> _Term:
        """A table with one axis per entry of `axes`, of size 1 where it has none; axes that it has besides have size 1.
        Its variables rise, and so do all of `axes` but the first, which it has."""
        variables = self._variables_of[table]
        order = None
        if variables[0] != axes[0]:
            first = variables.index(axes[0])
            order = (first, *(k for k in range(len(variables)) if k != first))
            variables = (axes[0], *(v for v in variables if v != axes[0]))
        sizes = None if variables == axes else tuple([self.sizes[v] if v in variables else 1 for v in axes])
        return _Term(table, order, sizes)


def _fixed(table: Table, variable: int, value: int) -> Table:
    if variable not in table.variables:
        return table
    axis = table.variables.index(variable)
    rest = (*table.variables[:axis], *table.variables[axis + 1 :])
    return Table(rest, np.take(table.costs, value, axis=axis))

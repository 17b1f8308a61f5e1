"""A weighted constraint problem over finite domains, solved exactly: the core of layout inference.

    problem = Problem()
    a = problem.variable("a", [row_major((8, 8)), column_major((8, 8))])
    b = problem.variable("b", ...)
    problem.relate(a, b, cost, origin)             # cost(value of a, value of b) in seconds, None where impossible
    problem.solve().values[a]

The solver knows no layouts, machines or IR: values are any hashable things, costs come from functions. Equal variables
are merged, domains made arc consistent (what is left of them explains contradictions), and the rest is eliminated
exactly. Costs that can be bounded from below are found out only for pairs that the cheapest assignment so far uses,
until it uses no bound: what is dearer by its bound alone is never looked at. Ties go to the value that was given
earlier, so that equal problems have equal solutions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.errors import LayoutBudgetError, LayoutConflictError, SourceLocation
from tilewright.layout.conflicts import smallest_conflict
from tilewright.layout.elimination import Array, Found, OutOfBudget, Search, Table
from tilewright.layout.pair_costs import PairCost, PairCosts

Value = Hashable
ValueCost = Callable[[Any], "float | None"]


class Origin(msgspec.Struct, frozen=True):
    """The source of a constraint: a sentence, and the user's line. Constraints of one origin stand and fall together
    when a contradiction is explained."""

    text: str
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.location}: {self.text}" if self.location is not None else self.text


class Relation(msgspec.Struct, frozen=True):
    """Two variables and the cost of each pair of their values; equal ones where there is no cost."""

    first: int
    second: int
    cost: PairCost | None
    origin: Origin


class Choice(msgspec.Struct, frozen=True):
    """One variable and the cost of each of its values, None for a value that is not allowed."""

    variable: int
    cost: ValueCost
    origin: Origin


Constraint = Relation | Choice


class Solution(msgspec.Struct, frozen=True):
    """The cheapest assignment.

    Attributes:
        values: the value of each variable.
        cost: the sum of all costs, in seconds.
        nodes: partial assignments that the search looked at; 1 a round where elimination was enough.
        variables: how many there were after equal ones were merged.
    """

    values: tuple[Value, ...]
    cost: float
    nodes: int
    variables: int


class Problem(msgspec.Struct):
    """Variables and constraints."""

    names: list[str] = msgspec.field(default_factory=list[str])
    domains: list[tuple[Value, ...]] = msgspec.field(default_factory=list[tuple[Value, ...]])
    constraints: list[Constraint] = msgspec.field(default_factory=list[Constraint])
    _costs: dict[tuple[object, ...], PairCosts] = msgspec.field(default_factory=dict[tuple[object, ...], PairCosts])

    def variable(self, name: str, domain: Iterable[Value]) -> int:
        """A new variable with the values that it may have; its number."""
        self.names.append(name)
        self.domains.append(tuple(dict.fromkeys(domain)))
        return len(self.names) - 1

    def equal(self, first: int, second: int, origin: Origin) -> None:
        """Both have the same value."""
        self.constraints.append(Relation(first, second, None, origin))

    def relate(self, first: int, second: int, cost: PairCost, origin: Origin) -> None:
        """Each pair of values costs `cost(a, b)` seconds, or is impossible where that is None. Functions that are equal
        are asked once; `Bounded` ones only where it matters."""
        self.constraints.append(Relation(first, second, cost, origin))

    def choose(self, variable: int, cost: ValueCost, origin: Origin) -> None:
        """Each value costs `cost(value)` seconds by itself, or is impossible where that is None."""
        self.constraints.append(Choice(variable, cost, origin))

    def pin(self, variable: int, value: Value, origin: Origin) -> None:
        """Only this value."""
        self.choose(variable, lambda given: 0.0 if given == value else None, origin)

    def solve(self, budget: int = 100_000) -> Solution:
        """The cheapest assignment.

        Raises:
            LayoutConflictError: there is none; origins are named that contradict each other, each of them needed.
            LayoutBudgetError: the search gave up after `budget` partial assignments.
        """
        network = _Network(self, self.constraints)
        found = self._cheapest(network, budget)
        if found is None:
            raise self._conflict(network, budget)
        return found

    def alternative(self, solution: Solution, variable: int, budget: int = 100_000) -> Solution | None:
        """The cheapest assignment in which the variable has another value than it has in `solution`; None if there is
        none.

        Raises:
            LayoutBudgetError: the search gave up after `budget` partial assignments.
        """
        return self.cheapest_without({(variable, solution.values[variable])}, budget)

    def cheapest_without(self, excluded: Collection[tuple[int, Value]], budget: int = 100_000) -> Solution | None:
        """The cheapest assignment in which no variable has the value that it is excluded from; None if there is none.

        Raises:
            LayoutBudgetError: the search gave up after `budget` partial assignments.
        """
        others = [Choice(variable, _Unlike(value), Origin("another value is wanted")) for variable, value in excluded]
        return self._cheapest(_Network(self, [*self.constraints, *others]), budget)

    def _cheapest(self, network: _Network, budget: int) -> Solution | None:
        search = Search(network.sizes, budget)
        try:
            found = network.cheapest(search, feasibility=False)
        except OutOfBudget:
            raise LayoutBudgetError(
                f"the search for layouts looked at {budget} partial assignments of {len(network.sizes)} variables",
                help="pin the layout of a value in the middle, or raise the budget",
            ) from None
        if found is None:
            return None
        values = tuple(network.value(variable, found.values) for variable in range(len(self.names)))
        return Solution(values, found.cost, search.nodes, len(network.sizes))

    def cost_of(self, constraint: Constraint, values: Sequence[Value]) -> float:
        """The cost that a constraint adds to an assignment; `inf` if it forbids it."""
        if isinstance(constraint, Choice):
            return _seconds(constraint.cost(values[constraint.variable]))
        return _seconds((constraint.cost or _equal)(values[constraint.first], values[constraint.second]))

    def _conflict(self, network: _Network, budget: int) -> LayoutConflictError:
        suspects = network.suspects()
        by_origin: dict[Origin, list[Constraint]] = {}
        for constraint in self.constraints:
            by_origin.setdefault(constraint.origin, []).append(constraint)

        def is_consistent(origins: Sequence[Origin]) -> bool:
            part = _Network(self, [c for origin in origins for c in by_origin[origin]])
            return part.cheapest(Search(part.sizes, budget), feasibility=True) is not None

        core = smallest_conflict([origin for origin in by_origin if origin in suspects], is_consistent)
        located = [origin.location for origin in core if origin.location is not None]
        lines = "".join(f"\n  {origin}" for origin in core)
        return LayoutConflictError(
            f"no layouts satisfy all of these:{lines}",
            location=located[-1] if located else None,
            help="drop one of them, or let the data move between them with `tw.layout(x, layout)`",
        )

    def pair_costs(self, relation: Relation) -> PairCosts:
        """The costs of all pairs of values of a relation; shared by relations that are alike."""
        first, second = self.domains[relation.first], self.domains[relation.second]
        key = (relation.cost, first, second)
        if key not in self._costs:
            self._costs[key] = PairCosts(relation.cost or _equal, first, second)
        return self._costs[key]


class _Unlike(msgspec.Struct, frozen=True):
    """Any value but one."""

    taken: Value

    def __call__(self, given: Value) -> float | None:
        return None if given == self.taken else 0.0


def _equal(first: Value, second: Value) -> float | None:
    return 0.0 if first == second else None


def _seconds(cost: float | None) -> float:
    return inf if cost is None else float(cost)


class _Part(NamedTuple):
    """The costs that one relation adds to a pair of groups."""

    costs: PairCosts
    rows: Sequence[int]
    columns: Sequence[int]
    is_turned: bool

    def table(self) -> Array:
        found = self.costs.costs.take(self.rows, axis=0).take(self.columns, axis=1)
        return found.T if self.is_turned else found

    def narrowed(self, first: Sequence[int], second: Sequence[int]) -> _Part:
        """Of the given values of the two groups."""
        rows, columns = (second, first) if self.is_turned else (first, second)
        return self._replace(rows=[self.rows[n] for n in rows], columns=[self.columns[n] for n in columns])

    def settle(self, first: int, second: int) -> bool:
        row, column = (second, first) if self.is_turned else (first, second)
        return self.costs.settle(self.rows[row], self.columns[column])


class _Network:
    """A problem's variables merged into groups of equal ones, with arc-consistent domains.

    Attributes:
        group_of: the group of each variable.
        kept: the values that each group may still have.
        sizes: how many these are.
        causes: the origins that took values from each group.
    """

    def __init__(self, problem: Problem, constraints: Sequence[Constraint]) -> None:
        self.problem = problem
        self.constraints = constraints
        self.group_of = _merged(len(problem.names), constraints)
        self.values: dict[int, list[Value]] = {}
        self.causes: dict[int, set[Origin]] = {}
        self._intersect()
        self.own = {group: np.zeros(len(values)) for group, values in self.values.items()}
        self.between: dict[tuple[int, int], Array] = {}
        self._parts: dict[tuple[int, int], list[_Part]] = {}
        self._origins: dict[tuple[int, int], set[Origin]] = {}
        self._positions_of: dict[int, list[int]] = {}
        self._weigh()
        self._revise()
        self.kept = {group: np.flatnonzero(np.isfinite(costs)) for group, costs in self.own.items()}
        self.sizes = {group: len(kept) for group, kept in self.kept.items()}
        self._narrow_parts()

    def _intersect(self) -> None:
        for variable, group in enumerate(self.group_of):
            domain = self.problem.domains[variable]
            known = self.values.setdefault(group, list(domain))
            self.causes.setdefault(group, set())
            if known != list(domain):
                allowed = set(domain)
                self.values[group] = [value for value in known if value in allowed]
        for constraint in self.constraints:
            if isinstance(constraint, Relation) and constraint.cost is None:
                self.causes[self.group_of[constraint.first]].add(constraint.origin)

    def _weigh(self) -> None:
        """Add up the costs of values and of pairs of them."""
        for constraint in self.constraints:
            if isinstance(constraint, Choice):
                group = self.group_of[constraint.variable]
                costs = np.array([_seconds(constraint.cost(value)) for value in self.values[group]])
                self._add_own(group, costs, constraint.origin)
            elif constraint.cost is not None:
                self._add_pair(constraint)

    def _add_own(self, group: int, costs: Array, origin: Origin) -> None:
        self.own[group] = self.own[group] + costs
        if not np.isfinite(costs).all():
            self.causes[group].add(origin)

    def _add_pair(self, relation: Relation) -> None:
        first, second = self.group_of[relation.first], self.group_of[relation.second]
        rows = self._positions(relation.first, first)
        columns = self._positions(relation.second, second)
        part = _Part(self.problem.pair_costs(relation), rows, columns, is_turned=first > second)
        if first == second:
            for n in range(len(rows)):
                part.settle(n, n)
            self._add_own(first, part.table().diagonal(), relation.origin)
            return
        pair = (first, second) if first < second else (second, first)
        costs = part.table()
        self.between[pair] = self.between[pair] + costs if pair in self.between else costs
        self._parts.setdefault(pair, []).append(part)
        self._origins.setdefault(pair, set()).add(relation.origin)

    def _positions(self, variable: int, group: int) -> list[int]:
        """The positions in a variable's domain of the values of its group."""
        known = self._positions_of.get(variable)
        if known is None:
            position = {value: n for n, value in enumerate(self.problem.domains[variable])}
            known = self._positions_of[variable] = [position[value] for value in self.values[group]]
        return known

    def _revise(self) -> None:
        """Take values that have no partner, until every value has one in each neighbour (arc consistency)."""
        neighbours: dict[int, list[tuple[int, int]]] = {}
        for pair in self.between:
            for group in pair:
                neighbours.setdefault(group, []).append(pair)
        pending = deque(self.between)
        waiting = set(self.between)
        while pending:
            pair = pending.popleft()
            waiting.discard(pair)
            for side in (0, 1):
                if not self._narrow(pair, side):
                    continue
                for other in neighbours[pair[side]]:
                    if other != pair and other not in waiting:
                        pending.append(other)
                        waiting.add(other)

    def _narrow(self, pair: tuple[int, int], side: int) -> bool:
        """Whether the group on one side lost a value to the pair."""
        group, other = pair[side], pair[1 - side]
        costs = self.between[pair] if side == 0 else self.between[pair].T
        reachable = np.isfinite(costs + self.own[other][None, :]).any(axis=1)
        lost = np.isfinite(self.own[group]) & ~reachable
        if not lost.any():
            return False
        self.own[group] = np.where(lost, inf, self.own[group])
        self.causes[group] |= self._origins[pair] | self.causes[other]
        return True

    @property
    def wiped_out(self) -> bool:
        """Whether a variable has no value left."""
        return any(size == 0 for size in self.sizes.values())

    def suspects(self) -> set[Origin]:
        """Origins that contain a contradiction: those that emptied a domain, or all."""
        empty = [self.causes[group] for group, size in self.sizes.items() if size == 0]
        return min(empty, key=len) if empty else {constraint.origin for constraint in self.constraints}

    def _narrow_parts(self) -> None:
        """Leave the values out that are gone."""
        whole = {group for group, size in self.sizes.items() if size == len(self.values[group])}
        for pair, parts in self._parts.items():
            if whole.issuperset(pair):
                continue
            kept = [list(map(int, self.kept[group])) for group in pair]
            self._parts[pair] = [part.narrowed(*kept) for part in parts]
            self.between[pair] = self.between[pair][np.ix_(*kept)]

    def cheapest(self, search: Search, *, feasibility: bool) -> Found | None:
        """The cheapest assignment; any that is possible where `feasibility` is all that is asked."""
        if self.wiped_out:
            return None
        own = [Table((group,), self.own[group][kept]) for group, kept in self.kept.items()]
        while True:
            tables = own + [Table(pair, costs) for pair, costs in self.between.items()]
            if feasibility:
                tables = [Table(table.variables, np.where(np.isfinite(table.costs), 0.0, inf)) for table in tables]
            found = search.cheapest(tables)
            if found is None or not self._settle(found.values):
                return found

    def _settle(self, chosen: dict[int, int]) -> bool:
        """Find out the costs of the chosen pairs; whether one is more than was known."""
        changed = {
            id(part.costs)
            for (first, second), parts in self._parts.items()
            for part in parts
            if part.costs.is_open and part.settle(chosen[first], chosen[second])
        }
        for pair, parts in self._parts.items() if changed else ():
            if any(id(part.costs) in changed for part in parts):
                self.between[pair] = sum((part.table() for part in parts[1:]), start=parts[0].table())
        return bool(changed)

    def value(self, variable: int, chosen: dict[int, int]) -> Value:
        group = self.group_of[variable]
        return self.values[group][int(self.kept[group][chosen[group]])]


def _merged(count: int, constraints: Sequence[Constraint]) -> list[int]:
    """For each variable the first of those that equal it."""
    leader = list(range(count))

    def find(variable: int) -> int:
        while leader[variable] != variable:
            leader[variable] = leader[leader[variable]]
            variable = leader[variable]
        return variable

    for constraint in constraints:
        if isinstance(constraint, Relation) and constraint.cost is None:
            first, second = sorted((find(constraint.first), find(constraint.second)))
            leader[second] = first
    return [find(variable) for variable in range(count)]

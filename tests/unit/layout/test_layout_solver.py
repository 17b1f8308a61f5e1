"""The solver against brute force over all assignments, and its explanations against all subsets of constraints."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product
from math import inf

import pytest

from tests.effort import calls_of
from tests.sampling import count
from tilewright.errors import LayoutBudgetError, LayoutConflictError, SourceLocation
from tilewright.layout.solver import Origin, Problem


def origin(number: int) -> Origin:
    return Origin(f"constraint {number}", SourceLocation("program.py", number + 1))


class RandomProblem:
    """A problem beside a plain list of its constraints, for brute force."""

    def __init__(self, seed: int, *, hard: float) -> None:
        generator = random.Random(seed)
        self.problem = Problem()
        self.sizes = [generator.randrange(4, 6) for _ in range(generator.randrange(6, 8))]
        for number, size in enumerate(self.sizes):
            self.problem.variable(f"v{number}", range(size))
        self.checks: list = []
        pairs = list(combinations(range(len(self.sizes)), 2))
        for number in range(generator.randrange(len(self.sizes) - 1, 2 * len(self.sizes))):
            first, second = generator.choice(pairs)
            if generator.random() < 0.12:
                self.problem.equal(first, second, origin(number))
                self.checks.append(lambda v, a=first, b=second: 0.0 if v[a] == v[b] else None)
                continue
            table = {
                pair: None if generator.random() < hard else float(generator.randrange(10))
                for pair in product(range(self.sizes[first]), range(self.sizes[second]))
            }
            cost = lambda a, b, table=table: table[a, b]  # noqa: E731
            self.problem.relate(first, second, cost, origin(number))
            self.checks.append(lambda v, a=first, b=second, table=table: table[v[a], v[b]])
        for variable, size in enumerate(self.sizes):
            own = [None if generator.random() < hard / 4 else float(generator.randrange(4)) for _ in range(size)]
            self.problem.choose(variable, lambda value, own=own: own[value], origin(100 + variable))
            self.checks.append(lambda v, variable=variable, own=own: own[v[variable]])

    def cost(self, values: tuple[int, ...], checks: list | None = None) -> float:
        total = 0.0
        for check in self.checks if checks is None else checks:
            cost = check(values)
            if cost is None:
                return inf
            total += cost
        return total

    def brute(self, checks: list | None = None) -> float:
        return min(self.cost(values, checks) for values in product(*map(range, self.sizes)))


@pytest.mark.parametrize("block", range(count(6, 10)))
def test_the_cost_equals_brute_force(block: int) -> None:
    unsatisfiable = 0
    for seed in range(50 * block, 50 * block + 50):
        case = RandomProblem(seed, hard=0.15 + 0.6 * (seed % 5) / 4)
        best = case.brute()
        if best == inf:
            unsatisfiable += 1
            with pytest.raises(LayoutConflictError):
                case.problem.solve()
            continue
        solution = case.problem.solve()
        assert solution.cost == best, seed
        assert case.cost(solution.values) == best, seed  # type: ignore[arg-type]
    assert unsatisfiable < 50


@pytest.mark.parametrize("block", range(count(3, 5)))
def test_the_alternative_is_the_cheapest_that_differs(block: int) -> None:
    without = compared = 0
    for seed in range(20 * block, 20 * block + 20):
        case = RandomProblem(seed, hard=0.15 + 0.6 * (seed % 5) / 4)
        if case.brute() == inf:
            continue
        solution = case.problem.solve()
        best = [inf] * len(case.sizes)
        for values in product(*map(range, case.sizes)):
            cost = case.cost(values)
            for variable, value in enumerate(values):
                if value != solution.values[variable]:
                    best[variable] = min(best[variable], cost)
        for variable, cost in enumerate(best):
            found = case.problem.alternative(solution, variable)
            compared += 1
            if found is None:
                without += 1
                assert cost == inf
                continue
            assert found.cost == cost >= solution.cost
            assert found.values[variable] != solution.values[variable]
            assert case.cost(found.values) == cost  # type: ignore[arg-type]
    assert 0 < without < compared


def test_costs_of_constraints_add_up() -> None:
    case = RandomProblem(3, hard=0.2)
    solution = case.problem.solve()
    costs = [case.problem.cost_of(constraint, solution.values) for constraint in case.problem.constraints]
    assert costs == [check(solution.values) for check in case.checks]
    assert sum(costs) == solution.cost


@pytest.mark.parametrize("seed", range(40))
def test_a_conflict_is_contradictory_and_none_of_it_can_be_left_out(seed: int) -> None:
    case = RandomProblem(seed, hard=0.8)
    with pytest.raises(LayoutConflictError) as caught:
        case.problem.solve()
    named = [n for n in range(len(case.checks)) if f"program.py:{_line(case, n)}: " in caught.value.message]
    core = [case.checks[n] for n in named]
    assert core
    assert case.brute(core) == inf
    for left_out in range(len(core)):
        assert case.brute(core[:left_out] + core[left_out + 1 :]) < inf


def _line(case: RandomProblem, number: int) -> int:
    return case.problem.constraints[number].origin.location.line  # type: ignore[union-attr]


def chain(length: int) -> Problem:
    problem = Problem()
    variables = [problem.variable(f"v{n}", range(10)) for n in range(length)]
    for n, (first, second) in enumerate(pairwise(variables)):
        problem.relate(first, second, lambda a, b: float((a * 7 + b * 3) % 11), origin(n))
    problem.pin(variables[0], 3, origin(5000))
    problem.pin(variables[-1], 8, origin(5001))
    return problem


def test_a_chain_takes_one_node_and_near_linear_time() -> None:
    calls = {}
    for length in (128, 1024):
        solution, calls[length] = calls_of(chain(length).solve)
        assert solution.nodes == 1
        assert solution.variables == length
    print(f"calls: {calls}")
    assert calls[1024] < 12 * calls[128]


def test_dense_problems_branch_and_stay_exact() -> None:
    generator = random.Random(1)
    problem = Problem()
    size, count = 3, 14
    variables = [problem.variable(f"v{n}", range(size)) for n in range(count)]
    tables = {}
    for a, b in combinations(variables, 2):
        tables[a, b] = {pair: float(generator.randrange(100)) for pair in product(range(size), repeat=2)}
        problem.relate(a, b, lambda x, y, t=tables[a, b]: t[x, y], origin(a * 100 + b))
    solution = problem.solve()
    assert solution.nodes > 1
    best = min(
        sum(table[values[a], values[b]] for (a, b), table in tables.items())
        for values in _sampled(size, count, solution.values)
    )
    assert solution.cost <= best
    with pytest.raises(LayoutBudgetError, match="looked at 3 partial"):
        problem.solve(budget=3)


def _sampled(size: int, count: int, around: tuple) -> list[tuple[int, ...]]:
    """Assignments that differ from one in up to three places, and random ones."""
    generator = random.Random(2)
    found = [tuple(generator.randrange(size) for _ in range(count)) for _ in range(500)]
    for places in combinations(range(count), 3):
        for values in product(range(size), repeat=3):
            changed = list(around)
            for place, value in zip(places, values, strict=True):
                changed[place] = value
            found.append(tuple(changed))
    return found


def test_equal_problems_have_equal_solutions_and_ties_go_to_the_earlier_value() -> None:
    first, second = (RandomProblem(7, hard=0.2).problem.solve() for _ in range(2))
    assert first == second
    problem = Problem()
    a, b = problem.variable("a", "xyz"), problem.variable("b", "zyx")
    problem.relate(a, b, lambda p, q: 1.0, origin(0))
    assert problem.solve().values == ("x", "z")


def test_equal_variables_are_merged_and_have_the_values_of_both() -> None:
    problem = Problem()
    a, b = problem.variable("a", [1, 2, 3, 4]), problem.variable("b", [4, 3, 9])
    problem.equal(a, b, origin(0))
    problem.choose(b, lambda value: float(value), origin(1))
    solution = problem.solve()
    assert solution.values == (3, 3)
    assert solution.variables == 1


def test_domains_that_do_not_meet_name_the_equality() -> None:
    problem = Problem()
    a, b, c = (problem.variable(name, domain) for name, domain in (("a", [1, 2]), ("b", [1, 2]), ("c", [3])))
    problem.equal(a, b, origin(0))
    problem.equal(b, c, origin(1))
    with pytest.raises(LayoutConflictError) as caught:
        problem.solve()
    assert "constraint 1" in caught.value.message
    assert "constraint 0" not in caught.value.message


def test_variables_of_one_value_are_no_axes_of_tables() -> None:
    """More of them beside one variable than an array has axes."""
    problem = Problem()
    center = problem.variable("center", range(3))
    for number in range(100):
        single = problem.variable(f"single {number}", (number,))
        problem.relate(center, single, lambda c, s: float((c - 1) ** 2 * s), origin(number))
    solution = problem.solve()
    assert solution.values[center] == 1
    assert solution.values[1:] == tuple(range(100))
    assert solution.cost == 0

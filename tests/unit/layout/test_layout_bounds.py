"""Costs that are found out late: bounds of relayouts hold, searches with bounds find what searches without them find,
and memory that a tile passes through is arranged without bank conflicts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product
from math import inf

import numpy as np
import pytest
from relayout_oracle import SHAPES, random_layout, with_terms
from test_layout_access import random_registers, simulate

from tests.sampling import count
from tilewright import dtypes
from tilewright.errors import LayoutConflictError
from tilewright.layout import Layout
from tilewright.layout.operations import rename_axis
from tilewright.layout.relayout import Move, Plan, plan_relayout
from tilewright.layout.relayout_bound import least_seconds
from tilewright.layout.solver import Origin, Problem
from tilewright.machines import machine as machines

ON = {
    "sm_90a": ("warps", "memory", "shared", "devices"),
    "x86-64-v4": ("vectors", "memory"),
    "wormhole": ("memory", "cores", "devices"),
}


@pytest.mark.parametrize("name", ON)
def test_no_plan_is_quicker_than_its_bound(name: str) -> None:
    machine = machines.load(name)
    bounded = 0
    for seed in range(count(200, 300)):
        generator = random.Random(f"bound {name} {seed}")
        shape = generator.choice(SHAPES)
        source, target = (random_layout(generator, shape, generator.choice(ON[name])) for _ in range(2))
        if generator.random() < 0.2 and name == "sm_90a" and {"reg", "lane"} & set(source.axes):
            source = with_terms(generator, source)
        dtype = generator.choice((dtypes.f32, dtypes.f16, dtypes.i8))
        plan = plan_relayout(source, target, dtype, machine)
        bound = least_seconds((source,), (target,), dtype, machine)[0, 0]
        assert isinstance(plan, Plan)
        assert bound <= plan.seconds * (1 + 1e-9), f"seed {seed}: {source} to {target}: {plan}"
        bounded += bound > 0
    assert name == "wormhole" or bounded > 60


def test_many_pairs_are_bounded_as_each_alone() -> None:
    machine = machines.load("sm_90a")
    generator = random.Random(5)
    layouts = tuple(random_layout(generator, (16, 16), family) for family in ("warps", "shared", "warps", "memory"))
    together = least_seconds(layouts, layouts, dtypes.f16, machine)
    alone = [[least_seconds((a,), (b,), dtypes.f16, machine)[0, 0] for b in layouts] for a in layouts]
    np.testing.assert_array_equal(together, alone)
    assert (together.diagonal() == 0).all()


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_a_trip_through_shared_memory_meets_no_conflicts(element_bytes: int) -> None:
    """Counted by a simulator of banks: as few wavefronts as there are words of 32 lanes to move."""
    machine = machines.load("sm_90a")
    dtype = {1: dtypes.i8, 2: dtypes.f16, 4: dtypes.f32, 8: dtypes.f64}[element_bytes]
    trips = 0
    for seed in range(count(30, 60)):
        generator = random.Random(f"trip {seed}")
        source, target = (random_registers(generator, (32, 64)) for _ in range(2))
        plan = plan_relayout(source, target, dtype, machine)
        assert isinstance(plan, Plan)
        if [step.move for step in plan.steps] != [Move.STORE, Move.LOAD]:
            continue
        trips += 1
        scratch = rename_axis(plan.steps[0].layout, "mem.shared", "mem")
        if element_bytes < 4:
            # Lanes that move less than a word each leave banks idle, whatever the arrangement: no conflict is added.
            assert "conflicts" not in plan.steps[0].detail
            assert "conflicts" not in plan.steps[1].detail
            continue
        for registers, step in ((source, plan.steps[0]), (target, plan.steps[1])):
            vector = int(step.detail.split(" accesses of ")[1].split()[0])
            once = Layout(registers.shape, registers.shard)
            _, wavefronts, _ = simulate(once, scratch, element_bytes, vector)
            assert f"{_least(once, vector, element_bytes)} wavefronts" in step.detail or registers.replica
            assert wavefronts <= _least(registers, vector, element_bytes), f"seed {seed}: {step}"
    assert trips > 15


def _least(registers: Layout, vector: int, element_bytes: int) -> int:
    """Passes of instructions of full warps, each of 32 words at most."""
    threads = 32 * int(registers.span("warp")) if "warp" in registers.axes else 32
    elements = int(registers.span("reg")) if "reg" in registers.axes else 1
    return elements // vector * (threads // 32) * max(1, vector * element_bytes // 4)


class Late:
    """A cost that says less at first, and counts how often it was found out."""

    def __init__(self, costs: dict[tuple[int, int], float | None], share: float) -> None:
        self.costs = costs
        self.share = share
        self.asked = 0

    def __call__(self, first: int, second: int) -> float | None:
        self.asked += 1
        return self.costs[first, second]

    def at_least(self, firsts: Sequence[int], seconds: Sequence[int]) -> np.ndarray:
        known = [[self.costs[a, b] for b in seconds] for a in firsts]
        # An impossible pair is not always known to be one.
        return np.array([[3.0 if cost is None else self.share * cost for cost in row] for row in known])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_searches_with_bounds_equal_brute_force(share: float) -> None:
    asked = pairs = 0
    for seed in range(100):
        generator = random.Random(f"late {seed}")
        sizes = [generator.randrange(4, 6) for _ in range(6)]
        problem = Problem()
        for number, size in enumerate(sizes):
            problem.variable(f"v{number}", range(size))
        total = np.zeros(sizes)
        costs: list[Late] = []
        edges = list(combinations(range(6), 2))
        for number, (first, second) in enumerate(generator.sample(edges, generator.randrange(5, 10))):
            hard = generator.choice((0.1, 0.5))
            table = {
                pair: None if generator.random() < hard else float(generator.randrange(20))
                for pair in product(range(sizes[first]), range(sizes[second]))
            }
            costs.append(Late(table, share))
            problem.relate(first, second, costs[-1], Origin(f"edge {number}"))
            grid = np.array([inf if cost is None else cost for cost in table.values()])
            shape = [sizes[v] if v in (first, second) else 1 for v in range(6)]
            total = total + grid.reshape(shape)
        if not np.isfinite(total).any():
            with pytest.raises(LayoutConflictError):
                problem.solve()
            continue
        solution = problem.solve()
        assert solution.cost == total.min(), seed
        assert total[solution.values] == total.min(), seed
        asked += sum(cost.asked for cost in costs)
        pairs += sum(len(cost.costs) for cost in costs)
    assert asked < pairs * (0.9 if share else 1)

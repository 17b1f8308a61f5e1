"""Random tile kernels and array programs on simulated grids agree with their definitions, and nothing is reported."""

from __future__ import annotations

import pytest

from tests.cores.compiling import MACHINES
from tests.fuzz.emulated import check_on, generate_for
from tests.fuzz.tiles import check, generate
from tests.sampling import count

KERNELS, PROGRAMS = count(20, 200), count(3, 60)


@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_tile_kernels(seed: int) -> None:
    found = check(generate(seed), (f"grid:{MACHINES[seed % 2]}",))
    assert not found.kind or "Unsupported" in found.kind, found.message


@pytest.mark.parametrize("machine", MACHINES)
def test_random_array_programs(machine: str) -> None:
    target, first = f"grid:{machine}", 3000 + 1000 * MACHINES.index(machine)
    outcomes = {seed: check_on(generate_for(target, seed), target) for seed in range(first, first + PROGRAMS)}
    assert {seed: each for seed, each in outcomes.items() if each.kind} == {}
    assert sum(not each.refused for each in outcomes.values()) >= PROGRAMS // 2

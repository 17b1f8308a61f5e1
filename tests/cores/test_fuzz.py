"""Random tile kernels and array programs on simulated grids agree with their definitions, and nothing is reported."""

from __future__ import annotations

import pytest

from tests.cores.compiling import MACHINES
from tests.fuzz.emulated import check_on, generate_for
from tests.fuzz.tiles import check, generate
from tests.sampling import count

KERNELS, PROGRAMS = count(20, 200), count(4, 100)


@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_tile_kernels(seed: int) -> None:
    found = check(generate(seed), (f"grid:{MACHINES[seed % 2]}",))
    assert not found.kind or "Unsupported" in found.kind, found.message


@pytest.mark.parametrize("seed", range(3000, 3000 + PROGRAMS))
def test_random_array_programs(seed: int) -> None:
    target = f"grid:{MACHINES[seed % 2]}"
    found = check_on(generate_for(target, seed), target)
    assert not found.kind, found.message

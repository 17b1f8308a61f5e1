"""Random tile kernels on the simulated grid agree with the definition of tiles, and nothing is reported."""

from __future__ import annotations

import pytest

from tests.cores.compiling import MACHINES
from tests.fuzz.tiles import check, generate
from tests.sampling import count

KERNELS = count(20, 200)


@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_tile_kernels(seed: int) -> None:
    found = check(generate(seed), (f"grid:{MACHINES[seed % 2]}",))
    assert not found.kind or "Unsupported" in found.kind, found.message

"""Random tile kernels as PTX on an emulator, against the semantics of tiles."""

from __future__ import annotations

import pytest

from tests.cuda.chips import KINDS
from tests.fuzz.check import Outcome
from tests.fuzz.tile_steps import generate
from tests.fuzz.tiles import check
from tests.sampling import count

KERNELS = count(3, 20)


def tried(seed: int, chip: str) -> Outcome | None:
    """What became of a kernel; None for one with an operation that warps cannot do yet."""
    outcome = check(generate(seed), (f"cuda:{chip}",))
    return None if outcome.kind == "raised UnsupportedOnTargetError" else outcome


@pytest.mark.parametrize("chip", KINDS)
def test_random_kernels_agree(chip: str) -> None:
    first = 1000 * KINDS.index(chip)
    outcomes = {seed: tried(seed, chip) for seed in range(first, first + KERNELS)}
    assert {seed: each for seed, each in outcomes.items() if each is not None and each.kind} == {}
    assert sum(each is not None for each in outcomes.values()) >= KERNELS // 3

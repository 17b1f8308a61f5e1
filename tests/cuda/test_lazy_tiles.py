"""Tiles without a layout, made where they are used: each element once, however often the tiles between are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.emulated_chip import emulated_chip

STEPS = 150


def doubled(value: Any, steps: int = STEPS) -> Any:
    """Each step uses the one before twice: without it in hand 2 ** steps operations."""
    for _ in range(steps):
        value = (value ^ (value >> 3)) + 1
    return value


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("scalars", [True, False])
def test_positions_used_twice(steps: int, scalars: bool) -> None:
    def mixed(key: Any, positions: Any) -> Any:
        return positions + doubled(key, steps) if scalars else doubled(positions + key, steps)

    key, positions = np.array(7), np.arange(65)
    program = tw.jit(lambda key: mixed(key, tw.arange(65, dtype=tw.i64)), target="cuda:sm_90a")
    with emulated_chip("sm_90a"):
        found = np.asarray(program(key))
    np.testing.assert_array_equal(found, mixed(key, positions))

"""Convolutions with few positions as matmuls: which, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.array.test_array_convolve_channels_last import single
from tests.passes.pass_support import Make, build, build_module, random_inputs, remarks, run, unit_of
from tilewright.dialects import array
from tilewright.passes.array.array_convolve_by_positions import ArrayConvolveByPositionsPass
from tilewright.passes.base import Pass, Unit


def unit_with(make: Make, *passes: Pass) -> Unit:
    """A program after passes."""
    program = build(make)
    unit = unit_of(build_module(program), dict(program.constants))
    for each in passes:
        each.apply(unit)
        unit.module.verify()
    return unit


def computed(unit: Unit) -> list[str]:
    return [op.name.removeprefix("array.") for op in unit.main.body.block.ops if isinstance(op, array.ArrayOp)]


@pytest.mark.parametrize(
    ("make", "positions"),
    [
        (single((4, 3, 8, 8), 6, (6, 6)), 9),
        (single((4, 3, 8, 9), 6, (6, 5), low=1), 24),
        (single((4, 3, 13, 12), 6, (6, 5), dilation=2, high=1), 20),
        (single((4, 3, 11), 6, (5,), strides=3), 3),
        (single((4, 6, 7, 7), 4, (7, 7)), 1),
        (single((4, 6, 7, 7), 4, (5, 5), groups=2), 9),
        (single((2, 6, 5, 6, 4), 6, (4, 5, 3), groups=6), 8),
    ],
)
def test_each_position_is_a_matmul(make: Make, positions: int) -> None:
    before, after = unit_with(make), unit_with(make, ArrayConvolveByPositionsPass())
    names = computed(after)
    assert (names.count("contract"), names.count("convolve")) == (positions, 0)
    inputs = random_inputs(before)
    for x, y in zip(run(after, inputs), run(before, inputs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert [decision for decision, _ in remarks(after, ArrayConvolveByPositionsPass.name)] == ["matmuls"]


@pytest.mark.parametrize(
    "make",
    [
        single((4, 3, 8, 8), 6, (3, 3)),  # more positions than elements of the window
        single((4, 3, 20, 20), 6, (15, 15)),  # 36 positions
    ],
)
def test_other_convolutions_stay(make: Make) -> None:
    assert "convolve" in computed(unit_with(make, ArrayConvolveByPositionsPass()))


def test_groups_and_single_positions_leave_machines_with_vectors_too() -> None:
    def after(make: Make) -> list[str]:
        return computed(unit_with(make, ArrayConvolveByPositionsPass(leaves_images=True)))

    assert "convolve" in after(single((4, 3, 8, 8), 6, (6, 6)))
    assert "convolve" not in after(single((4, 3, 8, 8), 6, (8, 8)))
    assert "convolve" not in after(single((4, 6, 8, 8), 6, (6, 6), groups=3))
    assert "convolve" in after(single((4, 6, 8, 8), 6, (6, 6), groups=6))
    assert "convolve" not in after(single((4, 6, 20, 20), 6, (16, 16), groups=6))

"""Schedules that are given instead of chosen: kernels have them, mean the same, and are not kept in a cache."""

from __future__ import annotations

import numpy as np
import pytest
from pass_support import random_inputs, remarks, run, run_through

import tilewright as tw
from tests.programs import Program
from tilewright.cost.given import Given, given, schedules_given
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.vectors.products import Right, Schedule
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.dialects import scheduled
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.passes.vectors.scheduled_pack_operands import ScheduledPackOperandsPass
from tilewright.runtime.cache import default_cache

PLACES = {Right.IN_PLACE: [], Right.KEPT: ["kept by the first rows"], Right.TOGETHER: ["packed by all threads"]}


def product(p: Program) -> list[Value]:
    return [p.dot(p.array(40, 30), p.array(30, 100), 0, 1, 0)]


@pytest.mark.parametrize("right", PLACES)
@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_a_product_is_computed_by_a_given_schedule(vectors: int, right: Right) -> None:
    block = next(b for b in register_blocks(tw.f32, load("x86-64-v3")) if b.vectors == vectors)
    tile = MatmulTile(13, 2 * block.columns, 16)
    with schedules_given(Given(product=Schedule(tile, block, right, 0.0))):
        unit = run_through(product, ScheduledPackOperandsPass)
    (dot,) = (op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, scheduled.DotOp))
    assert dot.shape == (13, min(100, 2 * block.columns), 16)
    assert dot.micro_tile[1] == block.columns
    assert [decision for decision, _ in remarks(unit, ScheduledPackOperandsPass.name)] == PLACES[right]
    x, w = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x, w])[0], x @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "collapsed", "tile", "grid"),
    [
        ((1,), (6, 7, 12), (3, 5, 4), (2, 3)),
        ((0, 2), (6, 7, 12), (2, 4, 5), (2,)),
        ((2,), (42, 12), (6, 12), (7,)),
        ((0,), (6, 84), (4, 12), (7,)),
    ],
)
def test_a_reduction_is_done_in_given_tiles(
    axes: tuple[int, ...], collapsed: tuple[int, ...], tile: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    with schedules_given(Given(reductions={collapsed: tile})):
        unit = run_through(lambda p: [p.reduce(p.array(6, 7, 12), "add", axes)], ArrayLowerToTilePass)
    (kernel,) = unit.kernels()
    assert kernel.grid == grid
    (x,) = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x])[0], x.sum(axes), rtol=1e-5, atol=1e-5)


def test_rows_that_are_read_again_are_in_given_tiles() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(12, 34)
        return [p.map("subtract", x, p.broadcast(p.reduce(x, "maximum", (1,)), (12, 34), (0,)))]

    with schedules_given(Given(reductions={(12, 34): (5, 6)})):
        unit = run_through(program, ArrayLowerToTilePass)
    (kernel,) = unit.kernels()
    assert kernel.grid == (3,)
    (x,) = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x])[0], x - x.max(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_tiles_of_another_shape_are_chosen() -> None:
    def program(p: Program) -> list[Value]:
        return [p.reduce(p.array(6, 7, 12), "add", (1,))]

    with schedules_given(Given(reductions={(6, 12, 7): (1, 1, 1)})):
        unit = run_through(program, ArrayLowerToTilePass)
    (kernel,), (usual,) = unit.kernels(), run_through(program, ArrayLowerToTilePass).kernels()
    assert kernel.grid == usual.grid


def test_given_schedules_end_with_their_block_and_are_not_cached() -> None:
    assert default_cache() is not None
    with schedules_given(Given(reductions={(2,): (1,)})):
        assert given().reductions
        assert default_cache() is None
    assert given() == Given()
    assert default_cache() is not None

"""Kernels whose choices store, and loop, on a grid of cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES
from tilewright.dialects import cores

Array = np.ndarray[Any, Any]


@tw.kernel
def in_both_branches(x: tw.In["N M"], o: tw.Out["N M"]):
    for i, j in tw.grid(o, (32, 32)):
        tile = x[i, j]
        if tw.sum(tile) > 0:
            total = tw.zeros((32, 32), tw.f32)
            for _ in range(3):
                total = total + tile * 2
            o[i, j] = total
        else:
            o[i, j] = tile - 1


@tw.kernel
def in_one_branch(x: tw.In["N M"], o: tw.InOut["N M"]):
    for i, j in tw.grid(o, (32, 64)):
        if tw.max(x[i, j]) > 2.5:
            o[i, j] = o[i, j] * 2


@tw.kernel
def within_each_other(x: tw.In["N M"], o: tw.InOut["N M"]):
    for i, j in tw.grid(o, (16, 32)):
        tile = x[i, j]
        if tw.sum(tile) > 0:
            if tw.max(tile) > 2.5:
                o[i, j] = tile
            else:
                o[i, j] = o[i, j] + tile
        else:
            if tw.min(tile) < -2.5:
                o[i, j] = 0 - tile


@tw.kernel
def in_a_loop_of_a_branch(x: tw.In["N M"], o: tw.InOut["N M"]):
    for i, _ in tw.grid(o, (32, 128)):
        total = tw.zeros((), tw.f32)
        for j in tw.steps(o, axis=1, size=32):
            total = total + tw.sum(x[i, j])
        if total > 0:
            for j in tw.steps(o, axis=1, size=32):
                o[i, j] = o[i, j] + x[i, j]


KERNELS = (in_both_branches, in_one_branch, within_each_other, in_a_loop_of_a_branch)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("machine", MACHINES)
def test_only_what_was_chosen_is_stored(kernel: Any, machine: str) -> None:
    random = np.random.default_rng(0)
    x, before = (random.standard_normal((70, 100)).astype(np.float32) for _ in range(2))
    found: list[Array] = []
    for target in ("interp", f"grid:{machine}"):
        after = before.copy()
        kernel.lower(x, after).compile(target=target)(x, after)
        found.append(after)
    assert np.any(found[0] != before)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)


@tw.kernel
def by_one_point(x: tw.In["N M"], y: tw.Out["N M"], sums: tw.InOut["N"], counts: tw.InOut["N"]):
    """One point of each row of points stores, and another one adds to what is there."""
    for i, j in tw.grid(x, (32, 32)):
        tile = x[i, j]
        y[i, j] = tile * 2
        if j.index == 0:
            sums[i] = tw.sum(tile, axis=1)
        elif (j.index > 1) & (i.index != 1):
            counts[i] = counts[i] + tw.sum(tile, axis=1)


@tw.kernel
def by_data(x: tw.In["N M"], owner: tw.In["N", tw.i32], y: tw.Out["N M"], sums: tw.InOut["N"]):
    for i, j in tw.grid(x, (None, 32)):
        tile = x[i, j]
        y[i, j] = tile * 2
        if owner[i] == j.index:
            sums[i] = tw.sum(tile)


@pytest.mark.parametrize("machine", MACHINES)
def test_points_that_do_not_store_touch_no_array(machine: str) -> None:
    random = np.random.default_rng(3)
    x = random.integers(-4, 5, (64, 96)).astype(np.float32)
    y, sums, counts = np.empty_like(x), np.zeros(64, np.float32), np.ones(64, np.float32)
    by_one_point.lower(x, y, sums, counts).compile(target=f"grid:{machine}")(x, y, sums, counts)
    np.testing.assert_array_equal(y, x * 2)
    np.testing.assert_array_equal(sums, x[:, :32].sum(1))
    np.testing.assert_array_equal(counts, 1 + np.where(np.arange(64) < 32, x[:, 64:].sum(1), 0))


@pytest.mark.parametrize("machine", MACHINES)
def test_points_that_data_chooses_store(machine: str) -> None:
    random = np.random.default_rng(4)
    x, owner = random.integers(-4, 5, (24, 96)).astype(np.float32), random.integers(0, 3, 24).astype(np.int32)
    y, sums = np.empty_like(x), np.zeros(24, np.float32)
    by_data.lower(x, owner, y, sums).compile(target=f"grid:{machine}")(x, owner, y, sums)
    np.testing.assert_array_equal(sums, [x[i, o * 32 : o * 32 + 32].sum() for i, o in enumerate(owner)])


@tw.kernel
def by_order(x: tw.In["N M"], y: tw.InOut["N M"], z: tw.InOut["N M"], last: tw.InOut["1 1"]):
    for i, j in tw.grid(x, (32, 32)):
        tile = x[i, j]
        if i.index <= j.index:
            if i.index != j.index:
                y[i, j] = tile * 2
        else:
            z[i, j] = z[i, j] + tile
        if (i.index >= 1) & (j.index > 2) & (i.index < 2):
            last[0, 0] = tw.sum(tile)


@pytest.mark.parametrize("machine", MACHINES)
def test_movers_decide_by_where_their_point_is(machine: str) -> None:
    random = np.random.default_rng(5)
    x = random.integers(-4, 5, (70, 100)).astype(np.float32)
    y, z, last = np.zeros_like(x), np.ones_like(x), np.zeros((1, 1), np.float32)
    by_order.lower(x, y, z, last).compile(target=f"grid:{machine}")(x, y, z, last)
    i, j = np.indices(x.shape) // 32
    np.testing.assert_array_equal(y, np.where(i < j, x * 2, 0))
    np.testing.assert_array_equal(z, np.where(i > j, x + 1, 1))
    assert last[0, 0] == x[32:64, 96:].sum()


def test_stores_by_place_are_choices_of_the_writer() -> None:
    """Whole pages are put, and not element by element; a choice by data is none of the writer's."""
    x = np.zeros((64, 64), np.float32)
    last = np.zeros((1, 1), np.float32)
    program: Any = by_order.lower(x, x.copy(), x.copy(), last).compile(target="grid:wormhole").executable
    (kernel,) = program.unit.kernels()
    puts = [op for op in kernel.walk() if isinstance(op, cores.PutOp)]
    assert len(puts) == 3
    assert all(isinstance(op.parent_op(), cores.IfOp) for op in puts)

"""Kernels whose choices store, and loop, on a grid of cores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES

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

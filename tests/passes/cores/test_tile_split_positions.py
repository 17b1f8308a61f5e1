"""Positions of elements, split into tiles that run along one dim each, against NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES
from tilewright.dialects import cores
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.tile_split_positions import TileSplitPositionsPass
from tilewright.pipelines import array_to_tile, tile_to_cores
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]


def compiled(function: Any, arrays: list[Array], machine: str, splits: bool = True) -> Unit:
    graph = tw.jit(function).lower(*arrays).graph
    unit = Unit(build_module(graph), dict(graph.snapshot()), load(machine), 1, name=graph.name)
    for each in (*array_to_tile(unit.machine.model), *tile_to_cores()):
        if splits or not isinstance(each, TileSplitPositionsPass):
            each.apply(unit)
    return unit


def stored_elements(unit: Unit) -> int:
    """Elements of positions in one page after another, as the program's text has them."""
    found = [op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, cores.GenerateOp)]
    return sum(op.elements for op in found if not op.is_one_number)


def causal(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v, causal=True)


def attended(q: Array, k: Array, v: Array) -> Array:
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("length", [70, 300])
def test_a_causal_mask_is_a_row_and_a_column(length: int, machine: str) -> None:
    random = np.random.default_rng(length)
    arrays = [random.standard_normal((1, 2, length, 32)).astype(np.float32) for _ in range(3)]
    unit, before = compiled(causal, arrays, machine), compiled(causal, arrays, machine, splits=False)
    (got,) = Simulation(unit, whole_outputs=True).run(arrays)
    (wanted,) = Simulation(before).run(arrays)
    # NumPy multiplies blocks of other shapes, whose sums some processors round otherwise.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-5)
    np.testing.assert_allclose(got, attended(*arrays), rtol=0, atol=2e-2)
    assert stored_elements(unit) * 5 < stored_elements(before)
    assert any(remark.pass_name == "tile-split-positions" for remark in unit.remarks)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", [(40, 70), (1, 100), (100, 1), (3, 33, 40)], ids=str)
def test_masks_of_a_diagonal(shape: tuple[int, ...], machine: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for function, own in ((tw.tril, np.tril), (tw.triu, np.triu)):
        for offset in (-3, 0, 7):
            unit = compiled(lambda x, f=function, k=offset: f(tw.exp(x), k=k), [x], machine)
            (got,) = Simulation(unit, whole_outputs=True).run([x])
            np.testing.assert_array_equal(got == 0, own(np.ones_like(x), k=offset) == 0)
            np.testing.assert_allclose(got, own(np.exp(x.astype(np.float64)), k=offset), rtol=1e-2)


@pytest.mark.parametrize("machine", MACHINES)
def test_positions_that_are_computed_with(machine: str) -> None:
    x = np.random.default_rng(0).standard_normal((50, 90)).astype(np.float32)
    rows, columns = np.arange(50)[:, None], np.arange(90)

    def function(x: Any) -> Any:
        return x * tw.astype(tw.arange(50)[:, None] * 3 + tw.arange(90), tw.f32)

    unit = compiled(function, [x], machine)
    (got,) = Simulation(unit, whole_outputs=True).run([x])
    np.testing.assert_allclose(got, x * (3 * rows + columns), rtol=1e-2)
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            unit = compiled(partial(getattr(tw, name), axis=axis), [x], machine)
            (got,) = Simulation(unit, whole_outputs=True).run([x])
            np.testing.assert_array_equal(got, getattr(np, name)(x, axis=axis))

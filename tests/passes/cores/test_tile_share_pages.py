"""Arrays that share the pages of the arrays that they are copies of, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir.affine import AffineExpr, AffineMap

import tilewright as tw
from tests.cores.compiling import MACHINES
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import tensor
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.linear_views import LinearView, is_within, merging_view
from tilewright.passes.cores.tile_share_pages import TileSharePagesPass
from tilewright.pipelines import array_to_tile, tile_to_cores
from tilewright.primitives import ArrayType
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]


def compiled(function: Callable[..., Any], arrays: list[Array], machine: str, shares: bool = True) -> Unit:
    graph = tw.jit(function).lower(*arrays).graph
    unit = Unit(build_module(graph), dict(graph.snapshot()), load(machine), 1, name=graph.name)
    for each in (*array_to_tile(unit.machine.model), *tile_to_cores()):
        if shares or not isinstance(each, TileSharePagesPass):
            each.apply(unit)
    unit.module.verify()
    return unit


def cycles(unit: Unit) -> float:
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    return sum(run.cycles for _, run in simulation.runs)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def split(x: Any, heads: int) -> Any:
    return tw.permute_dims(tw.reshape(x, (x.shape[0], heads, x.shape[1] // heads)), (1, 0, 2))


def joined(x: Any) -> Any:
    return tw.reshape(tw.permute_dims(x, (1, 0, 2)), (x.shape[1], x.shape[0] * x.shape[2]))


def attention(x: Any, w: Any) -> Any:
    q = split(x @ w, 4)
    return joined(tw.nn.softmax(q @ q.mT, axis=-1) @ q) @ w


def attended(x: Array, w: Array) -> Array:
    x, w = x.astype(np.float64), w.astype(np.float64)
    rows = (x @ w).reshape(len(x), 4, -1).transpose(1, 0, 2)
    scores = rows @ rows.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights / weights.sum(-1, keepdims=True)) @ rows
    return out.transpose(1, 0, 2).reshape(x.shape) @ w


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [64, 100])
@pytest.mark.parametrize("size", [32, 64])
def test_heads_of_whole_pages_are_not_copied(size: int, rows: int, machine: str) -> None:
    arrays = [normal(rows, 4 * size), normal(4 * size, 4 * size) / np.float32(8 * size)]
    unit, before = compiled(attention, arrays, machine), compiled(attention, arrays, machine, shares=False)
    assert len(list(unit.kernels())) == len(list(before.kernels())) - 2
    (got,) = Simulation(unit, whole_outputs=True).run(arrays)
    (wanted,) = Simulation(before).run(arrays)
    np.testing.assert_array_equal(got, wanted)
    exact = attended(*arrays)
    assert np.linalg.norm(got - exact) < 1e-2 * np.linalg.norm(exact)
    assert cycles(unit) < cycles(before)
    decisions = [remark.decision for remark in unit.remarks if remark.pass_name == "tile-share-pages"]
    assert decisions == [
        "shares the pages of the array that it is a copy of",
        "shares the pages of the array that is a copy of it",
    ]


@pytest.mark.parametrize("machine", MACHINES)
def test_heads_of_parts_of_pages_are_copied(machine: str) -> None:
    arrays = [normal(64, 4 * 24), normal(4 * 24, 4 * 24)]
    unit = compiled(attention, arrays, machine)
    assert not any(remark.pass_name == "tile-share-pages" for remark in unit.remarks)


@pytest.mark.parametrize("machine", MACHINES)
def test_each_call_has_the_pages_that_it_takes(machine: str) -> None:
    """One kernel called with an array in its own pages, and with a view of another one."""

    def function(x: Any, y: Any) -> Any:
        return tw.exp(split(x + 1.0, 2)) * 2.0, tw.exp(y) * 2.0

    x, y = normal(96, 64), normal(2, 96, 32)
    unit = compiled(function, [x, y], machine)
    got = Simulation(unit, whole_outputs=True).run([x, y])
    np.testing.assert_allclose(got[0], 2 * np.exp(x + 1).reshape(96, 2, 32).transpose(1, 0, 2), rtol=1e-2)
    np.testing.assert_allclose(got[1], 2 * np.exp(y), rtol=1e-2)


@pytest.mark.parametrize("machine", MACHINES)
def test_results_keep_their_own_pages(machine: str) -> None:
    def function(x: Any, w: Any) -> Any:
        heads = split(x @ w, 2)
        return heads, heads @ heads.mT

    x, w = normal(96, 64), normal(64, 64)
    unit = compiled(function, [x, w], machine)
    got = Simulation(unit, whole_outputs=True).run([x, w])
    exact = (x.astype(np.float64) @ w).reshape(96, 2, 32).transpose(1, 0, 2)
    for mine, theirs in zip(got, (exact, exact @ exact.swapaxes(1, 2)), strict=True):
        assert mine.shape == theirs.shape
        assert np.linalg.norm(mine - theirs) < 1e-2 * np.linalg.norm(theirs)


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (24,)),
        ((1, 5, 1), (5,)),
        ((5,), (1, 5, 1)),
        ((2, 1, 3), (2, 3)),
        ((4, 6), (4, 6)),
    ],
    ids=str,
)
def test_merged_dims_are_linear(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    view = merging_view(shape, stored)
    assert view is not None
    numbers = np.arange(int(np.prod(stored))).reshape(stored)
    for position, index in enumerate(np.ndindex(shape)):
        there = tuple(int(np.dot(row, index)) for row in view.rows)
        assert numbers[there] == position


@pytest.mark.parametrize(("shape", "stored"), [((6, 4), (2, 3, 4)), ((6, 4), (4, 6)), ((24,), (4, 6))], ids=str)
def test_split_dims_are_not_linear(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    assert merging_view(shape, stored) is None


@pytest.mark.parametrize(("columns", "is_inside"), [(32, True), (16, True), (64, False)])
def test_windows_beyond_a_merged_dim_are_refused(columns: int, is_inside: bool) -> None:
    """Heads of 32 columns: what a wider window masks would be the next head's in the other array."""
    view = LinearView((2, 64, 32), (64, 64), ((0, 1, 0), (32, 0, 1)))
    assert [view.is_merged(dim) for dim in range(3)] == [True, False, True]
    kernel = tile.kernel("k", (2,), [tile.ref(ArrayType((2, 64, 32), dtypes.f32))], [tile.IN])
    head, row, column = AffineExpr.symbol(0), AffineExpr.dimension(0), AffineExpr.dimension(1)
    map = AffineMap(2, 1, (head, row, column))
    type = tensor(ArrayType((128, columns), dtypes.f32))
    load = tile.LoadOp(source=kernel.refs[0], symbols=kernel.indices, map=map, result=type)
    kernel.body.block.add_op(load)
    assert is_within(view, map, load) == is_inside

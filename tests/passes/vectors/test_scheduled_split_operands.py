"""Operands that `scheduled-split-operands` splits into parts: where, by whom, and that such schedules mean products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.test_split_products import SCHEDULED_TILE, by_parts, numbers
from tests.passes.pass_support import run, unit_of
from tests.programs import Program, build
from tilewright import dtypes
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.vectors.split_products import takes_own_columns
from tilewright.dialects import scheduled, tile
from tilewright.dialects.tile import ref_type as tile_ref_type
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.requested import RequestedSchedules
from tilewright.pipelines import array_to_tile, tile_to_vectors

# ---- how they are made ----------------------------------------------------------------------------------------------


def scheduled_product(rows: int, columns: int, depth: int, turned: bool, given: MatmulTile = SCHEDULED_TILE) -> Unit:
    def make(p: Program) -> list[Any]:
        left = p.array(depth, rows) if turned else p.array(rows, depth)
        return [p.dot(left, p.array(depth, columns), 0, 0 if turned else 1, 0)]

    program = build(make)
    unit = unit_of(build_module(program), dict(program.constants))
    unit.machine = load("x86-64-amx")
    unit.requested = RequestedSchedules.of(by_parts(given))
    for each in (*array_to_tile(unit.machine.model), *tile_to_vectors()):
        each.apply(unit)
        unit.module.verify()
    unit.requested.check()
    return unit


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "size",
    [(64, 64, 64), (70, 100, 130), (70, 70, 40), (33, 129, 64), (20, 20, 20), (130, 64, 128), (640, 290, 70)],
    ids=str,
)
@pytest.mark.parametrize("special", [1.0, np.inf])
def test_scheduled_products_in_parts_mean_products(size: tuple[int, int, int], turned: bool, special: float) -> None:
    rows, columns, depth = size
    unit = scheduled_product(rows, columns, depth, turned)
    a, b = numbers((rows, depth), 13), numbers((depth, columns), 14)
    a[1, 2] = special
    (got,) = run(unit, [np.ascontiguousarray(a.T) if turned else a, b])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, a.astype("f8") @ b.astype("f8"), rtol=1e-5, atol=1e-4)


def split_product(rows: int, columns: int, depth: int, given: MatmulTile, turned: bool = False) -> scheduled.DotOp:
    (kernel,) = scheduled_product(rows, columns, depth, turned, given).timed_kernels("test")
    (found,) = (op for op in kernel.walk() if isinstance(op, scheduled.DotOp) and op.is_split)
    return found


def test_rows_are_taken_apart_between_the_instructions_where_they_can_be() -> None:
    def beside(*sizes: int, tile: MatmulTile, turned: bool = False) -> bool:
        return tile_ref_type(split_product(*sizes, tile, turned).left).dtype == dtypes.f32

    assert beside(200, 64, 128, tile=MatmulTile(64, 64, 64))
    assert beside(64, 100, 128, tile=MatmulTile(64, 64, 64))
    assert not beside(200, 64, 128, tile=MatmulTile(64, 64, 64), turned=True), "numbers of a row are apart"
    assert not beside(200, 64, 100, tile=MatmulTile(64, 64, 64)), "the last step is not whole"
    assert not beside(2000, 160, 64, tile=MatmulTile(64, 128, 64)), "the last tile has less panels"
    assert not beside(200, 64, 64, tile=MatmulTile(32, 64, 64)), "one block of rows"
    assert not beside(2048, 2048, 512, tile=MatmulTile(64, 2048, 512)), "parts of the columns are too many bytes"


def test_a_tile_takes_columns_apart_that_few_others_read() -> None:
    def memory(*sizes: int) -> str:
        return tile_ref_type(split_product(*sizes, SCHEDULED_TILE).right).space.data

    assert memory(64, 200, 64) == scheduled.WORKER
    assert memory(65, 200, 64) == scheduled.WORKER
    assert memory(640, 200, 64) == scheduled.SHARED


def test_each_tile_takes_columns_apart_where_that_takes_less_time_than_together() -> None:
    assert takes_own_columns(tiles=4, tile_panels=2, panels=8, numbers=4096, threads=1), "no other tile reads them"
    assert not takes_own_columns(tiles=8, tile_panels=2, panels=8, numbers=4096, threads=1), "nobody waits"
    assert takes_own_columns(tiles=2, tile_panels=8, panels=8, numbers=4096, threads=2)
    assert not takes_own_columns(tiles=20, tile_panels=8, panels=8, numbers=4096, threads=2)


def test_a_product_stores_whole_blocks_itself() -> None:
    def stores(*sizes: int, turned: bool = False) -> bool:
        dot = split_product(*sizes, SCHEDULED_TILE, turned)
        return dot.accumulator_map is not None

    assert stores(128, 192, 64)
    assert stores(128, 192, 60, turned=True)
    assert not stores(130, 192, 64), "rows are left"
    assert not stores(128, 160, 64), "the last tile has less columns"
    assert not stores(128, 192, 128), "sums of two steps are added"


def test_a_product_in_parts_has_a_branch_for_what_is_not_finite() -> None:
    unit = scheduled_product(70, 100, 130, False)
    (kernel,) = unit.timed_kernels("test")
    products = [op for op in kernel.walk() if isinstance(op, scheduled.DotOp)]
    assert [op.is_split for op in products] == [True, False]
    branches = [op for op in kernel.walk() if isinstance(op, tile.IfOp)]
    assert len(branches) == 1
    assert branches[0].is_ancestor(products[1])
    assert not branches[0].is_ancestor(products[0])

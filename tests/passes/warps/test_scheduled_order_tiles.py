"""Tiles that `scheduled-order-tiles` puts in an order for the second-level cache, on machines that are small enough for
few tiles to be many."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.test_pipeline import executed, numbers, operands
from tests.passes.pass_support import parse, random_inputs, run, unit_of
from tests.passes.test_docstrings import example
from tests.passes.warps.test_scheduled_loop_over_tiles import Small
from tests.passes.warps.test_scheduled_specialize_warps import defined, ops_of, remarks
from tilewright.dialects.scheduled import tile_order
from tilewright.machines.machine import Machine, with_caches
from tilewright.passes.base import Unit
from tilewright.passes.warps import scheduled_order_tiles
from tilewright.passes.warps.scheduled_order_tiles import ScheduledOrderTilesPass

# ---- the order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "exactly", "dtype", "chip", "cores", "m", "n", "k"),
    [
        (lambda a, b: a @ b, lambda c: c, "f16", "sm_80", 2, 136, 200, 72),
        (lambda a, b: tw.nn.relu(a @ b), lambda c: np.maximum(c, 0), "bf16", "sm_90a", 2, 200, 136, 72),
        (lambda a, b: tw.matmul(a, b, dtype=tw.f32), lambda c: c, "bf16", "sm_100a", 4, 264, 168, 136),
        (lambda a, b: a @ b, lambda c: c, "f32", "sm_90a", 2, 136, 120, 40),
        (lambda a, b: a @ b[:, ::-1], lambda c: c[:, ::-1], "f16", "sm_120a", 2, 200, 200, 40),
    ],
    ids=["copied ahead", "followed", "to 32 bits", "of 32 bits", "turned around"],
)
def test_products_of_every_kind_in_groups(
    small: Small, function: Any, exactly: Any, dtype: str, chip: str, cores: int, m: int, n: int, k: int
) -> None:
    small(cores)
    a, b, exact = operands("nn", dtype, m, n, k)
    program = built(tw.jit(function).lower(a, b), f"cuda:{chip}")
    (said,) = remarks(program, ScheduledOrderTilesPass)
    assert said.startswith("tiles in groups of ")
    assert all(point.order.group > 1 for point in ops_of(program, tile_order.PointOp))
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exactly(exact).astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def test_batches_are_outside_of_groups(small: Small) -> None:
    small(cores=2)
    a, b = numbers((3, 136, 72), "f16", 1), numbers((3, 72, 200), "f16", 2)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    (point,) = ops_of(program, tile_order.PointOp)
    assert point.order.extents[0] == 3
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))


def test_a_cache_with_room_leaves_the_grid(small: Small) -> None:
    small(cores=2, cache_bytes=1 << 20)
    a, b, _ = operands("nn", "f16", 200, 264, 136)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    assert ops_of(program, tile_order.PointOp) == []
    (said,) = remarks(program, ScheduledOrderTilesPass)
    assert said.startswith("row-major tile order: l2 has room for all panels")


def test_explain_says_groups_and_bytes(small: Small) -> None:
    small(cores=4)
    a, b, _ = operands("nn", "f16", 256, 512, 64)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    assert re.search(
        r"tiles in groups of \d (rows|columns) \(4 blocks at a time read \d+ bytes from dram, row-major \d+\)",
        program.explain(),
    )


# ---- which kernels --------------------------------------------------------------------------------------------------

PASS = ScheduledOrderTilesPass()
# Three rows by four columns of tiles, on a machine of four blocks at a time and a cache of 2 KiB.
EXAMPLE = example(scheduled_order_tiles)
POINTS = "extents = array<i64: 3, 4>"


def ordered(text: str, machine: Machine = EXAMPLE.machine) -> Unit:
    unit = unit_of(parse(text), {})
    unit.machine = machine
    PASS.apply(unit)
    unit.module.verify()
    return unit


def points(unit: Unit) -> list[tuple[tuple[int, ...], int]]:
    found = [op for op in unit.module.walk() if isinstance(op, tile_order.PointOp)]
    return [(op.order.extents, op.order.group) for op in found]


def check_left(text: str, machine: Machine = EXAMPLE.machine) -> Unit:
    unit = ordered(text, machine)
    assert str(unit.module) == str(parse(text))
    return unit


LEFT = {
    "no matmul": (
        '%sum = scheduled.mma(%a, %b, %zero) {atom = "mma.sync, 1 x 1 warps"} :',
        '%sum = tile.map(%zero) {fn = "negative"} :',
    ),
    "both windows go by the row": ("tile.load(%y, %j)", "tile.load(%y, %i)"),
    "a window that goes by both": (
        "tile.load(%y, %j) {map = affine_map<(d0, d1)[s0] -> (d0, (d1 + (s0 * 16)))>",
        "tile.load(%y, %i, %j) {map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0, (d1 + (s1 * 16)))>",
    ),
    "the same window everywhere": (
        "tile.load(%y, %j) {map = affine_map<(d0, d1)[s0] -> (d0, (d1 + (s0 * 16)))>",
        "tile.load(%y) {map = affine_map<(d0, d1) -> (d0, d1)>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_kernels_without_rows_and_columns_of_windows_are_left(name: str) -> None:
    old, new = LEFT[name]
    assert old in EXAMPLE.before
    assert check_left(EXAMPLE.before.replace(old, new)).remarks == []


def test_one_row_of_tiles_is_in_the_best_order() -> None:
    text = EXAMPLE.before.replace(POINTS, "extents = array<i64: 1, 4>")
    ((decision, reason),) = [(each.decision, each.reason) for each in check_left(text).remarks]
    assert decision == "row-major tile order"
    assert reason.startswith("no order is better: ")


def test_a_cache_of_all_windows_keeps_the_order() -> None:
    machine = with_caches(EXAMPLE.machine, {"l2": 1 << 20})
    ((decision, reason),) = [(each.decision, each.reason) for each in check_left(EXAMPLE.before, machine).remarks]
    assert decision == "row-major tile order"
    assert reason.startswith("l2 has room for all panels: ")


@pytest.mark.parametrize(
    ("shape", "is_ordered"), [((3, 4), True), ((4, 3), True), ((5, 5), True), ((2, 9), True), ((8, 2), False)], ids=str
)
def test_any_number_of_tiles_is_computed_once_each(shape: tuple[int, int], is_ordered: bool) -> None:
    """Two columns are read by four blocks in the plain order already."""
    rows, columns = shape
    text = EXAMPLE.before.replace(POINTS, f"extents = array<i64: {rows}, {columns}>")
    text = text.replace("40x16", f"{16 * rows - 8}x16").replace("16x64xf16", f"16x{16 * columns}xf16")
    text = text.replace("40x64", f"{16 * rows - 8}x{16 * columns}")
    before, unit = unit_of(parse(text), {}), ordered(text)
    before.machine = EXAMPLE.machine
    arrays = random_inputs(before)
    np.testing.assert_array_equal(run(unit, arrays)[0], run(before, arrays)[0])
    assert len(points(unit)) == is_ordered
    for extents, group in points(unit):
        assert extents == (shape[::-1] if "columns" in unit.remarks[0].decision else shape)
        assert group > 1


def test_batches_stay_outside() -> None:
    """Their dim is in front, wherever it was."""
    text = EXAMPLE.before.replace(POINTS, "extents = array<i64: 3, 2, 4>").replace(
        "(%i: index, %j", "(%i: index, %n: index, %j"
    )
    assert [extents[0] for extents, _ in points(ordered(text))] == [2]

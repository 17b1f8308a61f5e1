"""Windows that `scheduled-pipeline-copies` copies ahead in stages: any number of them, tiles of any shape, and errors
that name the operation and the trip where a wait is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.ir import Operation

import tilewright as tw
from tests.cuda.chips import KINDS
from tests.cuda.test_pipeline import Given, compiled, emulated_unit, executed, interpreted, numbers, of_kind, said
from tests.passes.pass_support import parse, run, unit_of
from tests.passes.warps.products import Product
from tilewright.dialects import scheduled, tile
from tilewright.errors import CompilerBug
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import NO_STAGES, Fallback
from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass


@pytest.mark.parametrize("chip", KINDS)
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_any_number_of_stages(stages: int, chip: str) -> None:
    given = Given(stages=stages)
    unit = given.unit(chip)
    rings = [op for op in of_kind(unit, scheduled.AllocOp) if op.stages is not None]
    assert [ring.count for ring in rings] == [stages, stages]
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())
    got, counts = emulated_unit(unit, given)
    np.testing.assert_array_equal(got, given.exact())
    assert counts.shared_conflicts == 0


@pytest.mark.parametrize("k", [33, 64, 96, 100])
def test_fewer_trips_than_stages(k: int) -> None:
    given = Given(k=k + k % 2, stages=5)
    unit = given.unit()
    trips = -(-given.k // given.K)
    assert all(op.count == trips for op in of_kind(unit, scheduled.AllocOp) if op.stages is not None)
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())
    np.testing.assert_array_equal(emulated_unit(unit, given)[0], given.exact())


def test_one_trip_is_not_copied_ahead() -> None:
    unit = Given(k=32).unit()
    assert of_kind(unit, scheduled.CopyOp) == []


TILES = [
    Given(m=128, n=128, k=96, M=64, N=64, K=32, warps=4),
    Given(m=128, n=256, k=192, M=128, N=128, K=64, warps=8),
    Given(m=16, n=16, k=48, M=16, N=16, K=16, warps=1, stages=2),
    Given(m=48, n=48, k=64, M=16, N=32, K=16, warps=2),
]


@pytest.mark.parametrize("given", TILES, ids=str)
def test_any_tile_and_number_of_warps(given: Given) -> None:
    unit = given.unit()
    np.testing.assert_array_equal(interpreted(unit, given), given.exact())
    got, counts = emulated_unit(unit, given)
    np.testing.assert_array_equal(got, given.exact())
    assert counts.shared_conflicts == 0


def test_a_trip_has_one_barrier() -> None:
    given = Given()
    (loop,) = of_kind(given.unit(), tile.ForOp)
    assert sum(isinstance(op, scheduled.BarrierOp) for op in loop.walk()) == 1


def test_stages_that_have_no_room_are_fewer() -> None:
    """Four stages of 64 KiB are more than 163 KiB."""
    given = Given(m=256, n=256, k=320, M=256, N=256, K=64, warps=8, stages=4)
    unit = given.unit("sm_80", ScheduledPipelineCopiesPass)
    assert {op.count for op in of_kind(unit, scheduled.AllocOp) if op.stages is not None} == {2}


# ---- what is missed -------------------------------------------------------------------------------------------------


def without(unit: Unit, op: Operation) -> None:
    op.detach()
    op.erase()


def test_errors_name_the_operation_and_the_trip() -> None:
    given = Given()
    unit = given.unit()
    (loop,) = of_kind(unit, tile.ForOp)
    without(unit, next(op for op in loop.walk() if isinstance(op, scheduled.WaitOp)))
    with pytest.raises(CompilerBug, match=r"`scheduled\.mma` of trip 0 reads where `scheduled\.copy` has not arrived"):
        interpreted(unit, given)


def test_two_contracted_dims_are_copied_ahead_in_the_inner_loop() -> None:
    a, b = numbers((48, 3, 96), "f16", 1), numbers((3, 96, 64), "f16", 2)
    program = compiled(lambda x, y: tw.einsum("mjk,jkn->mn", x, y), "sm_90a", a, b)
    got, counts = executed(program, (a, b))
    exact = np.einsum("mjk,jkn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_array_equal(got, exact.astype(np.float16))
    assert said(program)[0].startswith("2 windows copied ahead")
    assert counts.shared_conflicts == 0


# ---- one condition at a time ----------------------------------------------------------------------------------------

PASS = ScheduledPipelineCopiesPass()
PLAIN = Product(rows=64, columns=32, trips=4)
NEGATED = '%c = tile.map(%a) {fn = "negative"} : tensor<64x16xf16>'
# Loops, how many of their windows are copied ahead, and why the others are not.
WINDOWS = {
    "two windows": (PLAIN, 2, []),
    "something is done with the sum": (
        replace(PLAIN, after='%q = tile.map(%p) {fn = "negative"} : tensor<64x32xf32>', result="%q"),
        2,
        [],
    ),
    "rows of 8 bytes": (replace(PLAIN, width=76), 2, []),
    "a computed operand": (
        replace(PLAIN, between=NEGATED, left="%c"),
        1,
        ["`map` stands between the window of the left operand and the matmul"],
    ),
    "odd rows": (
        replace(PLAIN, width=65),
        1,
        ["rows of 65 elements of 2 bytes do not begin at multiples of 4 bytes"],
    ),
    "filled with ones": (
        replace(PLAIN, fill="1.0 : f64"),
        0,
        [f"the {side} operand is filled with something else than zeros" for side in ("left", "right")],
    ),
    "two matmuls": (
        replace(PLAIN, between="%q = tile.dot(%a, %b, %s) {} : tensor<64x32xf32>"),
        0,
        [f"the {side} operand is used more than once" for side in ("left", "right")],
    ),
    "one trip": (replace(PLAIN, trips=1), 0, ["the loop has one trip"]),
    "two stages without room": (
        replace(PLAIN, columns=256, depth=512, trips=2),
        0,
        ["two stages need 655360 bytes of mem.shared, 166912 are left"],
    ),
}


def in_warps(product: Product) -> Unit:
    unit = unit_of(parse(product.text), {}, "sm_80")
    TileLowerToWarpsPass().apply(unit)
    return unit


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_copied_ahead_or_say_why_not(name: str) -> None:
    product, count, reasons = WINDOWS[name]
    unit = in_warps(product)
    before = str(unit.module)
    PASS.apply(unit)
    unit.module.verify()
    rings = [op for op in of_kind(unit, scheduled.AllocOp) if op.stages is not None]
    assert len(rings) == count
    found = [each.reason for each in unit.remarks if each.decision == "copies not pipelined"]
    assert found == reasons
    assert (str(unit.module) == before) == (count == 0)
    if name != "two stages without room":
        shapes = ((64, product.width or 16 * product.trips), (16 * product.trips, 32))
        arrays = [numbers(shape, "f16", seed) for seed, shape in enumerate(shapes)]
        np.testing.assert_array_equal(run(unit, arrays)[0], run(unit_of(parse(product.text), {}), arrays)[0])


def test_a_kernel_without_stages_left_copies_nothing_ahead() -> None:
    """It has fallen back because its stages had no room."""
    unit = in_warps(PLAIN)
    before = str(unit.module)
    unit.fallbacks.by_key["product"] = Fallback(NO_STAGES)
    PASS.apply(unit)
    assert str(unit.module) == before

"""Requested schedules: kernels have them, compute the same, and name the line of one that they do not admit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import random_inputs, remarks, run, run_through
from tests.programs import Program
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.dialects import scheduled
from tilewright.errors import ScheduleError
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.passes.vectors.scheduled_pack_operands import ScheduledPackOperandsPass
from tilewright.primitives import ArrayType
from tilewright.schedules import Loop, Ordered, VectorMatmul

SOURCES = {"in_place": [], "kept": ["kept by the first rows"], "together": ["packed by all threads"]}


def product(p: Program) -> list[Value]:
    return [p.dot(p.array(40, 30), p.array(30, 100), 0, 1, 0)]


@pytest.mark.parametrize("right", SOURCES)
@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_a_product_is_computed_by_its_schedule(vectors: int, right: str) -> None:
    block = next(b for b in register_blocks(tw.f32, load("x86-64-v3")) if b.vectors == vectors)
    tile = (13, 2 * block.columns, 16)
    schedule = VectorMatmul(tile=tile, block=(block.rows, block.columns), right=right)  # pyright: ignore[reportArgumentType]
    unit = run_through(product, ScheduledPackOperandsPass, schedule)
    (dot,) = (op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, scheduled.DotOp))
    assert dot.shape == (13, min(100, 2 * block.columns), 16)
    assert dot.micro_tile[1] == block.columns
    assert [decision for decision, _ in remarks(unit, ScheduledPackOperandsPass.name)] == SOURCES[right]
    assert unit.schedules == {"contract_0": schedule}
    unit.requested.check()
    x, w = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x, w])[0], x @ w, rtol=1e-4, atol=1e-5)


def test_a_right_operand_that_is_packed_at_compile_time_has_no_source_to_choose() -> None:
    def program(p: Program) -> list[Value]:
        weights = np.arange(3000, dtype=np.float32).reshape(30, 100)
        return [p.dot(p.array(40, 30), p.constant(weights, ArrayType((30, 100), tw.f32)), 0, 1, 0)]

    schedule = VectorMatmul(tile=(13, 32, 16), right="kept")
    unit = run_through(program, ScheduledPackOperandsPass, schedule)
    with pytest.raises(ScheduleError, match="does not admit right='kept'"):
        unit.requested.check()


@pytest.mark.parametrize(
    ("axes", "tile", "grid"),
    [
        ((1,), (3, 5, 4), (2, 3)),
        ((0, 2), (2, 4, 5), (2,)),
        ((2,), (6, 12), (7,)),
        ((0,), (4, 12), (7,)),
    ],
)
def test_a_reduction_is_done_in_tiles_of_its_schedule(
    axes: tuple[int, ...], tile: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    program = lambda p: [p.reduce(p.array(6, 7, 12), "add", axes)]  # noqa: E731
    unit = run_through(program, ArrayLowerToTilePass, Loop(tile=tile))
    unit.requested.check()
    (kernel,) = unit.kernels()
    assert kernel.grid == grid
    (x,) = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x])[0], x.sum(axes), rtol=1e-5, atol=1e-5)


def test_rows_that_are_read_again_are_in_tiles_of_their_schedule() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(12, 34)
        return [p.map("subtract", x, p.broadcast(p.reduce(x, "maximum", (1,)), (12, 34), (0,)))]

    unit = run_through(program, ArrayLowerToTilePass, Loop(tile=(5, 6)))
    (kernel,) = unit.kernels()
    assert kernel.grid == (3,)
    (x,) = random_inputs(unit)
    np.testing.assert_allclose(run(unit, [x])[0], x - x.max(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_a_kernel_that_does_not_admit_its_schedule_has_the_chosen_one_until_the_error() -> None:
    def program(p: Program) -> list[Value]:
        return [p.reduce(p.array(6, 7, 12), "add", (1,))]

    usual = run_through(program, ArrayLowerToTilePass)
    for schedule, text in ((Loop(tile=(1, 1)), "does not admit tile=(1, 1)"), (Ordered(tile=(1, 1, 1)), "Ordered")):
        unit = run_through(program, ArrayLowerToTilePass, {"loop_0": schedule})
        assert unit.schedules == usual.schedules
        with pytest.raises(ScheduleError) as caught:
            unit.requested.check()
        assert text in caught.value.message


def test_names_without_a_kernel_are_refused() -> None:
    unit = run_through(product, ArrayLowerToTilePass, {"loop_0": Loop(tile=(1,))})
    with pytest.raises(ScheduleError, match="there is no kernel `loop_0`") as caught:
        unit.requested.check()
    assert caught.value.help == "the kernels with schedules are `contract_0`"
    unit = run_through(product, ArrayLowerToTilePass, Loop(tile=(1,)))
    with pytest.raises(ScheduleError, match=r"no kernel of the program admits `tw\.schedules\.Loop`"):
        unit.requested.check()

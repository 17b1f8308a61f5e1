"""Programs compiled for a grid of cores agree with NumPy, in any order of events, with any depth of queues."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tilewright as tw
from tests.cores.builder import Builder
from tests.cores.comparing import Bounds, bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, Variant, check_function, compiled, function_cases, simulated
from tests.numerics.test_phases import expected_of
from tests.programs import PROGRAMS, Program
from tilewright import dtypes
from tilewright.dialects import cores
from tilewright.errors import ResourceExhausted, UnsupportedOnTargetError
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_plan_core_memory import ScheduledPlanCoreMemoryPass
from tilewright.pipelines import compile_module
from tilewright.targets.grid.runtime import Simulation

# What cores cannot do yet: numbers of 64 bits.
UNSUPPORTED = ("random_numbers",)
# What takes many seconds is for `tests.cores.sweep` alone.
LONG = ("ordered_long",)
SUPPORTED = [make for make in PROGRAMS if make.__name__ not in UNSUPPORTED]
QUICK = [make for make in SUPPORTED if make.__name__ not in LONG]
# How many products of f32 there are one behind another.
PRODUCTS = dict.fromkeys(("matmul_epilogue", "matmul_constant", "product_in_parts", "unfolded", "convolution"), 1)
PRODUCTS |= dict.fromkeys(("attention", "causal_attention"), 2)


@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_programs_agree_with_numpy_in_every_variant(make: Callable[..., Any]) -> None:
    """Results are the same bytes whatever the order of events, the depth of queues and the number of movers."""
    program, arrays, expected = expected_of(make)
    number = QUICK.index(make)
    machine = MACHINES[number % 2]
    first = simulated(program, arrays, machine)
    for got, wanted in zip(first, expected, strict=True):
        dtype = dtypes.from_numpy(wanted.dtype)
        check(got, wanted, dtype, bounds_of(dtype, 8, PRODUCTS.get(make.__name__, 0)))
    for variant in (VARIANTS[number % len(VARIANTS)], VARIANTS[(number + 3) % len(VARIANTS)]):
        for got, same in zip(simulated(program, arrays, machine, variant), first, strict=True):
            np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("make", [m for m in PROGRAMS if m.__name__ in UNSUPPORTED], ids=lambda make: make.__name__)
def test_what_is_not_there_yet_is_said(make: Callable[..., Any]) -> None:
    program, _, _ = expected_of(make)
    with pytest.raises(UnsupportedOnTargetError, match="on a grid of cores"):
        compile_module(build_module(program), program.constants, "grid")


@pytest.mark.parametrize("number", range(12))
def test_functions_of_the_table(number: int) -> None:
    """Each with each type; which machine, depth of queues and order of events goes by its place."""
    for place, (name, dtype) in enumerate(function_cases()):
        if place % 12 == number:
            check_function(name, dtype, MACHINES[place % 2], VARIANTS[place % len(VARIANTS)], (33, 40))


# ---- shapes, and how many cores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (31,), (2000,), (1, 1), (32, 32), (33, 31), (3, 5, 40), (2, 1, 1, 70)])
def test_shapes_that_do_not_divide_pages(shape: tuple[int, ...]) -> None:
    program = Program("main")
    x, y = (program.array(*shape, dtype=dtypes.bf16) for _ in range(2))
    program.outputs = [program.map("add", program.map("exp", x), y)]
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for _ in range(2)]
    (got,) = simulated(program, arrays, "wormhole", Variant(seed=3))
    wide = [each.astype(np.float64) for each in arrays]
    check(got, np.exp(wide[0]) + wide[1], dtypes.bf16, bounds_of(dtypes.bf16, 3))


@pytest.mark.parametrize(
    "sizes", [(19, 1, 36), (40, 70, 1), (1, 70, 40), (1, 1, 40), (40, 1, 1), (1, 1, 1), (33, 40, 65)]
)
def test_products_of_operands_in_either_order(sizes: tuple[int, int, int]) -> None:
    """A dim of one element is along no side of a page, whichever way its pages are turned."""
    rows, depth, columns = sizes
    random = np.random.default_rng(2)
    for number, (left_axis, right_axis) in enumerate(((1, 0), (0, 0), (1, 1), (0, 1))):
        shapes = (rows, depth)[:: 1 if left_axis else -1], (depth, columns)[:: -1 if right_axis else 1]
        program = Program("main")
        program.outputs = [program.dot(program.array(*shapes[0]), program.array(*shapes[1]), 0, left_axis, right_axis)]
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
        (got,) = simulated(program, [a, b], MACHINES[number % 2])
        wanted = np.tensordot(a.astype(np.float64), b.astype(np.float64), ((left_axis,), (right_axis,)))
        check(got, wanted, dtypes.f32, Bounds(2.0**-9, float("inf"), 0.0 if wanted.size == 1 else 1 - 2.0**-10))


def test_one_core_and_the_full_grid() -> None:
    for size, used in ((32, 1), (1024, 64)):
        program = Program("main")
        program.outputs = [program.map("negative", program.array(size, size))]
        unit = compiled(program, "wormhole")
        (found,) = [op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, cores.ProgramOp)]
        assert int(np.prod(found.shape)) == used
        x = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
        (got,) = Simulation(unit, seed=1, whole_outputs=True).run([x])
        np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.f16], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_reductions(axes: tuple[int, ...], dtype: dtypes.DType) -> None:
    shape = (3, 50, 70)
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype.numpy)
    for fn, reference in (("add", np.sum), ("maximum", np.max), ("minimum", np.min)):
        program = Program("main")
        program.outputs = [program.reduce(program.array(*shape, dtype=dtype), fn, axes)]
        (got,) = simulated(program, [x], "blackhole", Variant(seed=2))
        expected = reference(x.astype(np.float64), axis=axes)
        bounds = bounds_of(dtype, 2 if fn == "add" else 1)
        check(got, np.asarray(expected), dtype, bounds)


def test_sums_of_integers_are_exact() -> None:
    x = np.random.default_rng(2).integers(-(2**20), 2**20, (70, 90)).astype(np.int32)
    for axes in ((0,), (1,), (0, 1)):
        program = Program("main")
        program.outputs = [program.reduce(program.array(70, 90, dtype=dtypes.i32), "add", axes)]
        (got,) = simulated(program, [x], "wormhole", Variant(seed=5))
        np.testing.assert_array_equal(got, x.sum(axis=axes, dtype=np.int32))


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_products_of_all_orders(transposed: tuple[bool, bool]) -> None:
    random = np.random.default_rng(3)
    a, b = random.standard_normal((2, 70, 100)), random.standard_normal((2, 100, 40))
    program = Program("main")
    arrays = [
        (x.swapaxes(1, 2) if t else x).astype(ml_dtypes.bfloat16) for x, t in zip((a, b), transposed, strict=True)
    ]
    values = [program.array(*x.shape, dtype=dtypes.bf16) for x in arrays]
    program.outputs = [program.dot(*values, 1, 1 if transposed[0] else 2, 2 if transposed[1] else 1)]
    (got,) = simulated(program, arrays, "wormhole", Variant(seed=4))
    wide = [
        x.astype(np.float64).swapaxes(1, 2) if t else x.astype(np.float64)
        for x, t in zip(arrays, transposed, strict=True)
    ]
    check(got, wide[0] @ wide[1], dtypes.bf16, bounds_of(dtypes.bf16, 2))


# ---- fusion ----------------------------------------------------------------------------------------------------------


def chain_of_twelve(program: Program) -> list[Any]:
    """Twelve operations with a diamond and a broadcast."""
    x, y = program.array(96, 128, dtype=dtypes.bf16), program.array(128, dtype=dtypes.bf16)
    spread = program.broadcast(y, (96, 128), (1,))
    a = program.map("add", x, spread)
    b = program.map("exp", program.map("negative", a))
    c = program.map("tanh", a)
    d = program.map("multiply", b, c)
    e = program.map("maximum", d, program.map("absolute", c))
    f = program.map("sigmoid", program.map("subtract", e, x))
    g = program.map("sqrt", program.map("square", f))
    return [program.map("add", g, a)]


def test_a_chain_with_a_diamond_and_a_broadcast_stays_in_registers() -> None:
    """One kernel; what it computes leaves the registers once, to be stored."""
    program = Program("main")
    program.outputs = chain_of_twelve(program)
    unit = compiled(program, "wormhole")
    (kernel,) = unit.kernels()
    assert sum(isinstance(op, cores.MapOp | cores.BinaryOp) for op in kernel.walk()) == 12
    packs = [op for op in kernel.walk() if isinstance(op, cores.PackOp)]
    assert len(packs) == 1
    random = np.random.default_rng(4)
    x, y = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((96, 128), (128,)))
    (got,) = Simulation(unit, seed=6, whole_outputs=True).run([x, y])
    x, y = x.astype(np.float64), y.astype(np.float64)
    a = x + y
    c = np.tanh(a)
    e = np.maximum(np.exp(-a) * c, np.abs(c))
    expected = 1 / (1 + np.exp(-(e - x))) + a
    check(got, expected, dtypes.bf16, bounds_of(dtypes.bf16, 6))


@pytest.mark.parametrize("machine", MACHINES)
def test_what_needs_more_registers_than_there_are_is_held_in_memory(machine: str) -> None:
    """A balanced tree over 2^n arrays needs n + 1 registers or more, and there are 4 of 32 bits."""
    program = Program("main")
    level = [program.array(70, 40) for _ in range(32)]
    arrays = [np.random.default_rng(n).standard_normal((70, 40)).astype(np.float32) for n in range(32)]
    wanted = list(arrays)
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=True))
        level = [
            program.map("select", program.map("less", a, b), program.map("atan2", a, b), program.map("multiply", a, b))
            for a, b in pairs
        ]
        wanted = [np.where(a < b, np.arctan2(a, b), a * b) for a, b in zip(wanted[::2], wanted[1::2], strict=True)]
    program.outputs = level
    unit = compiled(program, machine)
    queues = [op.result.name_hint for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, cores.QueueOp)]
    assert "spill" in queues
    (got,) = simulated(program, arrays, machine, Variant(seed=5))
    check(got, wanted[0], dtypes.f32, bounds_of(dtypes.f32, 200))


# ---- errors ----------------------------------------------------------------------------------------------------------


@tw.kernel
def shares_of_a_sum(x: tw.In["M N"], y: tw.Out["M N"]):
    """A tile of 2000 pages."""
    for i, j in tw.grid(y, (32, 64000)):
        tile = x[i, j]
        y[i, j] = tile / tw.sum(tile)


def test_no_room_in_a_core_is_said_with_each_queue() -> None:
    types = [tw.ShapeDtype((32, 64000), tw.f32)] * 2
    with pytest.raises(
        ResourceExhausted, match="needs 16388096 bytes of each core's memory, which has 1393312"
    ) as found:
        shares_of_a_sum.lower(*types).compile(target="grid:wormhole")
    first, second, last = re.findall(r"^ *\d+ bytes, from \d+ to \d+.*$", str(found.value), re.MULTILINE)
    for line, other in ((first, "reader"), (second, "writer")):
        assert re.search(r"beyond the end: 2000 pages of f32 at test_lowering.py:\d+, ", line)
        assert line.endswith(f"between compute and {other}, already of one tile: 2000 pages are pushed together")
    assert "queues are live for the whole program" in str(found.value)
    assert last.endswith("in compute alone, already of one page")
    places = sorted(tuple(map(int, re.findall(r"from (\d+) to (\d+)", line)[0])) for line in (first, second, last))
    assert places[0][0] == 0
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(places))


def test_why_queues_have_no_fewer_pages_is_said() -> None:
    """A tile that a loop carries is read while the next one is written."""
    b = Builder((1, 1), [])
    carried, ahead = b.queue("f32", 400), b.queue("f32", 100)
    with b.thread("reader"):
        b.reserve(ahead, 100)
        b.push(ahead, 100)
    with b.thread("compute"):
        b.reserve(carried, 200)
        b.push(carried, 200)
        b.wait(carried, 200)
        b.pop(carried, 200)
        b.wait(ahead, 100)
        b.pop(ahead, 100)
    with pytest.raises(ResourceExhausted) as found:
        ScheduledPlanCoreMemoryPass().apply(Unit(ModuleOp([b.finished()]), {}, load("wormhole"), 1))
    text = str(found.value)
    assert "1638400 bytes, from 0 to 1638400, beyond the end: 400 pages" in text
    assert "in compute alone, which fills a tile of 200 pages while it reads the one before" in text
    assert "409600 bytes, from 1638400 to 2048000, beyond the end: 100 pages" in text
    assert "between compute and reader, already of one tile: 100 pages are pushed together" in text


def test_numbers_that_do_not_fit_are_refused_before_anything_runs() -> None:
    program = Program("main")
    program.outputs = [program.map("negative", program.array(4, dtype=dtypes.i64))]
    with pytest.raises(Exception, match="do not fit 32 bits"):
        simulated(program, [np.array([1, 2, 3, 2**40])], "wormhole")
    (got,) = simulated(program, [np.array([1, 2, 3, 4])], "wormhole")
    np.testing.assert_array_equal(got, [-1, -2, -3, -4])

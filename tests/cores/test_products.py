"""Products whose sides do not divide tiles, blocks or cores: what they compute, and what they do not do for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tilewright as tw
from tests.cores.comparing import bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, Variant, compiled, simulated
from tests.cores.grid_programs import program_of, types
from tests.programs import Program
from tests.sampling import alternating
from tilewright import dtypes, pipelines
from tilewright.cost.cores.tiles import ProductTile, ProductTrips, parts, product_blocks, product_tile, product_trips
from tilewright.dialects import cores
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Pass, Unit
from tilewright.passes.cores.scheduled_finish_products import ScheduledFinishProductsPass
from tilewright.passes.cores.scheduled_multicast_fetches import ScheduledMulticastFetchesPass
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]


def product(rows: int, depth: int, columns: int) -> Program:
    program = Program("main")
    left, right = program.array(rows, depth, dtype=dtypes.bf16), program.array(depth, columns, dtype=dtypes.bf16)
    program.outputs = [program.dot(left, right, 0, 1, 0)]
    return program


def operands(program: Program) -> list[Array]:
    random = np.random.default_rng(5)
    return [random.integers(-4, 5, value.shape).astype(dtypes.bf16.numpy) for value in program.inputs]


def operations(unit: Unit, kind: type[Any]) -> list[Any]:
    return [op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, kind)]


def cycles(program: Program, machine: str) -> float:
    simulation = Simulation(compiled(program, machine), values=False)
    simulation.run(None)
    return sum(run.cycles for _, run in simulation.runs)


@pytest.mark.parametrize("number", range(len(VARIANTS)))
@pytest.mark.parametrize(
    "sizes", [(225, 65, 170), (97, 290, 97), (1, 100, 300), (320, 33, 33), (1300, 70, 40)], ids=str
)
def test_any_sides_are_multiplied(sizes: tuple[int, int, int], number: int) -> None:
    """Whole numbers, whose sums are exact until they are rounded at the end."""
    program = product(*sizes)
    a, b = operands(program)
    (got,) = simulated(program, [a, b], MACHINES[number % 2], VARIANTS[number])
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got, wanted.astype(dtypes.bf16.numpy))


@pytest.mark.parametrize("registers", [4, 8])
def test_blocks_cover_a_tile_and_fit_registers(registers: int) -> None:
    for rows in range(1, 10):
        for columns in range(1, 10):
            blocks = product_blocks(rows, columns, registers)
            assert sum(height * width for height, width in blocks.sizes) == rows * columns
            assert max(height * width for height, width in blocks.sizes) <= registers
            fewest = min(
                len(parts(rows, height)) * len(parts(columns, width))
                for height in range(1, registers + 1)
                for width in range(1, registers // height + 1)
            )
            assert len(blocks.sizes) == fewest
            turned = product_blocks(columns, rows, registers)
            assert (len(turned.sizes), turned.unpacked) == (len(blocks.sizes), blocks.unpacked)


@pytest.mark.parametrize("machine", MACHINES)
def test_sides_that_do_not_divide_tiles_take_not_much_longer(machine: str) -> None:
    """Padding along the depth is filled; that of rows and columns, which is not read, is not."""
    assert cycles(product(1000, 900, 1100), machine) < 2.5 * cycles(product(1024, 928, 1120), machine)
    pads = operations(compiled(product(1000, 900, 1100), machine), cores.PadOp)
    assert {op.only for op in pads} == {"rows", "columns"}
    assert not operations(compiled(product(1000, 1024, 1100), machine), cores.PadOp)


@pytest.mark.parametrize("machine", MACHINES)
def test_cores_without_tiles_take_part_where_all_need_the_same(machine: str) -> None:
    """Tiles in a line, one for most cores: all of them take the right operand from one core that reads it."""
    program = product(32 * 131, 64, 32)
    unit = compiled(program, machine)
    assert operations(unit, cores.MulticastOp)
    a, b = operands(program)
    for seed in (0, 3):
        (got,) = Simulation(unit, seed=seed, whole_outputs=True).run([a, b])
        np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(dtypes.bf16.numpy))


@pytest.mark.parametrize("machine", MACHINES)
def test_queues_are_not_one_where_their_pages_wait_for_each_other(machine: str) -> None:
    """Columns `d` come together with a row `e`, without which those of `c` do not leave."""
    random = np.random.default_rng(5)
    shapes = ((192, 96), (96, 64), (192, 1), (192, 1), (64,))
    arrays = [random.integers(-2, 3, shape).astype(np.float32) for shape in shapes]

    def scaled(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        found = (a @ b) * c * d
        return found + e, found

    got = tw.jit(scaled).lower(*arrays).compile(target=f"grid:{machine}")(*arrays)
    for mine, wanted in zip(got, scaled(*arrays), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_no_core_fills_a_tile_of_no_batch() -> None:
    """18 tiles go to 3 x 6 cores, and not to 3 x 8, of which those in the end would have nothing but padding."""
    program = Program("main")
    left, right = (program.array(2, *shape, dtype=dtypes.bf16) for shape in ((341, 541), (541, 362)))
    program.outputs = [program.dot(left, right, 1, 2, 1)]
    unit = compiled(program, "wormhole")
    (shape,) = {op.shape for op in operations(unit, cores.ProgramOp)}
    assert shape == (3, 6)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_tile_by_what_it_takes_beside_multiplying(machine: str) -> None:
    """To fill whole pages of padding, which the last step of 128 would have, and to compute what follows."""
    grid = load(machine).grid
    assert grid is not None
    assert product_tile(1024, 1088, 224, 1, 4096, grid).depth == 224
    plain, costly = (product_tile(64, 4096, 160, 1, 2048, grid, cycles_after=cycles) for cycles in (0.0, 5000.0))
    assert costly.rows * costly.columns < plain.rows * plain.columns


def cores_of(function: Any, machine: str) -> int:
    x, w = (tw.ShapeDtype(shape, dtypes.bf16) for shape in ((64, 160), (160, 4096)))
    compiled: Any = tw.jit(function).lower(x, w).compile(target=f"grid:{machine}")
    return sum(int(np.prod(op.shape)) for op in operations(compiled.executable.unit, cores.ProgramOp))


@pytest.mark.parametrize("machine", MACHINES)
def test_what_follows_a_product_makes_its_tiles_smaller(machine: str) -> None:
    assert cores_of(lambda x, w: tw.nn.gelu(x @ w), machine) > cores_of(lambda x, w: x @ w, machine)


# ---- what is beyond the array ---------------------------------------------------------------------------------------

_SIDE = 64


@tw.kernel(target="grid:wormhole")
def in_more_rows(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["P N"]):
    """Rows that the left operand does not have are products of zeros."""
    for i, j in tw.grid(c, (_SIDE, _SIDE)):
        acc = tw.zeros((_SIDE, _SIDE), tw.f32)
        for k in tw.steps(a, axis=1, size=_SIDE):
            acc = tw.dot(a[i.start : i.start + _SIDE, k], b[k, j], acc)
        c[i, j] = acc * 2 + 1


@tw.kernel(target="grid:wormhole")
def with_sums_of_columns(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (_SIDE, _SIDE)):
        acc = tw.zeros((_SIDE, _SIDE), tw.f32)
        for k in tw.steps(a, axis=1, size=_SIDE):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc + tw.sum(acc, axis=0, keepdims=True)


def test_what_is_read_beyond_an_operand_is_filled() -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((40, 70), (70, 50)))
    more = np.zeros((100, 50), np.float32)
    more[:40] = a @ b
    found = np.full((100, 50), np.nan, np.float32)
    in_more_rows(a, b, found)
    np.testing.assert_array_equal(found, more * 2 + 1)
    found = np.full((40, 50), np.nan, np.float32)
    with_sums_of_columns(a, b, found)
    np.testing.assert_array_equal(found, a @ b + (a @ b).sum(0, keepdims=True))


# ---- points that there are not --------------------------------------------------------------------------------------

_TILE = 32


@tw.kernel(target="grid:wormhole")
def stored_elsewhere(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], d: tw.InOut["P Q"]):
    """Another array is larger than what points are counted over."""
    for i, j in tw.grid(c, (_TILE, _TILE)):
        acc = tw.dot(a[i, :], b[:, j], tw.zeros((_TILE, _TILE), tw.f32))
        c[i, j] = acc
        d[i.start : i.start + _TILE, j.start : j.start + _TILE] = acc + 1


@tw.kernel(target="grid:wormhole")
def stored_by_index(a: tw.In["P K"], b: tw.In["K N"], places: tw.In["P"], e: tw.In["M N"], d: tw.InOut["Q N"]):
    for i, j in tw.grid(e, (_TILE, _TILE)):
        acc = tw.dot(a[i.start : i.start + _TILE, :], b[:, j], tw.zeros((_TILE, _TILE), tw.f32))
        rows = places[i.start : i.start + _TILE]
        d[rows, j] = acc + e[i, j]


@pytest.mark.parametrize("sizes", [(_TILE * 65, _TILE), (_TILE * 9, _TILE * 9)], ids=str)
def test_points_beyond_the_last_one_store_nothing(sizes: tuple[int, int]) -> None:
    """In a line, and by rows and columns of cores."""
    rows, columns = sizes
    random = np.random.default_rng(0)
    a, b, d = (
        random.integers(-3, 4, shape).astype(np.float32)
        for shape in ((rows, 32), (32, columns), (rows + 96, columns + 32))
    )
    wanted = d.copy()
    wanted[:rows, :columns] = a @ b + 1
    stored_elsewhere(a, b, np.zeros(sizes, np.float32), d)
    np.testing.assert_array_equal(d, wanted)
    long, e = random.integers(-3, 4, (2 * rows, 32)).astype(np.float32), np.ones(sizes, np.float32)
    found = np.zeros((2 * rows, columns), np.float32)
    stored_by_index(long, b, np.arange(2 * rows, dtype=np.int32)[::-1].copy(), e, found)
    np.testing.assert_array_equal(found[rows:], (long[:rows] @ b + 1)[::-1])
    assert not found[:rows].any()


# ---- what follows a product -----------------------------------------------------------------------------------------

_SIZES = {
    "whole": (256, 512, 384),
    "ragged": (300, 520, 201),
    "several tiles of a core": (1000, 64, 1500),
    "one step": (200, 40, 300),
}


# Each takes NumPy's functions or ours, operands of a product, a row, and an array of the product's shape.


def nothing(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ b


def bias(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ b + c


def gelu(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    x = a @ b + c
    return x * 0.5 * (1.0 + xp.tanh(x * 0.7978845608 * (1.0 + x * x * 0.044715)))


def residual(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ b + d


def gate(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return (a @ (b + 1.0)) / (1.0 + xp.exp((a @ b) * -0.05))


def wider(xp: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return xp.astype(a @ b, xp.float32) * 2.0


@pytest.mark.parametrize(
    ("follows", "size"),
    alternating((nothing, bias, gelu, residual, gate, wider), _SIZES),
    ids=lambda v: getattr(v, "__name__", v),
)
def test_what_follows_a_product_is_computed_in_registers(follows: Callable[..., Any], size: str) -> None:
    """The simulator finds nothing in any order, and results are right."""
    rows, depth, columns = _SIZES[size]
    shapes = ((rows, depth), (depth, columns), (columns,), (rows, columns))
    random = np.random.default_rng(3)
    arrays = [random.integers(-3, 4, shape).astype(dtypes.bf16.numpy) for shape in shapes]
    unit = program_of(partial(follows, tw), types(*shapes), f"grid:{MACHINES[len(size) % 2]}").unit
    assert any(each.pass_name == ScheduledFinishProductsPass.name for each in unit.remarks)
    expected: Array = follows(np, *(each.astype(np.float64) for each in arrays))
    for seed in range(3):
        (got,) = Simulation(unit, seed=seed, whole_outputs=True).run(arrays)
        bf16 = dtypes.bf16  # what the product is rounded to, whatever it is converted to
        check(got.astype(bf16.numpy), expected, bf16, bounds_of(bf16, rounded_operations=4))


def without(program: Program, machine: str, kind: type[Pass]) -> float:
    """Cycles of a program that is compiled without a pass."""
    unit = Unit(build_module(program), {}, load(machine), 1)
    for each in (*pipelines.array_to_tile(unit.machine.model), *pipelines.tile_to_cores()):
        if not isinstance(each, kind):
            each.apply(unit)
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    return sum(run.cycles for _, run in simulation.runs)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [ScheduledFinishProductsPass, ScheduledMulticastFetchesPass], ids=lambda k: k.name)
def test_products_take_longer_without(kind: type[Pass], machine: str) -> None:
    program = product(1000, 900, 1100)
    assert cycles(program, machine) < 0.97 * without(program, machine, kind)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_product_of_all_cores_is_near_the_roofline(machine: str) -> None:
    """2048 cubed: eight tenths of what the matrix units of all cores do."""
    grid = load(machine).grid
    assert grid is not None
    roofline = 64**3 * grid.multiply_cycles / (grid.rows * grid.columns)
    assert roofline >= 0.8 * cycles(product(2048, 2048, 2048), machine)


@pytest.mark.parametrize("machine", MACHINES)
def test_trips_that_are_done_together_lie_side_by_side(machine: str) -> None:
    """Followed trip by trip through a queue: none goes over its end, and what comes next has room meanwhile."""
    grid = load(machine).grid
    assert grid is not None
    found = 0
    for trips in range(2, 40):
        for depth in (1, 2, 3, 4, 8):
            for room in (2, 3, 5, 8, 13):
                each = product_trips(trips, (4, 5, depth), 100, 2048, room, grid)
                if each is None:
                    continue
                found += 1
                groups = max(0, (trips - each.last) // each.together - 1) if each.together > 1 else 0
                sizes = [1] * (trips - each.last - groups * each.together) + [each.together] * groups + [each.last]
                assert sum(sizes) == trips
                assert each.last + each.together <= each.ring <= room
                begin = 0
                for size in sizes:
                    assert begin % each.ring + size <= each.ring
                    begin += size
    assert found > 100


@pytest.mark.parametrize(("trips", "together", "last"), [(2, 1, 1), (3, 1, 2), (4, 1, 3), (4, 2, 2), (8, 2, 4)])
def test_trips_are_all_done_once(trips: int, together: int, last: int) -> None:
    """However many are left for the loop: none, one, or several at a time."""
    program = product(64, 32 * trips, 64)
    a, b = operands(program)
    done = ProductTrips(together, last, trips)
    with (
        mock.patch("tilewright.passes.kernels.core_planner.product_tile", return_value=ProductTile(64, 64, 32)),
        mock.patch("tilewright.passes.cores.partials.shared_loop", return_value=None),
        mock.patch("tilewright.passes.cores.scheduled_finish_products.product_trips", return_value=done),
    ):
        (got,) = simulated(program, [a, b], "wormhole", Variant())
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got, wanted.astype(dtypes.bf16.numpy))


@tw.kernel
def of_gathered_rows(x: tw.In["T K"], w: tw.In["K N"], ids: tw.In["S", tw.i32], bias: tw.In["N"], y: tw.Out["S N"]):
    for i, j in tw.grid(y, (32, 32)):
        rows = ids[i]
        total = tw.zeros((32, 32), tw.f32)
        for k in tw.steps(x, axis=1, size=32):
            total = tw.dot(x[rows, k], w[k, j], total)
        y[i, j] = total + bias[j]


@tw.kernel
def of_gathered_columns(
    x: tw.In["T K"], w: tw.In["K N"], ids: tw.In["K", tw.i32], bias: tw.In["S N"], y: tw.Out["S N"]
):
    for i, j in tw.grid(y, (32, 32)):
        total = tw.zeros((32, 32), tw.f32)
        for k in tw.steps(ids, axis=0, size=32):
            total = tw.dot(x[i, k], w[ids[k], j], total)
        y[i, j] = tw.exp(total / 64) + bias[i, j]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kernel", [of_gathered_rows, of_gathered_columns], ids=lambda kernel: kernel.__name__)
def test_a_last_trip_waits_for_nothing_that_comes_after_it(kernel: Any, machine: str) -> None:
    """The thread that computes gives indices to the reader in each trip, and takes from it what follows the loop."""
    random = np.random.default_rng(1)
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((64, 96), (96, 64)))
    by_rows = kernel is of_gathered_rows
    ids = random.permutation(64 if by_rows else 96).astype(np.int32)
    bias = random.integers(-3, 4, (64,) if by_rows else (64, 64)).astype(np.float32)
    y = np.empty((64, 64), np.float32)
    kernel.lower(x, w, ids, bias, y).compile(target=f"grid:{machine}")(x, w, ids, bias, y)
    wanted = x[ids] @ w + bias if by_rows else np.exp(x @ w[ids] / 64) + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_convolution_by_indices_has_a_bias(machine: str) -> None:
    random = np.random.default_rng(2)
    x, w, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 4, 8), (4, 1, 4), (4,)))

    def convolve(x: Any, w: Any, b: Any) -> Any:
        padded = tw.concat([tw.zeros((2, 4, 3), dtype=tw.float32), x], axis=2)
        return tw.nn.conv(padded, w, groups=4) + b[:, None]

    wanted = np.zeros((2, 4, 8))
    for k in range(4):
        wanted[:, :, 3 - k :] += x[:, :, : 8 - (3 - k)] * w[None, :, :, k]
    found = tw.jit(convolve, target=f"grid:{machine}")(x, w, b)
    np.testing.assert_array_equal(found, wanted + b[:, None])


@pytest.mark.parametrize("machine", MACHINES)
def test_two_cores_of_a_group_fetch_what_all_of_it_needs(machine: str) -> None:
    """Both operands in two parts, and each page once."""
    program = product(1024, 1024, 1024)
    unit = compiled(program, machine, Variant())
    fetches = operations(unit, cores.FetchOp)
    assert len(fetches) == 4
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    ((_, run),) = simulation.runs
    assert run.moved_bytes["dram_read"] == 2 * 1024 * 1024 * 2

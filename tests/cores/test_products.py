"""Products whose sides do not divide tiles, blocks or cores: what they compute, and what they do not do for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES, VARIANTS, compiled, simulated
from tests.programs import Program
from tilewright import dtypes
from tilewright.cost.core_tiles import parts, product_blocks
from tilewright.dialects import cores
from tilewright.passes.base import Unit
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


@pytest.mark.parametrize("number", range(8))
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
    assert {op.only.data for op in pads} == {"rows", "columns"}
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

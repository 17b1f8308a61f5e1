"""Register blocks of matrix products: they fit the registers, and their costs are those of a count step by step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tilewright import dtypes
from tilewright.cost.tiles import even_split
from tilewright.cost.vectors.register_blocks import RegisterBlock, product_seconds, register_blocks
from tilewright.machines.machine import Machine, load

MACHINES = ("x86-64-v3", "x86-64-v4", "aarch64-neon")
DTYPES = (dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.i8)


def with_vector(name: str, **changes: float) -> Machine:
    machine = load(name)
    return replace(machine, vector=replace(machine.vector, **changes))


# ---- which there are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", MACHINES)
def test_blocks_fit_the_registers_and_one_more_row_would_not(name: str, dtype: dtypes.DType) -> None:
    machine = load(name)
    found = register_blocks(dtype, machine)
    assert [block.vectors for block in found] == [2, 3, 4, 1]
    for block in found:
        right, spread, ahead = block.vectors, 1, machine.vector.registers / 16
        assert block.rows >= 1
        assert block.rows * block.vectors + right + spread + ahead <= machine.vector.registers
        assert (block.rows + 1) * block.vectors + right + spread + ahead > machine.vector.registers
        assert block.columns * dtype.compute.itemsize == block.vectors * machine.vector.bytes


def test_the_blocks_of_known_machines() -> None:
    """By hand: two vectors leave (16 - 1 - 1 - 2) / 2 rows of 16 registers, and (32 - 2 - 1 - 2) / 2 of 32."""
    shapes = {name: [(b.rows, b.columns) for b in register_blocks(dtypes.f32, load(name))] for name in MACHINES[:2]}
    assert shapes == {
        "x86-64-v3": [(6, 16), (3, 24), (2, 32), (13, 8)],
        "x86-64-v4": [(13, 32), (8, 48), (6, 64), (28, 16)],
    }


def test_a_block_without_room_for_a_row_is_none() -> None:
    assert [(b.rows, b.vectors) for b in register_blocks(dtypes.f32, with_vector("x86-64-v3", registers=8))] == [
        (2, 2),
        (1, 3),
        (5, 1),
    ]


# ---- how long they take ---------------------------------------------------------------------------------------------


def counted_cycles(rows: int, columns: int, depth: int, block: RegisterBlock, machine: Machine) -> float:
    """Walks over the panels of columns and, row by row, over the blocks of rows: as few as can be, all alike but for
    the last, which takes the rows that are left."""
    count = next(n for n in range(1, rows + 1) if n * block.rows >= rows)
    height = next(n for n in range(1, rows + 1) if n * count >= rows)
    heights = [sum(first <= row < first + height for row in range(rows)) for first in range(0, rows, height)]
    cycles = 0.0
    for _ in range(0, columns, block.vectors * block.lanes):
        for taken in heights:
            issued = sum(1 / machine.vector.fma_per_cycle for _ in range(taken) for _ in range(block.vectors))
            loaded = sum(machine.cycles["move"] for _ in range(taken)) + block.vectors * machine.cycles["move"]
            waiting = machine.vector.fma_latency_cycles  # an accumulator takes one product after the other
            shortest, hidden, longest = sorted((issued, loaded, waiting))
            cycles += depth * (longest + 0.53 * (hidden + shortest))
    return cycles


@pytest.mark.parametrize("name", MACHINES)
def test_costs_of_all_small_products_are_those_of_a_count(name: str) -> None:
    machine = load(name)
    for block in register_blocks(dtypes.f32, machine):
        for rows in range(1, 31):
            for columns in (1, 3, 4, 5, 8, 9, 15, 16, 17, 20, 24, 25, 31, 32, 33, 47, 48, 49, 64, 65, 100):
                for depth in (1, 7):
                    cycles = product_seconds(rows, columns, depth, block, machine) * machine.clock_hertz
                    assert cycles == pytest.approx(counted_cycles(rows, columns, depth, block, machine), rel=1e-12)


def test_padding_is_paid_for() -> None:
    """Of columns, that is: missing rows are not computed."""
    machine = load("x86-64-v3")
    narrow, _, wide, _ = register_blocks(dtypes.f32, machine)
    for block in (narrow, wide):
        whole = product_seconds(block.rows, block.columns, 8, block, machine)
        assert product_seconds(block.rows, 1, 8, block, machine) == whole
        assert product_seconds(block.rows, block.columns + 1, 8, block, machine) == 2 * whole
    seven, four, three = (product_seconds(rows, 16, 8, narrow, machine) for rows in (7, 4, 3))
    assert seven == pytest.approx(four + three, rel=1e-12)
    assert three < four


# ---- blocks of a size ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "target", "multiple", "block"),
    [(10, 4, 1, 4), (9, 4, 1, 3), (7, 6, 1, 4), (6, 6, 1, 6), (1, 6, 1, 1), (100, 48, 16, 48), (100, 64, 32, 64)],
)
def test_even_splits(size: int, target: int, multiple: int, block: int) -> None:
    assert even_split(size, target, multiple) == block

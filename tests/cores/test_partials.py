"""Loops of long reductions, which several cores share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.comparing import bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, compiled, simulated
from tests.programs import Program
from tilewright import dtypes
from tilewright.cost.cores.tiles import shared_loop
from tilewright.dialects import cores
from tilewright.machines.machine import load
from tilewright.passes.cores import tile_lower_to_cores
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]
Case = tuple[Program, list[Array], Array]
_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def reduced(fn: str, x: Array, axes: tuple[int, ...], numpy: Callable[..., Any]) -> Case:
    program = Program("main")
    dtype = dtypes.from_numpy(x.dtype)
    program.outputs = [program.reduce(program.array(*x.shape, dtype=dtype), fn, axes)]
    return program, [x], numpy(x.astype(np.float64) if dtype.is_float else x, axis=axes)


def product(rows: int, depth: int, columns: int) -> Case:
    program = Program("main")
    program.outputs = [program.dot(program.array(rows, depth), program.array(depth, columns), 0, 1, 0)]
    a, b = _normal(rows, depth), _normal(depth, columns)
    return program, [a, b], a.astype(np.float64) @ b.astype(np.float64)


def _wrapping(x: Array, axis: tuple[int, ...]) -> Array:
    return np.sum(x, axis=axis, dtype=np.int32)


CASES: dict[str, Callable[[], Case]] = {
    "all": lambda: reduced("add", _normal(300, 1000), (0, 1), np.sum),
    "all_of_three": lambda: reduced("add", _normal(3, 130, 1000), (0, 1, 2), np.sum),
    "largest": lambda: reduced("maximum", _normal(300, 1000) - 10, (0, 1), np.max),
    "smallest_of_columns": lambda: reduced("minimum", _normal(5000, 40) + 10, (0,), np.min),
    "integers": lambda: reduced("add", np.arange(2 * 40000, dtype=np.int32).reshape(2, -1), (1,), _wrapping),
    "long_rows": lambda: reduced("add", _normal(7, 30001), (1,), np.sum),
    "deep_product": lambda: product(33, 4000, 70),
    "product_of_a_row": lambda: product(1, 5000, 20),
}


def programs_in(unit: Any) -> list[cores.ProgramOp]:
    return [op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, cores.ProgramOp)]


@pytest.mark.parametrize("name", CASES)
def test_several_cores_share_a_loop(name: str) -> None:
    """In any order of events the results are the same bytes."""
    program, arrays, wanted = CASES[name]()
    number = list(CASES).index(name)
    machine = MACHINES[number % 2]
    assert any(isinstance(op, cores.SendOp) for each in programs_in(compiled(program, machine)) for op in each.walk())
    (first,) = simulated(program, arrays, machine)
    dtype = dtypes.from_numpy(first.dtype)
    check(first, np.asarray(wanted), dtype, bounds_of(dtype, 16, int("product" in name)))
    for variant in (VARIANTS[number % len(VARIANTS)], VARIANTS[(number + 5) % len(VARIANTS)]):
        (again,) = simulated(program, arrays, machine, variant)
        np.testing.assert_array_equal(again, first)


def test_it_takes_a_fraction_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _, _ = reduced("add", _normal(1024, 1024), (0, 1), np.sum)
    cycles: list[float] = []
    for is_shared in (True, False):
        if not is_shared:
            monkeypatch.setattr(tile_lower_to_cores, "shared_of", lambda kernel, grid: None)
        simulation = Simulation(compiled(program, "wormhole"), values=False)
        simulation.run(None)
        cycles.append(sum(run.cycles for _, run in simulation.runs))
    assert cycles[0] < cycles[1] / 5


def test_parts_are_chosen_by_what_they_save() -> None:
    grid = load("wormhole").grid
    assert grid is not None
    assert shared_loop(grid.rows * grid.columns, 100, 16, 1, grid) is None, "no core would be idle"
    assert shared_loop(1, 2, 1, 32, grid) is None, "more is sent than is saved"
    found = shared_loop(2, 64, 16, 1, grid)
    assert found is not None
    assert found.points in ((1, 2), (2, 1))
    rows, columns = found.parts
    assert (rows * columns - 1) * -(-64 // (rows * columns)) < 64, "each has something to do"
    assert found.points[0] * rows <= grid.rows
    assert found.points[1] * columns <= grid.columns


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("elements", [512, 513, 4000])
def test_computed_bools_beyond_an_array_take_wide_registers(machine: str, elements: int) -> None:
    """Positions, by which what is computed of the padding of the last tile is left out, are integers of 32 bits."""
    a, b = np.ones(elements, dtypes.bf16.numpy), np.zeros(elements, bool)
    b[-1] = True
    unequal = tw.jit(lambda x: tw.all(x != 0), target=f"grid:{machine}")
    assert bool(unequal(a))
    assert bool(tw.jit(lambda x, y: tw.any(x ^ y), target=f"grid:{machine}")(b, np.zeros_like(b)))

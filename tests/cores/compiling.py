"""Programs compiled for a grid of cores with queues and threads as asked for, and run on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cores.comparing import bounds_of, check
from tests.programs import Program
from tilewright import dtypes, ops
from tilewright.dtypes import DType
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.pipelines import array_to_tile, tile_to_cores
from tilewright.targets.grid.runtime import Simulation

Tensor = np.ndarray[Any, Any]
MACHINES = ("wormhole", "blackhole")


@dataclass(frozen=True)
class Variant:
    """How many tiles queues have room for, or None as users have it: as many as are predicted to help; how many threads
    move data, and the seed of the order of events."""

    buffers: int | None = None
    movers: int = 2
    seed: int = 0


# All depths of queues, by one mover and by two, each in its own order of events.
VARIANTS = [
    Variant(buffers, movers, 2 * (buffers or 5) + movers) for buffers in (1, 2, 3, 4, None) for movers in (1, 2)
]


def compiled(
    program: Program,
    machine: str,
    variant: Variant = Variant(),
    storage: Mapping[int, str] | None = None,
    keeps_arrays: bool = True,
) -> Unit:
    """The program in the `scheduled` phase."""
    unit = Unit(build_module(program), dict(program.constants), load(machine), 1, storage=dict(storage or {}))
    for each in (*array_to_tile(unit.machine.model), *tile_to_cores(variant.buffers, variant.movers, keeps_arrays)):
        each.apply(unit)
    unit.module.verify()
    return unit


def simulated(
    program: Program,
    arrays: Sequence[Tensor],
    machine: str,
    variant: Variant = Variant(),
    storage: Mapping[int, str] | None = None,
) -> list[Tensor]:
    """What the simulator gives, with all checks on."""
    unit = compiled(program, machine, variant, storage)
    return Simulation(unit, seed=variant.seed, whole_outputs=True).run(arrays)


# ---- functions of the table -----------------------------------------------------------------------------------------

DTYPES = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.i32, dtypes.u32, dtypes.bool_)
# Where numbers are drawn from, for functions that are not defined, or jump, elsewhere.
_DRAWN = {
    "log": (0.01, 8.0),
    "log2": (0.01, 8.0),
    "log10": (0.01, 8.0),
    "log1p": (-0.9, 8.0),
    "sqrt": (0.0, 8.0),
    "rsqrt": (0.01, 8.0),
    "power": (0.1, 4.0),
    "asin": (-0.9, 0.9),
    "acos": (-0.9, 0.9),
    "atanh": (-0.9, 0.9),
    "acosh": (1.1, 8.0),
    "reciprocal": (0.1, 8.0),
    "divide": (0.1, 8.0),
    "floor_divide": (0.1, 8.0),
    "remainder": (0.1, 8.0),
}


def function_cases() -> list[tuple[str, DType]]:
    """The functions of the table, each with all types of a grid of cores that it takes."""
    return [(name, dtype) for name, fn in ops.FUNCTIONS.items() for dtype in DTYPES if dtype.kind in fn.kinds]


def drawn(name: str, dtype: DType, shape: Sequence[int], random: np.random.Generator) -> Tensor:
    """Operands of a function."""
    if dtype.is_bool:
        return random.random(shape) > 0.5
    if dtype.is_integer:
        low, high = (0, 8) if name.startswith("shift") else (-20 if dtype.is_signed else 0, 21)
        return random.integers(low, high, shape).astype(dtype.numpy)
    low, high = _DRAWN.get(name, (-4.0, 4.0))
    return random.uniform(low, high, shape).astype(dtype.numpy)


def check_function(name: str, dtype: DType, machine: str, variant: Variant, shape: Sequence[int] = (45, 70)) -> None:
    """One function of the table on arrays of a shape, against NumPy in the type's own arithmetic."""
    function = ops.FUNCTIONS[name]
    types = [dtype] * function.arity
    if function.result == ops.SELECT:
        types[0] = dtypes.bool_
    program = Program("main")
    program.outputs = [program.map(name, *[program.array(*shape, dtype=each) for each in types])]
    random = np.random.default_rng(variant.seed)
    arrays = [drawn(name, each, shape, random) for each in types]
    (got,) = simulated(program, arrays, machine, variant)
    expected = ops.evaluate(name, arrays)
    result = function.result_type(types)
    check(got, expected, result, bounds_of(result, rounded_operations=2))

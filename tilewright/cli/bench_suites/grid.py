"""Programs for grids of cores on the simulator: the cycles that they take there, against what their machine allows and
what the model predicts, and how fast the simulator is: with all its checks, and where it counts only time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import CompilerCase
from tilewright.errors import ToolFailure

if TYPE_CHECKING:
    from tilewright.passes.base import Pass, Unit
    from tilewright.semantics.cores import ProgramRun

MACHINES = ("wormhole", "blackhole")
_LIMIT_S = 30.0
# Sides of products, the last of which is compiled in other ways, too, and of small ones.
_SIDES, _QUICK_SIDES = (512, 1024, 2048), (128, 256)


@dataclass(frozen=True)
class Schedule:
    """How a program is compiled: `buffers` is how many steps queues have room for, `multicasts` whether pages that
    several cores need are fetched by one of them."""

    buffers: int | None = None
    multicasts: bool = True

    def passes(self) -> Sequence[Pass]:
        from tilewright.passes.cores.scheduled_multicast_fetches import ScheduledMulticastFetchesPass
        from tilewright.pipelines import tile_to_cores

        made = tile_to_cores(buffers=self.buffers)
        return [each for each in made if self.multicasts or not isinstance(each, ScheduledMulticastFetchesPass)]


_DEFAULTS = Schedule()


_OTHERS = {
    "no multicasts": Schedule(multicasts=False),
    "single buffers": Schedule(buffers=1),
    "neither": Schedule(1, False),
}


def cases(quick: bool) -> tuple[CompilerCase, ...]:
    sides = _QUICK_SIDES if quick else _SIDES
    found: list[CompilerCase] = []
    for machine in MACHINES:
        for side in sides:
            types = _bf16((side, side), (side, side))
            found.append(_case(f"matmul bf16 {side}, {machine}", _product, types, machine))
        types = _bf16((sides[-1],) * 2, (sides[-1],) * 2)
        for name, schedule in _OTHERS.items():
            found.append(_case(f"matmul bf16 {sides[-1]}, {name}, {machine}", _product, types, machine, schedule))
        for name, function, types in _programs(quick):
            found.append(_case(f"{name}, {machine}", function, types, machine))
    return tuple(found)


def _programs(quick: bool) -> list[tuple[str, Callable[..., Any], tuple[tw.ShapeDtype, ...]]]:
    side, length = (128, 128) if quick else (2048, 4096)
    return [
        ("elementwise", _elementwise, _bf16((side, side), (side, side), (side,))),
        ("softmax", partial(tw.nn.softmax, axis=-1), _bf16((side // 2, side // 2))),
        ("layer norm", _layer_norm, _bf16((side // 2, side // 2))),
        (f"attention {length}x64", _attention, _bf16(*((1, length, 64),) * 3)),
    ]


def _bf16(*shapes: tuple[int, ...]) -> tuple[tw.ShapeDtype, ...]:
    return tuple(tw.ShapeDtype(shape, tw.bf16) for shape in shapes)


def _case(
    name: str,
    function: Callable[..., Any],
    types: tuple[tw.ShapeDtype, ...],
    machine: str,
    schedule: Schedule = _DEFAULTS,
) -> CompilerCase:
    run = partial(_timed, function, types, machine, schedule)
    return CompilerCase(name, run, _LIMIT_S, partial(figures, types))


# ---- what is computed -----------------------------------------------------------------------------------------------


def _product(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b


def _elementwise(x: tw.Array, y: tw.Array, bias: tw.Array) -> tw.Array:
    """Twelve functions of each element: a row is repeated, and two ways lead from one result to another."""
    a = x * 2.0 + bias
    left, right = tw.exp(-(a * a)), tw.tanh(a - y)
    both = left * right + a
    return tw.maximum(both, 0.0) * y + tw.abs(x)


def _layer_norm(x: tw.Array) -> tw.Array:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _attention(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


# ---- how long it takes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """A compiled program, what the simulator counted for each of its kernels, and in which time."""

    unit: Unit
    runs: list[tuple[str, ProgramRun]]
    simulation_s: float


def _timed(
    function: Callable[..., object], types: tuple[tw.ShapeDtype, ...], machine: str, schedule: Schedule
) -> Timed:
    """Compile a program, and let the simulator count its time."""
    from tilewright.frontend.build import build_module
    from tilewright.machines.machine import load
    from tilewright.passes.base import Unit
    from tilewright.pipelines import array_to_tile
    from tilewright.targets.grid.runtime import Simulation

    graph: Any = tw.jit(function).lower(*types).graph
    unit = Unit(build_module(graph), dict(graph.snapshot()), load(machine), 1, name=graph.name)
    for each in (*array_to_tile(unit.machine.model), *schedule.passes()):
        each.apply(unit)
    simulation = Simulation(unit, values=False)
    start = time.perf_counter()
    simulation.run(None)
    return Timed(unit, simulation.runs, time.perf_counter() - start)


def figures(types: tuple[tw.ShapeDtype, ...], timed: Timed) -> Mapping[str, float]:
    """Of all kernels of a program: cycles that the simulator counts, that are the least which the machine allows, and
    that are predicted; and tiles that the simulator works on in a second.

    Raises:
        ToolFailure: another run, with numbers and checks, counts other cycles.
    """
    from tilewright.cost.cores.model import cost_of
    from tilewright.targets.grid.runtime import Simulation

    grid = timed.unit.machine.core_grid
    costs = [cost_of(timed.unit.kernel(name), grid) for name, _ in timed.runs]
    known = [cost for cost in costs if cost is not None]
    cycles = sum(run.cycles for _, run in timed.runs)
    tiles = sum(run.tile_operations for _, run in timed.runs)
    roofline = sum(cost.roofline_cycles for cost in known)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(each.shape, dtype=np.float32).astype(each.dtype.numpy) for each in types]
    checked = Simulation(timed.unit)
    start = time.perf_counter()
    checked.run(arrays)
    checked_s = time.perf_counter() - start
    if sum(run.cycles for _, run in checked.runs) != cycles:
        raise ToolFailure("the simulator counts other cycles when it computes", help="report it")
    return {
        "cycles": round(cycles),
        "roofline_cycles": round(roofline),
        "fraction": round(roofline / cycles, 3),
        "predicted_cycles": round(sum(cost.predicted_cycles for cost in known)),
        "tile_operations": tiles,
        "checked_tiles_per_s": round(tiles / checked_s),
        "timed_tiles_per_s": round(tiles / timed.simulation_s),
    }

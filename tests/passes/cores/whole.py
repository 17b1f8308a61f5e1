"""Whole schedules of tile kernels for a grid of cores, with and without some pass, and the cycles that they take."""

from __future__ import annotations

from tests.passes.pass_support import parse, unit_of
from tilewright.passes.base import Pass, Unit
from tilewright.pipelines import tile_to_cores
from tilewright.targets.grid.runtime import Simulation


def scheduled(text: str, machine: str = "wormhole", without: type[Pass] | None = None) -> Unit:
    """IR text of the `tile` phase after all passes for cores but one."""
    unit = unit_of(parse(text), {}, machine)
    for each in tile_to_cores():
        if without is None or not isinstance(each, without):
            each.apply(unit)
            unit.module.verify()
    return unit


def cycles(unit: Unit) -> float:
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    return sum(run.cycles for _, run in simulation.runs)

"""Runs the kernels of a program on the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.placements import Pages, Storage
from tilewright.machines.machine import Machine
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType
from tilewright.semantics.cores import DeviceArray, ProgramRun, Timeline, run_program
from tilewright.targets.base import Tensor
from tilewright.targets.grid.core_program import CoreProgram
from tilewright.targets.grid.host_run import HostRun

# For each file of traces, up to where it goes, in cycles: programs follow one another.
_traced: dict[Path, float] = {}

Runs = list[tuple[str, ProgramRun]]


class Simulation(HostRun[DeviceArray]):
    """One run of a program. Without `values` only time is counted. With `whole_outputs` kernels that leave something
    of a result unwritten are reported; a user's kernel may. `runs`: the kernels that ran, in order."""

    def __init__(
        self,
        program: CoreProgram | Unit,
        *,
        seed: int = 0,
        values: bool = True,
        checks: bool = True,
        whole_outputs: bool = False,
    ) -> None:
        super().__init__(program, has_values=values)
        self._seed, self._checks = seed, checks
        self._whole_outputs = whole_outputs
        self.runs: list[tuple[str, ProgramRun]] = []

    def given(self, array: Tensor | None, type: ArrayType, stored: Storage) -> DeviceArray:
        grid = self.program.machine.core_grid
        keywords = _keywords(stored.pages(type.shape, (grid.rows, grid.columns)))
        if array is None:
            return DeviceArray.undefined(type.shape, type.dtype, **keywords)
        return DeviceArray.from_numpy(np.asarray(array), **keywords)

    def undefined(self, ref: SSAValue) -> DeviceArray:
        return _undefined(ref)

    def copied(self, array: DeviceArray) -> DeviceArray:
        return replace(array, pages=array.pages.copy())

    def viewed(self, array: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        return array if array.shape == shape else replace(array, shape=shape)

    def to_numpy(self, array: DeviceArray, type: ArrayType) -> Tensor:
        return array.to_numpy()

    def run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[DeviceArray]) -> None:
        """Run a program on a grid of cores; with the option `trace_file`, what it did when is added to that file."""
        path = current().trace_file if self.has_values else None
        timeline = None if path is None else Timeline(begin=_traced.get(path, 0.0))
        run = run_program(
            kernel,
            arrays,
            self.program.machine,
            seed=self._seed,
            values=self.has_values,
            checks=self._checks,
            whole_outputs=self._whole_outputs,
            timeline=timeline,
        )
        if path is not None and timeline is not None:
            machine = self.program.machine
            timeline.write(path, f"{machine.target}:{machine.name}", kernel.sym_name)
            _traced[path] = timeline.end
        self.runs.append((kernel.sym_name, run))


def run_kernel(kernel: tile.KernelOp, inputs: Sequence[Tensor], machine: Machine, seed: int = 0) -> list[Tensor]:
    """Run one kernel as `array.call` does: inputs in order, fresh outputs for `out` refs, copies for `inout`."""
    pending = iter(inputs)
    arrays: list[DeviceArray] = []
    results: list[DeviceArray] = []
    for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
        given = _undefined(ref) if effect == tile.OUT else _given(ref, next(pending))
        arrays.append(given)
        if effect != tile.IN:
            results.append(given)
    run_program(kernel, arrays, machine, seed=seed)
    return [result.to_numpy() for result in results]


def _undefined(ref: SSAValue) -> DeviceArray:
    type = tile.ref_type(ref)
    return DeviceArray.undefined(type.shape, type.dtype, **_keywords(cores.stored_pages(ref)))


def _given(ref: SSAValue, array: Tensor) -> DeviceArray:
    return DeviceArray.from_numpy(array, **_keywords(cores.stored_pages(ref)))


def _keywords(pages: Pages) -> dict[str, Any]:
    """The arguments of a `DeviceArray` for an array that is stored so."""
    return {"format": pages.format or None, "placement": pages.placement, "by_rows": pages.is_row_major}


def simulated(program: CoreProgram, arrays: Sequence[Tensor], seed: int) -> tuple[list[Tensor], Runs]:
    """The results of a run on the simulator, and the kernels that ran, in order.

    Raises:
        ArgumentError, DTypeError, ShapeError: the arrays are not those that the program takes.
        HazardError: accesses of a kernel are not ordered, or a wait is never signalled.
    """
    simulation = Simulation(program, seed=seed)
    return simulation.run(arrays), simulation.runs

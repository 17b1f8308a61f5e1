"""The grid target: a program for a grid of cores, which runs on a simulator of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.cached import cached_property
from tilewright.cost.program import Cost, ProgramCost
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Unit
from tilewright.runtime.program_file import UNSETTLED, Settled
from tilewright.runtime.shared_constants import Keep, keep_in_memory
from tilewright.semantics.cores import ProgramRun
from tilewright.targets.base import KernelTime, LinkedExecutable, Tensor
from tilewright.targets.grid import device
from tilewright.targets.grid.core_program import CoreProgram, core_program, has_program
from tilewright.targets.grid.program import SavedGridProgram, linked
from tilewright.targets.grid.report import KernelReport, report_of
from tilewright.targets.grid.runtime import Simulation, simulated


class GridProgram(LinkedExecutable):
    """A program compiled for a grid of cores. It runs on the simulator, or by ttnn where the environment names a
    simulator of the vendor's (`TT_METAL_SIMULATOR`). Calls run the unit itself; it is linked to be saved."""

    def __init__(self, unit: Unit, stages: dict[str, str]) -> None:
        self.unit = unit
        self._stages = stages
        self.runs: list[tuple[str, ProgramRun]] = []

    @cached_property
    def core(self) -> CoreProgram:
        """The kernels and the host program."""
        return core_program(self.unit)

    @property
    def program(self) -> SavedGridProgram:
        """The program as it is saved, linked on first use."""
        return self._linked

    @cached_property
    def _linked(self) -> SavedGridProgram:
        return self.link(keep_in_memory)

    def link(self, keep: Keep) -> SavedGridProgram:
        """The program with its constants as `keep` has them."""
        return linked(self.unit, keep)

    @property
    def settled(self) -> Settled:
        return UNSETTLED

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        results = device.DeviceRun(self.core).run(arrays) if device.is_asked_for() else self.simulate(*arrays)
        if out is None:
            return results
        for target, result in zip(out, results, strict=True):
            np.copyto(target, result)
        return list(out)

    def simulate(self, *arrays: Tensor, seed: int = 0) -> list[Tensor]:
        """The results of a call whose times and orders are drawn from a seed, other than 0; those of the machine, with
        seed 0. The times of its kernels are in `runs` then.

        Raises:
            ArgumentError, DTypeError, ShapeError: the arrays are not those that the program takes.
            HazardError: accesses of a kernel are not ordered, or a wait is never signalled.
        """
        results, self.runs = simulated(self.core, arrays, seed)
        return results

    @cached_property
    def timing(self) -> list[tuple[str, ProgramRun]]:
        """The simulator's counts for each kernel that a call runs, without computing values."""
        simulation = Simulation(self.core, values=False)
        simulation.run(None)
        return simulation.runs

    @cached_property
    def reports(self) -> list[KernelReport]:
        """The report on each kernel that a call runs."""
        return [report_of(self.unit.kernel(name), run, self.grid) for name, run in self.timing]

    @property
    def grid(self) -> CoreGrid:
        return self.unit.machine.core_grid

    def ir(self, phase: str) -> str:
        """The program's text: `array`, `tile`, `scheduled` or `cpp`."""
        if phase == "cpp":
            return self.source
        known = self._stages | {"scheduled": str(self.unit.module)}
        if phase not in known:
            names = ", ".join([*known, "cpp"])
            raise UnsupportedOnTargetError(f"the grid target has no `{phase}` phase", help=f"ask for {names}")
        return known[phase]

    @cached_property
    def source(self) -> str:
        """Device source and host description of each kernel."""
        from tilewright.targets.grid.emit import emit_program

        texts: list[str] = []
        for kernel in filter(has_program, self.unit.kernels()):
            made = emit_program(kernel, self.unit.machine)
            parts = {"reader": made.reader, "compute": made.compute, "writer": made.writer, "host": made.host}
            texts += [f"// ---- {kernel.sym_name}: {part}\n{text}" for part, text in parts.items() if text]
        return "\n".join(texts)

    def asm(self) -> str:
        """Device source: what the machine's own compiler takes."""
        return self.source

    def cost(self) -> ProgramCost:
        """For each kernel that a call runs: its cores, queues and bytes of their memory; the cycles that the simulator
        counts and those that the model predicts, what bounds them (`report.py`), and how often states of units are set.
        """
        by_name: dict[str, list[Cost]] = {}
        for report in self.reports:
            by_name.setdefault(report.kernel, []).append(report.total(self.grid))
        kernels = {name: Cost.total(costs) for name, costs in by_name.items()}
        runs = tuple(report.document() for report in self.reports)
        return ProgramCost(self.unit.machine.name, kernels, runs=runs)

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        """The times of the simulator, which are equal in all calls. FLOPs are those of the matrix unit."""
        by_name: dict[str, list[KernelReport]] = {}
        for report in self.reports:
            by_name.setdefault(report.kernel, []).append(report)
        times = [self._time_of(name, reports) for name, reports in by_name.items()]
        return sorted(times, key=lambda each: -each.seconds)

    def _time_of(self, name: str, reports: Sequence[KernelReport]) -> KernelTime:
        total = Cost.total(report.total(self.grid) for report in reports)
        cycles = sum(report.cost.predicted_cycles for report in reports if report.cost is not None)
        predicted_s = cycles / self.grid.clock_hertz
        return KernelTime(name, float(len(reports)), total.seconds, predicted_s, total.flops, total.bytes)

    def explain(self) -> str:
        """The remarks, and for each kernel its time, its bottleneck, and the resources of a core that it takes."""
        lines = [f"{text} [{n} times]" if n > 1 else text for text, n in Counter(map(str, self.unit.remarks)).items()]
        return "\n".join([*lines, *(report.text() for report in self.reports)])

"""Resources and time of a kernel on a grid of cores: as the model predicts it, and as the simulator counts it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewright.cost.cores.model import COMPUTE, DRAM, NETWORK, CoreCost, cost_of
from tilewright.cost.cores.work import MATMULS
from tilewright.cost.program import Cost
from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores import ProgramRun
from tilewright.semantics.cores.reports import name_of
from tilewright.semantics.cores.static_walk import TooLongError

_ALLOWED = {COMPUTE: "the units", DRAM: "the banks of DRAM", NETWORK: "the networks"}
# The bottlenecks of the cores.
_LIMITS = {
    "compute": "the compute thread",
    "reader": "the reader",
    "writer": "the writer",
    "dram": "DRAM, which all cores share",
}


@dataclass(frozen=True)
class QueueReport:
    """A queue of each core. `most_pages`: how many it held at a time, on any core."""

    name: str
    format: str
    pages: int
    bytes: int
    most_pages: int


@dataclass(frozen=True)
class KernelReport:
    """One run of a kernel. `cost`: None where a thread has too many trips that differ to be followed."""

    kernel: str
    rows: int
    columns: int
    queues: tuple[QueueReport, ...]
    memory_bytes: int
    cost: CoreCost | None
    run: ProgramRun

    @property
    def queue_bytes(self) -> int:
        """Bytes of all queues, of a core's memory."""
        return sum(queue.bytes for queue in self.queues)

    @property
    def configures(self) -> int:
        return sum(self.run.configures.values())

    @property
    def fewest_configures(self) -> int:
        return sum(self.run.fewest_configures.values())

    @property
    def roofline_fraction(self) -> float | None:
        """The least cycles that the machine allows over those that it takes."""
        return None if self.cost is None else self.cost.roofline_cycles / self.run.cycles

    def total(self, grid: CoreGrid) -> Cost:
        """The simulated time, and the parts and the work as the model predicts them: FLOPs of the matrix unit, and
        bytes of DRAM. Without a prediction only the time is known."""
        cost = self.cost
        if cost is None:
            return Cost.of(self.run.seconds, 0.0, seconds=self.run.seconds)
        tiles = sum(kind.tiles for kind in cost.kinds if (kind.kind, kind.unit) == (MATMULS, "math"))
        return Cost.of(
            compute_s=cost.compute_cycles / grid.clock_hertz,
            memory_s=max(cost.read_cycles, cost.write_cycles) / grid.clock_hertz,
            launch_s=cost.dispatch_cycles / grid.clock_hertz,
            bytes=float(cost.dram_read_bytes + cost.dram_written_bytes),
            flops=2.0 * TILE**3 * tiles,
            seconds=self.run.seconds,
        )

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        run, cost = self.run, self.cost
        found: dict[str, Any] = {
            "kernel": self.kernel,
            "cores": [self.rows, self.columns],
            "queues": [asdict(queue) for queue in self.queues],
            "queue_bytes": self.queue_bytes,
            "memory_bytes": self.memory_bytes,
            "cycles": run.cycles,
            "seconds": run.seconds,
            "tile_operations": run.tile_operations,
            "moved_bytes": run.moved_bytes,
            "configures": run.configures,
            "fewest_configures": run.fewest_configures,
            "roofline_fraction": self.roofline_fraction,
        }
        if cost is None:
            return found | {"predicted_cycles": None, "roofline_cycles": None, "bound": None, "limited_by": None}
        return found | {
            "predicted_cycles": cost.predicted_cycles,
            "roofline_cycles": cost.roofline_cycles,
            "bound": cost.bound,
            "bounds": dict(cost.bounds),
            "limited_by": cost.limited_by,
            "unit_cycles": dict(cost.unit_cycles),
            "kinds": [asdict(kind) for kind in cost.kinds],
        }

    def text(self) -> str:
        """The report as text."""
        return "\n  ".join([self._times(), *self._works(), self._memory(), *self._configured()])

    def _times(self) -> str:
        where = f"{self.kernel} on {self.rows} x {self.columns} cores: {self.run.cycles:.0f} cycles simulated"
        cost = self.cost
        if cost is None:
            return f"{where}; too many trips differ for a prediction"
        least = f"{cost.roofline_cycles:.0f} are the least that {_ALLOWED[cost.bound]} allow"
        return f"{where}, {cost.predicted_cycles:.0f} predicted; {least} ({self.roofline_fraction:.0%})"

    def _works(self) -> list[str]:
        cost = self.cost
        if cost is None:
            return []
        read, written = (f"{n:.0f} to {what}" for n, what in ((cost.read_cycles, "read"), (cost.write_cycles, "write")))
        turns = [what for what, overlaps in zip(("reads", "writes"), cost.overlapped, strict=True) if not overlaps]
        waits = f", and computes nothing while it {' or '.join(turns)} (its queues hold one step)" if turns else ""
        most = sum(kind.cycles for kind in cost.kinds) or 1.0
        kinds = [f"{kind.kind} {kind.cycles / most:.0%} ({kind.unit})" for kind in cost.kinds[:6]]
        busy = [f"{name} {cycles:.0f}" for name, cycles in cost.unit_cycles.items()]
        idle = cost.all_cores - cost.cores
        return [
            f"limited by {_LIMITS[cost.limited_by]}: a core computes for {cost.compute_cycles:.0f} cycles, and needs "
            f"{read} and {written}{waits}; {cost.dispatch_cycles:.0f} go by before",
            *([f"{idle} of {cost.all_cores} cores have nothing to do"] if idle else []),
            f"busy cycles of a core: {', '.join(busy)}",
            f"of all work: {', '.join(kinds)}",
        ]

    def _memory(self) -> str:
        queues = [f"{q.name}: {q.pages} of {q.format} ({q.most_pages} used)" for q in self.queues]
        return f"{self.queue_bytes} of {self.memory_bytes} bytes of a core's memory in {len(queues)} queues: " + (
            "; ".join(queues)
        )

    def _configured(self) -> list[str]:
        if not self.configures:
            return []
        more = {
            unit: f"{unit} {count - self.run.fewest_configures.get(unit, 0)} more"
            for unit, count in self.run.configures.items()
            if count > self.run.fewest_configures.get(unit, 0)
        }
        least = f"{self.fewest_configures} are the least that their order allows"
        return [f"states of units set {self.configures} times, {'; '.join([least, *more.values()])}"]


def report_of(kernel: tile.KernelOp, run: ProgramRun, grid: CoreGrid) -> KernelReport:
    """The report on a kernel that is one program, and on a run of it."""
    program = next(op for op in kernel.body.block.ops if isinstance(op, cores.ProgramOp))
    queues: list[QueueReport] = []
    for number, (queue, most) in enumerate(zip(program.queues, run.highest_queues, strict=True)):
        type = cores.queue_type(queue.result)
        queues.append(QueueReport(name_of(queue.result, number), type.format.data, type.pages, type.bytes, most))
    try:
        cost = cost_of(kernel, grid)
    except TooLongError:
        cost = None
    rows, columns = program.shape
    return KernelReport(kernel.sym_name, rows, columns, tuple(queues), grid.memory_bytes, cost, run)

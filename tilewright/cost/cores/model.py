"""Cost model of programs for a grid of cores: predicted time, bounds and bottleneck.

The threads of a core are followed one by one (`core_paths.py`), each as if the others were always ahead. If a queue
between a data movement thread and compute holds two steps, they overlap: the first step is filled, the slowest thread
continues, and the last step is drained. If it holds one, they alternate. All cores share the links and the memory that
move pages of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from xdsl.ir import Operation, SSAValue

from tilewright.cost.cores.accesses import clipped_operations
from tilewright.cost.cores.paths import Path, compute_path, ends_of, mover_path
from tilewright.cost.cores.work import CONFIGURES, compute_work
from tilewright.dialects import cores, tile
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import PACK, PARTS
from tilewright.semantics.cores.static_walk import Place, cores_alike

# What may bound a program.
COMPUTE, DRAM, NETWORK = "compute", "dram", "network"
_READS, _WRITES = cores.ARRAY_LOADS, cores.ARRAY_STORES
_SENDS = (cores.MulticastOp, cores.SendOp)


@dataclass(frozen=True)
class KindCost:
    """One kind of work. `tiles` and `cycles`: of all cores together; `unit`: the data movement thread, or the part of
    compute (unpack, math, pack), that spends the cycles."""

    kind: str
    unit: str
    tiles: int
    cycles: float


@dataclass(frozen=True)
class CoreCost:
    """The predicted cost of one program.

    Attributes:
        cores: how many run it, of `all_cores` of the machine.
        unit_cycles: for `unpack`, `math`, `pack` and each mover the cycles that the busiest core's works.
        kinds: what the units do, and how much of it.
        dram_read_bytes, dram_written_bytes: of arrays in DRAM.
        sent_bytes, received_bytes: between cores; what is sent to several is received by each. `core_read_bytes`: of
            arrays in other cores' memories; what is written to those is sent.
        compute_cycles: of the thread that computes, on the core where it takes longest, if it never waits for others.
        read_cycles, write_cycles: of the movers, likewise, with what all cores together move.
        fill_cycles, drain_cycles: of the first step of the reader and the last one of the writer.
        overlapped: whether the reader, and the writer, work while the core computes, but for the first and last step.
        bounds: the least cycles that the work takes on the machine: computing, on all cores evenly and without changes
            of a unit's state; DRAM, each array moved once; and the networks.
        dispatch_cycles: from the launch to the first instruction.
        predicted_cycles: from the launch to the end.
        limited_by: what the prediction is made of mostly: `compute`, `reader`, `writer` or `dram`.
    """

    cores: int
    all_cores: int
    unit_cycles: Mapping[str, float]
    kinds: tuple[KindCost, ...]
    dram_read_bytes: int
    dram_written_bytes: int
    sent_bytes: int
    received_bytes: int
    core_read_bytes: int
    compute_cycles: float
    read_cycles: float
    write_cycles: float
    fill_cycles: float
    drain_cycles: float
    overlapped: tuple[bool, bool]
    bounds: Mapping[str, float]
    dispatch_cycles: float
    predicted_cycles: float
    limited_by: str

    @property
    def bound(self) -> str:
        """The bottleneck of the program: `compute`, `dram` or `network`."""
        return max(self.bounds, key=lambda name: self.bounds[name])

    @property
    def roofline_cycles(self) -> float:
        """A lower bound for any order of the same work on the machine, without dispatch."""
        return self.bounds[self.bound]


def cost_of(kernel: tile.KernelOp, grid: CoreGrid) -> CoreCost | None:
    """The cost of a kernel that is one program; None of one that is none, as it has nothing to do.

    Raises:
        TooLongError: a thread has too many trips that differ.
    """
    found = [op for op in kernel.body.block.ops if isinstance(op, cores.ProgramOp)]
    return _Model(found[0], grid).cost() if found else None


@dataclass
class _Group:
    """Cores whose threads do the same. `paths`: by role."""

    places: Sequence[Place]
    paths: dict[str, Path] = field(default_factory=dict[str, Path])


@dataclass(frozen=True)
class _Mover:
    """A mover of the core where it takes longest. `cycles`: of all its `steps`, where those of all cores work at the
    same time, and `alone`, where none of them does; `overlaps`: whether it works while the core computes."""

    cycles: float = 0.0
    alone: float = 0.0
    steps: int = 1
    overlaps: bool = True

    @property
    def one(self) -> float:
        """The cycles of a step."""
        return self.cycles / self.steps

    @property
    def one_alone(self) -> float:
        return self.alone / self.steps


class _Model:
    def __init__(self, program: cores.ProgramOp, grid: CoreGrid) -> None:
        self._program = program
        self._grid = grid
        self._threads = {thread.role: thread for thread in program.threads}
        clipped = clipped_operations(program)
        self._groups: list[_Group] = []
        shared: Path | None = None
        for alike in cores_alike(program):
            thread = self._threads.get(cores.COMPUTE)
            if thread is not None and (shared is None or _depends_on_place(thread, program)):
                shared = compute_path(program, thread, alike[0], grid)
            for places in [[place] for place in alike] if clipped else [alike]:
                group = _Group(places, {} if shared is None else {cores.COMPUTE: shared})
                for role, thread in self._threads.items():
                    if not thread.computes:
                        group.paths[role] = mover_path(program, thread, places[0], grid, clipped)
                self._groups.append(group)

    def cost(self) -> CoreCost:
        grid = self._grid
        paths = [group.paths[cores.COMPUTE] for group in self._groups if cores.COMPUTE in group.paths]
        compute = max((path.cycles for path in paths), default=0)
        reader, writer = self._mover(cores.READER), self._mover(cores.WRITER)
        # Threads that take turns do so at other times on other cores, which then do not share what they wait for.
        turns = [each.alone - each.one_alone for each in (reader, writer) if not each.overlaps]
        steady = {
            "compute": compute + sum(turns),
            "reader": reader.cycles - reader.one + compute / reader.steps,
            "writer": writer.cycles - writer.one + compute / writer.steps,
        }
        moved = {kinds: self._total("dram_bytes", kinds) for kinds in (_READS, _WRITES)}
        limited_by = max(steady, key=lambda name: steady[name])
        # Cores that had their first pages earlier have their last ones earlier.
        ends = max(reader.one + writer.one_alone, reader.one_alone + writer.one)
        cycles = ends + steady[limited_by]
        shared = sum(moved.values()) / self._dram_bytes_per_cycle
        if shared > cycles:
            limited_by, cycles = "dram", shared
        return CoreCost(
            cores=self._program.shape[0] * self._program.shape[1],
            all_cores=grid.rows * grid.columns,
            unit_cycles=self._unit_cycles(),
            kinds=self._kinds(),
            dram_read_bytes=moved[_READS],
            dram_written_bytes=moved[_WRITES],
            sent_bytes=self._total("bytes", (*_WRITES, *_SENDS)) - moved[_WRITES],
            received_bytes=self._total("received_bytes", _SENDS),
            core_read_bytes=self._total("bytes", _READS) - moved[_READS],
            compute_cycles=compute,
            read_cycles=reader.cycles,
            write_cycles=writer.cycles,
            fill_cycles=reader.one,
            drain_cycles=writer.one,
            overlapped=(reader.overlaps, writer.overlaps),
            bounds=self._bounds(),
            dispatch_cycles=grid.dispatch_cycles,
            predicted_cycles=grid.dispatch_cycles + cycles,
            limited_by=limited_by,
        )

    @property
    def _dram_bytes_per_cycle(self) -> float:
        return self._grid.dram_bytes_per_second / self._grid.clock_hertz

    # ---- movers -----------------------------------------------------------------------------------------------------

    def _mover(self, role: str) -> _Mover:
        """The cores together read and write no faster than all banks are: a core's own transfers take so long."""
        thread = self._threads.get(role)
        if thread is None:
            return _Mover()
        cycles = alone = 0.0
        for group in self._groups:
            path = group.paths[role]
            own = path.cycles
            alone = max(alone, own)
            for kinds in (_READS, _WRITES):
                network = sum(a.network_cycles for op, a in path.amounts.items() if isinstance(op, kinds))
                together = self._total("dram_bytes", kinds, role) / self._dram_bytes_per_cycle
                own += max(0.0, together - network)
            cycles = max(cycles, own)
        steps = max(self._steps(group.paths[role]) for group in self._groups)
        return _Mover(cycles, alone, max(1, steps), steps <= 1 or self._overlaps(thread))

    def _steps(self, path: Path) -> int:
        """How often the queue that is moved most is."""
        counts: dict[SSAValue, int] = {}
        for op, count in path.counts.items():
            if isinstance(op, cores.PushOp | cores.PopOp):
                counts[op.queue] = counts.get(op.queue, 0) + count
        return max(counts.values(), default=1)

    def _overlaps(self, thread: cores.ThreadOp) -> bool:
        """Whether all queues to and from what computes hold two steps, and none leads through the mover and back. A
        queue that a mover fills once holds nothing up."""
        filled, emptied = False, False
        for queue in self._program.queues:
            filler, emptier = ends_of(queue)
            role = thread.role
            if {filler, emptier} != {role, cores.COMPUTE} or (filler == role and self._fillings(queue.result) <= 1):
                continue
            filled, emptied = filled or filler == role, emptied or emptier == role
            pushes = [use.operation.count for use in queue.result.uses if isinstance(use.operation, cores.PushOp)]
            if cores.queue_type(queue.result).pages < 2 * max(pushes, default=1):
                return False
        return not (filled and emptied)

    def _fillings(self, queue: SSAValue) -> int:
        """How often pages are pushed to a queue, on the core where that is most often."""
        pushes = [use.operation for use in queue.uses if isinstance(use.operation, cores.PushOp)]
        return max(
            sum(path.counts.get(push, 0) for path in group.paths.values() for push in pushes) for group in self._groups
        )

    def _total(self, what: str, kinds: tuple[type[Operation], ...], role: str | None = None) -> int:
        """The sum of something over the operations of some kinds, of all cores, or of one thread of each."""
        return sum(
            len(group.places) * int(getattr(amount, what))
            for group in self._groups
            for name, path in group.paths.items()
            if role is None or name == role
            for op, amount in path.amounts.items()
            if isinstance(op, kinds)
        )

    # ---- units ------------------------------------------------------------------------------------------------------

    def _unit_cycles(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for group in self._groups:
            for role, path in group.paths.items():
                if role == cores.COMPUTE:
                    for unit in PARTS:
                        found[unit] = max(found.get(unit, 0.0), self._cycles_of(path, unit))
                else:
                    busy = sum(amount.busy_cycles for amount in path.amounts.values())
                    found[role] = max(found.get(role, 0.0), float(busy))
        return found

    def _cycles_of(self, path: Path, unit: str, configures: bool = True) -> float:
        """How long a unit works; with or without changes of its state."""
        cycles = path.changes * self._grid.configure_cycles if unit == PACK and configures else 0.0
        for op, count in path.counts.items():
            work = compute_work(op, self._grid)
            if work is not None and (configures or work.kind != CONFIGURES):
                cycles += count * work.of(unit)
        return cycles

    def _kinds(self) -> tuple[KindCost, ...]:
        found: dict[tuple[str, str], list[float]] = {}
        for group in self._groups:
            path = group.paths.get(cores.COMPUTE)
            for op, count in () if path is None else path.counts.items():
                work = compute_work(op, self._grid)
                if work is None:
                    continue
                for unit in PARTS:
                    if work.of(unit):
                        sums = found.setdefault((work.kind, unit), [0, 0.0])
                        sums[0] += work.tiles * count * len(group.places)
                        sums[1] += work.of(unit) * count * len(group.places)
        kinds = [KindCost(kind, unit, int(tiles), cycles) for (kind, unit), (tiles, cycles) in found.items()]
        return tuple(sorted(kinds, key=lambda each: -each.cycles))

    # ---- bounds -----------------------------------------------------------------------------------------------------

    def _bounds(self) -> dict[str, float]:
        every = self._grid.rows * self._grid.columns
        computed = [
            sum(len(g.places) * self._cycles_of(g.paths[cores.COMPUTE], unit, configures=False) for g in self._groups)
            for unit in (PARTS if cores.COMPUTE in self._threads else ())
        ]
        links: list[float] = []
        for role in self._threads:
            came = self._total("bytes", _READS, role) + self._total("received_bytes", _SENDS, role)
            left = self._total("bytes", (*_WRITES, *_SENDS), role)
            links.append(max(came, left) / self._grid.network_bytes_per_cycle)
        return {
            COMPUTE: max(computed, default=0.0) / every,
            DRAM: self._least_bytes() / self._dram_bytes_per_cycle,
            NETWORK: max(links, default=0.0) / every,
        }

    def _least_bytes(self) -> int:
        """Bytes of arrays that have to be moved at least: no page of one is read, or written, more than once."""
        moved: dict[tuple[SSAValue, bool], tuple[int, int]] = {}
        for group in self._groups:
            for path in group.paths.values():
                for op, amount in path.amounts.items():
                    if isinstance(op, cores.PagesOp | cores.ElementsOp):
                        key = op.array, isinstance(op, _WRITES)
                        pages = prod(cores.page_grid(tile.ref_type(op.array).shape))
                        whole = pages * cores.queue_type(op.queue).tile_format.page_bytes
                        bytes = moved.get(key, (0, 0))[0] + len(group.places) * amount.dram_bytes
                        moved[key] = bytes, whole
        return sum(min(each) for each in moved.values())


def _depends_on_place(thread: cores.ThreadOp, program: cores.ProgramOp) -> bool:
    """Whether what a thread does is not the same on all cores."""
    places = {*program.body.block.args}
    chooses = (cores.IfOp, tile.ForOp, cores.AccumulateOp)
    return any(isinstance(op, chooses) and not places.isdisjoint(op.operands) for op in thread.body.walk())

"""Cycles of each thread of a core, as if it never waits for another thread.

A thread is followed once, with the time that each of its units has reached; a loop that returns to the same differences
of these times repeats (`static_walk.py`). All times are whole cycles.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from math import prod

from xdsl.ir import Operation, SSAValue

from tilewright.cost.cores.accesses import loops_of
from tilewright.cost.cores.work import array_holders, compute_work, element_runs, elements_beyond, pages_inside
from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CORE_READ, CORE_WRITE, DRAM_READ, DRAM_WRITE, LOCAL, CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.holders import Holders
from tilewright.semantics.cores.line_steps import merges
from tilewright.semantics.cores.row_steps import part_of
from tilewright.semantics.cores.static_walk import Place, Projection, Walk

# Source registers that unpack may be ahead by, and halves of the tile registers.
_BANKS = _HALVES = 2
# What a path counts beside operations.
_CYCLES, _CHANGES = "cycles", "changes"
_AMOUNTS = ("bytes", "dram_bytes", "transactions", "received_bytes", "busy_cycles", "network_cycles")


@dataclass(frozen=True)
class Amount:
    """The transfers of a mover's operation, over all its runs.

    Attributes:
        bytes: that leave or come to the core, `dram_bytes` of them from or to DRAM; `transactions`: in how many pieces.
        received_bytes: that come to other cores.
        busy_cycles: of the mover itself.
        network_cycles: of the core's end of its network.
    """

    bytes: int = 0
    dram_bytes: int = 0
    transactions: int = 0
    received_bytes: int = 0
    busy_cycles: int = 0
    network_cycles: int = 0


@dataclass(frozen=True)
class Path:
    """A thread of one core. `cycles`: from its beginning to its end; `counts`: how often each operation runs;
    `changes`: how often pack begins or stops to add; `amounts`: what operations of a mover do."""

    cycles: int
    counts: Mapping[Operation, int]
    changes: int = 0
    amounts: Mapping[Operation, Amount] = field(default_factory=dict[Operation, Amount])


class _Tokens:
    """Pages at one end of a queue that wait for its other end: how many, and since when."""

    def __init__(self, count: int = 0) -> None:
        self.parts: deque[tuple[int, int]] = deque([(count, 0)] if count else [])

    def ready(self, count: int) -> int:
        """Since when so many are there; now, where they are loaded by what this walk does not follow."""
        left = count
        for pages, since in self.parts:
            left -= pages
            if left <= 0:
                return since
        return self.parts[-1][1] if self.parts else 0

    def take(self, count: int) -> None:
        while count and self.parts:
            pages, since = self.parts.popleft()
            if pages > count:
                self.parts.appendleft((pages - count, since))
                return
            count -= pages

    def add(self, count: int, since: int) -> None:
        self.parts.append((count, since))

    def shift(self, by: int) -> None:
        self.parts = deque((pages, since - by) for pages, since in self.parts)

    def state(self, floor: int) -> tuple[tuple[int, int], ...]:
        return tuple((pages, max(since, floor)) for pages, since in self.parts)


# ---- the thread that computes ---------------------------------------------------------------------------------------


class _ComputeWalk(Walk):
    """Unpack, math and pack, and what they wait for of each other. Times count from `counts["cycles"]` on."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place, grid: CoreGrid) -> None:
        super().__init__(projection, program, here)
        self._grid = grid
        self.unpack = self.math = self.pack = 0
        self._banks = [0] * _BANKS
        self._halves = [0] * _HALVES
        self._committed: list[int] = []
        self._adds = False
        ends = {queue.result: ends_of(queue) for queue in program.queues}
        own = [queue for queue, found in ends.items() if found == (cores.COMPUTE, cores.COMPUTE)]
        self._full: dict[SSAValue, _Tokens] = {queue: _Tokens() for queue in own}
        self._free: dict[SSAValue, _Tokens] = {queue: _Tokens(cores.queue_type(queue).pages) for queue in own}

    @property
    def cycles(self) -> int:
        return self.counts[_CYCLES] + max(self.unpack, self.math, self.pack)

    def state(self) -> Hashable:
        by = self.math
        self.counts[_CYCLES] += by
        self.unpack, self.math, self.pack = self.unpack - by, 0, self.pack - by
        for times in (self._banks, self._halves, self._committed):
            times[:] = [time - by for time in times]
        for tokens in (*self._full.values(), *self._free.values()):
            tokens.shift(by)
        floor = min(self.unpack, self.math, self.pack)
        return (
            (self.unpack, self.pack, self._adds),
            tuple(max(time, floor) for time in (*self._banks, *self._halves)),
            tuple(tokens.state(floor) for tokens in (*self._full.values(), *self._free.values())),
        )

    def visit(self, op: Operation) -> None:
        self.counts[op] += 1
        match op:
            case cores.QueueStepOp():
                self._step(op)
            case cores.RegistersOp():
                self._registers(op.step)
            case cores.AccumulateOp():
                adds = self.numbers(op.map, op.symbols)[0] != 0
                if adds != self._adds:
                    self.pack += round(self._grid.configure_cycles)
                    self.counts[_CHANGES] += 1
                self._adds = adds
            case _:
                self._work(op)

    def _step(self, op: cores.QueueStepOp) -> None:
        full, free = self._full.get(op.queue), self._free.get(op.queue)
        if full is None or free is None:
            return
        match op:
            case cores.ReserveOp():
                self.pack = max(self.pack, free.ready(op.count))
            case cores.PushOp():
                free.take(op.count)
                full.add(op.count, self.pack)
            case cores.WaitOp():
                self.unpack = max(self.unpack, full.ready(op.count))
            case _:
                full.take(op.count)
                free.add(op.count, self.unpack)

    def _registers(self, step: str) -> None:
        match step:
            case cores.ACQUIRE:
                self.math = max(self.math, self._halves.pop(0))
            case cores.COMMIT:
                self._committed.append(self.math)
            case cores.WAIT:
                self.pack = max(self.pack, self._committed.pop(0))
            case _:
                self._halves.append(self.pack)

    def _work(self, op: Operation) -> None:
        work = compute_work(op, self._grid)
        if work is None:
            return
        if not work.pages:
            self.unpack += round(work.unpack)
            self.math += round(work.math)
            self.pack += round(work.pack)
            return
        banks, each = min(work.pages, _BANKS), round(work.math / work.pages)
        self.unpack = max(self.unpack, self._banks.pop(0))
        others = self._banks.pop(0) if banks > 1 else self.unpack
        first = self.unpack + round(work.unpack / work.pages)
        self.unpack = max(self.unpack, others - round(work.unpack / work.pages)) + round(work.unpack)
        self.math = max(max(self.math, first) + round(work.math), self.unpack + each)
        self._banks += [self.math - each * left for left in range(banks - 1, -1, -1)]
        if work.pages > _BANKS:
            self.unpack = max(self.unpack, self.math - each * banks)


def ends_of(queue: cores.QueueOp) -> tuple[str | None, str | None]:
    """The threads that fill and empty a queue."""
    found: list[str | None] = []
    for kinds in ((cores.ReserveOp, cores.PushOp), (cores.WaitOp, cores.PopOp)):
        users = [use.operation for use in queue.result.uses if isinstance(use.operation, kinds)]
        found.append(cores.thread_of(users[0]).role if users else None)
    return found[0], found[1]


def compute_path(program: cores.ProgramOp, thread: cores.ThreadOp, here: Place, grid: CoreGrid) -> Path:
    """The thread that computes, of a core that always has what it reads, and room for what it writes.

    Raises:
        TooLongError: it has too many trips that differ.
    """
    walk = _ComputeWalk(Projection(thread, lambda op: isinstance(op, cores.CoreOp)), program, here, grid)
    walk.run()
    return Path(walk.cycles, _of_operations(walk.counts), walk.counts[_CHANGES])


def _of_operations(counts: Counter[Hashable]) -> dict[Operation, int]:
    return {key: count for key, count in counts.items() if isinstance(key, Operation)}


# ---- movers ---------------------------------------------------------------------------------------------------------


class _MoverWalk(Walk):
    """A mover: `time` up to where it has come, `port`, until when its end of the network is busy, and when what it
    began to read and to write has come."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place, grid: CoreGrid) -> None:
        super().__init__(projection, program, here)
        self._grid = grid
        self._program = program
        self._core = here[0] * grid.columns + here[1]
        self._holders: dict[SSAValue, Holders] = {}
        self.time = self.port = self.read = self.written = 0

    @property
    def cycles(self) -> int:
        return self.counts[_CYCLES] + self.time

    def state(self) -> Hashable:
        by = self.time
        self.counts[_CYCLES] += by
        self.time, self.port, self.read, self.written = (
            max(0, time - by) for time in (self.time, self.port, self.read, self.written)
        )
        return self.port, self.read, self.written

    def visit(self, op: Operation) -> None:
        self.counts[op] += 1
        match op:
            case cores.BarrierOp():
                self.time = max(self.time, self.read if op.of == cores.READ else self.written)
            case cores.SemaphoreIncrementOp():
                self._spend(op, self._grid.issue_cycles)
            case cores.SemaphoreMulticastOp():
                self._spend(op, self._grid.issue_cycles)
                lands = self.time + round(self._grid.semaphore_cycles + self._hop_cycles())
                self.written = max(self.written, lands)
            case cores.PadOp():
                beyond = elements_beyond(op, self._symbols(op.symbols))
                bits = cores.queue_type(op.queue).tile_format.bits
                self._spend(op, self._grid.fill_cycles * beyond * bits / 32)
            case cores.FetchOp() | cores.PutOp():
                self._pages(op)
            case cores.FetchRowsOp() | cores.PutRowsOp():
                self._rows(op)
            case cores.GatherOp() | cores.ScatterOp():
                self._elements(op)
            case cores.MulticastOp():
                top, left, bottom, right = self.numbers(op.rectangle, op.symbols)
                self._to_cores(op, op.queue, (bottom - top + 1) * (right - left + 1) - 1)
            case cores.SendOp():
                self._to_cores(op, op.source, 1)
            case cores.RearrangeOp():
                extents: tuple[int, ...] = op.extents
                self._spend(op, self._grid.element_cycles * prod(extents))
            case cores.LinesOp():
                times = merges(op.lanes[op.axis]) if isinstance(op, cores.SortOp) else 1
                self._spend(op, self._grid.element_cycles * times * prod(op.lanes) * len(op.sources))
            case cores.GenerateOp():
                bits = cores.queue_type(op.queue).tile_format.bits
                self._spend(op, self._grid.generate_cycles(op.elements, bits, op.is_one_number))
            case _:
                pass

    def _symbols(self, symbols: Sequence[SSAValue]) -> list[int]:
        """The numbers of indices; 0 of loops that the walk does not count."""
        return [self._numbers.get(symbol, 0) for symbol in symbols]

    def _spend(self, op: Operation, cycles: float) -> None:
        self.time += round(cycles)
        self._note(op, Amount(busy_cycles=round(cycles)))

    def _note(self, op: Operation, amount: Amount) -> None:
        for name in _AMOUNTS:
            self.counts[name, op] += getattr(amount, name)

    def _pages(self, op: cores.FetchOp | cores.PutOp) -> None:
        reads, bytes = isinstance(op, cores.FetchOp), _page_bytes(op.queue)
        inside = pages_inside(op, self._symbols(op.symbols))
        holders = self._holders.get(op.array)
        if holders is None:
            holders = self._holders[op.array] = array_holders(op.array, self._grid)
        if holders.in_dram:
            self._transfer(op, DRAM_READ if reads else DRAM_WRITE, bytes, len(inside))
            return
        shares = dict(holders.shares(inside))
        own = shares.pop(self._core, 0)
        self._transfer(op, LOCAL, bytes, own)
        self._transfer(op, CORE_READ if reads else CORE_WRITE, bytes, sum(shares.values()))

    def _rows(self, op: cores.FetchRowsOp | cores.PutRowsOp) -> None:
        pages = pages_inside(op, self._symbols(op.symbols))
        if pages:
            part = part_of(tile.ref_type(op.array).shape, pages)
            size = len(part.columns) * cores.queue_type(op.queue).tile_format.bits // 8
            kind = DRAM_READ if isinstance(op, cores.FetchRowsOp) else DRAM_WRITE
            self._transfer(op, kind, size, len(part.rows))

    def _transfer(self, op: Operation, kind: str, transaction_bytes: int, count: int) -> None:
        if not count:
            return
        issue = round(self._grid.issue_cycles)
        busy = round(self._grid.occupancy_cycles(kind, transaction_bytes, count))
        began = self.time + issue
        self.time += issue * count
        self.port = max(self.port, began) + busy
        lands = max(self.port, self.time) + round(self._grid.latency_cycles(kind))
        if isinstance(op, cores.ARRAY_LOADS):
            self.read = max(self.read, lands)
        else:
            self.written = max(self.written, lands)
        bytes = 0 if kind == LOCAL else transaction_bytes * count
        from_dram = bytes if kind in (DRAM_READ, DRAM_WRITE) else 0
        self._note(op, Amount(bytes, from_dram, count, 0, issue * count, busy))

    def _elements(self, op: cores.GatherOp | cores.ScatterOp) -> None:
        found = element_runs(op, self._symbols(op.symbols))
        lanes = prod(op.lanes)
        gathers = isinstance(op, cores.GatherOp)
        each = _page_bytes(op.queue) // (TILE * TILE)
        size = max(1, round(each * found.elements / max(1, found.runs)))
        in_dram = array_holders(op.array, self._grid).in_dram
        kinds = (DRAM_READ, DRAM_WRITE) if in_dram else (CORE_READ, CORE_WRITE)
        kind = kinds[0] if gathers else kinds[1]
        port = round(self._grid.occupancy_cycles(kind, size, found.runs)) if found.runs else 0
        self.port = max(self.port, self.time + round(self._grid.issue_cycles)) + port
        lands = max(self.port, self.time) + round(self._grid.latency_cycles(kind))
        if gathers:
            busy = round(self._grid.element_cycles * lanes)
            self.time = max(self.time, lands) + busy
        else:
            busy = round(self._grid.issue_cycles * found.runs)
            self.time += busy
            self.written = max(self.written, lands)
        bytes = size * found.runs
        self._note(op, Amount(bytes, bytes if in_dram else 0, found.runs, 0, busy, port))

    def _to_cores(self, op: cores.MulticastOp | cores.SendOp, queue: SSAValue, others: int) -> None:
        if not others:
            return
        bytes, issue = op.pages * _page_bytes(queue), round(self._grid.issue_cycles)
        busy = round(self._grid.occupancy_cycles(CORE_WRITE, bytes))
        self.port = max(self.port, self.time + issue) + busy
        self.time += issue
        lands = self.port + round(self._grid.latency_cycles(CORE_WRITE) + self._hop_cycles())
        self.written = max(self.written, lands)
        self._note(op, Amount(bytes, 0, 1, bytes * others, issue, busy))

    def _hop_cycles(self) -> float:
        """To the other end of the program's cores."""
        return (sum(self._program.shape) - 2) * self._grid.hop_cycles


def mover_path(
    program: cores.ProgramOp, thread: cores.ThreadOp, here: Place, grid: CoreGrid, clipped: frozenset[Operation]
) -> Path:
    """A mover, where nothing else is under way. `clipped`: operations that move less in some trips than in others.

    Raises:
        TooLongError: it has too many trips that differ.
    """
    projection = Projection(thread, lambda op: isinstance(op, cores.CoreOp))
    for op in thread.body.walk():
        if op in clipped:
            projection.differs |= {loop for loop in loops_of(op) if isinstance(loop, tile.ForOp)}
    walk = _MoverWalk(projection, program, here, grid)
    walk.run()
    counts = _of_operations(walk.counts)
    amounts = {op: Amount(*(walk.counts[name, op] for name in _AMOUNTS)) for op in counts}
    return Path(walk.cycles, counts, amounts=amounts)


def _page_bytes(queue: SSAValue) -> int:
    return cores.queue_type(queue).tile_format.page_bytes

"""The threads of a program: the movers of each core, and unpack, math and pack of its compute kernel.

Events are ordered by vector clocks. Each thread has a column, and so has what each mover began and has not waited for:
reads, writes to arrays, writes to cores, and numbers of semaphores that are multicast. An event at clock c of a column
is known to a thread whose vector has c or more there. Its own events a thread knows; its clock moves on when it signals
others what it knows.

All cores are known to have received a write to other cores after a barrier. One of them is known to have received it by
a semaphore update that arrives there later: the core records which threads knew of the write, and when. A thread that
observes this update knows of the write, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import field
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright.dialects.cores import COMPUTE
from tilewright.records import dataclass
from tilewright.semantics.cores.tile_formats import Array

if TYPE_CHECKING:
    from tilewright.semantics.cores.queues import Queue
    from tilewright.semantics.cores.registers import Registers, Sources
    from tilewright.semantics.cores.semaphores import Semaphore
    from tilewright.semantics.cores.world import World

UNPACK, MATH, PACK = "unpack", "math", "pack"
PARTS = (UNPACK, MATH, PACK)
# Columns of a mover behind its own.
READS, ARRAY_WRITES, CORE_WRITES, NUMBERS = 1, 2, 3, 4
MOVER_COLUMNS = 5

# Of writes to other cores so many are told apart.
_MOST_WRITES = 64

# The column of a mover's writes to cores, and a clock.
Written = tuple[int, int]
# What an agent knows at some time.
Knowledge = Array
# An operation at work: it gives whether the agent has to wait, and then do it again.
Action = Callable[..., bool | None]


class Stamp(NamedTuple):
    """When something was done, and by what."""

    column: int
    clock: int
    agent: Agent
    op: Operation


class Resource(Protocol):
    """A resource that a thread may wait for."""

    def wait_text(self, agent: Agent) -> str:
        """The amount that the thread waits for, and the present one."""
        ...

    def providers(self, agent: Agent) -> Sequence[Agent]:
        """The threads that could signal it."""
        ...

    def starved_kind(self, agent: Agent) -> str:
        """The kind of mistake where none of them does."""
        ...


@dataclass(eq=False, slots=True)
class Unit:
    """A unit of a thread. `state`: what it is configured for, None before; `is_new`: whether it was not used since.
    `used`: the state in which it was last used. `configures`: how often it was configured; `changes`: how often it had
    to be."""

    name: str
    state: str | None = None
    is_new: bool = False
    used: str | None = None
    configures: int = 0
    changes: int = 0


# Of agents and cores there are hundreds in each run: to call `dict[str, Unit]` takes five times as long as `{}`.


@dataclass(eq=False)
class Agent:
    """One thread of a core. `time`: up to where it has come, in cycles; `busy`: how many of these it worked. `waiting`:
    what it waits for, and in which operation."""

    world: World
    core: Core
    role: str
    column: int
    vector: Knowledge
    clock: int = 1
    time: float = 0.0
    busy: float = 0.0
    ended: bool = False
    waiting: tuple[Resource, Operation] | None = None
    waiting_since: float = 0.0
    units: dict[str, Unit] = field(default_factory=lambda: {})
    generator: GeneratorType[bool, None, None] | None = None
    trip_names: dict[Operation, tuple[str, ...]] = field(default_factory=lambda: {})

    @property
    def thread(self) -> str:
        return COMPUTE if self.role in PARTS else self.role

    @property
    def name(self) -> str:
        part = f" ({self.role})" if self.role in PARTS else ""
        return f"{self.thread}{part} of core {self.core.position}"

    def queue(self, value: SSAValue) -> Queue:
        return self.core.queues[self.world.queue_numbers[value]]

    def semaphore(self, value: SSAValue) -> Semaphore:
        return self.core.semaphores[self.world.semaphore_numbers[value]]

    def unit(self, name: str) -> Unit:
        """One of its units."""
        found = self.units.get(name)
        if found is None:
            found = self.units[name] = Unit(name)
        return found

    def trips_of(self, op: Operation) -> tuple[int, ...]:
        """Which trip of each loop around an operation the thread is in."""
        names = self.trip_names.get(op)
        frame: FrameType | None = None if self.generator is None else self.generator.gi_frame
        if not names or frame is None:
            return ()
        values: dict[str, Any] = frame.f_locals
        return tuple(int(values[name]) for name in names if name in values)

    # ---- time -------------------------------------------------------------------------------------------------------

    def spend(self, cycles: float) -> None:
        """Work for some time."""
        order = self.world.order
        if order is not None:
            cycles *= some_factor(order)
        self.busy += cycles
        self.time += cycles

    def wait_for(self, resource: Resource, op: Operation) -> bool:
        """Stop until another thread wakes this one."""
        self.waiting = (resource, op)
        self.waiting_since = self.time
        return True

    def wake(self, time: float) -> None:
        """Continue a waiting thread."""
        if self.waiting is not None:
            self.waiting = None
            if time > self.time:
                self.time = time
            self.world.schedule(self)

    def forget(self) -> None:
        """Drop what leads back to the thread."""
        self.generator = None

    # ---- what it knows ----------------------------------------------------------------------------------------------

    def stamp(self, op: Operation) -> Stamp:
        """A stamp of the thread's current operation."""
        return Stamp(self.column, self.clock, self, op)

    def tell(self) -> Knowledge:
        """A snapshot of its clocks, including its own events so far; its own clock advances."""
        told = self.vector.copy()
        self.clock += 1
        self.vector[self.column] = self.clock
        return told

    def learn(self, told: Knowledge) -> None:
        np.maximum(self.vector, told, out=self.vector)

    def knows(self, stamp: Stamp) -> bool:
        return self.vector.item(stamp.column) >= stamp.clock


def some_factor(order: random.Random) -> float:
    """By how much something takes longer, or less long, than it should: from a fifth to four times."""
    return 0.2 * 20.0 ** order.random()


@dataclass(eq=False)
class Mover(Agent):
    """A thread that moves data. `begun`: the clock of each of its columns; `lands`: when all reads, writes to arrays
    and writes to cores have. `arrivals` and `sent`: for each core that it wrote to, when the last write arrives, and
    its clock; `destinations`: for the clocks of its last writes to cores, to which; `multicasts`: stamps of the last
    multicast of pages and of a semaphore."""

    noc: int = 0
    begun: list[int] = field(default_factory=lambda: [0] * MOVER_COLUMNS)
    lands: list[float] = field(default_factory=lambda: [0.0] * MOVER_COLUMNS)
    arrivals: dict[Core, float] = field(default_factory=lambda: {})
    sent: dict[Core, int] = field(default_factory=lambda: {})
    destinations: dict[int, list[Core]] = field(default_factory=lambda: {})
    multicasts: dict[int, Stamp] = field(default_factory=lambda: {})

    def forget(self) -> None:
        super().forget()
        self.multicasts.clear()

    def begin(self, column: int, op: Operation) -> Stamp:
        """Something is under way."""
        self.begun[column] += 1
        return Stamp(self.column + column, self.begun[column], self, op)

    def finish(self, column: int) -> None:
        """All that is under way has ended, and the thread knows."""
        self.vector[self.column + column] = self.begun[column]
        self.time = max(self.time, self.lands[column])

    def has_finished(self, column: int) -> bool:
        return self.vector.item(self.column + column) >= self.begun[column]

    def begin_to_cores(self, op: Operation, cores: list[Core]) -> Stamp:
        """Pages are under way to other cores."""
        stamp = self.begin(CORE_WRITES, op)
        clock = self.begun[CORE_WRITES]
        self.destinations[clock] = cores
        self.destinations.pop(clock - _MOST_WRITES, None)
        for core in cores:
            self.sent[core] = clock
        return stamp

    def written_to(self, core: Core) -> Written:
        """The writes to a core that precede a semaphore value sent to it."""
        return self.column + CORE_WRITES, self.sent.get(core, 0)

    def has_come(self, agent: Agent, stamp: Stamp) -> bool:
        """Whether a thread knows that what this one wrote to other cores has come to all of them."""
        if stamp.column != self.column + CORE_WRITES:
            return False
        cores = self.destinations.get(stamp.clock)
        return cores is not None and all(core.has_come(agent, stamp) for core in cores)


@dataclass(eq=False)
class Core:
    """One core: where it is, and what it has. `ports`: until when its end of each network is busy; `arriving`: the same
    for what others write to it. `came`: for the column of each mover that wrote to it up to which clock that has come,
    and who knew it when."""

    row: int
    column: int
    queues: list[Queue] = field(default_factory=lambda: [])
    semaphores: list[Semaphore] = field(default_factory=lambda: [])
    agents: dict[str, Agent] = field(default_factory=lambda: {})
    ports: list[float] = field(default_factory=lambda: [])
    arriving: list[float] = field(default_factory=lambda: [])
    registers: Registers | None = None
    sources: Sources | None = None
    came: dict[int, list[tuple[int, Stamp]]] = field(default_factory=lambda: {})

    def note_came(self, written: Written, stamp: Stamp) -> None:
        column, clock = written
        known = self.came.setdefault(column, [])
        if clock and (not known or known[-1][0] < clock or known[-1][1].column != stamp.column):
            known.append((clock, stamp))
            if len(known) > _MOST_WRITES:
                del known[0]

    def has_come(self, agent: Agent, stamp: Stamp) -> bool:
        """Whether a thread knows that what a mover wrote to this core at a clock of its own has come."""
        known = self.came.get(stamp.column, ())
        return any(clock >= stamp.clock and agent.knows(who) for clock, who in reversed(known))

    @property
    def position(self) -> tuple[int, int]:
        return self.row, self.column

"""Static checks: hazards that do not depend on values or order, found without running the program.

Limits of the machine are looked up. All else is followed thread by thread, on one core of each group of equal ones: how
many pages are pushed at one end of a queue and popped at the other, which thread owns the tile registers, in which
state units are, which data goes to which core, and how often a semaphore is incremented and waited for. Paths that are
too long to follow, and those that depend on other cores, are left to the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from xdsl.ir import Operation, SSAValue

from tilewright.dialects import cores
from tilewright.machines.core_grid import CoreGrid
from tilewright.machines.machine import Machine
from tilewright.records import dataclass
from tilewright.semantics.cores.memory_plan import addresses_of
from tilewright.semantics.cores.reports import name_of
from tilewright.semantics.cores.static_walk import Place, Projection, TooLongError, Walk, cores_alike, static_error
from tilewright.semantics.hazards import CoreHazard

_INTEGERS = ("i32", "u32")
_FILLS, _EMPTIES = (cores.ReserveOp, cores.PushOp), (cores.WaitOp, cores.PopOp)


def check_program(program: cores.ProgramOp, machine: Machine) -> None:
    """Look for what a program must not do on a machine.

    Raises:
        CoreHazard: it does.
    """
    grid = machine.core_grid
    _check_size(program, grid)
    addresses_of(program, grid)
    _check_registers(program, grid)
    alike = cores_alike(program)
    for queue in program.queues:
        _check_queue(program, queue, alike)
    for thread in program.threads:
        if thread.computes:
            _follow(program, thread, alike, _REGISTER_OPS, _RegistersWalk)
            _follow(program, thread, alike, _SUM_OPS, _SumsWalk)
            _follow(program, thread, alike, _UNIT_OPS, _UnitsWalk)
    _check_movers(program, alike)


# ---- limits ---------------------------------------------------------------------------------------------------------


def _check_size(program: cores.ProgramOp, grid: CoreGrid) -> None:
    rows, columns = program.shape
    if rows > grid.rows or columns > grid.columns:
        text = f"{rows} x {columns} cores, of {grid.rows} x {grid.columns}"
        raise static_error("too-many-cores", text, program)


def _check_registers(program: cores.ProgramOp, grid: CoreGrid) -> None:
    """Registers that operations name are some of a half, and those of 16 bits hold no integers of 32."""
    is_wide = program.wide
    capacity = grid.half_registers(is_wide)
    for op in program.body.walk():
        highest = _highest_register(op)
        if highest >= capacity:
            text = f"uses registers up to {highest}, of a half with {capacity}"
            raise static_error("registers-overflow", text, op)
        if not is_wide and _has_wide_integers(op):
            raise static_error("registers-too-narrow", "integers of 32 bits, in registers of 16", op)


def _highest_register(op: Operation) -> int:
    match op:
        case cores.MapOp():
            count = len(op.slots)
            return max([op.slots.stop, *(number + count for number in op.operand_numbers if number >= 0)]) - 1
        case cores.CastOp():
            return max(op.slots.stop, op.source + len(op.slots)) - 1
        case cores.RegisterOp() | cores.PackingOp():
            return op.slots.stop - 1
        case _:
            return -1


def _has_wide_integers(op: Operation) -> bool:
    match op:
        case cores.CopyOp() | cores.TilizeOp():
            return cores.queue_type(op.queue).format.data in _INTEGERS
        case cores.MapOp() | cores.FoldOp():
            return op.dtype in _INTEGERS
        case cores.CastOp():
            return not {*_INTEGERS}.isdisjoint((op.from_type, op.to_type))
        case _:
            return False


# ---- queues ---------------------------------------------------------------------------------------------------------


class _QueueWalk(Walk):
    """One end of a queue. `claimed`: pages that were reserved, or waited for; `position`: where in its memory it is."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place) -> None:
        super().__init__(projection, program, here)
        self.claimed = self.position = 0
        self.last_claim: Operation = projection.thread

    def state(self) -> Hashable:
        return self.claimed, self.position

    def visit(self, op: Operation) -> None:
        assert isinstance(op, cores.QueueStepOp)
        if isinstance(op, cores.ReserveOp | cores.WaitOp):
            self.claimed = max(self.claimed, op.count)
            self.last_claim = op
            return
        if op.count > self.claimed:
            is_push = isinstance(op, cores.PushOp)
            kind, what = ("push-without-reserve", "reserved") if is_push else ("pop-without-wait", "waited for")
            raise self.error(kind, f"moves {op.count} pages of a queue, where {self.claimed} are {what}", op)
        capacity = cores.queue_type(op.queue).pages
        if self.position + op.count > capacity:
            raise self.error(
                "block-around-the-end",
                f"{op.count} pages from page {self.position} on of the {capacity} of a queue go around its end; its "
                "capacity has to be a multiple of what its steps move",
                op,
            )
        self.claimed -= op.count
        self.position = (self.position + op.count) % capacity
        self.counts["pages"] += op.count


def _check_queue(program: cores.ProgramOp, queue: cores.QueueOp, alike: Sequence[Sequence[Place]]) -> None:
    """On each core as many pages are pushed as are popped, all of which were reserved and waited for."""
    name = name_of(queue.result, program.queues.index(queue))
    users = [use.operation for use in queue.result.uses if isinstance(use.operation, cores.QueueStepOp)]
    ends = [_projected(users, kinds) for kinds in (_FILLS, _EMPTIES)]
    for places in alike:
        here, moved = places[0], [0, 0]
        try:
            for i, projection in enumerate(ends):
                if projection is not None:
                    moved[i] = _pages_moved(program, projection, here, name)
        except TooLongError:
            continue
        pushed, popped = moved
        if pushed != popped:
            raise static_error(
                "cadence-mismatch",
                f"queue {name}: {_moves(ends[0], 'pushes')} {pushed} pages, {_moves(ends[1], 'pops')} {popped}",
                queue,
                here,
            )


def _projected(users: Sequence[Operation], kinds: tuple[type[Operation], ...]) -> Projection | None:
    """The thread that is at one end of a queue, with its steps there alone."""
    chosen = {user for user in users if isinstance(user, kinds)}
    if not chosen:
        return None
    return Projection(cores.thread_of(next(iter(chosen))), lambda op: op in chosen)


def _moves(projection: Projection | None, what: str) -> str:
    return f"no thread {what}" if projection is None else f"{projection.thread.role} {what}"


def _pages_moved(program: cores.ProgramOp, projection: Projection, here: Place, name: str) -> int:
    walk = _QueueWalk(projection, program, here)
    walk.run()
    if walk.claimed:
        fills = isinstance(walk.last_claim, cores.ReserveOp)
        kind, what = ("reserve-without-push", "reserved") if fills else ("wait-without-pop", "waited for")
        raise walk.error(kind, f"{walk.claimed} pages of queue {name} are still {what} at the end", walk.last_claim)
    return walk.counts["pages"]


# ---- the thread that computes ---------------------------------------------------------------------------------------


def _follow(
    program: cores.ProgramOp,
    thread: cores.ThreadOp,
    alike: Sequence[Sequence[Place]],
    kinds: tuple[type[Operation], ...],
    walk: type[_RegistersWalk | _SumsWalk | _UnitsWalk],
) -> None:
    projection = Projection(thread, lambda op: isinstance(op, kinds))
    for places in alike:
        made = walk(projection, program, places[0])
        try:
            made.run()
        except TooLongError:
            continue
        made.check_end(thread)


_REGISTER_OPS = (cores.RegistersOp, cores.RegisterOp, cores.PackingOp)


class _RegistersWalk(Walk):
    """Whether math and pack have registers."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place) -> None:
        super().__init__(projection, program, here)
        self.acquired = self.taken = False

    def state(self) -> Hashable:
        return self.acquired, self.taken

    def visit(self, op: Operation) -> None:
        match op:
            case cores.RegistersOp():
                self._step(op, op.step)
            case cores.PackingOp() if not self.taken:
                raise self.error("registers-not-waited", "packs registers that it has not waited for", op)
            case cores.RegisterOp() if not self.acquired:
                text = "computes in registers that are not acquired, or were committed"
                raise self.error("registers-not-acquired", text, op)
            case _:
                pass

    def _step(self, op: Operation, step: str) -> None:
        match step:
            case cores.ACQUIRE if self.acquired:
                raise self.error("registers-acquired-twice", "acquires registers, and has some", op)
            case cores.COMMIT if not self.acquired:
                raise self.error("registers-not-acquired", "commits registers that it has not acquired", op)
            case cores.WAIT if self.taken:
                raise self.error("registers-not-released", "waits for registers, and has not released some", op)
            case cores.RELEASE if not self.taken:
                raise self.error("registers-not-waited", "releases registers that it has not waited for", op)
            case cores.ACQUIRE | cores.COMMIT:
                self.acquired = step == cores.ACQUIRE
            case _:
                self.taken = step == cores.WAIT
        self.counts[step] += 1

    def check_end(self, thread: cores.ThreadOp) -> None:
        committed, packed = self.counts[cores.COMMIT], self.counts[cores.WAIT]
        if self.acquired or packed > committed:
            text = f"of {self.counts[cores.ACQUIRE]} times that registers are acquired, {committed} are committed, and"
            raise self.error("registers-not-committed", f"{text} {packed} waited for", thread)
        if self.taken or packed < committed:
            text = f"of {committed} times that registers are committed, {self.counts[cores.RELEASE]} are released"
            raise self.error("registers-not-released", text, thread)


_SUM_OPS = (cores.AccumulateOp, cores.PackingOp)


class _SumsWalk(Walk):
    """Whether pack adds to what pages hold."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place) -> None:
        super().__init__(projection, program, here)
        self.adds = False

    def state(self) -> Hashable:
        return self.adds

    def visit(self, op: Operation) -> None:
        match op:
            case cores.AccumulateOp():
                self.adds = self.given(op)[0] != 0
            case cores.PackingOp() if self.adds and cores.queue_type(op.queue).tile_format.exponent_bytes:
                # A sum may need another exponent than those that its page has.
                text = f"packs to pages of {cores.queue_type(op.queue).format.data}, and adds to what they hold"
                raise self.error("accumulate-onto-blocks", text, op)
            case _:
                pass

    def check_end(self, thread: cores.ThreadOp) -> None:
        if self.adds:
            text = "pack adds to pages at the end, and would in the next program"
            raise self.error("accumulate-left-on", text, thread)


_UNIT_OPS = (cores.ConfigureOp, cores.RegisterOp, cores.PackingOp)


class _UnitsWalk(Walk):
    """In which state units are."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place) -> None:
        super().__init__(projection, program, here)
        self.states: dict[str, str] = {}

    def state(self) -> Hashable:
        return tuple(sorted(self.states.items()))

    def visit(self, op: Operation) -> None:
        if isinstance(op, cores.ConfigureOp):
            self.states[op.unit] = op.state
        else:
            self._check_states(op)

    def _check_states(self, op: Operation) -> None:
        for unit, state in cores.states_of(op).items():
            found = self.states.get(unit)
            if found == state:
                continue
            kind = "unit-not-configured" if found is None else "unit-configured-otherwise"
            how = "is not configured" if found is None else f"is for `{found}`"
            raise self.error(kind, f"unit {unit} has to be configured for `{state}`, and {how}", op)

    def check_end(self, thread: cores.ThreadOp) -> None:
        """Units may be left in any state: the next program configures them."""


# ---- movers and semaphores ------------------------------------------------------------------------------------------


@dataclass
class _Traffic:
    """Increments of a core's semaphore, and the values that are waited for: `increments`, the sum of what is added;
    `multicasts` and `waits`, how often each number; `sets`, how often it is set without a wait before. `is_odd`: it is
    used in ways that are not counted here."""

    increments: int = 0
    sets: int = 0
    multicasts: Counter[int] = field(default_factory=Counter[int])
    waits: Counter[int] = field(default_factory=Counter[int])
    is_odd: bool = False

    @property
    def is_balanced(self) -> bool:
        """Whether what comes is what is waited for, each time from the number in the beginning on, which is 0."""
        if self.is_odd or self.sets or (self.increments and self.multicasts):
            return True
        if self.multicasts:
            # Of numbers that follow each other some may not be waited for.
            return self.multicasts == self.waits or (len(self.multicasts) > 1 and self.waits <= self.multicasts)
        return self.increments == sum(number * count for number, count in self.waits.items())

    def __str__(self) -> str:
        came = [f"{self.increments} in all"] if self.increments else []
        came += [f"{number}, {count} times" for number, count in sorted(self.multicasts.items())]
        waits = [f"{number}, {count} times" for number, count in sorted(self.waits.items())]
        return f"{' and '.join(came) or 'nothing'} comes to it, and {' and '.join(waits) or 'nothing'} is waited for"


class _Use(NamedTuple):
    """A mover's operation on the semaphore of a core (by default its own): `increment`, `multicast`, `set` or
    `wait`."""

    what: str
    semaphore: SSAValue
    core: Place | None
    number: int = 0


class _UnlikeError(Exception):
    """Movers of cores that go through the same operations do not do the same."""


# For an operation its semaphore, its number, and whether it waits for a number or more.
_UsedSemaphores = dict[Operation, tuple[SSAValue, int, bool]]


class _MoverWalk(Walk):
    """Messages of the movers of some cores, which run the same operations, to other cores. `under_way`: multicasts of
    pages, and of numbers, that may not have come; `values`: what each set its semaphores to; `waited`: what it waited
    for, before it states that it has seen it."""

    def __init__(
        self,
        projection: Projection,
        program: cores.ProgramOp,
        places: Sequence[Place],
        initial: dict[SSAValue, int],
        used: _UsedSemaphores,
    ) -> None:
        super().__init__(projection, program, places[0])
        self.places = places
        self.rows, self.columns = program.shape
        self.under_way: frozenset[type[Operation]] = frozenset()
        self.values = dict(initial)
        self.waited: dict[SSAValue, int] = {}
        self.odd: set[SSAValue] = set()
        self._used = used
        self._coordinates: dict[SSAValue, tuple[int, ...]] = dict(
            zip(program.body.block.args, zip(*places, strict=True), strict=True)
        )

    def state(self) -> Hashable:
        return self.under_way, tuple(self.values.values()), frozenset(self.waited.items())

    def visit(self, op: Operation) -> None:
        _MOVER_ACTS[type(op)](self, op)

    def wait_for_pages(self, _: Operation) -> None:
        """A wait may be for an answer to a multicast."""
        self.under_way = frozenset()

    def barrier(self, op: cores.BarrierOp) -> None:
        if op.of == cores.WRITE:
            self.under_way = frozenset()

    def wait(self, op: cores.SemaphoreWaitOp) -> None:
        self.under_way = frozenset()
        semaphore, value, is_odd = self._used[op]
        if is_odd or semaphore in self.waited:
            self.odd.add(semaphore)
        self.waited[semaphore] = value

    def set(self, op: cores.SemaphoreSetOp) -> None:
        semaphore, value, _ = self._used[op]
        number = self.waited.pop(semaphore, None)
        self.values[semaphore] = value
        if number is None:
            self.counts[_Use("set", semaphore, None)] += 1
        elif value == 0:
            self.counts[_Use("wait", semaphore, None, number)] += 1
        else:
            self.odd.add(semaphore)

    def increment(self, op: cores.SemaphoreIncrementOp) -> None:
        semaphore, value, _ = self._used[op]
        for here, (row, column) in self._given_by_place(op):
            if (row, column) == here:
                raise self.error("semaphore-of-own-core", "a core sends a number to itself, by the network", op)
            self._keep_inside(op, (row, column))
            self.counts[_Use("increment", semaphore, (row, column))] += value

    def send(self, op: cores.SendOp) -> None:
        for _, (row, column) in self._given_by_place(op):
            self._keep_inside(op, (row, column))

    def multicast_number(self, op: cores.SemaphoreMulticastOp) -> None:
        semaphore, _, _ = self._used[op]
        for others in self.multicast(op):
            for place in others:
                self.counts[_Use("multicast", semaphore, place, self.values[semaphore])] += 1

    def multicast(self, op: cores.MulticastOp | cores.SemaphoreMulticastOp) -> list[list[Place]]:
        """For each core the other cores of its rectangle."""
        found = [self._others(op, here, rectangle) for here, rectangle in self._given_by_place(op)]
        sends = any(found)
        if sends and type(op) in self.under_way:
            text = "begins while one before it is under way: no barrier of writes is between, and no answer to it"
            raise self.error("multicasts-in-flight", text, op)
        if sends and not all(found):
            raise _UnlikeError
        if sends:
            self.under_way |= {type(op)}
        return found

    def _others(self, op: Operation, here: Place, rectangle: tuple[int, ...]) -> list[Place]:
        top, left, bottom, right = rectangle
        row, column = here
        if not (top <= row <= bottom and left <= column <= right):
            text = f"is none of the rectangle {(top, left)} to {(bottom, right)} that it sends to"
            raise self.error("sender-outside-rectangle", text, op)
        for corner in ((top, left), (bottom, right)):
            self._keep_inside(op, corner)
        return [(r, c) for r in range(top, bottom + 1) for c in range(left, right + 1) if (r, c) != here]

    def _given_by_place(self, op: Operation) -> list[tuple[Place, tuple[int, ...]]]:
        """Each core, and the numbers that an operation gets there."""
        function, symbols = self.projection.maps[op]
        count = len(self.places)
        given = [self._coordinates.get(symbol) or [self._numbers[symbol]] * count for symbol in symbols]
        numbers = [function(*each) for each in zip(*given, strict=True)] if given else [function()] * count
        return [*zip(self.places, numbers, strict=True)]

    def _keep_inside(self, op: Operation, place: Place) -> None:
        if not (0 <= place[0] < self.rows and 0 <= place[1] < self.columns):
            raise self.error("destination-outside", f"there is no core {place} in the program", op)


# What a mover does, by the class of the operation, of which each takes one.
_MOVER_ACTS: dict[type[Operation], Callable[[_MoverWalk, Any], object]] = {
    cores.ReserveOp: _MoverWalk.wait_for_pages,
    cores.WaitOp: _MoverWalk.wait_for_pages,
    cores.BarrierOp: _MoverWalk.barrier,
    cores.SemaphoreWaitOp: _MoverWalk.wait,
    cores.SemaphoreSetOp: _MoverWalk.set,
    cores.SemaphoreIncrementOp: _MoverWalk.increment,
    cores.SemaphoreMulticastOp: _MoverWalk.multicast_number,
    cores.MulticastOp: _MoverWalk.multicast,
    cores.SendOp: _MoverWalk.send,
}


def _used_semaphores(projections: Sequence[Projection]) -> _UsedSemaphores:
    found: _UsedSemaphores = {}
    for op in (op for projection in projections for kept in projection.kept.values() for op in kept):
        match op:
            case cores.SemaphoreWaitOp():
                found[op] = op.semaphore, op.value, op.at_least
            case cores.SemaphoreSetOp() | cores.SemaphoreIncrementOp():
                found[op] = op.semaphore, op.value, False
            case cores.SemaphoreMulticastOp():
                found[op] = op.semaphore, 0, False
            case _:
                pass
    return found


def _check_movers(program: cores.ProgramOp, alike: Sequence[Sequence[Place]]) -> None:
    """Check that movers send to existing cores only, and that the increments of each semaphore match its waits."""
    movers = [thread for thread in program.threads if not thread.computes]
    projections = [Projection(thread, lambda op: type(op) in _MOVER_ACTS) for thread in movers]
    if not any(projection.kept[projection.thread.body.block] for projection in projections):
        return
    rows, columns = program.shape
    places = [(row, column) for row in range(rows) for column in range(columns)]
    try:
        traffic = _traffic_of(program, projections, alike)
    except (CoreHazard, TooLongError, _UnlikeError):
        # Core by core, the first thing that is wrong is said of the first core where it is.
        try:
            traffic = _traffic_of(program, projections, [[place] for place in places])
        except TooLongError:
            return
    for number, semaphore in enumerate(program.semaphores):
        for place in places:
            found = traffic.get((semaphore.result, place))
            if found is not None and not found.is_balanced:
                text = f"semaphore {name_of(semaphore.result, number)}: {found}"
                raise static_error("semaphore-unbalanced", text, semaphore, place)


def _traffic_of(
    program: cores.ProgramOp, projections: Sequence[Projection], alike: Sequence[Sequence[Place]]
) -> dict[tuple[SSAValue, Place], _Traffic]:
    """Increments and waits of the semaphores of each core."""
    traffic: dict[tuple[SSAValue, Place], _Traffic] = {}
    initial: dict[SSAValue, int] = {each.result: each.initial for each in program.semaphores}
    used = _used_semaphores(projections)
    for places in alike:
        for projection in projections:
            walk = _MoverWalk(projection, program, places, initial, used)
            walk.run()
            _count(walk, traffic, initial)
    return traffic


def _count(walk: _MoverWalk, traffic: dict[tuple[SSAValue, Place], _Traffic], initial: Mapping[SSAValue, int]) -> None:
    """Add what movers did."""

    def of(semaphore: SSAValue, place: Place) -> _Traffic:
        found = traffic.get((semaphore, place))
        if found is None:
            found = traffic[semaphore, place] = _Traffic(is_odd=initial[semaphore] != 0)
        return found

    for semaphore in walk.odd | walk.waited.keys():
        for place in walk.places:
            of(semaphore, place).is_odd = True
    for key, count in walk.counts.items():
        assert isinstance(key, _Use)
        for place in walk.places if key.core is None else (key.core,):
            _add(of(key.semaphore, place), key, count)


def _add(traffic: _Traffic, use: _Use, count: int) -> None:
    match use.what:
        case "increment":
            traffic.increments += count
        case "multicast":
            traffic.multicasts[use.number] += count
        case "set":
            traffic.sets += count
        case _:
            traffic.waits[use.number] += count

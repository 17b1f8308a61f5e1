"""Steps of movers on whole pages and on semaphores.

Bytes are moved when a transfer begins; when they may be used is a matter of clocks, by which whoever touches them
before is found, and of the time at which a barrier ends and a semaphore's number comes. On one network, a number that a
thread sends to a core comes there after what it wrote to that core before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from xdsl.ir import Operation

from tilewright.dialects import cores, tile
from tilewright.semantics.cores.agents import (
    ARRAY_WRITES,
    CORE_WRITES,
    NUMBERS,
    READS,
    Action,
    Agent,
    Core,
    Mover,
)
from tilewright.semantics.cores.device_array import poison_page
from tilewright.semantics.cores.expressions import Argument, numbers_of, places_from, python
from tilewright.semantics.cores.holders import Holders, Shares
from tilewright.semantics.cores.queues import Pages, at, set_at, shifted
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.semaphores import Message, Semaphore
from tilewright.semantics.cores.steps import Names, Step

# How many moves of one operation are kept, by where they are.
_MOST_KEPT = 1 << 16


def mover(agent: Agent) -> Mover:
    assert isinstance(agent, Mover)
    return agent


# ---- pages of arrays ------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """One execution of an operation: pages of the array, those of the queue that they go with, and pages of the queue
    that go with none. `shares`: how many pages of the array are in which bank of DRAM, or core."""

    pages: Pages
    places: Pages
    missing: list[int]
    shares: Shares

    @property
    def all_places(self) -> Pages:
        return self.places if not self.missing else sorted({*self.places, *self.missing})


class Moves:
    """The moves of an operation on one array. If all coordinates are sums of a base and constants, so are pages of the
    array and positions; else they are computed once for each position of the operation's window."""

    def __init__(self, op: cores.PagesOp, names: Names) -> None:
        map, symbols = op.map, names(op.symbols)
        self._coordinates = [numbers_of(map, i, op.shape, symbols) for i in range(len(map.results))]
        self._at = numbers_of(op.at, 0, op.shape, symbols)
        self._grid = cores.page_grid(tile.ref_type(op.array).shape)
        self._known: dict[tuple[Argument | tuple[int, ...], ...], Move] = {}
        self.argument = ", ".join(each.argument for each in (*self._coordinates, self._at))
        # For each coordinate its lowest and highest offset, the array's size and its step in pages.
        self._bounds: list[tuple[int, int, int, int]] | None = None
        known = [each.offsets for each in self._coordinates if each.offsets is not None]
        if self._at.offsets is not None and len(known) == len(self._coordinates):
            steps = [prod(self._grid[i + 1 :]) for i in range(len(self._grid))]
            rows = zip(known, self._grid, steps, strict=True)
            self._bounds = [(min(each), max(each), size, step) for each, size, step in rows]
            self._offsets = _run([self._page(point) for point in zip(*known, strict=True)])
            self._places = _run(self._at.offsets)
        self._shares: dict[int, Shares] = {}

    def move(self, holders: Holders, given: tuple[Argument, ...]) -> Move:
        found = self._inner(holders, given)
        if found is not None:
            return found
        key = tuple(each if isinstance(each, int) else tuple(each) for each in given)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST_KEPT:
                self._known.clear()
            found = self._known[key] = self._at_edge(holders, given)
        return found

    def _page(self, coordinates: Sequence[int]) -> int:
        page = 0
        for coordinate, size in zip(coordinates, self._grid, strict=True):
            page = page * size + coordinate
        return page

    def _inner(self, holders: Holders, given: tuple[Argument, ...]) -> Move | None:
        """The move where all pages are inside of the array, by sums alone; else None."""
        if self._bounds is None:
            return None
        page = 0
        for base, (low, high, size, step) in zip(given, self._bounds, strict=False):
            assert isinstance(base, int)
            if base + low < 0 or base + high >= size:
                return None
            page += base * step
        at = given[-1]
        assert isinstance(at, int)
        first = holders.alike(page)
        shares = self._shares.get(first)
        if shares is None:
            shares = self._shares[first] = holders.shares(shifted(self._offsets, first))
        return Move(shifted(self._offsets, page), shifted(self._places, at), _NONE, shares)

    def _at_edge(self, holders: Holders, given: tuple[Argument, ...]) -> Move:
        coordinates = [numbers.all(argument) for numbers, argument in zip(self._coordinates, given, strict=False)]
        pages, places, missing = list[int](), list[int](), list[int]()
        for *point, place in zip(*coordinates, self._at.all(given[-1]), strict=True):
            if all(0 <= coordinate < size for coordinate, size in zip(point, self._grid, strict=True)):
                pages.append(self._page(point))
                places.append(place)
            else:
                missing.append(place)
        return Move(_run(pages), _run(places), missing, holders.shares(pages))


_NONE: list[int] = []


def _run(numbers: Sequence[int]) -> Pages:
    """Numbers as a range, where each is one more than that before it."""
    if not numbers:
        return numbers
    run = range(numbers[0], numbers[0] + len(numbers))
    return run if len(run) == 1 or [*run] == [*numbers] else numbers


def fetch_steps(op: cores.FetchOp, names: Names) -> list[Step]:
    moves, zeros = Moves(op, names), op.zeros
    array, value = op.array, op.queue

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[array], agent.queue(value)
        holders, checks, view = memory.holders, world.checks, queue.view
        page_bytes = queue.format.page_bytes

        def fetch(*given: Argument) -> None:
            move = moves.move(holders, given)
            queue.free_slots(agent, op, move.all_places)
            first = queue.back % queue.capacity
            if move.missing:
                absent = shifted(move.missing, first)
                if checks:
                    queue.note_writes(agent, absent, agent.stamp(op))
                if view is not None:
                    set_at(view, absent, 0 if zeros else poison_page(queue.format))
            if not move.pages:
                return
            slots = shifted(move.places, first)
            if checks:
                stamp = own.begin(READS, op)
                queue.note_writes(agent, slots, stamp)
                if memory.is_checked:
                    memory.note_reads(agent, move.pages, stamp)
            if view is not None:
                set_at(view, slots, at(memory.array.pages, move.pages))
            lands = world.transfer_with_array(own, memory, page_bytes, move.shares, True)
            own.lands[READS] = max(own.lands[READS], lands)

        return fetch

    return [Step(make, moves.argument)]


def put_steps(op: cores.PutOp, names: Names) -> list[Step]:
    moves, array, value = Moves(op, names), op.array, op.queue

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        memory, queue = world.arrays[array], agent.queue(value)
        holders, checks, view = memory.holders, world.checks, queue.view
        page_bytes = queue.format.page_bytes

        def put(*given: Argument) -> None:
            move = moves.move(holders, given)
            queue.full_slots(agent, op, move.all_places)
            if not move.pages:
                return
            slots = shifted(move.places, queue.front % queue.capacity)
            if checks:
                stamp = own.begin(ARRAY_WRITES, op)
                queue.note_reads(agent, slots, stamp)
                memory.note_writes(agent, move.pages, stamp)
            if view is not None:
                set_at(memory.array.pages, move.pages, at(view, slots))
            lands = world.transfer_with_array(own, memory, page_bytes, move.shares, False)
            own.lands[ARRAY_WRITES] = max(own.lands[ARRAY_WRITES], lands)

        return put

    return [Step(make, moves.argument)]


def barrier_steps(op: cores.BarrierOp) -> list[Step]:
    columns = (READS,) if op.of == cores.READ else (ARRAY_WRITES, CORE_WRITES, NUMBERS)

    def make(agent: Agent) -> Action:
        own = mover(agent)

        def barrier() -> None:
            for column in columns:
                own.finish(column)

        return barrier

    return [Step(make)]


# ---- pages of other cores -------------------------------------------------------------------------------------------


def multicast_steps(op: cores.MulticastOp, names: Names) -> list[Step]:
    symbols, value = names(op.symbols), op.queue
    count: int = op.pages
    places = places_from(op.at, range(count), symbols)
    rectangle = [python(each, (), symbols) for each in op.rectangle.results]

    def make(agent: Agent) -> Action:
        own, world, queue = mover(agent), agent.world, agent.queue(value)
        checks, number = world.checks, queue.number

        def multicast(given: Argument, *corners: int) -> None:
            others = cores_in(own, op, corners)
            slots = queue.free_slots(agent, op, places.pages(given))
            if not others:
                return
            if checks:
                _keep_apart(own, op, CORE_WRITES)
                stamp = own.begin_to_cores(op, others)
                queue.note_reads(agent, slots, stamp)
                own.multicasts[CORE_WRITES] = stamp
                for each in others:
                    there = each.queues[number]
                    there.check_reserved(agent, op, slots)
                    there.note_writes(agent, slots, stamp)
            if queue.view is not None:
                pages = at(queue.view, slots)
                for each in others:
                    view = each.queues[number].view
                    assert view is not None
                    set_at(view, slots, pages)
            _note_landing(own, world.transfer_to_cores(own, others, count * queue.format.page_bytes))

        return multicast

    return [Step(make, ", ".join([places.argument, *rectangle]))]


def send_steps(op: cores.SendOp, names: Names) -> list[Step]:
    symbols, values = names(op.symbols), (op.source, op.destination)
    count: int = op.pages
    read, written = (places_from(map, range(count), symbols) for map in (op.at, op.to))
    core = [python(each, (), symbols) for each in op.core.results]

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        source, destination = (agent.queue(value) for value in values)
        checks = world.checks

        def send(source_page: Argument, to: Argument, row: int, column: int) -> None:
            other = core_at(own, op, row, column)
            slots = source.full_slots(agent, op, read.pages(source_page))
            first = destination.back % destination.capacity
            there = other.queues[destination.number]
            target = [(first + page) % there.capacity for page in written.pages(to)]
            if checks:
                stamp = own.begin_to_cores(op, [other])
                source.note_reads(agent, slots, stamp)
                there.check_reserved(agent, op, target)
                there.note_writes(agent, target, stamp)
            if source.view is not None:
                assert there.view is not None
                there.view[target] = at(source.view, slots)
            _note_landing(own, world.transfer_to_cores(own, [other], count * source.format.page_bytes))

        return send

    return [Step(make, ", ".join([read.argument, written.argument, *core]))]


def _note_landing(own: Mover, lands: dict[Core, float]) -> None:
    """Pages are on their way to cores, to each up to some time."""
    for core, time in lands.items():
        own.arrivals[core] = max(own.arrivals.get(core, 0.0), time)
        own.lands[CORE_WRITES] = max(own.lands[CORE_WRITES], time)


def _keep_apart(own: Mover, op: Operation, column: int) -> None:
    """A mover has one multicast of a sort under way at a time."""
    last = own.multicasts.get(column)
    if last is not None and not own.knows(last) and not own.has_come(own, last):
        raise hazard(
            "multicasts-in-flight",
            f"begins while `{last.op.name}` is under way: no barrier of writes is between, and no answer to it",
            own,
            op,
        )


def core_at(own: Mover, op: Operation, row: int, column: int) -> Core:
    found = own.world.cores.get((row, column))
    if found is None:
        raise hazard("destination-outside", f"there is no core {(row, column)} in the program", own, op)
    return found


def cores_in(own: Mover, op: Operation, corners: Sequence[int]) -> list[Core]:
    """All other cores of a rectangle, which has to have the mover's own among them."""
    top, left, bottom, right = corners
    row, column = own.core.position
    if not (top <= row <= bottom and left <= column <= right):
        raise hazard(
            "sender-outside-rectangle",
            f"core {own.core.position} is none of the rectangle {(top, left)} to {(bottom, right)} that it sends to",
            own,
            op,
        )
    places = [(r, c) for r in range(top, bottom + 1) for c in range(left, right + 1)]
    return [core_at(own, op, r, c) for r, c in places if (r, c) != own.core.position]


# ---- semaphores -----------------------------------------------------------------------------------------------------


def semaphore_set_steps(op: cores.SemaphoreSetOp) -> list[Step]:
    changed, value = op.semaphore, op.value

    def make(agent: Agent) -> Action:
        return partial(agent.semaphore(changed).set, agent, op, value, agent.world.checks)

    return [Step(make)]


def semaphore_wait_steps(op: cores.SemaphoreWaitOp) -> list[Step]:
    awaited, value = op.semaphore, op.value
    at_least = op.at_least and op.at_least

    def make(agent: Agent) -> Action:
        return partial(agent.semaphore(awaited).wait, agent, op, value, at_least, agent.world.checks)

    return [Step(make, waits=True)]


def semaphore_increment_steps(op: cores.SemaphoreIncrementOp, names: Names) -> list[Step]:
    counted, value = op.semaphore, op.value
    core = [python(each, (), names(op.symbols)) for each in op.core.results]

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        number = agent.semaphore(counted).number

        def increment(row: int, column: int) -> None:
            other = core_at(own, op, row, column)
            semaphore = other.semaphores[number]
            message = _message(own, op, other)
            arrives = _arrival(own, other)
            own.spend(world.grid.issue_cycles)
            world.at(arrives, lambda: semaphore.arrive(message, value, False))

        return increment

    return [Step(make, ", ".join(core))]


def semaphore_multicast_steps(op: cores.SemaphoreMulticastOp, names: Names) -> list[Step]:
    rectangle, sent = [python(each, (), names(op.symbols)) for each in op.rectangle.results], op.semaphore

    def make(agent: Agent) -> Action:
        own, world = mover(agent), agent.world
        source = agent.semaphore(sent)
        number = source.number

        def multicast(*corners: int) -> None:
            others = cores_in(own, op, corners)
            if not others:
                return
            value = source.value
            if world.checks:
                _keep_apart(own, op, NUMBERS)
                reads = own.begin(NUMBERS, op)
                own.multicasts[NUMBERS] = source.reads[reads.column] = reads
            for other in others:
                message = _message(own, op, other)
                if world.checks:
                    message.told[own.column + NUMBERS] = own.begun[NUMBERS]
                arrives = _arrival(own, other)
                own.lands[NUMBERS] = max(own.lands[NUMBERS], arrives)
                _post(message, other.semaphores[number], value, arrives)
            own.spend(world.grid.issue_cycles)

        return multicast

    return [Step(make, ", ".join(rectangle))]


def _post(message: Message, semaphore: Semaphore, value: int, arrives: float) -> None:
    """A number is on its way to one of many cores."""
    message.sender.world.at(arrives, lambda: semaphore.arrive(message, value, True))


_NOTHING = np.zeros(0, np.int32)


def _message(own: Mover, op: Operation, other: Core) -> Message:
    """The message with a semaphore value to another core."""
    stamp = own.stamp(op)
    if not own.world.checks:
        return Message(own, op, stamp, _NOTHING, (0, 0), ())
    return Message(own, op, stamp, own.tell(), own.written_to(other), own.trips_of(op))


def _arrival(own: Mover, other: Core) -> float:
    """When a number that goes to another core comes there: after all that was written there before."""
    grid = own.world.grid
    hops = own.world.hops(own.core, other, own.noc) * grid.hop_cycles
    time = own.time + (grid.semaphore_cycles + hops) * own.world.factor()
    time = max(time, own.arrivals.get(other, 0.0))
    own.arrivals[other] = time
    return time

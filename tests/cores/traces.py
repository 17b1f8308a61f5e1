"""What each agent of a program does on each core, in order and with all numbers worked out; and whether one program
orders all that another one orders.

What an agent does does not depend on others, so it is a list of events. An event may wait for somebody (`waits`: for
what, and how much of it), tell others (`tells`), and touch pages, arrays, registers and numbers of semaphores; `done`
is the end of a transfer, where its barrier is. States of units are part of the events that need them, so `configure`
and `accumulate` are none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import cores, tile
from tilewright.dialects.base import decode
from tilewright.semantics.cores.agents import MATH, PACK, PARTS, UNPACK

Place = tuple[int, int]
# A page, an array's page, a register or a number, and where it is.
Location = tuple[Any, ...]
_NOTHING: frozenset[Location] = frozenset()
_MATRIX = (cores.CopyOp, cores.BinaryOp, cores.MatmulOp, cores.ReduceOp)
_VECTOR = (cores.MapOp, cores.CastOp, cores.FoldOp)
_UNITS = {UNPACK: ("unpack_a", "unpack_b"), MATH: ("matrix", "vector"), PACK: ("pack", "edges", "accumulates")}


class UnknownEvents(Exception):
    """An operation is none of those that are followed here."""


@dataclass(frozen=True)
class Event:
    what: tuple[Any, ...]
    waits: tuple[Any, int] | None = None
    tells: bool = False
    done: bool = False
    reads: frozenset[Location] = _NOTHING
    writes: frozenset[Location] = _NOTHING

    @property
    def touches(self) -> bool:
        return bool(self.reads or self.writes) and not self.done

    @property
    def only_waits(self) -> bool:
        return self.waits is not None and not self.tells and not self.touches

    def conflicts(self, other: Event) -> bool:
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


@dataclass
class _Tracer:
    """`capacities`: of each queue, by which free pages are counted."""

    program: cores.ProgramOp
    role: str
    here: Place
    capacities: Sequence[int]
    events: list[Event] = field(default_factory=list[Event])
    numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    names: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    fronts: Counter[int] = field(default_factory=Counter[int])
    backs: Counter[int] = field(default_factory=Counter[int])
    steps: Counter[str] = field(default_factory=Counter[str])
    states: dict[str, str] = field(default_factory=dict[str, str])
    under_way: dict[str, list[Event]] = field(default_factory=lambda: {cores.READ: [], cores.WRITE: []})

    def trace(self, thread: cores.ThreadOp) -> list[Event]:
        self.numbers |= dict(zip(self.program.body.block.args, self.here, strict=True))
        kernel = self.program.parent_op()
        assert isinstance(kernel, tile.KernelOp)
        for each in (kernel.refs, self.program.queues, self.program.semaphores):
            values = [op.results[0] if isinstance(op, Operation) else op for op in each]
            self.names |= {value: i for i, value in enumerate(values)}
        self._block(thread.body.block)
        return self.events

    def _block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case tile.ForOp():
                    trips = decode(op.trips)
                    if op.end is not None:
                        trips = min(trips, *self._map(op.end, op.symbols))
                    for trip in range(trips):
                        self.numbers[op.body.block.args[0]] = trip
                        self._block(op.body.block)
                case cores.IfOp():
                    self._block(op.otherwise.block if self._map(op.map, op.symbols)[0] else op.then.block)
                case cores.EndOp() | tile.YieldOp():
                    pass
                case cores.QueueStepOp():
                    self._queue_step(op)
                case _ if self.role in PARTS:
                    self._compute(op)
                case _:
                    self._mover(op)

    def _map(self, map: AffineMapAttr, symbols: Sequence[SSAValue], dims: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(map.data.eval([*dims], [self.numbers[symbol] for symbol in symbols]))

    def _add(self, *what: Any, **more: Any) -> Event:
        event = Event(what, **more)
        self.events.append(event)
        return event

    # ---- queues -----------------------------------------------------------------------------------------------------

    def _queue_step(self, op: cores.QueueStepOp) -> None:
        queue, fills = self.names[op.queue], isinstance(op, cores.ReserveOp | cores.PushOp)
        if self.role in PARTS and self.role != (PACK if fills else UNPACK):
            return
        match op:
            case cores.ReserveOp():
                limit = self.backs[queue] + op.count - self.capacities[queue]
                self._add("reserve", waits=(("free", queue), limit))
            case cores.WaitOp():
                self._add("wait", waits=(("full", queue), self.fronts[queue] + op.count))
            case cores.PushOp():
                self.backs[queue] += op.count
                self._add("push", queue, self.backs[queue], tells=True)
            case _:
                self.fronts[queue] += op.count
                self._add("pop", queue, self.fronts[queue], tells=True)

    def _pages(self, queue: SSAValue, counts: Mapping[int, int], places: Iterable[int]) -> list[Location]:
        number = self.names[queue]
        return [("page", self.here, number, counts[number] + place) for place in places]

    # ---- movers -----------------------------------------------------------------------------------------------------

    def _mover(self, op: Operation) -> None:
        match op:
            case cores.PagesOp():
                self._move_pages(op)
            case cores.GenerateOp():
                pages = self._pages(op.queue, self.backs, range(decode(op.count)))
                self._add(*self._named(op), *pages, writes=frozenset(pages))
            case cores.BarrierOp():
                for event in self.under_way[op.of.data]:
                    self._add("done", event, done=True, reads=event.reads, writes=event.writes)
                self.under_way[op.of.data] = []
            case cores.MulticastOp():
                (at,) = self._map(op.at, op.symbols)
                self._send(op, op.queue, self.backs, at, self._others(op.rectangle, op.symbols), op.queue, at)
            case cores.SendOp():
                (at,), (to,) = self._map(op.at, op.symbols), self._map(op.to, op.symbols)
                core = self._map(op.core, op.symbols)
                self._send(op, op.source, self.fronts, at, [(core[0], core[1])], op.destination, to)
            case _:
                self._semaphore(op)

    def _move_pages(self, op: cores.PagesOp) -> None:
        grid = cores.page_grid(tile.ref_type(op.array).shape)
        array, ahead = self.names[op.array], self.fronts if isinstance(op, cores.PutOp) else self.backs
        moves: list[tuple[Location, Location, bool]] = []
        for point in itertools.product(*map(range, op.shape)):
            at = self._map(op.map, op.symbols, point)
            (page,) = self._pages(op.queue, ahead, self._map(op.at, op.symbols, point))
            is_inside = all(0 <= c < size for c, size in zip(at, grid, strict=True))
            moves.append(
                (("array", array, at if is_inside or not isinstance(op, cores.PutOp) else None), page, is_inside)
            )
        inside = [move for move in moves if move[2]]
        own, others = frozenset(move[1] for move in moves), frozenset(move[0] for move in inside)
        match op:
            case cores.FetchOp():
                event = self._add(*self._named(op), *moves, reads=others, writes=own)
                self._begin(cores.READ, event, inside)
            case cores.PutOp():
                event = self._add(*self._named(op), *moves, reads=own, writes=others)
                self._begin(cores.WRITE, event, inside)
            case _:
                self._add(*self._named(op), *moves, writes=own)

    def _begin(self, of: str, event: Event, moved: Sequence[Any]) -> None:
        if moved:
            self.under_way[of].append(event)

    def _others(self, rectangle: AffineMapAttr, symbols: Sequence[SSAValue]) -> list[Place]:
        top, left, bottom, right = self._map(rectangle, symbols)
        places = itertools.product(range(top, bottom + 1), range(left, right + 1))
        return [place for place in places if place != self.here]

    def _send(
        self,
        op: cores.MulticastOp | cores.SendOp,
        source: SSAValue,
        ahead: Mapping[int, int],
        at: int,
        others: Sequence[Place],
        target: SSAValue,
        to: int,
    ) -> None:
        count = decode(op.pages)
        own = self._pages(source, ahead, range(at, at + count))
        number = self.names[target]
        first = self.backs[number] + to
        there = [("page", core, number, first + page) for core in others for page in range(count)]
        event = self._add(op.name, *own, *there, reads=frozenset(own), writes=frozenset(there))
        self._begin(cores.WRITE, event, others)

    def _semaphore(self, op: Operation) -> None:
        if not isinstance(
            op,
            cores.SemaphoreSetOp | cores.SemaphoreWaitOp | cores.SemaphoreIncrementOp | cores.SemaphoreMulticastOp,
        ):
            raise UnknownEvents(op.name)
        number = self.names[op.semaphore]
        own = frozenset([("number", self.here, number)])
        match op:
            case cores.SemaphoreSetOp():
                what = "set", number, decode(op.value)
                if not self.events or self.events[-1].what != what:
                    self._add(*what, tells=True, writes=own)
            case cores.SemaphoreWaitOp():
                self.steps[f"wait {number}"] += 1
                what = "wait for", number, decode(op.value), op.at_least is not None
                if not self.events or self.events[-1].what != what:
                    self._add(*what, waits=(what, self.steps[f"wait {number}"]), reads=own)
            case cores.SemaphoreIncrementOp():
                core = self._map(op.core, op.symbols)
                there = frozenset([("number", core, number)])
                self._add("increment", number, core, decode(op.value), tells=True, writes=there)
            case _:
                others = self._others(op.rectangle, op.symbols)
                there = frozenset(("number", core, number) for core in others)
                event = self._add("multicast", number, tuple(others), tells=True, reads=own, writes=there)
                self._begin(cores.WRITE, event, others)

    # ---- compute ----------------------------------------------------------------------------------------------------

    def _compute(self, op: Operation) -> None:
        match op:
            case cores.ConfigureOp():
                if op.unit.data in _UNITS[self.role]:
                    self.states[op.unit.data] = op.state.data
            case cores.AccumulateOp():
                if self.role == PACK:
                    self.states["accumulates"] = str(self._map(op.map, op.symbols)[0] != 0)
            case cores.RegistersOp():
                self._registers(op.step.data)
            case cores.PackOp():
                if self.role == PACK:
                    self._pack(op)
            case cores.RegisterOp() if isinstance(op, _MATRIX) and self.role == UNPACK:
                self.steps["operation"] += 1
                turn = ("turn", self.steps["operation"])
                self._add(*self._named(op), *self._operands(op), waits=turn, tells=True, writes=frozenset([turn]))
            case cores.RegisterOp() if isinstance(op, _MATRIX) and self.role == MATH:
                self.steps["operation"] += 1
                turn = ("turn", self.steps["operation"])
                registers = self._half(MATH, op.slots)
                self._add(*self._named(op), waits=turn, tells=True, writes=frozenset([*registers, turn]))
            case cores.RegisterOp() if isinstance(op, _VECTOR) and self.role == MATH:
                # All of the half, so that operations keep their order.
                self._add(*self._named(op), writes=frozenset(self._half(MATH, range(16))))
            case cores.RegisterOp():
                pass
            case _:
                raise UnknownEvents(op.name)

    def _registers(self, step: str) -> None:
        if self.role != {cores.ACQUIRE: MATH, cores.COMMIT: MATH}.get(step, PACK):
            return
        self.steps[step] += 1
        if step in (cores.ACQUIRE, cores.WAIT):
            self._add(step, waits=(step, self.steps[step]))
        else:
            self._add(step, self.steps[step], tells=True)

    def _half(self, role: str, slots: Iterable[int]) -> list[Location]:
        turn = self.steps[cores.ACQUIRE if role == MATH else cores.WAIT]
        return [("register", turn, slot) for slot in slots]

    def _pack(self, op: cores.PackOp) -> None:
        places = [self._map(op.at, op.symbols, (d,) if op.at.data.num_dims else ())[0] for d in range(len(op.slots))]
        pages = self._pages(op.queue, self.backs, places)
        registers = self._half(PACK, op.slots)
        self._add(*self._named(op), *pages, reads=frozenset(registers), writes=frozenset(pages))

    def _operands(self, op: Operation) -> list[Location]:
        """Pages that an operation unpacks, each behind the queue's front."""
        maps = {"left_at": 0, "right_at": 1, "at": 0}
        found: list[Location] = []
        symbols = [value for value in op.operands if value in self.numbers]
        for name, operand in maps.items():
            map = op.properties.get(name)
            if not isinstance(map, AffineMapAttr):
                continue
            count = decode(op.properties["pages" if isinstance(op, cores.ReduceOp) else "count"])
            points = [(d,) for d in range(count)] if map.data.num_dims else [()]
            places = [self._map(map, symbols, point)[0] for point in points]
            found += self._pages(op.operands[operand], self.fronts, places)
        return found

    def _named(self, op: Operation) -> tuple[Any, ...]:
        """An operation without its maps, but with the states that it needs."""
        kept = [
            (name, str(value)) for name, value in sorted(op.properties.items()) if not isinstance(value, AffineMapAttr)
        ]
        operands = [self.names[value] for value in op.operands if value in self.names]
        states: list[str | None] = []
        if self.role in PARTS:
            needed = cores.states_of(op)
            units = [unit for unit in _UNITS[self.role] if unit in needed or isinstance(op, cores.PackOp)]
            states = [self.states.get(unit) for unit in units]
        maps = (
            [op.map.data.eval([0, 0, 0], [self.numbers[s] for s in op.symbols])]
            if isinstance(op, cores.GenerateOp)
            else []
        )
        maps += [str(op.map)] if isinstance(op, cores.GenerateOp) else []
        return op.name, *kept, *operands, *states, *maps


def traces_of(program: cores.ProgramOp, capacities: Sequence[int]) -> dict[tuple[Place, str], list[Event]]:
    """What each agent of each core does.

    Raises:
        UnknownEvents: some operation is not followed here.
    """
    found: dict[tuple[Place, str], list[Event]] = {}
    for here in itertools.product(*map(range, program.shape)):
        for thread in program.threads:
            for role in PARTS if thread.computes else (thread.role.data,):
                found[here, role] = _Tracer(program, role, here, capacities).trace(thread)
    return found


def orders_no_less(events: Sequence[Event], others: Sequence[Event]) -> bool:
    """Whether an agent that does `others` does all that one which does `events` does, each behind what it was behind.

    Behind what it waited for comes what touches something, or tells others; behind what touches something, or is done,
    comes what tells others, and what touches the same. All else is free: what waits may do so sooner, and what tells may
    do so later. It may wait for more, too.
    """
    first, second = _numbered(events), _numbered(others)
    if first.keys() != second.keys():
        return False
    waits: dict[Any, list[tuple[int, int]]] = {}
    for position, event in enumerate(others):
        if event.waits is not None:
            resource, limit = event.waits
            waits.setdefault(resource, []).append((limit, position))

    def earliest(event: Event) -> int:
        assert event.waits is not None
        resource, limit = event.waits
        return min((at for found, at in waits.get(resource, ()) if found >= limit), default=len(others))

    where = {position: second[key] for key, position in first.items()}
    places = [earliest(event) if event.only_waits else where[i] for i, event in enumerate(events)]
    return all(
        places[i] < places[j]
        for i, one in enumerate(events)
        for j in range(i + 1, len(events))
        if _is_needed(one, events[j])
    )


def _is_needed(first: Event, second: Event) -> bool:
    if first.done:
        return second.tells or (second.touches and first.conflicts(second))
    if first.waits is not None and (second.touches or second.tells):
        return True
    return first.touches and (second.tells or (second.touches and first.conflicts(second)))


def _numbered(events: Sequence[Event]) -> dict[tuple[Any, ...], int]:
    """Where each event is that does more than wait, with its number among those alike."""
    counts: Counter[Any] = Counter()
    found: dict[tuple[Any, ...], int] = {}
    for position, event in enumerate(events):
        if not event.only_waits:
            found[event.what, event.done, counts[event.what]] = position
            counts[event.what] += 1
    return found

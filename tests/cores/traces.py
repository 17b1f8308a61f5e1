"""What each agent of a program does on each core, in order and with all numbers worked out.

What an agent does does not depend on others, so it is a list of events. An event may wait for something (`waits`), give
it (`gives`), and touch pages, arrays, registers and numbers of semaphores; the end of what it began is an event of its
own, `ENDED`, where its barrier is. States of units are part of the events that need them, so `configure` and
`accumulate` are none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import cores, tile
from tilewright.dialects.fields import decode
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.semantics.cores.agents import MATH, PACK, PARTS, UNPACK
from tilewright.semantics.tile import evaluate_map

Place = tuple[int, int]
ENDED = "ended"
_MATRIX = (cores.CopyOp, cores.TilizeOp, cores.BinaryOp, cores.MatmulOp, cores.ReduceOp)
_UNITS = {UNPACK: ("unpack_a", "unpack_b"), MATH: ("matrix", "vector"), PACK: ("pack", "edges", "accumulates")}


class ProtocolError(Exception):
    """An agent does what its own steps do not allow, whatever others do."""


class UnknownEventsError(Exception):
    """An operation is none of those that are followed here."""


@dataclass(frozen=True)
class Touch:
    """Memory that is used. `item`: what is there, where several follow each other, as pages do in a queue."""

    place: tuple[Any, ...]
    item: int
    writes: bool
    adds: bool = False


@dataclass(frozen=True)
class Event:
    """`what`: all that is done; `targets`: cores to which it goes; `started`: what an end is the end of."""

    what: tuple[Any, ...]
    waits: tuple[Any, ...] | None = None
    gives: tuple[Any, ...] | None = None
    touches: tuple[Touch, ...] = ()
    targets: tuple[Place, ...] = ()
    started: int | None = None

    @property
    def is_more_than_a_wait(self) -> bool:
        return bool(self.gives or self.touches)


@dataclass
class _Tracer:
    """`depths`: how many pages each queue has. `claims`: how many pages behind the end are reserved or waited for."""

    program: cores.ProgramOp
    role: str
    here: Place
    depths: Sequence[int]
    events: list[Event] = field(default_factory=list[Event])
    numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    names: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    fronts: Counter[int] = field(default_factory=Counter[int])
    backs: Counter[int] = field(default_factory=Counter[int])
    claims: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    steps: Counter[str] = field(default_factory=Counter[str])
    states: dict[str, str] = field(default_factory=dict[str, str])
    under_way: dict[str, list[int]] = field(default_factory=lambda: {cores.READ: [], cores.WRITE: []})
    has_registers: bool = False

    def trace(self, thread: cores.ThreadOp) -> list[Event]:
        self.numbers |= dict(zip(self.program.body.block.args, self.here, strict=True))
        kernel = self.program.parent_op()
        assert isinstance(kernel, tile.KernelOp)
        for each in (kernel.refs, self.program.queues, self.program.semaphores):
            values = [op.results[0] if isinstance(op, Operation) else op for op in each]
            self.names |= {value: i for i, value in enumerate(values)}
        self._block(thread.body.block)
        if any(self.claims.values()) or any(self.under_way.values()) or self.has_registers:
            raise ProtocolError("something is left at the end")
        if self.states.get("accumulates") == "True":
            raise ProtocolError("pack adds at the end")
        return self.events

    def _block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case tile.ForOp():
                    trips = op.trips
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

    def _map(self, map: AffineMap, symbols: Sequence[SSAValue], dims: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(map.eval([*dims], [self.numbers[symbol] for symbol in symbols]))

    def _add(self, *what: Any, **more: Any) -> None:
        self.events.append(Event(what, **more))

    # ---- queues -----------------------------------------------------------------------------------------------------

    def _queue_step(self, op: cores.QueueStepOp) -> None:
        queue, fills = self.names[op.queue], isinstance(op, cores.ReserveOp | cores.PushOp)
        if self.role in PARTS and self.role != (PACK if fills else UNPACK):
            return
        end, at = ("back", self.backs) if fills else ("front", self.fronts)
        if isinstance(op, cores.ReserveOp | cores.WaitOp):
            self.claims[end, queue] = max(self.claims[end, queue], op.count)
            limit = at[queue] + op.count
            wanted = ("free", queue, limit - self.depths[queue]) if fills else ("full", queue, limit)
            self._add(op.name, queue, limit, waits=wanted)
            return
        if op.count > self.claims[end, queue]:
            raise ProtocolError(f"{op.name} of what was not claimed")
        self._keep_whole(queue, at[queue], op.count)
        self.claims[end, queue] -= op.count
        at[queue] += op.count
        self._add(op.name, queue, at[queue], gives=("full" if fills else "free", queue, at[queue]))

    def _keep_whole(self, queue: int, first: int, count: int) -> None:
        if first % self.depths[queue] + count > self.depths[queue]:
            raise ProtocolError("pages around the end of a queue")

    def _pages(self, queue: int, end: str, places: Iterable[int], writes: bool) -> tuple[Touch, ...]:
        """Pages of the core's own queue, counted from one end, of which they are claimed."""
        first, wanted = (self.backs if end == "back" else self.fronts)[queue], [*places]
        if wanted and not 0 <= min(wanted) <= max(wanted) < self.claims[end, queue]:
            raise ProtocolError("a page that was not claimed")
        self._keep_whole(queue, first, max(wanted, default=0) + 1)
        return tuple(self._page(self.here, queue, first + place, writes) for place in wanted)

    def _page(self, core: Place, queue: int, page: int, writes: bool) -> Touch:
        return Touch(("page", core, queue, page % self.depths[queue]), page, writes)

    # ---- movers -----------------------------------------------------------------------------------------------------

    def _mover(self, op: Operation) -> None:
        match op:
            case cores.PagesOp():
                self._move_pages(op)
            case cores.GenerateOp():
                pages = self._pages(self.names[op.queue], "back", range(op.count), True)
                numbers = str(op.map), self._map(op.map, op.symbols, (0, 0, 0))
                self._add_once(*self._named(op), *numbers, *_named(pages), touches=pages)
            case cores.ElementsOp():
                self._move_elements(op)
            case cores.RearrangeOp():
                self._rearrange(op)
            case cores.LinesOp():
                self._go_through_lines(op)
            case cores.BarrierOp():
                for number in self.under_way[op.of]:
                    self._add(ENDED, started=number)
                self.under_way[op.of] = []
            case cores.MulticastOp():
                (at,) = self._map(op.at, op.symbols)
                self._send(op, (op.queue, "back", at), self._others(op.rectangle, op.symbols), op.queue, at)
            case cores.SendOp():
                (at,), (to,) = self._map(op.at, op.symbols), self._map(op.to, op.symbols)
                row, column = self._map(op.core, op.symbols)
                self._send(op, (op.source, "front", at), ((row, column),), op.destination, to)
            case _:
                self._semaphore(op)

    def _move_pages(self, op: cores.PagesOp) -> None:
        grid = cores.page_grid(tile.ref_type(op.array).shape)
        array, queue, puts = self.names[op.array], self.names[op.queue], isinstance(op, cores.ARRAY_STORES)
        points = [*itertools.product(*map(range, op.shape))]
        sources = [self._map(op.map, op.symbols, point) for point in points]
        places = [self._map(op.at, op.symbols, point)[0] for point in points]
        pages = self._pages(queue, "front" if puts else "back", places, not puts)
        inside = [all(0 <= c < size for c, size in zip(at, grid, strict=True)) for at in sources]
        kept = [at for at, is_inside in zip(sources, inside, strict=True) if is_inside]
        elements = tuple(Touch(("array", array, at), 0, puts) for at in kept if not isinstance(op, cores.PadOp))
        # A page of which the array has none is not written to it, whichever it is.
        named = [at if is_inside or not puts else None for at, is_inside in zip(sources, inside, strict=True)]
        if isinstance(op, cores.PadOp):
            named = [_read_to_fill(op, at) for at in sources]
        add = self._add_once if isinstance(op, cores.PadOp) else self._add
        add(*self._named(op), *named, *_named(pages), touches=(*pages, *elements))
        if kept and not isinstance(op, cores.PadOp):
            self.under_way[cores.WRITE if puts else cores.READ].append(len(self.events) - 1)

    def _move_elements(self, op: cores.ElementsOp) -> None:
        """Whichever elements a gather takes, it reads all pages of its array: nothing else is known where indices say
        which. A scatter writes elements one by one, of an array to which nothing else is written."""
        scatters, array = isinstance(op, cores.ScatterOp), self.names[op.array]
        (at,) = self._map(op.at, op.symbols)
        count = _page_count(op.lanes, op.rows, op.columns)
        end = "front" if scatters else "back"
        pages = self._pages(self.names[op.queue], end, range(at, at + count), not scatters)
        for indices in op.indices:
            pages += self._pages(self.names[indices], "front", range(count), False)
        elements, coordinates = self._elements_of(op), ()
        if scatters:
            if elements is None or not all(isinstance(use.operation, cores.ScatterOp) for use in op.array.uses):
                raise UnknownEventsError("a scatter to places that are not known, or of an array with other writers")
            coordinates = tuple(Touch(("element", array, each), 0, True) for each in elements if each is not None)
        else:
            grid = cores.page_grid(tile.ref_type(op.array).shape)
            places = itertools.product(*map(range, grid))
            coordinates = tuple(Touch(("array", array, each), 0, False) for each in places)
        where = elements or (str(op.map), *self._given(op.symbols))
        add = self._add if scatters else self._add_once
        add(*self._named(op), *where, *_named(pages), touches=(*pages, *coordinates))
        if scatters and coordinates:
            self.under_way[cores.WRITE].append(len(self.events) - 1)

    def _elements_of(self, op: cores.ElementsOp) -> tuple[tuple[int, ...] | None, ...] | None:
        """The coordinates of each lane in the array, None where it is outside; None where indices say which."""
        if op.indices:
            return None
        shape = tile.ref_type(op.array).shape
        coordinates = evaluate_map(op.map, op.lanes, self._given(op.symbols))
        lanes = zip(*(each.reshape(-1).tolist() for each in coordinates), strict=True)
        return tuple(at if all(0 <= c < n for c, n in zip(at, shape, strict=True)) else None for at in lanes)

    def _given(self, symbols: Sequence[SSAValue]) -> list[int]:
        return [self.numbers[symbol] for symbol in symbols]

    def _rearrange(self, op: cores.RearrangeOp) -> None:
        taken = _page_count(op.source_shape, op.source_rows, op.source_columns)
        pages = self._pages(self.names[op.source], "front", range(taken), False)
        given = _page_count(op.shape, op.rows, op.columns)
        pages += self._pages(self.names[op.queue], "back", range(given), True)
        self._add_once(*self._named(op), str(op.source_map), str(op.map), *_named(pages), touches=pages)

    def _go_through_lines(self, op: cores.LinesOp) -> None:
        count = _page_count(op.lanes, op.rows, op.columns)
        pages: tuple[Touch, ...] = ()
        for end, queues in (("front", op.sources), ("back", op.queues)):
            for queue in queues:
                pages += self._pages(self.names[queue], end, range(count), end == "back")
        scratch = tuple(Touch(("scratch", self.here, self.names[queue]), 0, True) for queue in op.scratch)
        self._add_once(*self._named(op), *_named(pages), touches=(*pages, *scratch))

    def _others(self, rectangle: AffineMap, symbols: Sequence[SSAValue]) -> tuple[Place, ...]:
        top, left, bottom, right = self._map(rectangle, symbols)
        row, column = self.here
        if not (top <= row <= bottom and left <= column <= right):
            raise ProtocolError("a rectangle without the core that sends to it")
        places = itertools.product(range(top, bottom + 1), range(left, right + 1))
        return tuple(place for place in places if place != self.here)

    def _send(
        self,
        op: cores.MulticastOp | cores.SendOp,
        source: tuple[SSAValue, str, int],
        others: tuple[Place, ...],
        target: SSAValue,
        to: int,
    ) -> None:
        queue, end, at = source
        count, number = op.pages, self.names[target]
        own = self._pages(self.names[queue], end, range(at, at + count), False)
        first = self.backs[number] + to
        there = [self._page(core, number, first + page, True) for core in others for page in range(count)]
        self._add(op.name, *_named(own), *_named(there), touches=(*own, *there), targets=others)
        if others:
            self.under_way[cores.WRITE].append(len(self.events) - 1)

    def _semaphore(self, op: Operation) -> None:
        match op:
            case cores.SemaphoreSetOp():
                number = self.names[op.semaphore]
                touches = (Touch(("number", self.here, number), 0, True),)
                self._add_once("set", number, op.value, touches=touches)
            case cores.SemaphoreWaitOp():
                number = self.names[op.semaphore]
                touches = (Touch(("number", self.here, number), 0, False),)
                waits = "number", number, op.value
                self._add_once("wait for", number, op.value, op.at_least, waits=waits, touches=touches)
            case cores.SemaphoreIncrementOp():
                number, value = self.names[op.semaphore], op.value
                row, column = self._map(op.core, op.symbols)
                there = (Touch(("number", (row, column), number), 0, True, adds=True),)
                gives, targets = ("number", number, value), ((row, column),)
                self._add("increment", number, value, *targets, gives=gives, touches=there, targets=targets)
            case cores.SemaphoreMulticastOp():
                number, others = self.names[op.semaphore], self._others(op.rectangle, op.symbols)
                own = Touch(("number", self.here, number), 0, False)
                there = [Touch(("number", core, number), 0, True) for core in others]
                self._add("multicast", number, *others, gives=("number", number), touches=(own, *there), targets=others)
                if others:
                    self.under_way[cores.WRITE].append(len(self.events) - 1)
            case _:
                raise UnknownEventsError(op.name)

    def _add_once(self, *what: Any, **more: Any) -> None:
        """The same again at once is nothing."""
        if not self.events or self.events[-1].what != what:
            self._add(*what, **more)

    # ---- compute ----------------------------------------------------------------------------------------------------

    def _compute(self, op: Operation) -> None:
        match op:
            case cores.ConfigureOp():
                if op.unit in _UNITS[self.role]:
                    self.states[op.unit] = op.state
            case cores.AccumulateOp():
                if self.role == PACK:
                    self.states["accumulates"] = str(self._map(op.map, op.symbols)[0] != 0)
            case cores.RegistersOp():
                self._registers(op.step)
            case cores.PackingOp():
                if self.role == PACK:
                    self._pack(op)
            case cores.RegisterOp():
                self._register_operation(op)
            case _:
                raise UnknownEventsError(op.name)

    def _register_operation(self, op: cores.RegisterOp) -> None:
        is_matrix = isinstance(op, _MATRIX)
        if self.role == PACK or (self.role == UNPACK and not is_matrix):
            return
        turn = self.steps["operation"] = self.steps["operation"] + is_matrix
        if self.role == UNPACK:
            pages = self._operands(op)
            self._add(*self._named(op), *_named(pages), gives=("operands", turn), touches=pages)
            return
        waits = ("operands", turn) if is_matrix else None
        self._add(*self._named(op), waits=waits, touches=self._half(True))

    def _registers(self, step: str) -> None:
        claims = step in (cores.ACQUIRE, cores.WAIT)
        if (self.role == MATH) != (step in (cores.ACQUIRE, cores.COMMIT)) or self.role == UNPACK:
            return
        if claims == self.has_registers:
            raise ProtocolError(step)
        self.has_registers = claims
        turn = self.steps[step] = self.steps[step] + 1
        if claims:
            self._add(step, turn, waits=(step, turn))
        else:
            self._add(step, turn, gives=(step, turn))

    def _half(self, writes: bool) -> tuple[Touch, ...]:
        """All of the half, so that operations keep their order."""
        if not self.has_registers:
            raise ProtocolError("registers that it has not")
        turn = self.steps[cores.ACQUIRE if self.role == MATH else cores.WAIT] - 1
        return (Touch(("registers", self.here, turn % 2), turn, writes),)

    def _pack(self, op: cores.PackingOp) -> None:
        dims = [(d,) if op.at.num_dims else () for d in range(len(op.slots))]
        places = [self._map(op.at, op.symbols, each)[0] for each in dims]
        pages = self._pages(self.names[op.queue], "back", places, True)
        self._add(*self._named(op), *_named(pages), touches=(*self._half(False), *pages))

    def _operands(self, op: Operation) -> tuple[Touch, ...]:
        """Pages that an operation unpacks, each behind the queue's front."""
        symbols = [value for value in op.operands if value in self.numbers]
        found: list[Touch] = []
        for queue, name in zip(op.operands, _OPERANDS[type(op)], strict=False):
            map = op.properties[name]
            assert isinstance(map, AffineMapAttr)
            places = [self._map(map.data, symbols, dims)[0] for dims in _points(op, map.data)]
            if isinstance(op, cores.MatmulOp):
                places = [places[0] + more for more in _block_of(op, name)]
            found += self._pages(self.names[queue], "front", places, False)
        if isinstance(op, cores.ReduceOp):
            found += self._pages(self.names[op.scaler], "front", [0], False)
        return tuple(found)

    def _named(self, op: Operation) -> tuple[Any, ...]:
        """An operation without its maps, but with the states that it needs."""
        kept = [(name, str(v)) for name, v in sorted(op.properties.items()) if not isinstance(v, AffineMapAttr)]
        operands = [self.names[value] for value in op.operands if value in self.names]
        needed = cores.states_of(op)
        units = [u for u in _UNITS.get(self.role, ()) if u in needed or isinstance(op, cores.PackingOp)]
        if any(unit in needed and self.states.get(unit) != needed[unit] for unit in units):
            raise ProtocolError("another state of a unit")
        return op.name, *kept, *operands, *(self.states.get(unit, "") for unit in units)


def _page_count(shape: Sequence[int], rows: IntegerAttr, columns: IntegerAttr) -> int:
    """The pages of a tile, of which two dims are along rows and columns."""
    along = rows, columns
    return prod(-(-size // TILE) if dim in along else size for dim, size in enumerate(shape))


def _read_to_fill(op: cores.PadOp, at: tuple[int, ...]) -> tuple[int | None, ...]:
    """The coordinates of a page that say which of its elements are filled: not the one along a side that is not."""
    last = (coordinate if fills else None for coordinate, fills in zip(at[-2:], op.sides, strict=True))
    return *at[:-2], *last


def _named(pages: Iterable[Touch]) -> list[tuple[Any, ...]]:
    return [(*page.place[:3], page.item) for page in pages]


_OPERANDS: Mapping[type[Operation], tuple[str, ...]] = {
    cores.CopyOp: ("at",),
    cores.TilizeOp: ("at",),
    cores.BinaryOp: ("left_at", "right_at"),
    cores.MatmulOp: ("left_at", "right_at"),
    cores.ReduceOp: ("at",),
}


def _points(op: Operation, map: AffineMap) -> list[tuple[int, ...]]:
    count = decode(op.properties["pages" if isinstance(op, cores.ReduceOp) else "count"])
    return [(d,) for d in range(count)] if map.num_dims else [()]


def _block_of(op: cores.MatmulOp, name: str) -> list[int]:
    rows, columns, depth = op.block_shape
    if name == "left_at":
        return [r * op.left_stride + k for r in range(rows) for k in range(depth)]
    return [k * op.right_stride + c for k in range(depth) for c in range(columns)]


def traces_of(program: cores.ProgramOp) -> dict[tuple[Place, str], list[Event]]:
    """What each agent of each core does.

    Raises:
        ProtocolError: one does what its own steps do not allow.
        UnknownEventsError: some operation is not followed here.
    """
    found: dict[tuple[Place, str], list[Event]] = {}
    depths = [cores.queue_type(queue.result).pages for queue in program.queues]
    for here in itertools.product(*map(range, program.shape)):
        for thread in program.threads:
            for role in PARTS if thread.computes else (thread.role,):
                found[here, role] = _Tracer(program, role, here, depths).trace(thread)
    return found

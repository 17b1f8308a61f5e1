"""Abstract execution of a thread on a core, without running the program.

The next step of a thread depends on the position of its core and on the trips it is in, and on no other thread: so it
is known beforehand. A walk goes through the thread with a state; as soon as a loop returns to an earlier state, and its
trips do not differ, its counts are multiplied and the remaining trips are skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import cores, tile
from tilewright.semantics.cores.expressions import function_of
from tilewright.semantics.cores.reports import location_of
from tilewright.semantics.hazards import CoreHazard

# Row and column of a core.
Place = tuple[int, int]
# So many operations of a thread are followed on one core.
_MOST_VISITS = 50_000
# Operations of which a walk has to know the numbers that they get.
_HAS_NUMBERS = (
    cores.IfOp,
    tile.ForOp,
    cores.AccumulateOp,
    cores.MulticastOp,
    cores.SendOp,
    cores.SemaphoreIncrementOp,
    cores.SemaphoreMulticastOp,
)


class TooLongError(Exception):
    """A thread has too many trips that differ."""


class Projection:
    """A thread without the operations that `keeps` rejects. `differs`: loops whose trips may do something else; `maps`:
    what gives the numbers that an operation gets, and of which values."""

    def __init__(self, thread: cores.ThreadOp, keeps: Callable[[Operation], bool]) -> None:
        self.thread = thread
        self.kept: dict[Block, list[Operation]] = {}
        self.differs: set[tile.ForOp] = set()
        self.maps: dict[Operation, tuple[Callable[..., tuple[int, ...]], tuple[SSAValue, ...]]] = {}
        self._keeps = keeps
        self._project(thread.body.block)

    def _project(self, block: Block) -> bool:
        kept = self.kept[block] = [op for op in block.ops if self._keep(op)]
        return bool(kept)

    def _keep(self, op: Operation) -> bool:
        # To ask whether an operation is of a class takes longer than all else here: no class has one below it.
        kind = type(op)
        if kind is tile.ForOp or kind is cores.IfOp:
            kept = any([self._project(region.block) for region in op.regions])
        else:
            kept = self._keeps(op)
        if kept and kind in _HAS_NUMBERS:
            assert isinstance(op, _HAS_NUMBERS)
            loops = {operand.owner.parent_op() for operand in op.operands if isinstance(operand.owner, Block)}
            self.differs |= {loop for loop in loops if isinstance(loop, tile.ForOp)}
            map = _map_of(op)
            if map is not None:
                self.maps[op] = function_of(map), tuple(op.symbols)
        return kept


def _map_of(op: Operation) -> AffineMap | None:
    """The map of an operation that has to be known; None of a loop that has all its trips."""
    match op:
        case cores.IfOp() | cores.AccumulateOp():
            return op.map
        case tile.ForOp():
            return op.end
        case cores.MulticastOp() | cores.SemaphoreMulticastOp():
            return op.rectangle
        case cores.SendOp() | cores.SemaphoreIncrementOp():
            return op.core
        case _:
            return None


class Walk(ABC):
    """`here`: the core; `counts`: what adds up over all trips."""

    def __init__(self, projection: Projection, program: cores.ProgramOp, here: Place) -> None:
        self.projection = projection
        self.here = here
        self.counts: Counter[Hashable] = Counter()
        self._numbers: dict[SSAValue, int] = dict(zip(program.body.block.args, here, strict=True))
        self._visits = 0

    def run(self) -> None:
        """Go through all of the thread.

        Raises:
            CoreHazard: it does what it must not.
            TooLongError: it is too long to be followed.
        """
        self._block(self.projection.thread.body.block)

    @abstractmethod
    def state(self) -> Hashable:
        """All that what the thread may do depends on, but counts."""

    @abstractmethod
    def visit(self, op: Operation) -> None:
        """One operation is done."""

    def numbers(self, map: AffineMap, symbols: Sequence[SSAValue]) -> tuple[int, ...]:
        """The value of a map without dims."""
        return function_of(map)(*[self._numbers[symbol] for symbol in symbols])

    def given(self, op: Operation) -> tuple[int, ...]:
        """The numbers that an operation gets."""
        function, symbols = self.projection.maps[op]
        return function(*[self._numbers[symbol] for symbol in symbols])

    def error(self, kind: str, message: str, op: Operation) -> CoreHazard:
        return static_error(kind, message, op, self.here)

    def _block(self, block: Block) -> None:
        for op in self.projection.kept[block]:
            self._visits += 1
            if self._visits > _MOST_VISITS:
                raise TooLongError
            kind = type(op)
            if kind is tile.ForOp:
                assert isinstance(op, tile.ForOp)
                self._loop(op)
            elif kind is cores.IfOp:
                assert isinstance(op, cores.IfOp)
                (condition,) = self.given(op)
                self._block(op.otherwise.block if condition else op.then.block)
            else:
                self.visit(op)

    def _loop(self, op: tile.ForOp) -> None:
        trips: int = op.trips
        if op in self.projection.maps:
            trips = min(trips, *self.given(op))
        block, trip = op.body.block, 0
        seen: dict[Hashable, tuple[int, Counter[Hashable]]] = {}
        while trip < trips:
            if op not in self.projection.differs:
                found = seen.get(self.state())
                if found is not None:
                    trip = self._skip(trip, trips, *found)
                    seen.clear()
                    continue
                seen[self.state()] = trip, self.counts.copy()
            self._numbers[block.args[0]] = trip
            self._block(block)
            trip += 1

    def _skip(self, trip: int, trips: int, before: int, counts: Counter[Hashable]) -> int:
        """Skip trips that repeat the events since an earlier trip."""
        period = trip - before
        times = (trips - trip) // period
        for key, count in self.counts.items():
            self.counts[key] = count + times * (count - counts[key])
        return trip + times * period


def cores_alike(program: cores.ProgramOp) -> list[list[Place]]:
    """The cores of a program, those together whose threads all do the same."""
    row, column = program.body.block.args
    # Each way of choosing once, as many operations choose alike.
    chosen: dict[tuple[AffineMap, tuple[SSAValue, ...], int | None], Callable[..., tuple[int, ...]]] = {}
    for op in program.body.walk():
        match op:
            case cores.IfOp():
                chosen[op.map, tuple(op.symbols), None] = function_of(op.map)
            case tile.ForOp() if op.end is not None:
                chosen[op.end, tuple(op.symbols), op.trips] = function_of(op.end)
            case _:
                pass
    found: dict[tuple[object, ...], list[Place]] = {}
    rows, columns = program.shape
    for here in ((r, c) for r in range(rows) for c in range(columns)):
        numbers: dict[SSAValue, int] = dict(zip((row, column), here, strict=True))
        key: list[object] = []
        for (_, symbols, trips), function in chosen.items():
            own = [numbers.get(symbol) for symbol in symbols]
            known = [number for number in own if number is not None]
            if len(known) < len(own):
                key.append(tuple(known))
                continue
            (value,) = function(*known)
            key.append(value != 0 if trips is None else max(0, min(trips, value)))
        found.setdefault(tuple(key), []).append(here)
    return [*found.values()]


def static_error(kind: str, message: str, op: Operation, here: Place | None = None) -> CoreHazard:
    """The error to raise about an operation, on some core where it is about one."""
    thread = op if isinstance(op, cores.ThreadOp) else op.parent_op()
    while thread is not None and not isinstance(thread, cores.ThreadOp):
        thread = thread.parent_op()
    role = "" if thread is None else str(thread.role)
    where = f" in {role}" if role else ""
    where += "" if here is None else f" of core {here}"
    return CoreHazard(
        kind,
        f"[{kind}] `{op.name}`{where}: {message}",
        core=here,
        agent=role,
        op=str(op),
        location=location_of(op),
    )

"""What a thread does on a core, followed without running the program.

What a thread does next depends on where its core is and which trips it is in, and on nothing that others do: so it is
known beforehand. A walk goes through it, with a state; as soon as a loop comes back to a state that it was in, and its
trips do not differ, what they count is multiplied and the rest is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import cores, tile
from tilewright.dialects.base import decode
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
    """A thread without the operations that `keeps` says no to. `differs`: loops whose trips may do something else."""

    def __init__(self, thread: cores.ThreadOp, keeps: Callable[[Operation], bool]) -> None:
        self.thread = thread
        self.kept: dict[Block, list[Operation]] = {}
        self.differs: set[tile.ForOp] = set()
        self._keeps = keeps
        self._project(thread.body.block)

    def _project(self, block: Block) -> bool:
        kept = self.kept[block] = [op for op in block.ops if self._keep(op)]
        return bool(kept)

    def _keep(self, op: Operation) -> bool:
        match op:
            case tile.ForOp():
                kept = self._project(op.body.block)
            case cores.IfOp():
                kept = any([self._project(op.then.block), self._project(op.otherwise.block)])
            case _:
                kept = self._keeps(op)
        if kept and isinstance(op, _HAS_NUMBERS):
            loops = {operand.owner.parent_op() for operand in op.operands if isinstance(operand.owner, Block)}
            self.differs |= {loop for loop in loops if isinstance(loop, tile.ForOp)}
        return kept


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

    def numbers(self, map: AffineMapAttr, symbols: Sequence[SSAValue]) -> tuple[int, ...]:
        """What a map without dims gives."""
        return tuple(map.data.eval([], [self._numbers[symbol] for symbol in symbols]))

    def error(self, kind: str, message: str, op: Operation) -> CoreHazard:
        return static_error(kind, message, op, self.here)

    def _block(self, block: Block) -> None:
        for op in self.projection.kept[block]:
            self._visits += 1
            if self._visits > _MOST_VISITS:
                raise TooLongError
            match op:
                case tile.ForOp():
                    self._loop(op)
                case cores.IfOp():
                    (condition,) = self.numbers(op.map, op.symbols)
                    self._block(op.otherwise.block if condition else op.then.block)
                case _:
                    self.visit(op)

    def _loop(self, op: tile.ForOp) -> None:
        trips: int = decode(op.trips)
        if op.end is not None:
            trips = min(trips, *self.numbers(op.end, op.symbols))
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
        """Go on where what was done since an earlier trip was done as often as it can."""
        period = trip - before
        times = (trips - trip) // period
        for key, count in self.counts.items():
            self.counts[key] = count + times * (count - counts[key])
        return trip + times * period


def cores_alike(program: cores.ProgramOp) -> list[list[Place]]:
    """The cores of a program, those together whose threads all do the same."""
    row, column = program.body.block.args
    chosen: list[tuple[AffineMapAttr, list[SSAValue], int | None]] = []
    for op in program.body.walk():
        match op:
            case cores.IfOp():
                chosen.append((op.map, [*op.symbols], None))
            case tile.ForOp() if op.end is not None:
                chosen.append((op.end, [*op.symbols], decode(op.trips)))
            case _:
                pass
    found: dict[tuple[object, ...], list[Place]] = {}
    rows, columns = program.shape
    for here in ((r, c) for r in range(rows) for c in range(columns)):
        numbers: dict[SSAValue, int] = dict(zip((row, column), here, strict=True))
        key: list[object] = []
        for map, symbols, trips in chosen:
            own = [numbers.get(symbol) for symbol in symbols]
            known = [number for number in own if number is not None]
            if len(known) < len(own):
                key.append(tuple(known))
                continue
            value = map.data.eval([], known)[0]
            key.append(value != 0 if trips is None else max(0, min(trips, value)))
        found.setdefault(tuple(key), []).append(here)
    return [*found.values()]


def static_error(kind: str, message: str, op: Operation, here: Place | None = None) -> CoreHazard:
    """The error to raise about an operation, on some core where it is about one."""
    thread = op if isinstance(op, cores.ThreadOp) else op.parent_op()
    while thread is not None and not isinstance(thread, cores.ThreadOp):
        thread = thread.parent_op()
    role = "" if thread is None else str(thread.role.data)
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

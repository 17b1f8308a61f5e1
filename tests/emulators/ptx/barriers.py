"""Named barriers of a block: bar and barrier, .sync and .arrive (PTX ISA, under "bar, barrier").

A barrier opens when the scheduler asks (`opened`), which it does when no thread can go on: the latest time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulators.ptx.block import WARP, Block, Reader, each_lane, lane_bits, reader
from tests.emulators.ptx.errors import BarrierMisuse, Divergence
from tests.emulators.ptx.ordering import Sent
from tests.emulators.ptx.parser import Instruction, Integer, Sink
from tests.emulators.ptx.words import Words

BARRIERS = 16


@dataclass(frozen=True)
class BarrierStep:
    """`count`: threads that meet there, None for all of the block. `waits`: .sync rather than .arrive."""

    number: Reader
    count: Reader | None
    aligned: bool
    waits: bool


def decode(instruction: Instruction, words: Words) -> BarrierStep:
    """bar.sync a{, b}; bar.arrive a, b; barrier.sync{.aligned} a{, b}; barrier.arrive{.aligned} a, b."""
    words.take("cta")
    aligned = words.name == "bar" or "aligned" in words.left
    words.take("aligned")
    operands = instruction.operands
    if words.left not in (["sync"], ["arrive"]) or not 1 <= len(operands) <= 2 or isinstance(operands[0], Sink):
        raise words.unknown()
    waits = words.left == ["sync"]
    if not waits and len(operands) == 1:
        raise words.unknown()
    readers = [reader(operand, "u32", instruction) for operand in operands]
    for operand in operands[1:]:
        if isinstance(operand, Integer) and operand.value % WARP:
            raise BarrierMisuse(f"line {instruction.line}: {instruction.text}: the count is no multiple of {WARP}")
    return BarrierStep(readers[0], readers[1] if len(readers) == 2 else None, aligned, waits)


@dataclass
class _Named:
    count: int | None
    arrived: np.ndarray
    waiting: np.ndarray
    places: np.ndarray
    sent: Sent


class NamedBarriers:
    """Those of a block. `is_aligned` tells of a step whether all of a warp come to the same instruction there."""

    def __init__(self, block: Block, is_aligned: Callable[[int], bool]) -> None:
        self._block = block
        self._is_aligned = is_aligned
        self._named: dict[int, _Named] = {}
        self._opened = np.zeros(block.lanes.size, bool)

    def arrive(self, step: BarrierStep, running: np.ndarray, place: int) -> None:
        """The threads of `running` come to the instruction at `place`, warp after warp."""
        number = self._uniform(step.number, running)
        count = None if step.count is None else self._uniform(step.count, running)
        count = None if count == self._block.lanes.size else count
        if not 0 <= number < BARRIERS:
            raise BarrierMisuse(f"there is no barrier {number}, {self._block.where()}")
        for warp in np.flatnonzero(lane_bits(running)):
            mine = running & (self._block.lanes // WARP == warp)
            self._arrive(number, count, step.waits, mine, place)
            if count is not None:
                self._open(number)

    def _arrive(self, number: int, count: int | None, waits: bool, running: np.ndarray, place: int) -> None:
        if number not in self._named:
            lanes, nothing = np.zeros(self._block.lanes.size, bool), self._block.ordering.nothing_sent()
            self._named[number] = _Named(count, lanes, lanes.copy(), np.zeros(lanes.size, np.int64), nothing)
        named = self._named[number]
        if named.count != count:
            raise BarrierMisuse(f"barrier {number} has a count of {named.count} already, {self._block.where()}")
        if (named.arrived & running).any():
            thread = int(np.argmax(named.arrived & running))
            raise BarrierMisuse(f"thread {thread} arrives again before barrier {number} opens, {self._block.where()}")
        named.arrived |= running
        named.places[running] = place
        if waits:
            named.waiting |= running
        named.sent.join(self._block.ordering.release(self._block.agent(int(np.argmax(running)))))

    def opened(self) -> tuple[int, np.ndarray]:
        """How many barriers all have come to, of those without a count, and the threads that may go on."""
        before = [number for number, named in self._named.items() if named.count is None]
        count = sum(self._open(number) for number in before)
        threads, self._opened = self._opened, np.zeros_like(self._opened)
        return count, threads

    def _open(self, number: int) -> bool:
        """Where all have come: those who waited know what all did before, and the barrier is ready for its next use."""
        named = self._named[number]
        if not self._is_complete(named):
            return False
        self._check_aligned(named)
        del self._named[number]
        for warp in np.flatnonzero(lane_bits(named.waiting)):
            self._block.ordering.acquire(self._block.first_warp + int(warp), named.sent)
        self._opened |= named.waiting
        self._block.counts.barriers += 1
        return True

    @property
    def places(self) -> dict[int, np.ndarray]:
        """By barrier the steps at which threads wait."""
        return {number: np.unique(named.places[named.waiting]) for number, named in self._named.items()}

    def _is_complete(self, named: _Named) -> bool:
        unfinished = ~self._block.finished
        if named.count is None:
            return bool((named.arrived | ~unfinished).all())
        arrived, expected = lane_bits(named.arrived), lane_bits(named.arrived | unfinished)
        return int(((arrived != 0) & (arrived == expected)).sum()) * WARP == named.count

    def _check_aligned(self, named: _Named) -> None:
        """Of an aligned barrier, all threads of a warp that have not ended run the same instruction."""
        unfinished = lane_bits(~self._block.finished)
        for place in np.unique(named.places[named.waiting]):
            bits = lane_bits((named.places == place) & named.waiting)
            if self._is_aligned(int(place)) and ((bits != 0) & (bits != unfinished)).any():
                raise Divergence(f"threads of a warp wait at several aligned barriers, {self._block.where()}")

    def _uniform(self, read: Reader, running: np.ndarray) -> int:
        values = each_lane(self._block, read(self._block))[running]
        if (values != values[0]).any():
            raise self._block.divergence("threads name different barriers")
        return int(values[0])

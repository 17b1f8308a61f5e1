"""mbarrier objects: phases, pending arrivals and transaction bytes, exactly (PTX ISA, 9.7.13.15 "mbarrier").

A wait is told once that its phase is not complete, and is suspended when it asks again; try_wait may do either.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import Block, Reader, Retry, address_of, each_lane, reader, writer
from tests.emulators.ptx.errors import BarrierMisuse
from tests.emulators.ptx.memory import SHARED_BASE
from tests.emulators.ptx.ordering import Sent
from tests.emulators.ptx.parser import Instruction, Sink
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], Retry | None]
# "Contents of the mbarrier object".
MOST_ARRIVALS = MOST_BYTES = (1 << 20) - 1
_BYTES = 8
_NEVER = -2


@dataclass
class MBarrier:
    """`transactions` is the tx-count. `seen`: the last phase that each thread was told is complete; `asked`: the phase
    that it was told is not. `of`: words that name its block where there are others."""

    address: int
    of: str
    agent: int
    expected: int
    pending: int
    gathered: Sent
    completed: Sent
    phase: int = 0
    transactions: int = 0
    observed: bool = True
    seen: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"the mbarrier at {self.address - SHARED_BASE}{self.of} (phase {self.phase}, {self.pending} of "
            f"{self.expected} arrivals and {self.transactions} bytes pending)"
        )


class MBarriers:
    """Those of a block, by address."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._alive: dict[int, MBarrier] = {}
        self._agents: dict[int, int] = {}
        self._clocks: dict[int, int] = {}
        self._born: dict[int, tuple[int, int]] = {}
        self._fenced: set[int] = set()

    def __iter__(self):
        return iter(self._alive.values())

    def misuse(self, thread: int, reason: str) -> BarrierMisuse:
        return BarrierMisuse(f"thread {thread}: {reason}, {self._block.cluster.where()}")

    def init(self, thread: int, address: int, count: int) -> None:
        if address % _BYTES or not SHARED_BASE <= address <= SHARED_BASE + self._block.shared.data.size - _BYTES:
            raise self.misuse(thread, f"no mbarrier can be at {address:#x}")
        if any(abs(address - other) < _BYTES for other in self._alive):
            raise self.misuse(thread, "there is an mbarrier already, which was not invalidated")
        if not 1 <= count <= MOST_ARRIVALS:
            raise self.misuse(thread, f"an mbarrier of {count} arrivals")
        self._block.shared.place_object(thread, address - SHARED_BASE)
        if address not in self._agents:
            self._agents[address] = self._block.ordering.add_agent()
        ordering, warp = self._block.ordering, self._block.agent(thread)
        of = f" of rank {self._block.rank}" if self._block.cluster.size > 1 else ""
        nothing = ordering.nothing_sent
        self._alive[address] = MBarrier(address, of, self._agents[address], count, count, nothing(), nothing())
        self._born[address] = (warp, int(ordering.clocks[warp]))
        self._fenced.discard(address)

    def invalidate(self, thread: int, address: int) -> None:
        barrier = self.find(thread, address)
        if barrier.pending != barrier.expected or barrier.transactions:
            raise self.misuse(thread, f"{barrier} is invalidated within a phase")
        del self._alive[address]
        self._block.shared.remove_object(thread, address - SHARED_BASE)

    def fence(self, warp: int) -> None:
        """fence.mbarrier_init or fence.proxy.async: the warp's mbarriers are there for the asynchronous proxy."""
        self._fenced |= {address for address in self._alive if self._born[address][0] == warp}

    def find(self, thread: int, address: int, by_copies: bool = False, issuer: Block | None = None) -> MBarrier:
        """The mbarrier at an address, whose initialisation the thread, of this block or of `issuer`, has seen."""
        barrier = self._alive.get(address)
        if barrier is None:
            raise self.misuse(thread, f"there is no mbarrier at {address:#x}")
        warp, clock = self._born[address]
        if not self._block.ordering.knows_mbarriers((issuer or self._block).agent(thread), warp, clock):
            raise self.misuse(thread, f"{barrier} was initialised by another warp, with no barrier since")
        if by_copies and address not in self._fenced:
            raise self.misuse(thread, f"{barrier} was initialised with no fence for the asynchronous proxy since")
        return barrier

    def arrive(self, thread: int, barrier: MBarrier, count: int, sent: Sent) -> None:
        if not 1 <= count <= barrier.pending:
            raise self.misuse(thread, f"{count} arrivals at {barrier}")
        if not barrier.observed:
            raise self.misuse(thread, f"an arrival at {barrier}, whose phase before nobody waited for")
        barrier.gathered.join(sent)
        barrier.pending -= count
        self._step(barrier)

    def expect(self, thread: int, barrier: MBarrier, count: int) -> None:
        barrier.transactions += count
        if not 0 <= count <= MOST_BYTES or barrier.transactions > MOST_BYTES:
            raise self.misuse(thread, f"{count} bytes are expected at {barrier}")

    def complete(self, thread: int, barrier: MBarrier, count: int) -> None:
        barrier.transactions -= count
        if barrier.transactions < -MOST_BYTES:
            raise self.misuse(thread, f"{count} bytes are completed at {barrier}")
        self._step(barrier)

    def stamp(self, barrier: MBarrier) -> tuple[int, int]:
        """The agent and its clock in whose name an operation that the current phase tracks is completed."""
        # Phases of mbarriers that followed each other at an address are told apart.
        clock = self._clocks[barrier.agent] = self._clocks.get(barrier.agent, 0) + 1
        for clocks in (barrier.gathered.seen, barrier.gathered.fenced, barrier.gathered.tensor):
            clocks[barrier.agent] = clock
        return barrier.agent, clock

    def _step(self, barrier: MBarrier) -> None:
        if barrier.pending or barrier.transactions:
            return
        for thread, phase in barrier.asked.items():
            if phase < barrier.phase:
                raise self.misuse(thread, f"it waits for phase {phase} of {barrier}, and misses it")
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.completed, barrier.gathered = barrier.gathered, self._block.ordering.nothing_sent()
        barrier.observed = False

    def is_complete(self, thread: int, barrier: MBarrier, phase: int) -> bool:
        """Whether `phase`, the current one or that before, is complete; the thread then sees what happened before."""
        if phase not in (barrier.phase, barrier.phase - 1):
            raise self.misuse(thread, f"it asks for phase {phase} of {barrier}")
        if phase == barrier.phase:
            return False
        barrier.asked.pop(thread, None)
        barrier.seen[thread] = phase
        barrier.observed = True
        if phase >= 0:
            self._block.ordering.acquire(self._block.agent(thread), barrier.completed)
        return True

    def phase_of_parity(self, thread: int, barrier: MBarrier, parity: int) -> int:
        """The phase that a parity names; a thread that waited before must not have missed two."""
        if parity not in (0, 1):
            raise self.misuse(thread, f"a parity of {parity}")
        phase = barrier.phase if barrier.phase % 2 == parity else barrier.phase - 1
        last = barrier.seen.get(thread, _NEVER)
        if last != _NEVER and phase > last + 2 - (last % 2 != parity):
            raise self.misuse(
                thread, f"it asks for the phase of parity {parity} of {barrier}, but missed phase {last + 1}"
            )
        return phase


# ---- instructions ----------------------------------------------------------------------------------------------------

_SPACES = ("shared", "shared::cta")


def _take_scope(words: Words, orders: tuple[str, ...]) -> None:
    """.sem and .scope; relaxed operations order nothing, which is not implemented but where it is the only choice."""
    words.take_one(orders, "none")
    words.take_one(("cta", "cluster"), "cta")


def found(block: Block, thread: int, address: int, in_cluster: bool) -> tuple[Block, MBarrier]:
    """The mbarrier at an address that a thread names, in its own block or `in_cluster`, and the block that has it."""
    owner = block
    if in_cluster:
        owner, address = block.cluster.target(block, thread, address)
    return owner, owner.mbarriers.find(thread, address, issuer=block)


def operate(instruction: Instruction, words: Words) -> Effect:
    if not words.left:
        raise words.unknown()
    kind = words.left.pop(0)
    if kind == "pending_count":
        return _pending_count(instruction, words)
    words.take_type(("b64",))
    words.take_one(_SPACES, "generic")
    decode = _OPERATIONS.get(kind)
    if decode is None:
        raise words.unknown()
    return decode(instruction, words)


def lanes_of(mask: np.ndarray) -> list[int]:
    return [int(lane) for lane in np.flatnonzero(mask)]


def values_of(block: Block, read: Reader) -> np.ndarray:
    return each_lane(block, read(block))


def _init(instruction: Instruction, words: Words) -> Effect:
    words.finish()
    target, count = instruction.operands
    read, read_count = address_of(target, instruction), reader(count, "u32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        for lane in lanes_of(mask):
            block.mbarriers.init(lane, int(read(block)[lane]), int(values_of(block, read_count)[lane]))

    return effect


def _invalidate(instruction: Instruction, words: Words) -> Effect:
    words.finish()
    read = address_of(instruction.operands[0], instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        for lane in lanes_of(mask):
            block.mbarriers.invalidate(lane, int(read(block)[lane]))

    return effect


def _arrive(instruction: Instruction, words: Words) -> Effect:
    """mbarrier.arrive{.expect_tx}{.release} state, [addr]{, count}: with expect_tx the count is one of bytes.

    Nobody is told the state of another block's mbarrier.
    """
    expects = words.take("expect_tx")
    must_not_complete, in_cluster = words.take("noComplete"), words.take("shared::cluster")
    _take_scope(words, ("release",))
    words.finish()
    operands = instruction.operands
    if not 2 <= len(operands) <= 3 or (expects and len(operands) != 3):
        raise words.unknown()
    write = writer(operands[0], "b64", instruction)
    returns = not isinstance(operands[0], Sink)
    if in_cluster and (returns or must_not_complete):
        raise words.unknown()
    read = address_of(operands[1], instruction)
    read_count = reader(operands[2], "u32", instruction) if len(operands) == 3 else None

    def effect(block: Block, mask: np.ndarray) -> None:
        states = np.zeros(block.lanes.size, np.uint64)
        for lane in lanes_of(mask):
            owner, barrier = found(block, lane, int(read(block)[lane]), in_cluster)
            count = 1 if read_count is None else int(values_of(block, read_count)[lane])
            states[lane] = _state(barrier)
            phase = barrier.phase
            if expects:
                owner.mbarriers.expect(lane, barrier, count)
            block.cluster.note_access(block, lane, owner)
            sent = block.ordering.release(block.agent(lane))
            owner.mbarriers.arrive(lane, barrier, 1 if expects else count, sent)
            if must_not_complete and barrier.phase != phase:
                raise block.mbarriers.misuse(lane, f"an arrival that completes a phase of {barrier}")
        if returns:
            write(block, mask, states)

    return effect


def _state(barrier: MBarrier) -> int:
    """The opaque state: the phase, the pending count before the arrival, and the mbarrier's agent."""
    return barrier.phase | barrier.pending << 32 | barrier.agent << 52


def _expect(instruction: Instruction, words: Words) -> Effect:
    return _transactions(instruction, words, MBarriers.expect)


def _complete(instruction: Instruction, words: Words) -> Effect:
    return _transactions(instruction, words, MBarriers.complete)


def _transactions(instruction: Instruction, words: Words, change: Callable[..., None]) -> Effect:
    _take_scope(words, ("relaxed",))
    in_cluster = words.take("shared::cluster")
    words.finish()
    target, count = instruction.operands
    read, read_count = address_of(target, instruction), reader(count, "u32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        for lane in lanes_of(mask):
            owner, barrier = found(block, lane, int(read(block)[lane]), in_cluster)
            block.cluster.note_access(block, lane, owner)
            change(owner.mbarriers, lane, barrier, int(values_of(block, read_count)[lane]))

    return effect


def _wait(instruction: Instruction, words: Words) -> Effect:
    """mbarrier.{test_wait,try_wait}{.parity}{.acquire} p, [addr], state or parity{, time limit}."""
    by_parity = words.take("parity")
    _take_scope(words, ("acquire",))
    words.finish()
    target, address, which = instruction.operands[:3]
    if len(instruction.operands) > 4:
        raise words.unknown()
    write = writer(target, "pred", instruction)
    read, read_which = address_of(address, instruction), reader(which, "u32" if by_parity else "u64", instruction)

    def effect(block: Block, mask: np.ndarray) -> Retry | None:
        done, again = np.zeros(block.lanes.size, bool), np.zeros(block.lanes.size, bool)
        asked: dict[int, MBarrier] = {}
        for lane in lanes_of(mask):
            barrier = block.mbarriers.find(lane, int(read(block)[lane]))
            which = int(values_of(block, read_which)[lane])
            if by_parity:
                phase = block.mbarriers.phase_of_parity(lane, barrier, which)
            else:
                phase = _phase_of_state(block, lane, barrier, which)
            done[lane] = block.mbarriers.is_complete(lane, barrier, phase)
            if not done[lane]:
                again[lane] = barrier.asked.get(lane) == phase
                barrier.asked[lane] = phase
                asked[barrier.address] = barrier
        write(block, mask & ~again, done)
        return _retry(again, list(asked.values())) if again.any() else None

    return effect


def _phase_of_state(block: Block, thread: int, barrier: MBarrier, state: int) -> int:
    if state >> 52 != barrier.agent:
        raise block.mbarriers.misuse(thread, f"a state that no arrival at {barrier} gave")
    return state & 0xFFFFFFFF


def _retry(lanes: np.ndarray, barriers: list[MBarrier]) -> Retry:
    phases = [barrier.phase for barrier in barriers]

    def is_over() -> bool:
        return any(barrier.phase != phase for barrier, phase in zip(barriers, phases, strict=True))

    return Retry(lanes, is_over, lambda: ", ".join(map(str, barriers)))


def _pending_count(instruction: Instruction, words: Words) -> Effect:
    if words.left != ["b64"]:
        raise words.unknown()
    target, state = instruction.operands
    write, read = writer(target, "u32", instruction), reader(state, "u64", instruction)
    return lambda block, mask: write(
        block, mask, ((values_of(block, read) >> np.uint64(32)) & np.uint64(0xFFFFF)).astype(np.uint32)
    )


_OPERATIONS: dict[str, Callable[[Instruction, Words], Effect]] = {
    "init": _init,
    "inval": _invalidate,
    "arrive": _arrive,
    "expect_tx": _expect,
    "complete_tx": _complete,
    "test_wait": _wait,
    "try_wait": _wait,
}


def fence(instruction: Instruction, words: Words) -> Effect:
    """fence and membar: those of the asynchronous proxy order what it reads, others nothing more than barriers do."""
    if words.left[:1] == ["mbarrier_init"]:
        return _for_warps(_fence_mbarriers)
    if words.left in (["proxy", "async"], ["proxy", "async", "shared::cta"], ["proxy", "async", "shared::cluster"]):
        return _for_warps(_fence_proxy)
    return lambda block, mask: None


def _fence_mbarriers(block: Block, warp: int) -> None:
    block.mbarriers.fence(warp)
    block.ordering.fence_mbarriers(warp)


def _fence_proxy(block: Block, warp: int) -> None:
    block.ordering.fence_proxy(warp)
    block.mbarriers.fence(warp)


def _for_warps(act: Callable[[Block, int], None]) -> Effect:
    def effect(block: Block, mask: np.ndarray) -> None:
        for warp in np.flatnonzero(mask.reshape(-1, 32).any(axis=1)):
            act(block, block.first_warp + int(warp))

    return effect

"""The tile registers of a core, which pass from math to pack by halves, and the source registers between unpack and
math.

A register holds a tile face by face, in 32 bits. Registers of 16 bits round on each write. The half that math acquires
has no written register: a matmul, a reduction or a sum that accumulates into one starts there from its identity; any
other read of one is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.records import dataclass
from tilewright.semantics.cores.agents import MATH, PACK, UNPACK, Agent, Core, Knowledge
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.tile_formats import Array

ELEMENTS = TILE * TILE
# What a register may hold: floats, or integers of 32 bits with a sign or without.
FLOATS, SIGNED, UNSIGNED = "float", "i32", "u32"
# Tiles that the source registers hold.
_BANKS = 2


class Half:
    """Half of the tile registers. `kinds`: what each holds, None where nothing was written since it was acquired.
    `narrow`: the type that floats are rounded to."""

    def __init__(self, count: int, narrow: np.dtype[Any] | None, values: bool) -> None:
        self.kinds: list[str | None] = [None] * count
        self._narrow = narrow
        self.floats = np.zeros((count if values else 0, ELEMENTS), np.float32)
        self._integers = {SIGNED: self.floats.view(np.int32), UNSIGNED: self.floats.view(np.uint32)}

    def read(self, slots: slice, kind: str) -> Array:
        """Registers as floats or integers, without a copy."""
        return self.floats[slots] if kind == FLOATS else self._integers[kind][slots]

    def write(self, slots: slice, kind: str, values: Array) -> None:
        self.store(self.read(slots, kind), values, kind)
        self.mark(slots, kind)

    def store(self, registers: Array, values: Array, kind: str) -> None:
        """Write registers, which `read` gave, as numbers of a kind."""
        registers[...] = values if self._narrow is None or kind != FLOATS else values.astype(self._narrow)

    def holds(self, slots: Sequence[int], kind: str) -> bool:
        """Whether registers hold just this kind."""
        kinds = self.kinds
        for slot in slots:  # noqa: SIM110, a generator costs as much as all the rest
            if kinds[slot] != kind:
                return False
        return True

    def mark(self, slots: slice, kind: str) -> None:
        """Registers were written."""
        for slot in range(slots.start, slots.stop):
            self.kinds[slot] = kind


class Registers:
    """The protocol between math and pack. `acquired`: the half that math has; `taken`: the half that pack has;
    `committed`: halves that math gave up, with what it knew then."""

    def __init__(self, core: Core, capacity: int, narrow: np.dtype[Any] | None, values: bool) -> None:
        self._core = core
        self.capacity = capacity
        self.halves = (Half(capacity, narrow, values), Half(capacity, narrow, values))
        self._next = 0
        self._free: deque[Knowledge | None] = deque([None, None])
        self.acquired: Half | None = None
        self.taken: Half | None = None
        self.committed: deque[tuple[Half, Knowledge | None]] = deque()
        self._math_waits: Agent | None = None
        self._pack_waits: Agent | None = None

    def acquire(self, agent: Agent, op: Operation) -> bool:
        if self.acquired is not None:
            raise hazard("registers-acquired-twice", "acquires registers, and has some", agent, op)
        if not self._free:
            self._math_waits = agent
            return agent.wait_for(self, op)
        known = self._free.popleft()
        if known is not None:
            agent.learn(known)
        self.acquired = self.halves[self._next]
        self.acquired.kinds = [None] * self.capacity
        self._next = 1 - self._next
        return False

    def commit(self, agent: Agent, op: Operation, checks: bool) -> None:
        if self.acquired is None:
            raise hazard("registers-not-acquired", "commits registers that it has not acquired", agent, op)
        self.committed.append((self.acquired, agent.tell() if checks else None))
        self.acquired = None
        if self._pack_waits is not None:
            waiting, self._pack_waits = self._pack_waits, None
            waiting.wake(agent.time)

    def wait(self, agent: Agent, op: Operation) -> bool:
        if self.taken is not None:
            raise hazard("registers-not-released", "waits for registers, and has not released some", agent, op)
        if not self.committed:
            self._pack_waits = agent
            return agent.wait_for(self, op)
        self.taken, known = self.committed.popleft()
        if known is not None:
            agent.learn(known)
        return False

    def release(self, agent: Agent, op: Operation, checks: bool) -> None:
        if self.taken is None:
            raise hazard("registers-not-waited", "releases registers that it has not waited for", agent, op)
        self.taken = None
        self._free.append(agent.tell() if checks else None)
        if self._math_waits is not None:
            waiting, self._math_waits = self._math_waits, None
            waiting.wake(agent.time)

    # ---- use --------------------------------------------------------------------------------------------------------

    def of_math(self, agent: Agent, op: Operation, slots: slice) -> Half:
        """The half that math computes in, of which it uses some registers."""
        if self.acquired is None:
            raise hazard(
                "registers-not-acquired", "computes in registers that are not acquired, or were committed", agent, op
            )
        if slots.stop > self.capacity:
            raise self._overflow(agent, op, slots)
        return self.acquired

    def of_pack(self, agent: Agent, op: Operation, slots: slice) -> Half:
        """The half that is packed."""
        if self.taken is None:
            raise hazard("registers-not-waited", "packs registers that it has not waited for", agent, op)
        if slots.stop > self.capacity:
            raise self._overflow(agent, op, slots)
        for slot in range(slots.start, slots.stop):
            if self.taken.kinds[slot] is None:
                raise never_written(slot, agent, op)
        return self.taken

    def _overflow(self, agent: Agent, op: Operation, slots: slice) -> Exception:
        text = f"uses registers up to {slots.stop - 1}, of a half with {self.capacity}"
        return hazard("registers-overflow", text, agent, op)

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_text(self, agent: Agent) -> str:
        return "a free half of the registers" if agent.role == MATH else "registers that are committed"

    def providers(self, agent: Agent) -> Sequence[Agent]:
        other = self._core.agents.get(PACK if agent.role == MATH else MATH)
        return [] if other is None else [other]

    def starved_kind(self, agent: Agent) -> str:
        return "registers-not-released" if agent.role == MATH else "registers-not-committed"


def never_written(slot: int, agent: Agent, op: Operation) -> Exception:
    return hazard(
        "register-never-written", f"register {slot} is read, which was not written since it was acquired", agent, op
    )


@dataclass(eq=False, slots=True)
class Operands:
    """The source registers of an operation's pages. `first_ready`, `last_ready`: when the first page and the last are
    there; `known`: what unpack knew then; `math_ends`: when the operation has used them, once that is known."""

    pages: int
    first_ready: float
    last_ready: float
    data: tuple[Array, ...]
    known: Knowledge | None
    math_ends: float | None = None


@dataclass(eq=False)
class Sources:
    """The source registers: operations in the order in which they are unpacked, and when banks become free. Unpack is
    at most as many pages ahead of math as there are banks. `last`: what was unpacked last; `others_free`: when the
    banks are free that it fills after the first one."""

    core: Core
    operands: deque[Operands] = field(default_factory=deque[Operands])
    last: Operands | None = None
    free: deque[float] = field(default_factory=lambda: deque([0.0] * _BANKS))
    others_free: float = 0.0
    unpack_waits: Agent | None = None
    math_waits: Agent | None = None

    def claim(self, agent: Agent, op: Operation, pages: int) -> bool:
        """Unpack waits for the bank of the first page."""
        banks = min(pages, _BANKS)
        if len(self.free) < banks:
            self.unpack_waits = agent
            return agent.wait_for(self, op)
        agent.time = max(agent.time, self.free.popleft())
        self.others_free = self.free.popleft() if banks > 1 else agent.time
        return False

    def give(self, operands: Operands) -> None:
        """Unpack has begun an operation's pages."""
        self.operands.append(operands)
        self.last = operands
        if self.math_waits is not None:
            waiting, self.math_waits = self.math_waits, None
            waiting.wake(operands.first_ready)

    def finish(self, agent: Agent, op: Operation) -> bool:
        """Unpack continues when math has used all but the pages for which there are banks."""
        assert self.last is not None
        if self.last.math_ends is None:
            self.unpack_waits = agent
            return agent.wait_for(self, op)
        agent.time = max(agent.time, self.last.math_ends)
        return False

    def await_operands(self, agent: Agent, op: Operation) -> bool:
        if self.operands:
            return False
        self.math_waits = agent
        return agent.wait_for(self, op)

    def take(self, agent: Agent, cycles: float) -> tuple[Array, ...]:
        """Math works on the pages of an operation, so many cycles on all of them."""
        operands = self.operands.popleft()
        if operands.known is not None:
            agent.learn(operands.known)
        if agent.time < operands.first_ready:
            agent.time = operands.first_ready
        agent.spend(cycles)
        each = cycles / operands.pages
        time = agent.time = max(agent.time, operands.last_ready + each)
        banks = min(operands.pages, _BANKS)
        operands.math_ends = time - each * banks
        for left in range(banks - 1, -1, -1):
            self.free.append(time - each * left)
        if self.unpack_waits is not None:
            waiting, self.unpack_waits = self.unpack_waits, None
            waiting.wake(agent.world.now)
        return operands.data

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_text(self, agent: Agent) -> str:
        return "room in the source registers" if agent.role == UNPACK else "pages in the source registers"

    def providers(self, agent: Agent) -> Sequence[Agent]:
        other = self.core.agents.get(MATH if agent.role == UNPACK else UNPACK)
        return [] if other is None else [other]

    def starved_kind(self, agent: Agent) -> str:
        return "deadlock"

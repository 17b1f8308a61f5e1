"""A queue of one core: its pages, the steps at both ends, and who may touch which page.

Pages are counted from the first one that ever went through. A block of pages that an operation touches, or that a step
goes over, does not go around the end of the memory: the hardware moves its pointers by whole blocks.

The shadow of a page states who wrote it last and who has read it since. It is about whole pages, as all operations are;
pages of two queues do not overlap, which the plan of the memory sees to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tilewright.layout.catalogue.device_tiles import TileFormat
from tilewright.semantics.cores.agents import PARTS, Agent, Core, Knowledge, Mover, Stamp
from tilewright.semantics.cores.reports import hazard, place
from tilewright.semantics.cores.tile_formats import Array, Bytes, decode_in_faces, encode_in_faces, stored_type

# Pages one behind another, or any.
Pages = range | Sequence[int]


class Queue:
    """`front`, `back`: pages that were popped and pushed so far; `waited`, `reserved`: how many after these were waited
    for and reserved. `view`: the memory, (pages, bytes of one), absent where values are not computed; `stored`: the
    same as numbers, (pages, 1024), absent too where they share exponents."""

    def __init__(self, core: Core, name: str, number: int, format: TileFormat, capacity: int, address: int) -> None:
        self.core = core
        self.name = name
        self.number = number
        self.format = format
        self.capacity = capacity
        self.address_bytes = address
        self.view: Bytes | None = None
        self.stored: Array | None = None
        self._numbers: np.dtype[Any] | None = None
        self.filler: Agent | None = None
        self.emptier: Agent | None = None
        self.front = self.back = self.waited = self.reserved = 0
        self.highest = 0
        # Agents that wait for full and for free pages, and how many of them.
        self.wants_full: tuple[Agent, int] | None = None
        self.wants_free: tuple[Agent, int] | None = None
        # What is known behind a number of pages that were pushed, popped; and the clocks of reserves.
        self.pushes: deque[tuple[int, Knowledge]] = deque()
        self.pops: deque[tuple[int, Knowledge]] = deque()
        self.reserves: deque[tuple[int, Stamp]] = deque()
        self.filled = bytearray(capacity)
        self.writers: list[Stamp | None] = [None] * capacity
        self.readers: list[dict[int, Stamp]] = [{} for _ in range(capacity)]

    # ---- memory -----------------------------------------------------------------------------------------------------

    def place(self, memory: Bytes, blank: Bytes) -> None:
        """Give the queue its memory, in which each page is blank."""
        self.view = memory.reshape(self.capacity, self.format.page_bytes)
        self.view[:] = blank
        stored = stored_type(self.format)
        if stored is not None:
            self.stored = self.view.view(stored)
            self._numbers = stored if stored.kind in "iu" else np.dtype(np.float32)

    def read(self, slots: Pages) -> Array:
        """The numbers of pages, face by face, as f32 or integers; not to be asked for where there is no memory."""
        if self.stored is not None and self._numbers is not None:
            return at(self.stored, slots).astype(self._numbers)
        assert self.view is not None
        return decode_in_faces(at(self.view, slots), self.format)

    def write(self, slots: Pages, values: Array) -> None:
        """Write numbers to pages, face by face."""
        if self.stored is not None:
            set_at(self.stored, slots, values)
        else:
            assert self.view is not None
            set_at(self.view, slots, encode_in_faces(values, self.format))

    # ---- steps ------------------------------------------------------------------------------------------------------

    def reserve(self, agent: Agent, op: Operation, count: int, checks: bool) -> bool:
        behind = self.back + count - self.capacity
        if behind > self.front:
            self.wants_free = (agent, count)
            return agent.wait_for(self, op)
        if count > self.reserved:
            self.reserved = count
        if not checks:
            return False
        pops = self.pops
        while pops and pops[0][0] < behind:
            pops.popleft()
        if pops and behind > 0:
            agent.learn(pops[0][1])
        limit = self.back + count
        if not self.reserves or self.reserves[-1][0] < limit:
            self.reserves.append((limit, agent.stamp(op)))
        return False

    def push(self, agent: Agent, op: Operation, count: int, checks: bool) -> None:
        if self.reserved < count:
            raise hazard(
                "push-without-reserve",
                f"pushes {count} pages to queue {self.name}, where {self.reserved} are reserved",
                agent,
                op,
            )
        self._keep_whole(self.back, count, agent, op)
        self.back += count
        self.reserved -= count
        held = self.back - self.front
        if held > self.highest:
            self.highest = held
        if checks:
            while self.reserves and self.reserves[0][0] <= self.back:
                self.reserves.popleft()
            self.pushes.append((self.back, agent.tell()))
        if self.wants_full is not None and held >= self.wants_full[1]:
            waiting, self.wants_full = self.wants_full[0], None
            waiting.wake(agent.time)

    def wait(self, agent: Agent, op: Operation, count: int, checks: bool) -> bool:
        limit = self.front + count
        if self.back < limit:
            self.wants_full = (agent, count)
            return agent.wait_for(self, op)
        if count > self.waited:
            self.waited = count
        if checks:
            pushes = self.pushes
            while pushes[0][0] < limit:
                pushes.popleft()
            agent.learn(pushes[0][1])
        return False

    def pop(self, agent: Agent, op: Operation, count: int, checks: bool) -> None:
        if self.waited < count:
            raise hazard(
                "pop-without-wait",
                f"pops {count} pages of queue {self.name}, where {self.waited} were waited for",
                agent,
                op,
            )
        first = self._keep_whole(self.front, count, agent, op)
        self.front += count
        self.waited -= count
        if checks:
            self.filled[first : first + count] = bytes(count)
            self.pops.append((self.front, agent.tell()))
        if self.wants_free is not None and self.back + self.wants_free[1] - self.capacity <= self.front:
            waiting, self.wants_free = self.wants_free[0], None
            waiting.wake(agent.time)

    # ---- which pages ------------------------------------------------------------------------------------------------

    def full_slots(self, agent: Agent, op: Operation, pages: Pages) -> Pages:
        """Memory slots of pages that are counted from the front."""
        first, last = _ends(pages)
        if last >= self.waited or first < 0:
            raise self._not_waited(agent, op, last if first >= 0 else first)
        return shifted(pages, self._keep_whole(self.front, last + 1, agent, op))

    def free_slots(self, agent: Agent, op: Operation, pages: Pages) -> Pages:
        """Memory slots of pages that are counted from the back."""
        first, last = _ends(pages)
        if last >= self.reserved or first < 0:
            page = last if first >= 0 else first
            raise hazard(
                "page-not-reserved",
                f"page {page} of queue {self.name} is written, where {self.reserved} are reserved",
                agent,
                op,
            )
        return shifted(pages, self._keep_whole(self.back, last + 1, agent, op))

    def _not_waited(self, agent: Agent, op: Operation, page: int) -> Exception:
        own = self.filler is not None and self.filler.role in PARTS and agent.role in PARTS
        return hazard(
            "unpack-before-pack" if own else "page-not-waited",
            f"page {page} of queue {self.name} is read, where {self.waited} were waited for",
            agent,
            op,
        )

    def _keep_whole(self, counted: int, count: int, agent: Agent, op: Operation) -> int:
        first = counted % self.capacity
        if first + count > self.capacity:
            raise hazard(
                "block-around-the-end",
                f"{count} pages from page {first} on of the {self.capacity} of queue {self.name} go around its end; "
                "its capacity has to be a multiple of what its steps move",
                agent,
                op,
            )
        return first

    # ---- who touches them -------------------------------------------------------------------------------------------

    def note_reads(self, agent: Agent, slots: Pages, stamp: Stamp) -> None:
        """Pages are read, at the time of a stamp."""
        vector, column = agent.vector, stamp.column
        known: Stamp | None = None
        for slot in slots:
            writer = self.writers[slot]
            if writer is None or not self.filled[slot]:
                raise hazard(
                    "read-never-written",
                    f"page {slot} of the memory of queue {self.name} is read, but was not written since it was free",
                    agent,
                    stamp.op,
                )
            # One operation wrote many pages.
            if writer is not known:
                if vector.item(writer.column) < writer.clock and not self.core.has_come(agent, writer):
                    raise self._unordered(agent, stamp.op, writer, slot, "read")
                known = writer
            self.readers[slot][column] = stamp

    def note_writes(self, agent: Agent, slots: Pages, stamp: Stamp) -> None:
        """Pages are written, at the time of a stamp."""
        vector = agent.vector
        known: Stamp | None = None
        for slot in slots:
            writer = self.writers[slot]
            if writer is not None and writer is not known:
                if vector.item(writer.column) < writer.clock and not self.core.has_come(agent, writer):
                    raise self._unordered(agent, stamp.op, writer, slot, "written")
                known = writer
            readers = self.readers[slot]
            if readers:
                for reader in readers.values():
                    if vector.item(reader.column) < reader.clock and not _has_come(agent, reader):
                        raise self._overwritten(agent, stamp.op, reader, slot)
                readers.clear()
            self.writers[slot] = stamp
            self.filled[slot] = 1

    def check_reserved(self, agent: Agent, op: Operation, slots: Pages) -> None:
        """Another core's thread writes pages, which this core has to have reserved, as the thread knows."""
        known: Stamp | None = None
        for slot in slots:
            ahead = (slot - self.back) % self.capacity
            is_reserved, reserve = ahead < self.reserved, self._reserve_of(self.back + ahead)
            if not is_reserved or reserve is None or (reserve is not known and not agent.knows(reserve)):
                why = "may not have reserved it yet" if is_reserved else "has not reserved it"
                raise hazard(
                    "destination-not-reserved",
                    f"page {slot} of the memory of queue {self.name} of core {self.core.position} is written, which "
                    f"{why}: the sender waits for no signal of the reservation",
                    agent,
                    op,
                )
            known = reserve

    def _reserve_of(self, page: int) -> Stamp | None:
        """The first reserve that a page is in."""
        for limit, stamp in self.reserves:
            if page < limit:
                return stamp
        return None

    def _unordered(self, agent: Agent, op: Operation, writer: Stamp, slot: int, what: str) -> Exception:
        in_flight = isinstance(writer.agent, Mover) and writer.column != writer.agent.column
        kind = "queue-race"
        if in_flight and what == "read":
            kind = "read-before-arrival"
        elif {agent.role, writer.agent.role} <= {*PARTS} and what == "read":
            kind = "unpack-before-pack"
        how = "writes it, which nothing waited for" if in_flight else "writes it, in no order"
        return hazard(
            kind,
            f"page {slot} of the memory of queue {self.name} of core {self.core.position} is {what} while "
            f"{place(writer.agent, writer.op, ())} {how}",
            agent,
            op,
        )

    def _overwritten(self, agent: Agent, op: Operation, reader: Stamp, slot: int) -> Exception:
        in_flight = isinstance(reader.agent, Mover) and reader.column != reader.agent.column
        how = "still reads it: no barrier of writes is between" if in_flight else "reads it, in no order"
        return hazard(
            "overwritten-in-flight" if in_flight else "queue-race",
            f"page {slot} of the memory of queue {self.name} of core {self.core.position} is written while "
            f"{place(reader.agent, reader.op, ())} {how}",
            agent,
            op,
        )

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_text(self, agent: Agent) -> str:
        if agent is self.emptier and self.wants_full is not None:
            return f"{self.wants_full[1]} pages of queue {self.name}, which has {self.back - self.front}"
        count = 0 if self.wants_free is None else self.wants_free[1]
        free = self.capacity - self.back + self.front
        return f"{count} free pages of queue {self.name}, which has {free} of {self.capacity}"

    def providers(self, agent: Agent) -> Sequence[Agent]:
        other = self.filler if agent is self.emptier and self.wants_full is not None else self.emptier
        return [] if other is None else [other]

    def starved_kind(self, agent: Agent) -> str:
        return "queue-underflow" if agent is self.emptier and self.wants_full is not None else "queue-overflow"


def _has_come(agent: Agent, reader: Stamp) -> bool:
    """Whether a thread knows that what a mover read to send it to other cores is there."""
    return isinstance(reader.agent, Mover) and reader.agent.has_come(agent, reader)


def _ends(pages: Pages) -> tuple[int, int]:
    """The first and the last of some pages."""
    return (pages.start, pages.stop - 1) if isinstance(pages, range) else (min(pages), max(pages))


def shifted(pages: Pages, by: int) -> Pages:
    return range(pages.start + by, pages.stop + by) if isinstance(pages, range) else [page + by for page in pages]


def at(rows: Array, numbers: Pages) -> Array:
    """Some rows."""
    return rows[numbers.start : numbers.stop] if isinstance(numbers, range) else rows[numbers]


def set_at(rows: Array, numbers: Pages, values: Array | int) -> None:
    if isinstance(numbers, range):
        rows[numbers.start : numbers.stop] = values
    else:
        rows[numbers] = values

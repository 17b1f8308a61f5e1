"""A semaphore of one core: its number, who waits for it, and what is in no order with what.

Numbers that come from other cores (increments, and numbers that are multicast) have to be in an order with what the
core's own threads do: with a number that they set, which else could be lost, and with a wait for one exact number,
which else could miss it. They are where the core's thread knew of them before, or whoever sent them knew of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from xdsl.ir import Operation

from tilewright.semantics.cores.agents import Agent, Core, Knowledge, Mover, Stamp, Written
from tilewright.semantics.cores.reports import hazard, place

# Of a number that is never set, so many arrivals are told apart.
_MOST_ARRIVALS = 256


class Message(NamedTuple):
    """A semaphore value from another core: the time it was sent, the clocks that it passes on, and the sender's writes
    that arrived at the core before it."""

    sender: Mover
    op: Operation
    stamp: Stamp
    told: Knowledge
    written: Written
    trips: tuple[int, ...]


class Semaphore:
    """`told`, `written`: what whoever waits for the number learns in any case; `arrivals`: what was added to it since,
    in order, with how much. `came`: for each thread the stamp of the last number that came from it; `own`: what the
    core's threads did last, `reads`: multicasts that read the number and may still do so."""

    def __init__(self, core: Core, name: str, number: int, initial: int, knowledge: Knowledge) -> None:
        self.core = core
        self.name = name
        self.number = number
        self.initial = initial
        self.value = initial
        self.told = knowledge
        self.written: dict[int, int] = {}
        self.arrivals: list[tuple[Message, int]] = []
        self.came: dict[int, Stamp] = {}
        self.own: Stamp | None = None
        self.reads: dict[int, Stamp] = {}
        self.givers: list[Agent] = []
        self.waits: list[tuple[Agent, Operation, int, bool]] = []

    # ---- what the core's threads do ---------------------------------------------------------------------------------

    def set(self, agent: Agent, op: Operation, value: int, checks: bool) -> None:
        if checks:
            for stamp in self.came.values():
                if not agent.knows(stamp):
                    raise hazard(
                        "semaphore-race",
                        f"semaphore {self.name} is set to {value} in no order with what "
                        f"{place(stamp.agent, stamp.op, ())} sent, which is lost",
                        agent,
                        op,
                    )
            self._change(agent, op, None, value, agent.vector)
            self.came.clear()
            self.own = agent.stamp(op)
            self.told = agent.tell()
            self.written.clear()
            self.arrivals.clear()
        self.value = value
        self._wake(agent.time)

    def wait(self, agent: Agent, op: Operation, value: int, at_least: bool, checks: bool) -> bool:
        if not self._is_met(agent, op, value, at_least):
            if (agent, op, value, at_least) not in self.waits:
                self.waits.append((agent, op, value, at_least))
            return agent.wait_for(self, op)
        if checks:
            self._learn(agent, op, value)
            if not at_least:
                self.own = agent.stamp(op)
        return False

    def _learn(self, agent: Agent, op: Operation, value: int) -> None:
        """A thread that waited for a number knows what had to come before it, whatever else came: of each sender as
        much as is missing where all that others sent is there."""
        sums: dict[Mover, int] = {}
        for message, number in self.arrivals:
            sums[message.sender] = sums.get(message.sender, 0) + number
        missing = {sender: value - (self.value - sum) for sender, sum in sums.items()}
        known, written = self.told, [*self.written.items()]
        for message, number in self.arrivals:
            if missing[message.sender] > 0:
                known = np.maximum(known, message.told)
                written.append(message.written)
                missing[message.sender] -= number
        agent.learn(known)
        stamp = agent.stamp(op)
        for each in written:
            self.core.note_came(each, stamp)

    def _is_met(self, agent: Agent, op: Operation, value: int, at_least: bool) -> bool:
        if self.value > value and not at_least:
            raise hazard(
                "semaphore-overshoot",
                f"semaphore {self.name} is {self.value}, which is beyond the {value} that is waited for exactly",
                agent,
                op,
            )
        return self.value >= value

    # ---- what comes from elsewhere ----------------------------------------------------------------------------------

    def arrive(self, message: Message, number: int, replaces: bool) -> None:
        """A number comes from elsewhere: it is added to the own one, or `replaces` it."""
        value = number if replaces else self.value + number
        sender = message.sender
        world = sender.world
        if world.checks:
            own = self.own
            if own is not None and message.told.item(own.column) < own.clock:
                raise hazard(
                    "semaphore-race",
                    f"the signal to semaphore {self.name} of core {self.core.position} is unordered with "
                    f"{place(own.agent, own.op, ())}, which may lose or miss it",
                    sender,
                    message.op,
                    message.trips,
                )
            self._change(sender, message.op, message.trips, value, message.told)
            self.came[message.stamp.column] = message.stamp
            if replaces:
                self.arrivals.clear()
                self.told = message.told
                self.written = dict([message.written])
            else:
                self._add(message, number)
        self.value = value
        self._wake(world.now)

    def _add(self, message: Message, number: int) -> None:
        self.arrivals.append((message, number))
        if len(self.arrivals) > _MOST_ARRIVALS:
            oldest, _ = self.arrivals.pop(0)
            self.told = np.maximum(self.told, oldest.told)
            column, clock = oldest.written
            self.written[column] = max(self.written.get(column, 0), clock)

    def _change(self, agent: Agent, op: Operation, trips: tuple[int, ...] | None, value: int, known: Knowledge) -> None:
        if value == self.value:
            return
        for stamp in self.reads.values():
            if known.item(stamp.column) < stamp.clock:
                raise hazard(
                    "semaphore-source-changed",
                    f"semaphore {self.name} of core {self.core.position} becomes {value} while "
                    f"{place(stamp.agent, stamp.op, ())} may still read it",
                    agent,
                    op,
                    trips,
                )
        self.reads.clear()

    def _wake(self, time: float) -> None:
        still: list[tuple[Agent, Operation, int, bool]] = []
        for wait in self.waits:
            agent, op, value, at_least = wait
            if self._is_met(agent, op, value, at_least):
                agent.wake(time)
            else:
                still.append(wait)
        self.waits = still

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_text(self, agent: Agent) -> str:
        wanted = next(f"{value}{' or more' if more else ''}" for who, _, value, more in self.waits if who is agent)
        return f"{wanted} in semaphore {self.name}, which is {self.value}"

    def providers(self, agent: Agent) -> Sequence[Agent]:
        return [giver for giver in self.givers if giver is not agent]

    def starved_kind(self, agent: Agent) -> str:
        return "semaphore-starved"

"""Whether two programs do the same in an order that is the same wherever that matters: it is proven from what each
agent does, without a run.

A graph has all events and what must come before what: the order of each agent, what is given before it is waited for,
and what came to a core before a number that was sent there later. What touches the same memory must be in an order by
it, and in the same one in both programs; then each reads what it read before. Where nobody waits in a circle, all of
it happens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.cores.traces import ENDED, Event, Place, ProtocolError, Touch, traces_of
from tilewright.dialects import cores
from tilewright.semantics.cores.agents import MATH, UNPACK

Agent = tuple[Place, str]
# An event, by its agent, and what it is, and its number among those alike.
Name = tuple[Agent, tuple[Any, ...], int]


class NoOrderError(Exception):
    """Something is in no order, or waits for what does not come."""


@dataclass
class Use:
    """A touch by an event. `ends`: choices of nodes behind all of which it is over."""

    name: Name
    touch: Touch
    start: int
    ends: list[list[int]]

    def meets(self, other: Use) -> bool:
        if self.name == other.name or (self.touch.adds and other.touch.adds):
            return False
        return self.touch.writes or other.touch.writes


@dataclass
class OrderGraph:
    """Nodes are numbers: events, and what comes to a core that an event sent there."""

    traces: dict[Agent, list[Event]]
    nodes: dict[tuple[Agent, int], int] = field(default_factory=dict[tuple[Agent, int], int])
    arrivals: dict[tuple[int, Place], int] = field(default_factory=dict[tuple[int, Place], int])
    before: list[set[int]] = field(default_factory=list[set[int]])

    def __post_init__(self) -> None:
        for agent, events in self.traces.items():
            for i, event in enumerate(events):
                self.nodes[agent, i] = self._node({self.nodes[agent, i - 1]} if i else set())
                for target in event.targets:
                    self.arrivals[self.nodes[agent, i], target] = self._node({self.nodes[agent, i]})
        self.ends: dict[int, int] = {}
        for agent, i, event in self._events():
            if event.started is not None:
                begun = self.nodes[agent, event.started]
                self.ends[begun] = self.nodes[agent, i]
                self.before[self.nodes[agent, i]] |= {
                    self.arrivals[begun, target] for target in self.traces[agent][event.started].targets
                }
        self._order_numbers()
        for agent, i, event in self._events():
            if event.waits is not None:
                self.before[self.nodes[agent, i]] |= set(self._givers(agent, i, event.waits))
        self.ancestors = self._closed()

    def _node(self, before: set[int]) -> int:
        self.before.append(before)
        return len(self.before) - 1

    def _events(self) -> Iterator[tuple[Agent, int, Event]]:
        for agent, events in self.traces.items():
            for i, event in enumerate(events):
                yield agent, i, event

    def _order_numbers(self) -> None:
        """A number comes to a core behind what the thread sent there before."""
        for agent, events in self.traces.items():
            earlier: dict[Place, list[int]] = defaultdict(list)
            for i, event in enumerate(events):
                for target in event.targets:
                    arrives = self.arrivals[self.nodes[agent, i], target]
                    if event.gives is not None:
                        self.before[arrives] |= set(earlier[target])
                    earlier[target].append(arrives)

    # ---- what is waited for -----------------------------------------------------------------------------------------

    @cached_property
    def _given(self) -> dict[tuple[Place, str, int], list[tuple[int, int]]]:
        """For each core and what is given there: how far, and by which node."""
        found: dict[tuple[Place, str, int], list[tuple[int, int]]] = defaultdict(list)
        for agent, i, event in self._events():
            if event.gives is not None and event.gives[0] != "number":
                what, *of, upto = event.gives
                found[agent[0], what, of[0] if of else 0].append((upto, self.nodes[agent, i]))
        return found

    def _givers(self, agent: Agent, at: int, waits: tuple[Any, ...]) -> list[int]:
        match waits:
            case ("number", semaphore, value):
                return self._senders(agent, at, semaphore, value)
            case ("free", _, limit) if limit <= 0:
                return []
            case ("free" | "full" as what, queue, limit):
                return self._first(agent[0], what, queue, limit)
            case (cores.ACQUIRE, turn):
                return self._first(agent[0], cores.RELEASE, 0, turn - 2) if turn > 2 else []
            case (cores.WAIT, turn):
                return self._first(agent[0], cores.COMMIT, 0, turn)
            case (what, turn):
                return self._first(agent[0], what, 0, turn)
            case _:
                raise AssertionError(waits)

    def _first(self, core: Place, what: str, of: int, limit: int) -> list[int]:
        found = [node for upto, node in self._given.get((core, what, of), ()) if upto >= limit]
        if not found:
            raise NoOrderError("waits for what nobody gives")
        return found[:1]

    def _senders(self, agent: Agent, at: int, semaphore: int, value: int) -> list[int]:
        """What a wait for a number is behind: of each sender its share of each round."""
        core = agent[0]
        own = self.traces[agent][:at]
        turn = 1 + sum(each.waits is not None and each.waits[:2] == ("number", semaphore) for each in own)
        sent: dict[Agent, list[int]] = defaultdict(list)
        adds = True
        for other, i, event in self._events():
            if event.gives is None or event.gives[:2] != ("number", semaphore) or core not in event.targets:
                continue
            adds = len(event.gives) == 3
            count = event.gives[2] if adds else 1
            sent[other] += [self.arrivals[self.nodes[other, i], core]] * count
        if not sent and _is_set(own, semaphore, value):
            return []
        share, left = divmod(value, len(sent)) if adds and sent else (1, 0)
        if not sent or left or (not adds and len(sent) > 1) or any(len(e) < share * turn for e in sent.values()):
            raise NoOrderError("a number that does not come in rounds")
        return [each[share * turn - 1] for each in sent.values()]

    # ---- what is before what ----------------------------------------------------------------------------------------

    def _closed(self) -> list[int]:
        """For each node all that are before it, as bits, and itself."""
        needs = [set(each) for each in self.before]
        for waiting, free in self._banks():
            needs[waiting].add(free)
        left = [len(each) for each in needs]
        behind: list[list[int]] = [[] for _ in needs]
        for node, each in enumerate(needs):
            for other in each:
                behind[other].append(node)
        ready = [node for node, count in enumerate(left) if not count]
        found = [0] * len(needs)
        done = 0
        while ready:
            node = ready.pop()
            done += 1
            bits = 1 << node
            for other in self.before[node]:
                bits |= found[other]
            found[node] = bits
            for other in behind[node]:
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        if done < len(needs):
            raise NoOrderError("waits in a circle")
        return found

    def _banks(self) -> Iterator[tuple[int, int]]:
        """Unpack is not further ahead of math than by two operations."""
        for (core, role), events in self.traces.items():
            if role != UNPACK:
                continue
            unpacked = [
                self.nodes[(core, role), i] for i, e in enumerate(events) if e.gives and e.gives[0] == "operands"
            ]
            computed = [
                self.nodes[(core, MATH), i]
                for i, e in enumerate(self.traces[core, MATH])
                if e.waits and e.waits[0] == "operands"
            ]
            yield from zip(unpacked[2:], computed, strict=False)

    def is_before(self, first: int, second: int) -> bool:
        return bool(self.ancestors[second] >> first & 1)

    # ---- what touches the same --------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> dict[int, Name]:
        """Events that do more than wait, by their nodes."""
        found: dict[int, Name] = {}
        for agent, events in self.traces.items():
            counts: Counter[Any] = Counter()
            for i, event in enumerate(events):
                if event.is_more_than_a_wait:
                    counts[event.what] += 1
                    found[self.nodes[agent, i]] = agent, event.what, counts[event.what]
        return found

    def uses(self) -> dict[tuple[Any, ...], list[Use]]:
        """For each memory who touches it."""
        found: dict[tuple[Any, ...], list[Use]] = defaultdict(list)
        for agent, i, event in self._events():
            node = self.nodes[agent, i]
            for touch in event.touches:
                found[touch.place].append(Use(self.names[node], touch, node, self._ends(agent, node, event, touch)))
        return found

    def _ends(self, agent: Agent, node: int, event: Event, touch: Touch) -> list[list[int]]:
        if touch.place[0] != "array" and (node, touch.place[1]) in self.arrivals and touch.place[1] != agent[0]:
            return [[self.arrivals[node, touch.place[1]]]]
        if node in self.ends:
            choices = [[self.ends[node]]]
            if event.targets:
                choices.append([self.arrivals[node, target] for target in event.targets])
            return choices
        return [[node]]

    def is_over(self, use: Use, node: int) -> bool:
        return any(all(self.is_before(end, node) for end in ends) for ends in use.ends)

    def check_order(self, wanted: set[tuple[Any, ...]] | None) -> set[tuple[Any, ...]]:
        """All that meets at one item of memory, the first one first, which is as `wanted`.

        Raises:
            NoOrderError: it is in no order, or in another one.
        """
        found: set[tuple[Any, ...]] = set()
        for place, uses in self.uses().items():
            for i, one in enumerate(uses):
                for other in uses[i + 1 :]:
                    if one.meets(other):
                        found |= self._check_pair(place, one, other, wanted)
        return found

    def _check_pair(
        self, place: tuple[Any, ...], one: Use, other: Use, wanted: set[tuple[Any, ...]] | None
    ) -> set[tuple[Any, ...]]:
        is_first, is_second = self.is_over(one, other.start), self.is_over(other, one.start)
        if is_first == is_second:
            raise NoOrderError(f"{one.name} and {other.name} in no order")
        first, second = (one, other) if is_first else (other, one)
        if first.touch.item != second.touch.item:
            if first.touch.item > second.touch.item:
                raise NoOrderError("what comes later is first")
            return set()
        key = place[:3], first.touch.item, first.name, second.name
        if wanted is not None and key not in wanted:
            raise NoOrderError("another order")
        return {key}

    # ---- what is sent to other cores --------------------------------------------------------------------------------

    def check_sends(self) -> None:
        """Pages that are sent were reserved there; multicasts are one behind another.

        Raises:
            NoOrderError: they may not be.
        """
        reserves: dict[tuple[Place, int], list[tuple[int, int]]] = defaultdict(list)
        for agent, i, event in self._events():
            if event.what[0] == cores.ReserveOp.name:
                reserves[agent[0], event.what[1]].append((event.what[2], self.nodes[agent, i]))
        last: dict[tuple[Agent, str], int] = {}
        for agent, i, event in self._events():
            node = self.nodes[agent, i]
            for touch in event.touches:
                kind, core, *rest = touch.place
                if kind == "page" and core != agent[0]:
                    behind = [at for limit, at in reserves[core, rest[0]] if limit > touch.item]
                    if not behind or not self.is_before(behind[0], node):
                        raise NoOrderError("a page that is not reserved there")
            if event.what[0] in (cores.MulticastOp.name, "multicast") and event.targets:
                self._check_apart(last.get((agent, event.what[0])), node)
                last[agent, event.what[0]] = node

    def _check_apart(self, last: int | None, node: int) -> None:
        if last is None:
            return
        arrivals = [at for (sent, _), at in self.arrivals.items() if sent == last]
        over = [arrivals, *([[self.ends[last]]] if last in self.ends else [])]
        if not any(all(self.is_before(each, node) for each in ends) for ends in over):
            raise NoOrderError("two multicasts under way")


def _is_set(events: Sequence[Event], semaphore: int, value: int) -> bool:
    """Whether an agent itself set a number to what it waits for."""
    values = [event.what[2] for event in events if event.what[:2] == ("set", semaphore)]
    return values[-1:] == [value]


@dataclass(frozen=True)
class Order:
    """A program's events and what is in which order."""

    traces: dict[Agent, list[Event]]
    names: frozenset[Name]
    order: set[tuple[Any, ...]]


def order_of(program: cores.ProgramOp, like: Order | None = None) -> Order:
    """What a program does in which order, which is that of another one if that is given.

    Raises:
        NoOrderError, ProtocolError: it is in no order, in another one or against the protocol.
        UnknownEventsError: it has operations that are not followed.
    """
    traces = traces_of(program)
    graph = OrderGraph(traces)
    names = frozenset(graph.names.values())
    if like is not None and names != like.names:
        raise NoOrderError("other events")
    graph.check_sends()
    return Order(traces, names, graph.check_order(None if like is None else like.order))


__all__ = ["ENDED", "NoOrderError", "Order", "ProtocolError", "order_of"]

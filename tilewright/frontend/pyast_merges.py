"""Edges of tiles where paths of a kernel meet: after an `if`, and from trip to trip of a loop.

Lanes are beyond an array if the path that was taken put them there. An edge that only some paths have gets a guard: a
bool scalar that is true where they were taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from xdsl.ir import Block, SSAValue

from tilewright.frontend.pyast_builder import KernelBuilder
from tilewright.frontend.pyast_values import Counter, Edge, Edges, TileValue
from tilewright.records import dataclass

THEN, OTHERWISE = "then", "otherwise"

# An edge of a merged tile, and what its guard will be: the condition or its inverse, a result of the `if`, or the
# edge's own guard (None).
PlannedEdge = tuple[Edge, str | int | None]


@dataclass
class Meeting:
    """Merge of the branches of an `if`. `yielded` are guards that both branches give."""

    builder: KernelBuilder
    blocks: tuple[Block, Block]
    yielded: list[tuple[SSAValue, SSAValue]] = field(default_factory=list)

    def plan(self, a: Edges, c: Edges) -> list[list[PlannedEdge]]:
        """The edges of a tile that has the edges `a` after one branch, `c` after the other."""
        return [self._plan_dim(own, other) for own, other in zip(a, c, strict=True)]

    def _plan_dim(self, own: Sequence[Edge], other: Sequence[Edge]) -> list[PlannedEdge]:
        planned: list[PlannedEdge] = []
        for edge in dict.fromkeys(e.unguarded for e in (*own, *other)):
            sides = [[e for e in side if e.unguarded == edge] for side in (own, other)]
            if set(sides[0]) == set(sides[1]):
                planned.extend((e, None) for e in sides[0])
            elif edge in sides[0] and not sides[1]:
                planned.append((edge, THEN))
            elif edge in sides[1] and not sides[0]:
                planned.append((edge, OTHERWISE))
            else:
                planned.append((edge, len(self.yielded)))
                self.yielded.append((self._guard(0, sides[0], edge), self._guard(1, sides[1], edge)))
        return planned

    def _guard(self, branch: int, edges: Sequence[Edge], edge: Edge) -> SSAValue:
        with self.builder.inside(self.blocks[branch]):
            return self.builder.guard_of(edges, edge)

    def edges(
        self, planned: Sequence[Sequence[PlannedEdge]], condition: TileValue, guards: Sequence[SSAValue]
    ) -> Edges:
        """The planned edges, after the `if` that gave `guards`."""
        return tuple(tuple(self._edge(e, guard, condition, guards) for e, guard in dim) for dim in planned)

    def _edge(self, edge: Edge, guard: str | int | None, condition: TileValue, guards: Sequence[SSAValue]) -> Edge:
        if guard is None:
            return edge
        if isinstance(guard, int):
            value = guards[guard]
        else:
            value = (condition if guard == THEN else self.builder.map("bitwise_not", condition)).value
        return Edge(edge.start, edge.stride, edge.limit, value)


class Flag(NamedTuple):
    """An edge that a carried tile has in some trips of a loop only; the loop carries its guard."""

    name: str
    dim: int
    edge: Edge


def edges_in_trip(name: str, start: Edges, flags: Mapping[Flag, SSAValue]) -> Edges:
    """The edges of a carried tile at the beginning of a trip."""
    result: list[tuple[Edge, ...]] = []
    for dim, own in enumerate(start):
        flagged = {flag.edge: guard for flag, guard in flags.items() if (flag.name, flag.dim) == (name, dim)}
        guarded = [Edge(e.start, e.stride, e.limit, guard) for e, guard in flagged.items()]
        result.append((*(e for e in own if e.unguarded not in flagged), *guarded))
    return tuple(result)


def edges_after_loop(name: str, start: Edges, last: Edges, flags: Mapping[Flag, SSAValue]) -> Edges:
    """The edges of a carried tile after a loop, whose trips give it the edges `last`."""
    result: list[tuple[Edge, ...]] = []
    for dim, own in enumerate(edges_in_trip(name, start, flags)):
        guards = {guard for flag, guard in flags.items() if (flag.name, flag.dim) == (name, dim)}
        known = [e for e in own if e.guard not in guards or any(e.unguarded == other.unguarded for other in last[dim])]
        result.append(tuple(e.unguarded if e.unguarded in last[dim] else e for e in known))
    return tuple(result)


def changed_edges(name: str, start: Edges, last: Edges, flags: Mapping[Flag, object]) -> list[Flag]:
    """The edges that a trip adds to a carried tile or takes from it, without those that `flags` has."""
    found: list[Flag] = []
    for dim, (own, other) in enumerate(zip(start, last, strict=True)):
        for edge in dict.fromkeys(e.unguarded for e in (*own, *other)):
            before, after = ({e for e in side if e.unguarded == edge} for side in (own, other))
            if before != after and Flag(name, dim, edge) not in flags:
                found.append(Flag(name, dim, edge))
    return found


def independent_edges(edges: Edges, counter: Counter) -> Edges:
    """The edges that do not move with a loop: those of one trip's tile state nothing about what is carried."""
    return tuple(tuple(e for e in own if counter not in e.start.counters()) for own in edges)

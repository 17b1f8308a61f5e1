"""Mistakes of a program, with where they are: the core, the agent, the operation and its trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation, SSAValue

from tilewright.errors import SourceLocation
from tilewright.semantics.hazards import CoreHazard, CoreRaceError

if TYPE_CHECKING:
    from tilewright.semantics.cores.agents import Agent

# Kinds that are about two things in no order.
RACES = frozenset(
    {
        "read-before-arrival",
        "read-write-race",
        "write-write-race",
        "overwritten-in-flight",
        "array-race",
        "semaphore-race",
        "semaphore-source-changed",
        "destination-not-reserved",
        "multicasts-in-flight",
        "unpack-before-pack",
    }
)


def location_of(op: Operation) -> SourceLocation | None:
    """The user's line of an operation."""
    found = op.location
    if not isinstance(found, FileLineColLoc):
        return None
    return SourceLocation(found.filename.data, found.line.data, found.column.data)


def place(agent: Agent, op: Operation, trips: tuple[int, ...] | None = None) -> str:
    """Where something is."""
    at = agent.trips_of(op) if trips is None else trips
    of = f" of trip {', '.join(map(str, at))}" if at else ""
    return f"`{op.name}`{of} in {agent.name}"


def hazard(kind: str, message: str, agent: Agent, op: Operation, trips: tuple[int, ...] | None = None) -> CoreHazard:
    """The error to raise. `trips` where the operation ran before."""
    at = agent.trips_of(op) if trips is None else trips
    made = CoreRaceError if kind in RACES else CoreHazard
    return made(
        kind,
        f"[{kind}] {place(agent, op, at)}: {message}",
        core=agent.core.position,
        agent=agent.role,
        op=str(op),
        trips=at,
        location=location_of(op),
    )


def name_of(value: SSAValue, number: int) -> str:
    """A queue or a semaphore, by its number, and its name where it has one."""
    return f"{number}" if value.name_hint is None else f"{number} (`{value.name_hint}`)"

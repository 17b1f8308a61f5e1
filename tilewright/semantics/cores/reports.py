"""Hazards of a program, with the core, the thread, the operation and its trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation, SSAValue

from tilewright.errors import SourceLocation
from tilewright.semantics.hazards import CoreHazard, CoreRaceError

if TYPE_CHECKING:
    from tilewright.semantics.cores.agents import Agent

# Kinds of mistakes, with what each means.
KINDS = {
    # queues
    "queue-underflow": "waits for pages that no thread will push",
    "queue-overflow": "waits for free pages that no thread will pop",
    "queue-residual": "pages are left at the end",
    "reserve-without-push": "pages are still reserved at the end",
    "wait-without-pop": "pages that were waited for are left at the end",
    "push-without-reserve": "more pages are pushed than are reserved",
    "pop-without-wait": "more pages are popped than were waited for",
    "page-not-waited": "a page is read beyond those that were waited for",
    "page-not-reserved": "a page is written beyond those that are reserved",
    "read-never-written": "a page is read that was not written since it was free",
    "block-around-the-end": "a block of pages goes around the end of a queue's memory",
    "cadence-mismatch": "the thread that fills a queue pushes more or fewer pages than the one that empties it pops",
    "queue-race": "a page is touched twice in no order",
    # transfers
    "read-before-arrival": "a page is read while it may not have come",
    "overwritten-in-flight": "a page is written while it may still be sent",
    "transfer-not-awaited": "a thread ends without a barrier after a transfer that it issued",
    "destination-not-reserved": "a page of another core is written that may not be reserved there",
    "sender-outside-rectangle": "a core multicasts to a rectangle that it is not in",
    "destination-outside": "a core is named that the program does not have",
    "multicasts-in-flight": "a multicast begins while another of the thread may be under way",
    # semaphores
    "semaphore-race": "a number is set, or waited for exactly, in no order with one that comes from elsewhere",
    "semaphore-overshoot": "a number is beyond the one that is waited for exactly",
    "semaphore-source-changed": "a number changes while it may still be multicast",
    "semaphore-starved": "a thread waits for a semaphore value that is never signalled",
    "semaphore-unbalanced": "the increments of a semaphore do not add up to the values that are waited for",
    "semaphore-of-own-core": "a core increments its own number by the network",
    "semaphore-not-initial": "a number is another one at the end than in the beginning",
    "deadlock": "threads wait for each other in a cycle",
    # compute
    "registers-overflow": "more registers are used than a half has",
    "registers-not-acquired": "math uses, or commits, registers that it has not, or no longer",
    "registers-acquired-twice": "math acquires registers without committing those that it has",
    "registers-not-waited": "pack uses, or releases, registers that it has not, or no longer",
    "registers-not-released": "registers that were committed are not given back",
    "registers-not-committed": "registers that were acquired are not committed",
    "register-never-written": "a register is read that was not written since it was acquired",
    "register-of-other-type": "a register of floats is read as integers, or vice versa",
    "registers-too-narrow": "integers of 32 bits are in registers of 16",
    "unpack-before-pack": "a page that the same thread packs is unpacked without waiting for it",
    "accumulate-left-on": "pack still adds at the end",
    "accumulate-onto-unwritten": "pack adds to a page that was not written since it was reserved",
    "accumulate-onto-blocks": "pack adds to pages whose numbers share exponents",
    "unit-not-configured": "a unit is used in the state in which it happens to be",
    "unit-configured-otherwise": "a unit is used in a state that is meant for something else",
    # arrays
    "element-written-twice": "an element of a result is written again",
    "element-never-written": "an element of a result is not written",
    "array-race": "a page of an array is touched twice in no order, and written",
    "other-format": "pages move between an array and a queue of another format",
    # plans
    "memory-overlap": "two queues share memory",
    "misaligned": "a queue begins where transfers do not",
    "out-of-memory": "a queue is not in the memory that programs may use",
    "too-many-queues": "there are more queues than a core has",
    "too-many-semaphores": "there are more semaphores than a core has",
    "too-many-cores": "there are more cores than the machine has",
}
# Those that are about two things in no order.
RACES = frozenset(
    {
        "array-race",
        "destination-not-reserved",
        "multicasts-in-flight",
        "overwritten-in-flight",
        "queue-race",
        "read-before-arrival",
        "semaphore-race",
        "semaphore-source-changed",
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
    """The position of an operation in a program, for messages."""
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

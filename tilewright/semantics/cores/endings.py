"""The end of a program: the threads that cannot make progress, and why, and what is left that must not be."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.semantics.cores.agents import ARRAY_WRITES, CORE_WRITES, MATH, PACK, READS, Agent, Core, Mover
from tilewright.semantics.cores.pack_steps import ACCUMULATES, ON
from tilewright.semantics.cores.queues import Queue
from tilewright.semantics.cores.reports import location_of, place
from tilewright.semantics.cores.world import World
from tilewright.semantics.hazards import CoreDeadlockError, CoreHazard

_COLUMNS = {READS: "reads", ARRAY_WRITES: "writes", CORE_WRITES: "writes"}


def check_endings(world: World, agents: Sequence[Agent]) -> None:
    """All threads have ended, and all is as it was in the beginning."""
    waiting = [agent for agent in agents if not agent.ended]
    if waiting:
        raise deadlock(waiting)
    for core in world.cores.values():
        for queue in core.queues:
            _check_queue(queue)
        for semaphore in core.semaphores:
            if semaphore.value != semaphore.initial:
                text = f"semaphore {semaphore.name} is {semaphore.value} at the end, and was {semaphore.initial}"
                raise _left("semaphore-not-initial", text, core)
        _check_registers(core)
        if world.checks:
            for agent in core.agents.values():
                if isinstance(agent, Mover):
                    _check_transfers(agent)
    if world.checks:
        for memory in world.arrays.values():
            memory.check_written()


def _check_queue(queue: Queue) -> None:
    core = queue.core
    held = queue.back - queue.front
    if held and queue.waited:
        raise _left(
            "wait-without-pop", f"{queue.waited} pages of queue {queue.name} were waited for and not popped", core
        )
    if held:
        raise _left("queue-residual", f"{held} pages of queue {queue.name} were pushed and not popped", core)
    if queue.reserved:
        raise _left(
            "reserve-without-push", f"{queue.reserved} pages of queue {queue.name} were reserved and not pushed", core
        )


def _check_registers(core: Core) -> None:
    registers = core.registers
    assert registers is not None
    if registers.acquired is not None:
        raise _left("registers-not-committed", "math has registers at the end that it did not commit", core, MATH)
    if registers.taken is not None or registers.committed:
        raise _left("registers-not-released", "registers at the end are committed and not released", core, PACK)
    pack = core.agents.get(PACK)
    if pack is not None and pack.unit(ACCUMULATES).state == ON:
        raise _left("accumulate-left-on", "pack adds to pages at the end, and would in the next program", core, PACK)


def _check_transfers(mover: Mover) -> None:
    for column, what in _COLUMNS.items():
        if not mover.has_finished(column):
            raise _left(
                "transfer-not-awaited",
                f"{mover.name} ends without a barrier after the {what} that it issued",
                mover.core,
                mover.role,
            )


def _left(kind: str, message: str, core: Core, agent: str = "") -> CoreHazard:
    text = f"[{kind}] core {core.position}: {message}"
    return CoreHazard(kind, text, core=core.position, agent=agent)


# ---- who waits for whom ---------------------------------------------------------------------------------------------


def deadlock(waiting: Sequence[Agent]) -> CoreDeadlockError:
    """Why no thread can make progress: who waits for what of a thread who has ended, or a circle of those who wait."""
    chains = [_chain(agent) for agent in waiting]
    # A chain that ends says what is missing; in a circle, which stands for all, nobody is to blame alone.
    ended = [chain for chain in chains if not chain[1]]
    agents, in_circle = min(ended or chains, key=lambda chain: len(chain[0]))
    last = agents[-1]
    assert last.waiting is not None
    resource, op = last.waiting
    kind = "deadlock" if in_circle else resource.starved_kind(last)
    lines = [_line(agent) for agent in agents]
    others = len(waiting) - len(agents)
    more = f"\n  and {others} more wait" if others > 0 else ""
    text = (
        "deadlock: threads wait for each other in a cycle"
        if in_circle
        else "waits for an event that is never signalled"
    )
    head = f"[{kind}] {place(last, op)}: {text}:\n  "
    return CoreDeadlockError(
        kind,
        head + "\n  ".join(lines) + more,
        core=last.core.position,
        agent=last.role,
        op=str(op),
        trips=last.trips_of(op),
        location=location_of(op),
        cycle=tuple(lines),
    )


def _chain(agent: Agent) -> tuple[list[Agent], bool]:
    """Who waits for whom, up to one whose providers have all ended, or around a circle, which it then is."""
    chain: list[Agent] = []
    while agent not in chain:
        chain.append(agent)
        assert agent.waiting is not None
        providers = [each for each in agent.waiting[0].providers(agent) if not each.ended]
        if not providers:
            return chain, False
        agent = providers[0]
    return chain[chain.index(agent) :], True


def _line(agent: Agent) -> str:
    assert agent.waiting is not None
    resource, op = agent.waiting
    providers = resource.providers(agent)
    going = [each for each in providers if not each.ended]
    if not providers:
        why = "which no thread signals"
    elif not going:
        names = ", ".join(each.name for each in providers[:4])
        why = f"which {names}{' and others' if len(providers) > 4 else ''} would signal, and has ended"
    else:
        why = f"which {going[0].name} would signal"
    return f"{place(agent, op)} waits for {resource.wait_text(agent)}, {why}"

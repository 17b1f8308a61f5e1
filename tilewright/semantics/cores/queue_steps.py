"""Steps at the ends of queues, and what agents of every kind do."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.dialects import cores
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.steps import Step


def queue_steps(op: cores.QueueStepOp) -> list[Step]:
    """A step at one end of a queue."""
    waits = isinstance(op, cores.ReserveOp | cores.WaitOp)

    def make(agent: Agent) -> Action:
        queue, count, checks = agent.queue(op.queue), op.count, agent.world.checks
        match op:
            case cores.ReserveOp():
                return lambda: queue.reserve(agent, op, count, checks)
            case cores.WaitOp():
                return lambda: queue.wait(agent, op, count, checks)
            case cores.PushOp():
                return lambda: queue.push(agent, op, count, checks)
            case _:
                return lambda: queue.pop(agent, op, count, checks)

    return [Step(make, waits=waits)]


def configure_steps(op: cores.ConfigureOp) -> list[Step]:
    """The state of a unit."""

    def make(agent: Agent) -> Action:
        unit, state, world = op.unit.data, op.state.data, agent.world
        cycles = world.grid.configure_cycles

        def configure() -> None:
            agent.states[unit] = state
            agent.unused.add(unit)
            world.configures[unit] += 1
            agent.spend(cycles)

        return configure

    return [Step(make, in_order=False)]


def needed_states(op: Operation, units: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The states that an operation needs of some units."""
    return tuple((unit, state) for unit, state in cores.states_of(op).items() if unit in units)

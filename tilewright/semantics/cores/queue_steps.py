"""Steps at the ends of queues, which agents of every kind do."""

from __future__ import annotations

from functools import partial

from tilewright.dialects import cores
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.steps import Step


def queue_steps(op: cores.QueueStepOp) -> list[Step]:
    """A step at one end of a queue."""
    waits = isinstance(op, cores.ReserveOp | cores.WaitOp)

    value, count = op.queue, op.count

    def make(agent: Agent) -> Action:
        queue = agent.queue(value)
        match op:
            case cores.ReserveOp():
                act = queue.reserve
            case cores.WaitOp():
                act = queue.wait
            case cores.PushOp():
                act = queue.push
            case _:
                act = queue.pop
        return partial(act, agent, op, count, agent.world.checks)

    return [Step(make, waits=waits)]

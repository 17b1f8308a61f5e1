"""Steps at the ends of queues, which threads of every kind do."""

from __future__ import annotations

from functools import partial

from tilewright.dialects import cores
from tilewright.semantics.cores.agents import Action, Agent
from tilewright.semantics.cores.queues import Queue
from tilewright.semantics.cores.steps import Step


def queue_steps(op: cores.QueueStepOp) -> list[Step]:
    """A step at one end of a queue."""
    value, count = op.queue, op.count
    match op:
        case cores.ReserveOp():
            act = Queue.reserve
        case cores.WaitOp():
            act = Queue.wait
        case cores.PushOp():
            act = Queue.push
        case _:
            act = Queue.pop

    def make(agent: Agent) -> Action:
        return partial(act, agent.queue(value), agent, op, count, agent.world.checks)

    return [Step(make, waits=isinstance(op, cores.ReserveOp | cores.WaitOp))]

"""Zones and prints of programs."""

from __future__ import annotations

import sys

from tilewright.dialects import tile
from tilewright.dialects.cores import QueueType
from tilewright.semantics.cores.agents import PARTS, Action, Agent
from tilewright.semantics.cores.steps import Step


def zone_steps(op: tile.ZoneOp) -> list[Step]:
    """An edge of a zone, in the timeline."""

    def make(agent: Agent) -> Action:
        timeline = agent.world.timeline
        assert timeline is not None
        return lambda: timeline.edge(agent, op.label, op.begins)

    return [Step(make, in_order=False)]


def print_steps(op: tile.PrintOp) -> list[Step]:
    """A label and queues: where their ends are, and in the thread that computes how far it may go at each."""

    def make(agent: Agent) -> Action:
        def show() -> None:
            parts = [op.label, f"[core {agent.core.position} {agent.thread}]"]
            for value in op.arguments:
                if not isinstance(value.type, QueueType):
                    continue
                queue = agent.queue(value)
                text = f"queue {queue.number}"
                if agent.role in PARTS:
                    text += (
                        f" {queue.format.name} x {queue.capacity} at {queue.address_bytes:#x}: front {queue.front}, "
                        f"back {queue.back}, waited {queue.waited}, reserved {queue.reserved}"
                    )
                parts.append(text)
            print(*parts, file=sys.stderr)

        return show

    return [Step(make)]

"""What a program did when, as events that Perfetto and chrome://tracing open."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.semantics.cores.agents import Action, Agent, Mover


class Timeline:
    """Spans."""

    def transfer(self, mover: Mover, kind: str, bytes: int, began: float, lands: float) -> None:
        """A transfer."""

    def edge(self, agent: Agent, label: str, begins: bool) -> None:
        """An edge of a zone."""

    def noting(self, agent: Agent, op: Operation, action: Action) -> Action:
        return action

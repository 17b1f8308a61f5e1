"""Blocks that run together: whose turn it is, what their warps know, and what works asynchronously for them.

A block that runs alone is a cluster of one. The blocks of others reach each other's barriers, and receive copies in
each other's memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tilewright.semantics.hazards import RaceError
from tilewright.semantics.warps.agents import Agent, Team
from tilewright.semantics.warps.clocks import Clocks

if TYPE_CHECKING:
    from tilewright.semantics.warps.block_run import BlockRun


class Flying(Protocol):
    """An operation in flight. Operations of one `sequence` complete in order."""

    @property
    def name(self) -> str: ...

    @property
    def sequence(self) -> object: ...

    def land(self) -> None:
        """Complete the operation."""
        ...


class Cluster:
    """`agents`: of each block those that run it, by its rank, the one of the block itself first. `barriers`: how many
    each block has in memory."""

    def __init__(self, agents: Sequence[Sequence[Agent]], barriers: int, order: random.Random) -> None:
        together = [agent for own in agents for agent in own]
        self.agents = agents
        self.team = Team(together, order, self._land)
        self.clocks = Clocks(together[-1].rows[-1] + 1, barriers * len(agents))
        self.flying: list[Flying] = []
        self.blocks: list[BlockRun] = []
        self._order = order
        # Who came to the barrier of all blocks, and how often all did.
        self._came: list[Agent] = []
        self._met = 0

    @property
    def current(self) -> BlockRun:
        """The block of which something runs."""
        return self.blocks[self.team.current.rank]

    def run(self, bodies: Sequence[Callable[[], object]]) -> None:
        """Run the blocks, each with what it does.

        Raises:
            HazardError: they get in each other's way, wait for ever, or leave something under way.
        """
        try:
            for block, body in zip(self.blocks[1:], bodies[1:], strict=True):
                self.team.start(block.agents[0], _ended(block, body))
            _ended(self.blocks[0], bodies[0])()
            self.team.finish()
            if self.flying:
                raise RaceError(f"nothing waits for {self.flying[0].name}")
            for block in self.blocks:
                block.end()
        finally:
            self.team.stop()

    def meet(self, who: str) -> None:
        """All roles of all blocks that have not ended arrive."""
        met = self._met
        self._came.append(self.team.current)
        self.team.wait(lambda: self._met > met or self._have_all_come(), lambda: f"all blocks at {who} of a cluster")
        if self._met == met:  # the first to go on
            # Warps of roles that have not begun come by here, too.
            here = [agent for agent in self.team.agents if agent in self._came or not agent.begun]
            self.clocks.meet_in_time([row for agent in here for row in agent.rows])
            self._came = []
            self._met += 1
        self.team.pause()

    def _have_all_come(self) -> bool:
        return all(agent in self._came or agent.ended or not agent.begun for agent in self.team.agents)

    def _land(self) -> bool:
        """Something that is under way arrives."""
        if not self.flying:
            return False
        sequence = self._order.choice(self.flying).sequence
        first = next(each for each in self.flying if each.sequence is sequence)
        self.flying.remove(first)
        first.land()
        return True


def _ended(block: BlockRun, body: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        body()
        block.end_agent()

    return run

"""The roles of a block, and its other warps (a role without a name), which run concurrently with each other and with
those of the blocks of its cluster.

Each role but the first has a Python thread of its own, and exactly one runs at a time: it hands over where it
synchronises with others, to one that a random generator picks of those that can continue. So a run is the same for the
same seed. Only where no thread can make progress, or sometimes before, something asynchronous arrives; where nothing is
left to arrive either, that is a deadlock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import field

from tilewright.records import dataclass
from tilewright.semantics.hazards import DeadlockError

# How often something arrives although agents can go on, in the blocks where it does.
_EARLY = 0.25


class _Stopped(BaseException):
    """The Python thread of a role is stopped."""


@dataclass
class Agent:
    """`first` and `warps`: which warps it is of those of all blocks that run together, one row of clocks each, and
    after them one row for an unspecified warp. `rank`: of its block among them."""

    name: str
    first: int
    warps: int
    rank: int = 0
    begun: bool = False
    ended: bool = False
    ready: Callable[[], bool] | None = None
    waits_for: Callable[[], str] | None = None
    thread: threading.Thread | None = None
    # Held while it is another agent's turn. A bare lock: agents take turns thousands of times in a run.
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.turn.acquire()

    @property
    def rows(self) -> list[int]:
        """All rows."""
        return list(range(self.first, self.first + self.warps + 1))

    @property
    def said_rows(self) -> list[int]:
        """The rows of the warps that exist."""
        return list(range(self.first, self.first + self.warps))

    @property
    def groups(self) -> int:
        """How many arrivals one of all its warps is: one of each warpgroup, or of each warp where there are none."""
        return self.warps // 4 if self.warps % 4 == 0 else self.warps


class Team:
    """The roles of blocks that run together; the first runs in the caller's Python thread. `land` completes one
    asynchronous operation, if there is any."""

    def __init__(self, agents: list[Agent], order: random.Random, land: Callable[[], bool]) -> None:
        self.agents = agents
        self.current = agents[0]
        self.current.begun = True
        self._order = order
        self._land = land
        self._lands_early = order.random() < 0.5
        self._error: BaseException | None = None
        self._stopping = False

    def start(self, agent: Agent, body: Callable[[], object]) -> None:
        """`agent` may run when the present one waits."""
        agent.begun = True
        agent.thread = threading.Thread(target=self._run, args=(agent, body), daemon=True)
        agent.thread.start()

    def begin(self, agent: Agent, body: Callable[[], object]) -> None:
        """`agent` may run from now on."""
        self.start(agent, body)
        self.pause()

    def pause(self) -> None:
        """Others may continue."""
        if len(self.agents) > 1:
            self._hand_over()

    def wait(self, ready: Callable[[], bool], waits_for: Callable[[], str]) -> None:
        """Wait until `ready()`.

        Raises:
            DeadlockError: no thread can make progress.
        """
        agent = self.current
        while not ready():
            agent.ready, agent.waits_for = ready, waits_for
            self._hand_over()
        agent.ready = agent.waits_for = None

    def finish(self) -> None:
        """The first role waits for all others to end."""
        self.wait(lambda: all(agent.ended or not agent.begun for agent in self.agents[1:]), lambda: "the end of all")

    def stop(self) -> None:
        """Stop the Python threads of all roles."""
        self._stopping = True
        for agent in self.agents:
            if agent.thread is not None:
                agent.turn.release()
                agent.thread.join()

    # ---- whose turn it is -------------------------------------------------------------------------------------------

    def _run(self, agent: Agent, body: Callable[[], object]) -> None:
        agent.turn.acquire()
        if self._stopping:
            return
        following = self.agents[0]
        try:
            body()
            agent.ended = True
            following = self._next()
        except _Stopped:
            return
        except BaseException as error:  # the first agent raises it
            self._error = error
        self.current = following
        following.turn.release()

    def _hand_over(self) -> None:
        agent, following = self.current, self._next()
        if following is agent:
            return
        self.current = following
        following.turn.release()
        agent.turn.acquire()
        if self._stopping:
            raise _Stopped
        if self._error is not None:
            raise self._error

    def _next(self) -> Agent:
        """One that can continue."""
        while True:
            able = [each for each in self.agents if self._can_go_on(each)]
            early = self._lands_early and self._order.random() < _EARLY
            if (early or not able) and self._land():
                continue
            if able:
                return self._order.choice(able)
            raise DeadlockError(f"deadlock: no thread of the block can make progress: {'; '.join(self._reasons())}")

    def _can_go_on(self, agent: Agent) -> bool:
        return agent.begun and not agent.ended and (agent.ready is None or agent.ready())

    def _reasons(self) -> list[str]:
        waiting = [f"{each.name} waits for {each.waits_for()}" for each in self.agents if each.waits_for is not None]
        return waiting + [f"{each.name} has ended" for each in self.agents if each.ended]

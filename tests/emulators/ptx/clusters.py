"""Thread block clusters: blocks that run together, and whose threads reach each other's shared memory.

PTX ISA, "Cluster of Cooperative Thread Arrays". The window shared::cluster begins with the block's own shared memory,
at its addresses in shared::cta, behind which that of each rank follows.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import Block, Event
from tests.emulators.ptx.cluster_operations import ClusterBarrier
from tests.emulators.ptx.decode import Program
from tests.emulators.ptx.errors import Deadlock, SharedRace
from tests.emulators.ptx.memory import CLUSTER_STRIDE, SHARED_BASE
from tests.emulators.ptx.ordering import Ordering
from tests.emulators.ptx.schedule import BlockRun
from tests.emulators.ptx.tensor_cores import Commit


@dataclass(eq=False)
class Cluster:
    """`blocks` by rank, each with so many `warps`. `running`: the block whose turn it is."""

    size: int
    warps: int
    order: random.Random
    blocks: list[Block] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    running: Block = None  # type: ignore[assignment]  # set before each turn

    def __post_init__(self) -> None:
        self.ordering = Ordering(self.size * self.warps, self.size)
        self.barrier = ClusterBarrier(self)

    def where(self) -> str:
        return self.running.where()

    # ---- addresses of shared::cluster -----------------------------------------------------------------------------

    def locate(self, block: Block, thread: int, address: int) -> tuple[Block, int]:
        """The block that has an address which a thread of `block` names, and what it calls that address itself."""
        window, offset = divmod(address - SHARED_BASE, CLUSTER_STRIDE)
        if not 0 <= window <= self.size:
            raise block.fault(thread, address, "outside of the cluster's shared memory")
        return self.blocks[window - 1] if window else block, SHARED_BASE + offset

    def address_in(self, block: Block, thread: int, address: int, rank: int) -> int:
        """What a thread of `block` calls the place of rank `rank` where `address` is in another rank."""
        _, own = self.locate(block, thread, address)
        if not 0 <= rank < self.size:
            raise block.fault(thread, address, f"no block of the cluster has rank {rank}")
        return own if rank == block.rank else own + CLUSTER_STRIDE * (1 + rank)

    def target(self, block: Block, thread: int, address: int) -> tuple[Block, int]:
        """`locate`, for an operation on shared memory, which has to be there still."""
        owner, own = self.locate(block, thread, address)
        self._check_there(block, thread, owner)
        return owner, own

    def chosen(self, block: Block, thread: int, mask: int) -> list[Block]:
        """The blocks that the mask of a multicast names, for an operation on their shared memory."""
        if not 0 < mask < 1 << self.size:
            raise block.fault(thread, mask, f"the mask names none of {self.size} blocks, or more than there are")
        owners = [owner for owner in self.blocks if mask >> owner.rank & 1]
        for owner in owners:
            self._check_there(block, thread, owner)
        return owners

    def _check_there(self, block: Block, thread: int, owner: Block) -> None:
        if owner.has_ended:
            raise SharedRace(
                f"thread {thread} reaches shared memory of rank {owner.rank}, which ended, {block.where()}"
            )

    # ---- what a block has to know before it ends --------------------------------------------------------------------

    def note_access(self, block: Block, thread: int, owner: Block) -> None:
        """A thread of `block` operates on the shared memory of `owner`."""
        if owner is not block:
            agent = block.agent(thread)
            owner.reached[agent] = self.ordering.seen[agent, agent]

    def note_landing(self, block: Block, owner: Block, agent: int, clock: int) -> None:
        """An asynchronous operation of `block` lands, in an agent's name, in the shared memory of `owner`."""
        if owner is not block:
            owner.reached[agent] = clock

    def land(self, events: Sequence[Event]) -> bool:
        """One of `events`, if there are any, happens."""
        if not events:
            return False
        event = events[self.order.randrange(len(events))]
        self.events.remove(event)
        self.running = event.block
        event.land()
        return True

    def end(self, block: Block) -> None:
        """The threads of a block ended: nothing may be on its way there, or have come without their knowing."""
        for event in self.events:
            if event.target is block and not (isinstance(event, Commit) and event.block is block):
                raise SharedRace(f"the block ends before {event.what} lands, {block.where()}")
        while self.land([event for event in self.events if isinstance(event, Commit) and event.block is block]):
            pass
        known = self.ordering.seen[block.first_warp : block.first_warp + self.warps].max(axis=0)
        unknown = np.flatnonzero(block.reached > known)
        if unknown.size:
            raise SharedRace(f"the block ends before it can know of {self._named(int(unknown[0]))}, {block.where()}")
        block.has_ended = True

    def _named(self, agent: int) -> str:
        if agent >= self.ordering.warps:
            return "an asynchronous operation of another block on its shared memory"
        rank, warp = divmod(agent, self.warps)
        return f"an operation of warp {warp} of rank {rank} on its shared memory"


class ClusterRun:
    """Runs the blocks of a cluster, which take turns; what is asynchronous waits until none of them can go on."""

    def __init__(self, program: Program, cluster: Cluster, executed: Counter[int]) -> None:
        self._cluster = cluster
        self._going = [BlockRun(program, block, executed) for block in cluster.blocks]
        if len(self._going) > 1:
            cluster.order.shuffle(self._going)

    def run(self) -> None:
        while self._going:
            went_on = self._take_turns() or self._resume() or self._cluster.land(self._cluster.events) or self._force()
            if not went_on:
                raise Deadlock("; ".join(run.stuck() for run in self._going))

    def _take_turns(self) -> bool:
        return any([self._turn(run, holds=True) for run in list(self._going)])

    def _resume(self) -> bool:
        return any([run.wake() for run in self._going]) or any([run.open() for run in self._going])

    def _force(self) -> bool:
        """One block goes on although lanes of its warps lack, as they will not come."""
        return any(self._turn(run, holds=False) for run in list(self._going))

    def _turn(self, run: BlockRun, holds: bool) -> bool:
        if not run.take_turn(holds):
            return False
        if run.is_over:
            run.end()
            self._going.remove(run)
        return True

"""One thread block: its memory, its roles, its barriers, and what works asynchronously for it.

Effects on other blocks of its cluster apply to their barriers of the same index, and to the same offsets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dialects import scheduled
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.records import dataclass
from tilewright.semantics.hazards import HazardError, RaceError
from tilewright.semantics.warps.agents import Agent
from tilewright.semantics.warps.array_accesses import ArrayAccesses, written_arrays
from tilewright.semantics.warps.block_memory import BlockMemory, Buffer, Cells, Plan
from tilewright.semantics.warps.cluster import Cluster
from tilewright.semantics.warps.mbarriers import Mbarrier, Mbarriers
from tilewright.semantics.warps.tensor_memory import TensorMemory, TensorTile, TensorTiles

Tensor = np.ndarray[Any, Any]
_MAIN = "the block"


@dataclass(frozen=True, eq=False)
class _TensorCopy:
    """A copy that the machine makes to the memory of a block, on its way to complete a phase of a barrier there."""

    memory: BlockMemory
    buffer: Buffer
    values: Tensor
    mbarrier: Mbarrier
    clock: int
    name: str

    @property
    def sequence(self) -> object:
        return self

    def land(self) -> None:
        self.memory.finish_write(self.buffer, self.values, self.mbarrier.column, self.clock, self.name)
        self.mbarrier.come(self.buffer.bytes, self.name)


@dataclass(frozen=True)
class _TensorProduct:
    """An MMA to tensor memory, and what it reads."""

    target: TensorTile
    reads: list[tuple[Cells, int]]
    name: str


@dataclass(frozen=True, eq=False)
class _Commit:
    """An arrival that comes when MMAs of a role have been done, those before it being done. `products`: what they do to
    the memory of their block."""

    agent: Agent
    memory: BlockMemory
    products: list[_TensorProduct]
    mbarrier: Mbarrier
    clock: int
    name: str

    @property
    def sequence(self) -> object:
        return self.agent

    def land(self) -> None:
        column = self.mbarrier.column
        for product in self.products:
            product.target.finish(column, self.clock)
            for cells, number in product.reads:
                self.memory.finish_read_at(self.agent, cells, number, column, self.clock)
        self.mbarrier.keep(self.name)


@dataclass
class Product:
    """An asynchronous MMA, number `number` of a thread: what it adds up to, the buffers that it reads and who continues
    with its registers."""

    value: Tensor
    agent: Agent
    number: int
    name: str
    reads: list[tuple[Cells, int]]
    goes_on: str = ""


class BlockPlan:
    """The plan that all blocks of a region share: addresses of buffers, roles and barriers."""

    def __init__(self, region: scheduled.ParallelOp) -> None:
        self.cluster = region.blocks_of_cluster
        self.memory = Plan.of(region)
        self.arrays = written_arrays(region)
        self.warps = 1 if region.warps is None else region.warps
        self.registers = 0 if region.registers is None else region.registers
        self.roles = [op for op in region.body.block.ops if isinstance(op, scheduled.RoleOp)]
        self.barriers: dict[asynchronous.MbarrierOp, int] = {}
        self.barrier_count = 0
        for op in region.body.block.walk():
            if isinstance(op, asynchronous.MbarrierOp):
                self.barriers[op] = self.barrier_count
                self.barrier_count += op.count

    def agents(self, rank: int = 0, first: int = 0) -> list[Agent]:
        """The roles of a block, with rows from `first` on."""
        where = f" of rank {rank}" if self.cluster > 1 else ""
        agents = [Agent(_MAIN + where, first, self.warps, rank)]
        for op in self.roles:
            agents.append(Agent(f"role {op.role}{where}", agents[-1].rows[-1] + 1, op.working, rank))
        return agents

    @property
    def all_warps(self) -> list[int]:
        """Number of warps of each role, including those that leave."""
        return [self.warps, *(op.warps for op in self.roles)]


def cluster_of(plan: BlockPlan, order: random.Random) -> Cluster:
    """The blocks of a cluster, ready to run."""
    agents = [plan.agents()]
    while len(agents) < plan.cluster:
        agents.append(plan.agents(len(agents), agents[-1][-1].rows[-1] + 1))
    cluster = Cluster(agents, plan.barrier_count, order)
    cluster.blocks = [BlockRun(plan, cluster, own) for own in agents]
    return cluster


class BlockRun:
    """Operations are those of the running role. `who` is the operation and its trip, for errors."""

    def __init__(self, plan: BlockPlan, cluster: Cluster, agents: list[Agent]) -> None:
        self._plan = plan
        self._cluster = cluster
        self.agents = agents
        self.rank = agents[0].rank
        self.team = cluster.team
        self.clocks = cluster.clocks
        self.memory = BlockMemory(plan.memory, self.clocks, agents)
        self.arrays = ArrayAccesses(plan.arrays, self.clocks)
        self._barriers: dict[asynchronous.MbarrierOp, Mbarriers] = {}
        self.tensor_memory = TensorMemory(self.clocks)
        # Of each agent the products to tensor memory since its last commit, and what its commits tell.
        self._uncommitted: dict[str, list[_TensorProduct]] = {agent.name: [] for agent in agents}
        self._ended = {agent.name: self.clocks.nothing() for agent in agents}
        self._products: dict[str, list[Product]] = {agent.name: [] for agent in agents}
        self._begun = {agent.name: 0 for agent in agents}
        # What tensor stores of an agent read, and their names.
        self._stores: dict[str, list[tuple[tuple[Cells, int], str]]] = {agent.name: [] for agent in agents}
        # Of each agent the registers of a thread; and of those, times the warps that gave them back, what nobody has.
        self._registers = {agent.name: plan.registers for agent in agents}
        self._spare_registers = 0
        # Who came to the barrier of all roles, and how often all did.
        self._came: list[Agent] = []
        self._met = 0

    @property
    def rows(self) -> range:
        """The rows of the block's warps."""
        return range(self.agents[0].first, self.agents[-1].rows[-1] + 1)

    @property
    def agent(self) -> Agent:
        """Who runs."""
        return self.team.current

    # ---- agents -----------------------------------------------------------------------------------------------------

    def begin_role(self, op: scheduled.RoleOp, body: Callable[[], object]) -> None:
        """The warps of a role run concurrently with the others."""
        agent = self.agents[1 + self._plan.roles.index(op)]

        def run() -> None:
            body()
            self.end_agent()

        self.team.begin(agent, run)

    def end(self) -> None:
        """All roles have ended.

        Raises:
            HazardError: something is still under way, or may be that other blocks do here.
        """
        self.tensor_memory.end()
        came = self.clocks.came[self.rows].max(axis=0)
        for barriers in self._barriers.values():
            for barrier in barriers.barriers:
                barrier.end()
                if (barrier.reached > came).any():
                    raise RaceError(f"the block may end before what others of the cluster do to {barrier.name}")

    def end_agent(self) -> None:
        """The running role ends.

        Raises:
            RaceError: something that it began is still under way.
        """
        self.memory.end(self.agent)
        begun = [*self._products[self.agent.name], *self._uncommitted[self.agent.name]]
        left = [product.name for product in begun]
        left += [name for _, name in self._stores[self.agent.name]]
        if left:
            raise RaceError(f"nothing waits for {left[0]}")

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def barrier(self, scope: str, who: str) -> None:
        """All threads of a scope have finished what they did before."""
        if scope == scheduled.WARP:
            for row in self.agent.rows:
                self.clocks.meet([row])
            return
        if scope == scheduled.CLUSTER:
            self._cluster.meet(who)
            return
        if scope == scheduled.EVERY_ROLE:
            self._meet(who)
        elif self.agent is not self.agents[0]:
            raise HazardError(f"{who} of `{scope}`, to which no role belongs")
        else:
            self.clocks.meet(self.agent.rows)
        self.team.pause()

    def _meet(self, who: str) -> None:
        self._came.append(self.agent)
        if len(self._came) == sum(agent.begun for agent in self.agents):
            # Warps of roles that have not begun come by here, too.
            self.clocks.meet([row for agent in self.agents for row in agent.rows])
            self._came = []
            self._met += 1
            return
        met = self._met
        self.team.wait(lambda: self._met > met, lambda: f"all others at {who} of every role")

    def make_mbarriers(self, op: asynchronous.MbarrierOp, who: str) -> Mbarriers:
        """Barriers in memory, each in its phase 0."""
        if op in self._barriers:
            raise HazardError(f"{who} makes barriers where there are some")
        name = f"`{op.result.name_hint or op.name}`"
        row, arrivals = self.agent.first, op.arrivals
        first = self.clocks.warps + self.rank * self._plan.barrier_count + self._plan.barriers[op]
        made = [
            Mbarrier(f"barrier {number} of {name}", arrivals, self.clocks, row, first + number, self.rows)
            for number in range(op.count)
        ]
        self._barriers[op] = Mbarriers(name, made)
        return self._barriers[op]

    def _everywhere(self, op: asynchronous.MbarrierOp, number: int, who: str) -> list[Mbarrier]:
        """A barrier of each block of the cluster, this one's first."""
        missing = [each.rank for each in self._from_here() if op not in each._barriers]
        if missing:
            raise RaceError(f"{who} uses barriers that the block of rank {missing[0]} may not have made")
        return [each._barriers[op].number(number) for each in self._from_here()]

    def _from_here(self) -> list[BlockRun]:
        """The blocks of the cluster, this one first."""
        return [self, *(each for each in self._cluster.blocks if each is not self)]

    def arrive(self, mbarrier: Mbarrier, who: str) -> None:
        """All warps of the role arrive."""
        mbarrier.arrive(self.agent, who)
        self.team.pause()

    def arrive_everywhere(self, op: asynchronous.MbarrierOp, number: int, who: str) -> None:
        """All warps of the role arrive at a barrier of each block of the cluster."""
        for mbarrier in self._everywhere(op, number, who):
            mbarrier.arrive(self.agent, who)
            self.team.pause()

    def expect(self, mbarrier: Mbarrier, bytes: int, who: str) -> None:
        """One warp arrives, and the phase waits for some bytes."""
        mbarrier.expect(self.agent.first, bytes, who)
        self.team.pause()

    def wait_for(self, mbarrier: Mbarrier, phase: int, who: str) -> None:
        """All warps of the role wait for a phase."""
        agent = self.agent
        self.team.pause()
        mbarrier.check_waits(agent.said_rows, phase, who)
        self.team.wait(lambda: mbarrier.is_complete(phase, who), lambda: f"phase {phase} of {mbarrier} in {who}")
        mbarrier.go_on(agent, phase, who)

    def set_registers(self, count: int, who: str) -> None:
        """The role's warps give registers back, or take some when there are enough, each as many."""
        agent = self.agent
        warps = self._plan.all_warps[self.agents.index(agent)]
        more = (count - self._registers[agent.name]) * warps
        self.team.wait(lambda: self._spare_registers >= more, lambda: f"registers in {who}")
        self._spare_registers -= more
        self._registers[agent.name] = count
        self.team.pause()

    def fence(self) -> None:
        """Make writes of the role's warps visible to asynchronous operations that follow a barrier."""
        self.clocks.fence(self.agent.rows)

    # ---- what works asynchronously ----------------------------------------------------------------------------------

    def tensor_copy(self, buffer: Buffer, values: Tensor, mbarrier: Mbarrier, who: str) -> None:
        """A copy that completes the present phase of a barrier."""
        row = self.agent.first
        self.memory.start_write(row, buffer, who)
        clock = mbarrier.coming(row, buffer.bytes, who)
        self._cluster.flying.append(_TensorCopy(self.memory, buffer, values, mbarrier, clock, who))
        self.team.pause()

    def multicast(
        self, buffer: Buffer, values: Tensor, dim: int, op: asynchronous.MbarrierOp, number: int, who: str
    ) -> None:
        """A copy of the part of the block's rank, along a dim, to each block of the cluster."""
        row, blocks = self.agent.first, len(self._cluster.blocks)
        part, brought = buffer.part(dim, self.rank, blocks), np.array_split(values, blocks, dim)[self.rank]
        came = self.clocks.passed_in_time(row)
        for mbarrier, block in zip(self._everywhere(op, number, who), self._from_here(), strict=True):
            block.memory.start_write(row, part, who)
            clock = mbarrier.coming_in_part(row, part.bytes, came, who)
            self._cluster.flying.append(_TensorCopy(block.memory, part, brought, mbarrier, clock, who))
        self.team.pause()

    def tensor_store(self, buffer: Buffer, who: str) -> Tensor:
        """The contents of a buffer that a tensor store starts to read."""
        reads = self.memory.start_read(self.agent, buffer, who)
        self._stores[self.agent.name].append((reads, who))
        self.team.pause()
        return self.memory.contents(buffer)

    def wait_for_stores(self) -> None:
        """The first warp of the role, which begins its tensor stores, knows that they have read their buffers."""
        for (cells, number), _ in self._stores[self.agent.name]:
            self.memory.finish_read(self.agent, cells, number, [self.agent.first])
        self._stores[self.agent.name].clear()
        self.team.pause()

    def wait_for_copies(self, pending: int) -> None:
        """All groups of copies of the role but the newest are complete."""
        self.memory.wait(self.agent, pending)
        self.team.pause()

    def read_for_product(self, buffer: Buffer, who: str) -> tuple[Tensor, tuple[Cells, int]]:
        """The contents of an MMA's operand buffer, and the token of the read."""
        reads = self.memory.start_read(self.agent, buffer, who)
        return self.memory.contents(buffer), reads

    def begin_product(self, value: Tensor, reads: list[tuple[Cells, int]], who: str) -> Product:
        """An MMA is under way."""
        name = self.agent.name
        self._begun[name] += 1
        product = Product(value, self.agent, self._begun[name], who, reads)
        self._products[name].append(product)
        self.team.pause()
        return product

    # ---- tensor memory ----------------------------------------------------------------------------------------------

    def tensor_alloc(self, op: tensor_memory.TensorAllocOp, who: str) -> TensorTile | TensorTiles:
        """The first warp of the role asks for columns."""
        return self.tensor_memory.allocate(op, self.agent.first, who)

    def tensor_free(self, target: TensorTile | TensorTiles, who: str) -> None:
        """The first warp of the role gives columns back."""
        target.free(self.agent.first, who)

    def tensor_multiply(
        self, target: TensorTile, product: Tensor, adds: bool, reads: list[tuple[Cells, int]], who: str
    ) -> None:
        """A thread of the role's first warp issues an MMA."""
        target.multiply(self.agent.first, product, adds, who)
        self._uncommitted[self.agent.name].append(_TensorProduct(target, reads, who))
        self.team.pause()

    def mma_commit(self, mbarrier: Mbarrier, who: str) -> None:
        """An arrival when all MMAs that the role issued are complete."""
        self._commit([mbarrier], who)

    def mma_commit_everywhere(self, op: asynchronous.MbarrierOp, number: int, who: str) -> None:
        """An arrival of MMAs at a barrier of each block of the cluster."""
        self._commit(self._everywhere(op, number, who), who)

    def _commit(self, mbarriers: Sequence[Mbarrier], who: str) -> None:
        """Of several barriers the first is this block's, in whose name MMAs end."""
        agent = self.agent
        told = self._ended[agent.name]
        told.join(self.clocks.of_products(agent.first))
        before = self.clocks.nothing()
        before.join(told)
        for mbarrier in mbarriers:
            clock = mbarrier.promise(agent.first, before, who)
            products, self._uncommitted[agent.name] = self._uncommitted[agent.name], []
            self._cluster.flying.append(_Commit(agent, self.memory, products, mbarrier, clock, who))
        told.join(before)
        self.team.pause()

    def tensor_fence(self, side: str) -> None:
        """The clocks of the role's warps in tensor memory."""
        if side == tensor_memory.BEFORE:
            self.clocks.fence_tensor_before(self.agent.rows)
        else:
            self.clocks.fence_tensor_after(self.agent.rows)

    def wait_for_products(self, pending: int) -> None:
        """All MMAs of the role but the newest `pending` have been done."""
        left = self._products[self.agent.name]
        while len(left) > pending:
            for cells, number in left.pop(0).reads:
                self.memory.finish_read(self.agent, cells, number)
        self.team.pause()

    def is_done(self, product: Product) -> bool:
        return all(product.number != other.number for other in self._products[product.agent.name])

"""Running a program: it is set up, all agents run until none can go on, and what is left is looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.dialects.base import decode
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.runtime.garbage import no_collections
from tilewright.semantics.cores.agent_code import AgentCode, code_of
from tilewright.semantics.cores.agents import MOVER_COLUMNS, PACK, PARTS, UNPACK, Agent, Core, Mover
from tilewright.semantics.cores.arrays import ArrayMemory
from tilewright.semantics.cores.device_array import DeviceArray, poison_page
from tilewright.semantics.cores.endings import check_endings
from tilewright.semantics.cores.holders import holders_of
from tilewright.semantics.cores.memory_plan import addresses_of
from tilewright.semantics.cores.queues import Queue
from tilewright.semantics.cores.registers import Registers, Sources
from tilewright.semantics.cores.reports import name_of
from tilewright.semantics.cores.semaphores import Semaphore
from tilewright.semantics.cores.static_checks import check_program
from tilewright.semantics.cores.timeline import Timeline
from tilewright.semantics.cores.units import count_configures
from tilewright.semantics.cores.world import World
from tilewright.semantics.hazards import CoreHazard
from tilewright.semantics.tile_formats import Bytes

# Up to how many cycles after the launch an agent begins, where times are drawn.
_LATEST_BEGIN_CYCLES = 500.0


@dataclass(frozen=True)
class ProgramRun:
    """What a program did.

    Attributes:
        cycles, seconds: from its launch to its end.
        tile_operations: tiles of 32 x 32 that were copied, computed, multiplied and packed.
        configures: how often each unit's state was set, on all cores together.
        fewest_configures: how often it has to be, in the order in which operations use it: as often as the state that
            they need is another one than before.
        moved_bytes: by kind of transfer.
        busy_cycles: by agent, of all cores together, without what they waited.
        highest_queues: for each queue the most pages that it held on any core.
    """

    cycles: float
    seconds: float
    tile_operations: int
    configures: dict[str, int]
    fewest_configures: dict[str, int]
    moved_bytes: dict[str, int]
    busy_cycles: dict[str, float]
    highest_queues: list[int]


def run_program(
    kernel: tile.KernelOp,
    arrays: Sequence[DeviceArray],
    machine: Machine,
    *,
    seed: int = 0,
    values: bool = True,
    checks: bool = True,
    proofs: bool = True,
    whole_outputs: bool = True,
    timeline: Timeline | None = None,
) -> ProgramRun:
    """Run a kernel that is one program, on arrays that are its refs in order and are written in place.

    Seed 0 has the machine's times; others draw times and orders. Without `values` no tile is computed, and only times
    come out. Without `checks` nothing is looked for that takes vector clocks; without `proofs` nothing before the run.
    With `whole_outputs` each element of an array that is only written has to be.

    Raises:
        CoreHazard: the program does what it must not, or cannot go on.
    """
    program = _program_of(kernel)
    if proofs:
        check_program(program, machine)
    world = _world_of(program, machine, seed, values, checks and values, timeline)
    for number, (ref, effect, array) in enumerate(zip(kernel.refs, kernel.effect_names, arrays, strict=True)):
        if tuple(array.shape) != tile.ref_type(ref).shape:
            raise CompilerBug(f"array {number} has the shape {array.shape}, and not {tile.ref_type(ref).shape}")
        if array.is_by_rows != cores.is_by_rows(ref):
            raise CompilerBug(f"array {number} is stored {'by rows' if array.is_by_rows else 'in tiles'}")
        written = any(isinstance(use.operation, cores.ARRAY_STORES) for use in ref.uses)
        is_once = effect == tile.OUT and _is_written_once(ref)
        is_whole = effect == tile.OUT and whole_outputs
        holders = holders_of(array.shape, array.placement, world.grid)
        world.arrays[ref] = ArrayMemory(array, holders, name_of(ref, number), is_once, is_whole, written, world.checks)
    _check_formats(program, world)
    codes = _codes(program, timeline is not None)
    with np.errstate(all="ignore"), no_collections():
        _set_up(program, world, codes)
        world.run()
    agents = [agent for core in world.cores.values() for agent in core.agents.values()]
    check_endings(world, agents)
    cycles = max((agent.time for agent in agents), default=0.0)
    cycles = max(cycles, world.now)
    highest = [max(core.queues[i].highest for core in world.cores.values()) for i in range(len(program.queues))]
    busy: dict[str, float] = {}
    for agent in agents:
        busy[agent.role] = busy.get(agent.role, 0.0) + agent.busy
    return ProgramRun(
        cycles,
        cycles / world.grid.clock_hertz,
        world.tile_operations,
        *count_configures(agents),
        dict(world.moved_bytes),
        busy,
        highest,
    )


def _program_of(kernel: tile.KernelOp) -> cores.ProgramOp:
    found = [op for op in kernel.body.block.ops if not isinstance(op, tile.YieldOp)]
    if len(found) != 1 or not isinstance(found[0], cores.ProgramOp):
        raise CompilerBug(f"the kernel @{kernel.sym_name.data} is not one program of cores")
    return found[0]


def _is_written_once(ref: SSAValue) -> bool:
    """Whether no element of an array is to be written again: one operation stores it, each at its own place, and none
    reads it."""
    stores = [use.operation for use in ref.uses if isinstance(use.operation, cores.ARRAY_STORES)]
    reads = any(isinstance(use.operation, cores.ARRAY_LOADS) for use in ref.uses)
    lanes = any(isinstance(store, cores.ScatterOp) and len(store.indices) > 0 for store in stores)
    return len(stores) == 1 and not reads and not lanes


def _world_of(
    program: cores.ProgramOp, machine: Machine, seed: int, values: bool, checks: bool, timeline: Timeline | None
) -> World:
    if machine.grid is None:
        raise CompilerBug(f"the machine {machine.name} is no grid of cores")
    world = World(machine.grid, values, checks, random.Random(seed) if seed else None, timeline)
    formats = {cores.queue_type(queue.result).tile_format for queue in program.queues}
    world.wide = program.wide is not None
    names = {format.name for format in formats}
    narrow = dtypes.f16 if "f16" in names and not names & {"bf16", "bfp8"} else dtypes.bf16
    world.narrow = None if world.wide else np.dtype(narrow.numpy)
    return world


def _check_formats(program: cores.ProgramOp, world: World) -> None:
    """Pages move as they are between arrays and queues."""
    for op in program.body.walk():
        if not isinstance(op, cores.PagesOp):
            continue
        memory, format = world.arrays[op.array], cores.queue_type(op.queue).tile_format
        if memory.array.format.name != format.name:
            raise CoreHazard(
                "other-format",
                f"[other-format] `{op.name}`: array {memory.name} has the format {memory.array.format.name}, "
                f"the queue {format.name}",
                op=str(op),
            )


def _codes(program: cores.ProgramOp, marks: bool) -> dict[str, AgentCode]:
    """The function of each agent, by its role."""
    row, column = program.body.block.args
    found: dict[str, AgentCode] = {}
    for thread in program.threads:
        for role in PARTS if thread.computes else (thread.role.data,):
            found[role] = code_of(thread, role, row, column, marks)
    return found


# ---- cores ----------------------------------------------------------------------------------------------------------


def _set_up(program: cores.ProgramOp, world: World, codes: dict[str, AgentCode]) -> None:
    rows, columns = program.shape
    plans = _queue_plans(program, world)
    initial = [(name_of(each.result, i), int(decode(each.initial))) for i, each in enumerate(program.semaphores)]
    per_core = sum(1 if role in PARTS else MOVER_COLUMNS for role in codes)
    world.columns = per_core * rows * columns
    world.queue_numbers = {queue.result: i for i, queue in enumerate(program.queues)}
    world.semaphore_numbers = {semaphore.result: i for i, semaphore in enumerate(program.semaphores)}
    nocs = {thread.role.data: decode(thread.noc) for thread in program.threads if thread.noc is not None}
    column = 0
    for row in range(rows):
        for col in range(columns):
            core = Core(row, col, ports=[0.0] * world.grid.networks, arriving=[0.0] * world.grid.networks)
            world.cores[row, col] = core
            for role in codes:
                core.agents[role] = _agent(world, core, role, column, nocs)
                column += 1 if role in PARTS else MOVER_COLUMNS
            _equip(world, core, plans, initial)
    _name_givers(program, world)
    # Agents begin when all of them are there, as they know of each other.
    for core in world.cores.values():
        for role, agent in core.agents.items():
            agent.time = world.grid.dispatch_cycles
            if world.order is not None:
                agent.time += world.order.random() * _LATEST_BEGIN_CYCLES
            codes[role].start(agent)
            world.schedule(agent)


def _agent(world: World, core: Core, role: str, column: int, nocs: dict[str, Any]) -> Agent:
    vector = np.zeros(world.columns, np.int32)
    vector[column] = 1
    if role in PARTS:
        return Agent(world, core, role, column, vector)
    return Mover(world, core, role, column, vector, noc=nocs[role])


@dataclass(frozen=True)
class _QueuePlan:
    """A queue as it is on each core. `blank`: a page in the beginning; `filler`, `emptier`: agents at its ends."""

    name: str
    type: cores.QueueType
    address: int
    blank: Bytes
    filler: str | None
    emptier: str | None


def _queue_plans(program: cores.ProgramOp, world: World) -> list[_QueuePlan]:
    addresses, ends = addresses_of(program, world.grid), _ends_of(program)
    found: list[_QueuePlan] = []
    for number, queue in enumerate(program.queues):
        type, name = cores.queue_type(queue.result), name_of(queue.result, number)
        found.append(_QueuePlan(name, type, addresses[number], poison_page(type.tile_format), *ends[number]))
    return found


def _equip(world: World, core: Core, plans: Sequence[_QueuePlan], initial: Sequence[tuple[str, int]]) -> None:
    """Queues, semaphores and registers of a core."""
    memory: Bytes | None = None
    if world.values and plans:
        memory = np.empty(max(plan.address + plan.type.bytes for plan in plans), np.uint8)
    for number, plan in enumerate(plans):
        made = Queue(core, plan.name, number, plan.type.tile_format, plan.type.pages, plan.address)
        if memory is not None:
            made.place(memory[plan.address : plan.address + plan.type.bytes], plan.blank)
        made.filler = None if plan.filler is None else core.agents[plan.filler]
        made.emptier = None if plan.emptier is None else core.agents[plan.emptier]
        core.queues.append(made)
    for number, (name, value) in enumerate(initial):
        core.semaphores.append(Semaphore(core, name, number, value, np.zeros(world.columns, np.int32)))
    core.registers = Registers(core, world.grid.half_registers(world.wide), world.narrow, world.values)
    core.sources = Sources(core)


def _ends_of(program: cores.ProgramOp) -> list[tuple[str | None, str | None]]:
    """For each queue which agent fills it and which empties it."""
    found: list[tuple[str | None, str | None]] = []
    for queue in program.queues:
        fills = _thread_with(queue, (cores.ReserveOp, cores.PushOp))
        empties = _thread_with(queue, (cores.WaitOp, cores.PopOp))
        filler = PACK if fills == cores.COMPUTE else fills
        found.append((filler, UNPACK if empties == cores.COMPUTE else empties))
    return found


def _thread_with(queue: cores.QueueOp, ops: tuple[type[Operation], ...]) -> str | None:
    users = [use.operation for use in queue.result.uses if isinstance(use.operation, ops)]
    return cores.thread_of(users[0]).role.data if users else None


def _name_givers(program: cores.ProgramOp, world: World) -> None:
    """Who may change a semaphore of a core: threads of the core that set it, and threads of any that send to it."""
    sends = (cores.SemaphoreIncrementOp, cores.SemaphoreMulticastOp)
    for number, semaphore in enumerate(program.semaphores):
        users = [use.operation for use in semaphore.result.uses]
        senders = sorted({cores.thread_of(op).role.data for op in users if isinstance(op, sends)})
        setters = sorted({cores.thread_of(op).role.data for op in users if isinstance(op, cores.SemaphoreSetOp)})
        everywhere = [core.agents[role] for core in world.cores.values() for role in senders]
        for core in world.cores.values():
            own = [core.agents[role] for role in setters if role not in senders]
            core.semaphores[number].givers = [*everywhere, *own]

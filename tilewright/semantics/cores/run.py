"""Running a program: it is set up, all threads run until none can make progress, and what is left is looked at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.dialects import cores, tile
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.records import dataclass
from tilewright.runtime.garbage import no_collections
from tilewright.semantics.cores.agents import MOVER_COLUMNS, PARTS, Agent, Core, Knowledge, Mover
from tilewright.semantics.cores.arrays import ArrayMemory
from tilewright.semantics.cores.device_array import DeviceArray
from tilewright.semantics.cores.endings import check_endings
from tilewright.semantics.cores.holders import holders_of
from tilewright.semantics.cores.prepared import Prepared, prepared_for
from tilewright.semantics.cores.queues import Queue
from tilewright.semantics.cores.registers import Registers, Sources
from tilewright.semantics.cores.reports import name_of
from tilewright.semantics.cores.semaphores import Semaphore
from tilewright.semantics.cores.static_checks import check_program
from tilewright.semantics.cores.tile_formats import Bytes
from tilewright.semantics.cores.timeline import Timeline
from tilewright.semantics.cores.units import count_configures
from tilewright.semantics.cores.world import World
from tilewright.semantics.hazards import CoreHazard

# Up to how many cycles after the launch an agent begins, where times are drawn.
_LATEST_BEGIN_CYCLES = 500.0


@dataclass(frozen=True)
class ProgramRun:
    """Statistics of a run.

    Attributes:
        cycles, seconds: from its launch to its end.
        tile_operations: tiles of 32 x 32 that were copied, computed, multiplied and packed.
        configures: how often each unit's state was set, on all cores together.
        fewest_configures: how often it has to be, in the order in which operations use it: as often as the state that
            they need is another one than before.
        moved_bytes: by kind of transfer.
        busy_cycles: by thread, of all cores together, without what they waited.
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

    Seed 0 uses the machine's times; others draw times and orders. Without `values` no tile is computed, and only times
    are returned. Without `checks` the run does no check that needs vector clocks; without `proofs` none before the run.
    With `whole_outputs` each element of an array that is only written has to be.

    Raises:
        CoreHazard: the program does what it must not, or cannot make progress.
    """
    program, grid = _program_of(kernel), machine.core_grid
    with np.errstate(all="ignore"), no_collections():
        prepared = prepared_for(kernel, program, grid, [array.placement for array in arrays])
        if proofs and not prepared.is_proven:
            check_program(program, machine)
            prepared.is_proven = True
        world = World(grid, values, checks and values, random.Random(seed) if seed else None, timeline)
        world.wide, world.narrow = program.wide, prepared.narrow
        _give_arrays(kernel, arrays, prepared, world, whole_outputs)
        _check_formats(prepared, world)
        _set_up(program, prepared, world)
        world.run()
        agents = [agent for core in world.cores.values() for agent in core.agents.values()]
        check_endings(world, agents)
        ran = _run_of(world, agents, len(prepared.queues))
        world.clear()
    return ran


def _give_arrays(
    kernel: tile.KernelOp, arrays: Sequence[DeviceArray], prepared: Prepared, world: World, whole_outputs: bool
) -> None:
    uses = zip(kernel.refs, kernel.effects, arrays, prepared.uses, strict=True)
    for number, (ref, effect, array, use) in enumerate(uses):
        if tuple(array.shape) != tile.ref_type(ref).shape:
            raise CompilerBug(f"array {number} has the shape {array.shape}, and not {tile.ref_type(ref).shape}")
        if array.is_by_rows != cores.is_by_rows(ref):
            raise CompilerBug(f"array {number} is stored {'by rows' if array.is_by_rows else 'in tiles'}")
        is_out, holders = effect == tile.OUT, holders_of(array.shape, array.placement, world.grid)
        world.arrays[ref] = ArrayMemory(
            array,
            holders,
            name_of(ref, number),
            is_out and use.is_once,
            is_out and whole_outputs,
            use.is_written,
            world.checks,
        )


def _run_of(world: World, agents: Sequence[Agent], queues: int) -> ProgramRun:
    """Statistics of a run whose threads have ended."""
    cycles = max((agent.time for agent in agents), default=0.0)
    cycles = max(cycles, world.now)
    highest = [max(core.queues[i].highest for core in world.cores.values()) for i in range(queues)]
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
        raise CompilerBug(f"the kernel @{kernel.sym_name} is not one program of cores")
    return found[0]


def _check_formats(prepared: Prepared, world: World) -> None:
    """Pages move as they are between arrays and queues."""
    for op, array, format in prepared.moved_formats:
        memory = world.arrays[array]
        if memory.array.format.name != format.name:
            raise CoreHazard(
                "other-format",
                f"[other-format] `{op.name}`: array {memory.name} has the format {memory.array.format.name}, "
                f"the queue {format.name}",
                op=str(op),
            )


# ---- cores ----------------------------------------------------------------------------------------------------------


def _set_up(program: cores.ProgramOp, prepared: Prepared, world: World) -> None:
    rows, columns = program.shape
    codes = prepared.codes(world.timeline is not None)
    per_core = sum(1 if role in PARTS else MOVER_COLUMNS for role in codes)
    world.columns = per_core * rows * columns
    world.queue_numbers, world.semaphore_numbers = prepared.queue_numbers, prepared.semaphore_numbers
    vectors, column = _vectors(world, len(codes) * rows * columns), 0
    nothing = np.zeros(world.columns, np.int32)
    for row in range(rows):
        for col in range(columns):
            core = Core(row, col, ports=[0.0] * world.grid.networks, arriving=[0.0] * world.grid.networks)
            world.cores[row, col] = core
            for role in codes:
                core.agents[role] = _agent(world, core, role, column, next(vectors), prepared.networks)
                column += 1 if role in PARTS else MOVER_COLUMNS
            _equip(world, core, prepared, nothing)
    _name_givers(prepared, world)
    # Agents begin when all of them are there, as they know of each other.
    for core in world.cores.values():
        for role, agent in core.agents.items():
            agent.time = world.grid.dispatch_cycles
            if world.order is not None:
                agent.time += world.order.random() * _LATEST_BEGIN_CYCLES
            codes[role].start(agent)
            world.schedule(agent)


def _vectors(world: World, count: int) -> Iterator[Knowledge]:
    """Initial clocks of so many threads. Without checks they are unused: all have the same."""
    if not world.checks:
        return itertools.repeat(np.zeros(world.columns, np.int32))
    return iter(np.zeros((count, world.columns), np.int32))


def _agent(world: World, core: Core, role: str, column: int, vector: Knowledge, networks: dict[str, int]) -> Agent:
    vector[column] = 1
    if role in PARTS:
        return Agent(world, core, role, column, vector)
    return Mover(world, core, role, column, vector, noc=networks[role])


def _equip(world: World, core: Core, prepared: Prepared, nothing: Knowledge) -> None:
    """Queues, semaphores and registers of a core. `nothing`: what is known in the beginning."""
    memory: Bytes | None = None
    if world.values and prepared.queues:
        memory = np.empty(max(plan.address + plan.type.bytes for plan in prepared.queues), np.uint8)
    for number, plan in enumerate(prepared.queues):
        made = Queue(core, plan.name, number, plan.type.tile_format, plan.type.pages, plan.address)
        if memory is not None:
            made.place(memory[plan.address : plan.address + plan.type.bytes], plan.blank)
        made.filler = None if plan.filler is None else core.agents[plan.filler]
        made.emptier = None if plan.emptier is None else core.agents[plan.emptier]
        core.queues.append(made)
    for number, plan in enumerate(prepared.semaphores):
        core.semaphores.append(Semaphore(core, plan.name, number, plan.initial, nothing))
    core.registers = Registers(core, world.grid.half_registers(world.wide), world.narrow, world.values)
    core.sources = Sources(core)


def _name_givers(prepared: Prepared, world: World) -> None:
    """Who may change a semaphore of a core: threads of the core that set it, and threads of any that send to it."""
    for number, plan in enumerate(prepared.semaphores):
        everywhere = [core.agents[role] for core in world.cores.values() for role in plan.senders]
        for core in world.cores.values():
            core.semaphores[number].givers = [*everywhere, *(core.agents[role] for role in plan.setters)]

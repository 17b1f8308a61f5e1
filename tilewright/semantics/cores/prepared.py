"""Parts of a run that depend only on the program, the machine and array placements: they are computed once, and kept
with the program for as long as that stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.cached import cached_property
from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TileFormat
from tilewright.layout.catalogue.placements import Placement
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass
from tilewright.semantics.cores.agent_code import AgentCode, code_of
from tilewright.semantics.cores.agents import PACK, PARTS, UNPACK
from tilewright.semantics.cores.device_array import poison_page
from tilewright.semantics.cores.memory_plan import addresses_of
from tilewright.semantics.cores.reports import name_of
from tilewright.semantics.cores.tile_formats import Bytes


@dataclass(frozen=True)
class QueuePlan:
    """A queue as it is on each core. `blank`: a page in the beginning; `filler`, `emptier`: threads at its ends."""

    name: str
    type: cores.QueueType
    address: int
    blank: Bytes
    filler: str | None
    emptier: str | None


@dataclass(frozen=True)
class ArrayUse:
    """The use of an array by a program. `is_once`: no element of it is to be written again."""

    is_written: bool
    is_once: bool


@dataclass(frozen=True)
class SemaphorePlan:
    """A semaphore as it is on each core. `senders`: threads of any core that change it; `setters`: others of its own
    core."""

    name: str
    initial: int
    senders: tuple[str, ...]
    setters: tuple[str, ...]


class Prepared:
    """Facts of a program, computed on demand. `is_proven`: nothing was found in it that is wrong whatever the order."""

    def __init__(self, kernel: tile.KernelOp, program: cores.ProgramOp, grid: CoreGrid) -> None:
        self._kernel, self._program, self._grid = kernel, program, grid
        self._codes: dict[bool, dict[str, AgentCode]] = {}
        self.is_proven = False

    @cached_property
    def uses(self) -> list[ArrayUse]:
        """Of each array."""
        return [_use_of(ref) for ref in self._kernel.refs]

    @cached_property
    def moved_formats(self) -> list[tuple[cores.PagesOp, SSAValue, TileFormat]]:
        """Arrays whose pages move as they are, and the format of the queue that they move to or from."""
        ops = [op for op in self._program.body.walk() if isinstance(op, cores.PagesOp)]
        return [(op, op.array, cores.queue_type(op.queue).tile_format) for op in ops]

    @cached_property
    def narrow(self) -> np.dtype[Any] | None:
        """The type to which floats in registers of 16 bits are rounded."""
        if self._program.wide:
            return None
        names = {cores.queue_type(queue.result).format.data for queue in self._program.queues}
        return np.dtype((dtypes.f16 if "f16" in names and not names & {"bf16", "bfp8"} else dtypes.bf16).numpy)

    @cached_property
    def queues(self) -> list[QueuePlan]:
        """Raises CoreHazard where they have no room."""
        found: list[QueuePlan] = []
        addresses = addresses_of(self._program, self._grid)
        for number, (queue, address) in enumerate(zip(self._program.queues, addresses, strict=True)):
            type, name = cores.queue_type(queue.result), name_of(queue.result, number)
            found.append(QueuePlan(name, type, address, poison_page(type.tile_format), *_ends_of(queue)))
        return found

    @cached_property
    def semaphores(self) -> list[SemaphorePlan]:
        sends = (cores.SemaphoreIncrementOp, cores.SemaphoreMulticastOp)
        found: list[SemaphorePlan] = []
        for number, semaphore in enumerate(self._program.semaphores):
            senders, setters = (_roles_of(semaphore, kinds) for kinds in (sends, (cores.SemaphoreSetOp,)))
            others = tuple(role for role in setters if role not in senders)
            name, initial = name_of(semaphore.result, number), semaphore.initial
            found.append(SemaphorePlan(name, initial, senders, others))
        return found

    @cached_property
    def queue_numbers(self) -> dict[SSAValue, int]:
        return {queue.result: i for i, queue in enumerate(self._program.queues)}

    @cached_property
    def semaphore_numbers(self) -> dict[SSAValue, int]:
        return {semaphore.result: i for i, semaphore in enumerate(self._program.semaphores)}

    @cached_property
    def networks(self) -> dict[str, int]:
        """By which network each mover moves data."""
        return {each.role: each.noc for each in self._program.threads if each.noc is not None}

    def codes(self, marks: bool) -> dict[str, AgentCode]:
        """The function of each thread, by its role. `marks`: with zones."""
        found = self._codes.get(marks)
        if found is None:
            found = self._codes[marks] = _codes(self._program, marks)
        return found


def prepared_for(
    kernel: tile.KernelOp, program: cores.ProgramOp, grid: CoreGrid, placements: Sequence[Placement | None]
) -> Prepared:
    """Facts of the program of a kernel, whose arrays are placed."""
    facts = [grid, *placements, *_facts(kernel)]
    kept = program.kept.get(Prepared)
    if kept is None or kept[0] != facts:
        kept = program.kept[Prepared] = facts, Prepared(kernel, program, grid)
    return kept[1]


def _facts(kernel: tile.KernelOp) -> list[object]:
    """All that a kernel states, as what cannot change, but for operations, which stand for themselves."""
    found: list[object] = [*kernel.refs, *(ref.type for ref in kernel.refs)]
    for op in kernel.walk():
        found += op, op.parent, *op.operands, *op.properties, *op.properties.values(), *(r.type for r in op.results)
    return found


def _use_of(ref: SSAValue) -> ArrayUse:
    """An array is written once where one operation stores it, each element at its own position, and none reads it."""
    users = [use.operation for use in ref.uses]
    stores = [op for op in users if isinstance(op, cores.ARRAY_STORES)]
    is_read = any(isinstance(op, cores.ARRAY_LOADS) for op in users)
    is_anywhere = any(isinstance(op, cores.ScatterOp) and len(op.indices) > 0 for op in stores)
    return ArrayUse(bool(stores), len(stores) == 1 and not is_read and not is_anywhere)


def _ends_of(queue: cores.QueueOp) -> tuple[str | None, str | None]:
    """Which thread fills a queue and which empties it."""
    fills = _thread_with(queue, (cores.ReserveOp, cores.PushOp))
    empties = _thread_with(queue, (cores.WaitOp, cores.PopOp))
    return PACK if fills == cores.COMPUTE else fills, UNPACK if empties == cores.COMPUTE else empties


def _thread_with(queue: cores.QueueOp, ops: tuple[type[Operation], ...]) -> str | None:
    users = [use.operation for use in queue.result.uses if isinstance(use.operation, ops)]
    return cores.thread_of(users[0]).role if users else None


def _roles_of(semaphore: cores.SemaphoreOp, ops: tuple[type[Operation], ...]) -> tuple[str, ...]:
    users = [use.operation for use in semaphore.result.uses]
    return tuple(sorted({cores.thread_of(op).role for op in users if isinstance(op, ops)}))


def _codes(program: cores.ProgramOp, marks: bool) -> dict[str, AgentCode]:
    row, column = program.body.block.args
    found: dict[str, AgentCode] = {}
    for thread in program.threads:
        for role in PARTS if thread.computes else (thread.role,):
            found[role] = code_of(thread, role, row, column, marks)
    return found

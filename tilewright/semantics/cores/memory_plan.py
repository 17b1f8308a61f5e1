"""Addresses of a program's queues in L1, and a check that they fit."""

from __future__ import annotations

import itertools

from tilewright.dialects import cores
from tilewright.machines.core_grid import CoreGrid
from tilewright.semantics.cores.reports import location_of, name_of
from tilewright.semantics.hazards import CoreHazard


def addresses_of(program: cores.ProgramOp, grid: CoreGrid) -> list[int]:
    """The address of each queue: what the program states, or one after another where it declares nothing.

    Raises:
        CoreHazard: a machine has fewer queues or semaphores, or its memory has no room, or they are not where they may
            be.
    """
    queues, semaphores = program.queues, program.semaphores
    if len(queues) > grid.queues:
        raise _error("too-many-queues", f"{len(queues)} queues, of {grid.queues} that a core has", queues[-1])
    if len(semaphores) > grid.semaphores:
        text = f"{len(semaphores)} semaphores, of {grid.semaphores} that a core has"
        raise _error("too-many-semaphores", text, semaphores[-1])
    next_bytes, found = grid.memory_base_bytes, list[int]()
    for queue in queues:
        if queue.address_bytes is None:
            next_bytes = -(-next_bytes // _alignment_bytes(queue, grid)) * _alignment_bytes(queue, grid)
            found.append(next_bytes)
            next_bytes += cores.queue_type(queue.result).bytes
        else:
            found.append(queue.address_bytes)
    ranges = sorted((begin, begin + cores.queue_type(q.result).bytes, i) for i, (q, begin) in _numbered(queues, found))
    for begin, end, number in ranges:
        queue = queues[number]
        name = name_of(queue.result, number)
        if begin % _alignment_bytes(queue, grid):
            text = f"queue {name} begins at {begin}, no multiple of {_alignment_bytes(queue, grid)}"
            raise _error("misaligned", text, queue)
        if begin < grid.memory_base_bytes or end > program.memory_end_bytes(grid):
            raise _error(
                "out-of-memory", f"queue {name} is from {begin} to {end}, {_table(program, found, grid)}", queue
            )
    for (_, end, number), (begin, _, other) in itertools.pairwise(ranges):
        if begin < end:
            names = f"{name_of(queues[number].result, number)} and {name_of(queues[other].result, other)}"
            raise _error("memory-overlap", f"queues {names} overlap from {begin} to {end}", queues[other])
    return found


def _alignment_bytes(queue: cores.QueueOp, grid: CoreGrid) -> int:
    """Parts of rows are read from within pages of DRAM, to places that are aligned alike."""
    reads_rows = any(isinstance(use.operation, cores.FetchRowsOp) for use in queue.result.uses)
    return max(grid.memory_alignment_bytes, grid.dram_alignment_bytes if reads_rows else 1)


def _numbered(queues: list[cores.QueueOp], found: list[int]) -> list[tuple[int, tuple[cores.QueueOp, int]]]:
    return list(enumerate(zip(queues, found, strict=True)))


def _table(program: cores.ProgramOp, found: list[int], grid: CoreGrid) -> str:
    """Which queue takes how much."""
    lines = [f"and its queues may use {grid.memory_base_bytes} to {program.memory_end_bytes(grid)}:"]
    for number, (queue, begin) in _numbered(program.queues, found):
        type = cores.queue_type(queue.result)
        name = name_of(queue.result, number)
        lines.append(f"  queue {name}: {type.bytes} bytes at {begin}, {type.pages} pages of {type.format.data}")
    return "\n".join(lines)


def _error(kind: str, message: str, op: cores.QueueOp | cores.SemaphoreOp) -> CoreHazard:
    return CoreHazard(kind, f"[{kind}] {message}", op=str(op), location=location_of(op))

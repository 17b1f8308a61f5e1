"""Bytes of L1 that queues take."""

from __future__ import annotations

from tilewright.dialects import cores
from tilewright.machines.core_grid import CoreGrid


def aligned_bytes(size: int, grid: CoreGrid) -> int:
    """A size that the next queue or array may begin after."""
    unit = max(grid.memory_alignment_bytes, grid.dram_alignment_bytes)
    return -(-size // unit) * unit


def bytes_of(queue: cores.QueueOp) -> int:
    return cores.queue_type(queue.result).bytes


def queue_bytes(program: cores.ProgramOp, grid: CoreGrid) -> int:
    """Of all queues of a program, which are contiguous."""
    return sum(aligned_bytes(bytes_of(queue), grid) for queue in program.queues)

"""Choice of the number of warps of a thread block."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects.builtin import TensorType

from tilewright.cost.warps.loops import registers_of_part, warps_of_tile
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine, Model


def warps_of(kernel: tile.KernelOp, machine: Machine, default: int = 4) -> int:
    """The warps of a block: those that the kernel declares; without matmuls, enough for its largest tile."""
    if kernel.warps is not None:
        return kernel.warps
    if machine.model != Model.WARPS or any(isinstance(op, tile.DotOp) for op in kernel.walk()):
        return default
    return warps_of_tile(max(_tile_bytes(kernel), default=0), machine, default)


def spilled_registers(kernel: tile.KernelOp, machine: Machine, warps: int) -> tuple[int, int] | None:
    """The registers of a thread's part of the largest tile and those that a thread has, where these are fewer."""
    needed, room = registers_of_part(max(_tile_bytes(kernel), default=0), machine, warps)
    return (needed, room) if needed >= room else None


def _tile_bytes(kernel: tile.KernelOp) -> Iterator[int]:
    """Sizes of tiles that are loaded or computed from others; what is the same everywhere takes no registers."""
    for op in kernel.walk():
        if isinstance(op, tile.BroadcastOp | tile.FullOp | tile.IotaOp):
            continue
        for result in op.results:
            if isinstance(result.type, TensorType):
                type = array_type(result)
                yield prod(type.shape) * type.dtype.compute.itemsize

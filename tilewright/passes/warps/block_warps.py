"""Choice of the number of warps of a thread block, and whether groups of them multiply."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

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


def group_families(kernel: tile.KernelOp, machine: Machine) -> list[str]:
    """The families of asynchronous MMAs that a kernel's matmuls may be multiplied by. Tensor memory is for matmuls that
    state it. Groups of warps may multiply where it is declared, and by default where all operands are windows of a
    loop: what is computed they would wait for twice, on its way to a buffer and for the matmul."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    named = {dot.atom for dot in dots if dot.atom is not None}
    if named:
        families = dict.fromkeys(family for name in named if (family := machine.family_of(name)) is not None)
        found = [family.name for family in families if family.asynchronous]
        return [
            *found,
            *(family.with_left_in_registers for family in families if family.with_left_in_registers in named),
        ]
    operands = [(operand, dot) for dot in dots for operand in (dot.left, dot.right)]
    if not operands or not all(_is_window(operand, dot) for operand, dot in operands):
        return []
    return [family.name for family in machine.families if family.asynchronous and not family.sums_in_tensor_memory]


def _is_window(operand: SSAValue, dot: tile.DotOp) -> bool:
    """Whether an operand is loaded in the matmul's block, which is that of a loop of the kernel."""
    while isinstance(operand.owner, tile.TransposeOp | tile.FillPaddingOp):
        operand = operand.owner.operands[0]
    loop = dot.parent_op()
    is_loop = isinstance(loop, tile.ForOp) and isinstance(loop.parent_op(), tile.KernelOp)
    return is_loop and isinstance(operand.owner, tile.LoadOp) and operand.owner.parent_op() is loop


def _tile_bytes(kernel: tile.KernelOp) -> Iterator[int]:
    """Sizes of tiles that are loaded or computed from others; what is the same everywhere takes no registers."""
    for op in kernel.walk():
        if isinstance(op, tile.BroadcastOp | tile.FullOp | tile.IotaOp):
            continue
        for result in op.results:
            if isinstance(result.type, TensorType):
                type = array_type(result)
                yield prod(type.shape) * type.dtype.compute.itemsize

"""How many blocks of a kernel are on one core of a GPU at once, and what does not let there be more.

Registers are given to warps in units, and each partition of a core has its own; a block takes shared memory in units,
with what the system reserves of it. The units are in the machine file.
"""

from __future__ import annotations

from tilewright.errors import TargetError
from tilewright.machines.machine import Machine, Residency
from tilewright.records import dataclass

BLOCKS, WARPS, REGISTERS, SHARED = "blocks", "warps", "registers", "shared memory"


@dataclass(frozen=True)
class Occupancy:
    """`blocks` of `warps` warps in all are on a core at once. `limits`: what the next block would lack."""

    blocks: int
    warps: int
    limits: tuple[str, ...]


def occupancy(machine: Machine, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of a kernel with blocks of so many `threads`, `registers` of each and `shared_bytes` of each block.

    Raises:
        TargetError: the machine file does not declare its residency.
    """
    residency = machine.residency
    if residency is None:
        raise TargetError(f"the machine `{machine.name}` does not declare its residency", help="add `[residency]`")
    warps = -(-threads // machine.axes["lane"])
    per_kind = {
        BLOCKS: residency.blocks,
        WARPS: machine.axes["warp"] // warps,
        REGISTERS: _by_registers(residency, warps, registers * machine.axes["lane"]),
        SHARED: residency.shared_bytes // _shared_of(residency, shared_bytes),
    }
    blocks = min(per_kind.values())
    return Occupancy(blocks, blocks * warps, tuple(kind for kind, n in per_kind.items() if n == blocks))


def _by_registers(residency: Residency, warps: int, of_a_warp: int) -> int:
    """For how many blocks there are registers. All warps of a block take the same number."""
    taken = _up(max(of_a_warp, 1), residency.register_unit)
    per_partition = residency.registers // residency.partitions // taken
    return per_partition * residency.partitions // warps


def _shared_of(residency: Residency, bytes: int) -> int:
    return _up(bytes + residency.reserved_shared_bytes, residency.shared_unit_bytes)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit

"""Occupancy: the figures of the published table, and blocks placed one after the other in the partitions of a core."""

from __future__ import annotations

import random

import pytest

from tilewright.cost.warps.occupancy import BLOCKS, REGISTERS, SHARED, WARPS, occupancy
from tilewright.errors import TargetError
from tilewright.machines.machine import load, names

GPUS = [name for name in names() if load(name).target == "cuda"]


@pytest.mark.parametrize(
    ("machine", "threads", "registers", "shared_bytes", "blocks", "limits"),
    [
        # Places for warps, registers and memory for exactly as many: 2048 threads of 32 registers.
        ("sm_80", 256, 32, 0, 8, (WARPS, REGISTERS)),
        ("sm_80", 32, 16, 0, 32, (BLOCKS,)),
        ("sm_80", 256, 33, 0, 6, (REGISTERS,)),  # 40 of each: 12 warps of a quarter, 48 in all
        ("sm_86", 256, 32, 0, 6, (WARPS,)),
        ("sm_86", 64, 32, 0, 16, (BLOCKS,)),
        ("sm_89", 64, 32, 0, 24, (BLOCKS, WARPS)),
        # 227 KiB and the one that is reserved are all that there is.
        ("sm_90a", 128, 32, 227 * 1024, 1, (SHARED,)),
        ("sm_90a", 128, 32, 113 * 1024, 2, (SHARED,)),
        ("sm_90a", 128, 32, 113 * 1024 + 1, 1, (SHARED,)),
        # Two warpgroups and a warp that copies: 9 warps, 168 registers, 3 warps of each quarter.
        ("sm_90a", 288, 168, 100 * 1024, 1, (REGISTERS,)),
        ("sm_90a", 384, 168, 0, 1, (REGISTERS,)),
        ("sm_90a", 384, 176, 0, 0, (REGISTERS,)),
        ("sm_100a", 192, 255, 0, 1, (REGISTERS,)),
        ("sm_120a", 1024, 32, 0, 1, (WARPS,)),
    ],
)
def test_published_figures(
    machine: str, threads: int, registers: int, shared_bytes: int, blocks: int, limits: tuple[str, ...]
) -> None:
    found = occupancy(load(machine), threads, registers, shared_bytes)
    assert (found.blocks, found.warps, found.limits) == (blocks, blocks * -(-threads // 32), limits)


@pytest.mark.parametrize("name", GPUS)
def test_blocks_placed_one_after_the_other(name: str) -> None:
    """Warps go to the partition with the fewest, as long as each has registers and places."""
    rng = random.Random(name)
    for _ in range(200):
        threads, registers = 32 * rng.randint(1, 32), rng.randint(16, 255)
        shared_bytes = rng.choice([0, rng.randint(0, 99 * 1024)])
        assert occupancy(load(name), threads, registers, shared_bytes).blocks == placed(
            name, threads // 32, registers, shared_bytes
        )


def placed(name: str, warps: int, registers: int, shared_bytes: int) -> int:
    machine = load(name)
    given = machine.residency
    assert given is not None
    free_registers = [given.registers // 4] * 4
    free_places = [machine.axes["warp"] // 4] * 4
    free_bytes = given.shared_bytes
    of_a_warp = next(n for n in range(0, 65536, 256) if n >= 32 * registers)
    of_a_block = next(n for n in range(0, 1 << 20, 128) if n >= shared_bytes + 1024)
    for blocks in range(given.blocks):
        free_bytes -= of_a_block
        if free_bytes < 0:
            return blocks
        for _ in range(warps):
            part = max(range(4), key=lambda at: (free_registers[at], free_places[at]))
            free_registers[part] -= of_a_warp
            free_places[part] -= 1
            if free_registers[part] < 0 or free_places[part] < 0:
                return blocks
    return given.blocks


def test_a_machine_without_such_blocks() -> None:
    with pytest.raises(TargetError, match="does not declare its residency"):
        occupancy(load("x86-64-v3"), 32, 32, 0)

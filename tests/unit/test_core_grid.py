"""The machine files of grids of cores against the published tables, and what follows from them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tilewright import ops
from tilewright.machines import machine as machines
from tilewright.machines.core_grid import TRANSFERS, CoreGrid, round_log2

MACHINES = ("wormhole", "blackhole")

# tt-metal's model of transfers: GB/s at 16, 32, ... bytes up to where they level off, and the level. Between the first
# and the last one rates of transfers between cores double here.
_DRAM = {
    "wormhole": ([0.436, 0.868, 1.736, 3.489, 6.975, 13.889, 27.891], 28),
    "blackhole": ([0.387, 0.772, 1.545, 3.088, 6.176, 12.361, 24.71, 49.164], 50.5),
}
_READ = {
    "wormhole": ([0.868, 1.736, 3.472, 6.94, 13.9, 27.1], 29),
    "blackhole": ([0.671, 1.342, 2.684, 5.37, 10.7, 21.4, 42.8], 50),
}
_WRITE = {
    "wormhole": ([0.681, 1.362, 2.724, 5.45, 10.9, 21.7], 27.8),
    "blackhole": ([0.511, 1.022, 2.044, 4.09, 8.18, 16.3, 32.6], 50),
}
RATES = {"dram_read": _DRAM, "dram_write": _DRAM, "core_read": _READ, "core_write": _WRITE, "local": _READ}
LATENCIES = {
    "wormhole": {"dram_read": 358, "dram_write": 358, "local": 56, "core_write": 256, "core_read": 259},
    "blackhole": {"dram_read": 529, "dram_write": 529, "local": 88, "core_write": 404, "core_read": 403},
}
SIZES = [2**power for power in range(4, 17)]


def grid_of(name: str) -> CoreGrid:
    grid = machines.load(name).grid
    assert grid is not None
    return grid


@pytest.mark.parametrize("kind", TRANSFERS)
@pytest.mark.parametrize("name", MACHINES)
def test_rates_are_those_of_the_reference(name, kind):
    rising, level = RATES[kind][name]
    transfer = grid_of(name).transfer(kind)
    for index, size in enumerate(SIZES):
        expected = rising[index] if index < len(rising) else level
        assert transfer.rate_of(size) == pytest.approx(expected * 1e9, rel=0.1), size


@pytest.mark.parametrize("kind", TRANSFERS)
@pytest.mark.parametrize("name", MACHINES)
def test_latencies_are_those_of_the_reference(name, kind):
    assert grid_of(name).latency_cycles(kind) == pytest.approx(LATENCIES[name][kind], rel=0.1)


@pytest.mark.parametrize("kind", TRANSFERS)
@pytest.mark.parametrize("name", MACHINES)
def test_how_long_transfers_take(name, kind):
    """In seconds, since the reference counts in cycles of another clock."""
    grid = grid_of(name)
    rising, level = RATES[kind][name]
    for index, size in enumerate(SIZES):
        for count in (1, 7, 100):
            rate = 1e9 * (rising[index] if index < len(rising) else level)
            taken_s = grid.occupancy_cycles(kind, size, count) / grid.clock_hertz
            expected_s = count * size / rate
            assert abs(taken_s - expected_s) <= 0.1 * expected_s + 1 / grid.clock_hertz


@pytest.mark.parametrize("kind", TRANSFERS)
@pytest.mark.parametrize("name", MACHINES)
def test_more_bytes_take_longer_and_larger_transactions_are_no_slower(name, kind):
    grid = grid_of(name)
    rates = [grid.transfer(kind).rate_of(size) for size in SIZES]
    # Measured levels are not flat: they go down by a little in places.
    assert all(later >= 0.95 * earlier for earlier, later in pairwise(rates))
    # Below the level a transaction takes as long whatever its size, but for what was measured.
    times = [grid.occupancy_cycles(kind, size) for size in SIZES]
    assert all(later >= 0.9 * earlier for earlier, later in pairwise(times))
    assert all(later > 1.8 * earlier for earlier, later in pairwise(times[8:]))
    assert grid.occupancy_cycles(kind, 2048, 10) == pytest.approx(10 * grid.occupancy_cycles(kind, 2048), abs=10)
    assert grid.occupancy_cycles(kind, 1) == grid.occupancy_cycles(kind, 16)
    assert grid.transfer(kind).rate_of(2**20) == rates[-1]


def test_a_size_between_two_counts_as_the_nearer_by_ratio():
    assert [round_log2(value) for value in (16, 22, 23, 32, 45, 46, 1088)] == [4, 4, 5, 5, 5, 6, 10]


@pytest.mark.parametrize("name", MACHINES)
def test_peaks_are_those_that_the_vendor_states(name):
    """Of a core, in flop a second in four phases: 74e12 of 72 cores, and a fourth of 4096 * 1.35e9."""
    grid = grid_of(name)
    flops = 2 * 32**3 / grid.multiply_cycles * grid.clock_hertz
    assert flops == {"wormhole": 1.024e12, "blackhole": 1.3824e12}[name]


@pytest.mark.parametrize("name", MACHINES)
def test_a_core(name):
    grid, machine = grid_of(name), machines.load(name)
    assert (grid.rows, grid.columns) == (machine.axes["core.y"], machine.axes["core.x"])
    assert grid.memory_bytes == machine.memory("l1").bytes == grid.memory_end_bytes - grid.memory_base_bytes
    assert grid.memory_base_bytes % grid.dram_alignment_bytes in (0, 32)
    assert grid.memory_end_bytes == {"wormhole": 1464 * 1024, "blackhole": 1536 * 1024}[name]
    assert (grid.half_registers(wide=False), grid.half_registers(wide=True)) == (8, 4)
    assert {function.cost for function in ops.FUNCTIONS.values()} <= set(grid.vector_cycles)
    assert grid.vector_tile_cycles("alu") == 32 * grid.vector_cycles["alu"]
    assert grid.unpack_cycles(2048) == pytest.approx(25.6)
    assert grid.pack_cycles(4096) == 2 * grid.pack_cycles(2048)


@pytest.mark.parametrize("name", MACHINES)
def test_what_the_units_are_in(name):
    """A mistake of a factor of a thousand shows."""
    grid = grid_of(name)
    assert 0.9e9 <= grid.clock_hertz <= 1.5e9
    assert 100e9 < grid.dram_bytes_per_second < 1e12
    for transfer in grid.transfers:
        # A link moves so much in a cycle at most.
        assert max(transfer.bytes_per_second) <= grid.network_bytes_per_cycle * grid.clock_hertz
        assert len(transfer.bytes_per_second) == len(SIZES)
        assert math.isfinite(transfer.latency_cycles)
    assert {transfer.kind for transfer in grid.transfers} == set(TRANSFERS)

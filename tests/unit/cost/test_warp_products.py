"""Tiles, warps and stages of products: what is chosen fits the machine, and large products get large tiles."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from tests.cuda.chips import CHIPS
from tilewright import dtypes
from tilewright.cost.warps.products import Epilogue, WarpProduct, WarpSchedule, warp_schedule
from tilewright.machines.machine import load

MMA, WGMMA, TCGEN05 = "mma.sync", "wgmma", "tcgen05"
ACCUMULATORS = {"bf16": "f32", "f16": "f32", "i8": "i32"}


def product(rows: int, columns: int, depth: int, dtype: str = "bf16", piece_bytes: int = 16) -> WarpProduct:
    accumulator = dtypes.by_name(ACCUMULATORS.get(dtype, dtype))
    return WarpProduct(rows, columns, depth, dtypes.by_name(dtype), accumulator, 1, piece_bytes)


def family_name(schedule: WarpSchedule) -> str:
    assert schedule.family is not None
    return schedule.family.name


def check(chosen: WarpSchedule, given: WarpProduct, chip: str) -> None:
    machine, tile = load(chip), chosen.tile
    item = given.operand.itemsize
    assert chosen.across is not None
    down, side = chosen.across
    assert down * side == chosen.warps
    assert tile.rows % (16 * down) == 0
    assert tile.columns % (16 * side) == 0
    assert tile.depth * item % 32 == 0
    stages = chosen.stages * (tile.rows + tile.columns) * tile.depth * item
    assert max(stages, tile.rows * tile.columns * 4) <= machine.memories[0].bytes
    assert tile.rows * tile.columns // (32 * chosen.warps) <= 128
    assert tile.rows < 2 * max(16, given.rows)
    assert tile.columns < 2 * max(16, given.columns)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_chosen_fits(chip: str) -> None:
    choice = random.Random(chip)
    for _ in range(40):
        sizes = [choice.choice((2, 17, 64, 100, 512, 1000, 4096)) for _ in range(3)]
        given = product(*sizes, choice.choice(list(ACCUMULATORS)), choice.choice((0, 4, 8, 16)))
        chosen = warp_schedule(given, load(chip))
        check(chosen, given, chip)
        is_copied = given.piece_bytes > 0 and given.depth > 64 // given.operand.itemsize
        assert (chosen.stages > 1) == is_copied
        assert chosen.tile.depth < given.depth or not is_copied


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
def test_large_products_have_large_tiles_and_small_ones_few_warps(chip: str) -> None:
    large = warp_schedule(product(4096, 4096, 4096), load(chip))
    assert (large.tile.rows, large.tile.columns, large.warps) == (128, 256, 8)
    small = warp_schedule(product(64, 64, 256), load(chip))
    assert small.warps <= 2


@pytest.mark.parametrize(("dtype", "depth"), [("bf16", 64), ("f16", 64), ("i8", 128)])
def test_large_products_are_by_warpgroups_where_there_are_some(dtype: str, depth: int) -> None:
    chosen = warp_schedule(product(8192, 8192, 8192, dtype), load("sm_90a"))
    assert (chosen.atom, chosen.warps, chosen.tile.depth) == ("wgmma, 2 warpgroups", 8, depth)
    assert chosen.stages >= 3
    assert warp_schedule(product(48, 8192, 8192, dtype), load("sm_90a")).tile.rows == 64
    assert warp_schedule(product(16, 8192, 8192, dtype), load("sm_90a")).atom.startswith(MMA)
    assert warp_schedule(product(8192, 8192, 8192, dtype), load("sm_80")).atom.startswith(MMA)


@pytest.mark.parametrize(("epilogue", "columns"), [(Epilogue.NONE, 256), (Epilogue.LIGHT, 256), (Epilogue.HEAVY, 128)])
def test_heavy_epilogues_have_registers_next_to_the_results(epilogue: Epilogue, columns: int) -> None:
    given = structs.replace(product(8192, 8192, 8192), epilogue=epilogue)
    assert warp_schedule(given, load("sm_90a")).tile.columns == columns
    by_warps = warp_schedule(given, load("sm_80"))
    assert by_warps.across is not None
    sums = by_warps.tile.rows * by_warps.tile.columns // (32 * by_warps.warps)
    assert sums <= 64 or epilogue == Epilogue.NONE


@pytest.mark.parametrize("chip", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize(("dtype", "depth"), [("bf16", 64), ("f8e4m3fn", 128), ("tf32", 32)])
def test_large_products_are_in_tensor_memory_where_there_is_some(chip: str, dtype: str, depth: int) -> None:
    given = structs.replace(product(8192, 8192, 8192, dtype), accumulator=dtypes.f32)
    chosen = warp_schedule(given, load(chip))
    assert (chosen.atom, chosen.warps) == ("tcgen05, 2 warpgroups", 8)
    assert (chosen.tile.rows, chosen.tile.columns, chosen.tile.depth) == (128, 256, depth)
    assert chosen.stages >= 3
    for epilogue in (Epilogue.LIGHT, Epilogue.HEAVY):
        followed = warp_schedule(structs.replace(given, epilogue=epilogue), load(chip))
        assert (family_name(followed), followed.tile.columns) == (TCGEN05, 128)
    unaligned = structs.replace(given, piece_bytes=8)
    assert family_name(warp_schedule(unaligned, load(chip))) == MMA
    assert family_name(warp_schedule(product(48, 8192, 8192), load(chip))) == MMA


def test_i8_is_not_in_tensor_memory_of_every_chip() -> None:
    given = product(8192, 8192, 8192, "i8")
    assert [family_name(warp_schedule(given, load(chip))) for chip in ("sm_100a", "sm_103a")] == [TCGEN05, MMA]


def test_products_without_tensor_cores_have_no_warps_of_their_own() -> None:
    chosen = warp_schedule(product(512, 512, 512, "f32"), load("sm_90a"))
    assert (chosen.across, chosen.warps, chosen.stages, chosen.atom) == (None, 4, 1, "")


@pytest.mark.parametrize("chip", CHIPS)
def test_instructions_are_in_the_files_of_the_machines(chip: str) -> None:
    """The published rates of chips: a multiple of 512 operations a cycle, but for Hopper's share of another one's."""
    machine = load(chip)
    for operand, accumulator in ACCUMULATORS.items():
        one = dtypes.by_name(operand)
        atom = machine.atom_of(MMA, one, one, dtypes.by_name(accumulator))
        assert atom is not None
        assert (atom.rows, atom.columns, atom.depth * one.itemsize) == (16, 8, 32)
        group = machine.atom_of(WGMMA, one, one, dtypes.by_name(accumulator))
        assert (group is None) == (chip != "sm_90a")
        assert group is None or group.flops_per_cycle == 8192 / one.itemsize
        assert chip == "sm_90a" or atom.flops_per_cycle % 512 == 0
        whole = machine.atom_of(TCGEN05, one, one, dtypes.by_name(accumulator))
        assert (whole is not None) == (chip == "sm_100a" or (chip == "sm_103a" and operand != "i8"))
        assert whole is None or whole.flops_per_cycle == 16384 / one.itemsize
    assert machine.atom_of(MMA, dtypes.f32, dtypes.f32, dtypes.f32) is None


@pytest.mark.parametrize("chip", CHIPS)
def test_families_declare_what_passes_ask_for(chip: str) -> None:
    """The instruction sets of the chips: PTX ISA, warp-level, warpgroup-level and 5th generation MMAs."""
    machine = load(chip)
    facts = {
        f.name: (f.warps, f.asynchronous, f.left_from_registers, f.sums_in_tensor_memory) for f in machine.families
    }
    expected = {MMA: (1, False, False, False)}
    if chip == "sm_90a":
        expected[WGMMA] = (4, True, True, False)
    if chip in ("sm_100a", "sm_103a"):
        expected[TCGEN05] = (4, True, False, True)
    assert facts == expected
    assert {atom.name for atom in machine.matrix_atoms} == set(facts)


def test_atoms_are_of_a_family_by_name() -> None:
    hopper, blackwell = load("sm_90a"), load("sm_100a")
    assert hopper.is_asynchronous("wgmma, left in registers")
    assert not hopper.is_asynchronous("mma.sync, 2 x 2 warps")
    assert not hopper.is_asynchronous("multiply and add")
    assert not hopper.sums_in_tensor_memory("wgmma, 2 warpgroups")
    assert blackwell.sums_in_tensor_memory("tcgen05, 1 warpgroup")
    assert blackwell.family_of("wgmma, 1 warpgroup") is None
    family = hopper.family_of("wgmma")
    assert family is not None
    assert family.by_groups(1) == "wgmma, 1 warpgroup"
    assert family.by_groups(2) == "wgmma, 2 warpgroups"
    assert family.with_left_in_registers == "wgmma, left in registers"
    types = dtypes.bf16, dtypes.bf16, dtypes.f32
    assert [f.name for f in hopper.families_of(*types)] == [MMA, WGMMA]
    assert hopper.group_atom_of(*types) == (family, hopper.atom_of(WGMMA, *types))
    assert load("sm_80").group_atom_of(*types) is None

"""Tiles of matmuls on machines with warps, and how many warps share one.

A block computes a tile of the result, a step of the depth at a time, from shared memory. Large tiles read each operand
less often; small ones make more blocks, so that no core waits while others do a last tile (wave quantisation). Times
are those of the slowest of arithmetic, of what warps read in shared memory and of what comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import ceil

import msgspec

from tilewright.cost.tiles import MatmulTile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.machines.machine import AtomFamily, Machine, MatrixAtom

WARPGROUP = 4  # warps
_SIDES = (16, 32, 64, 128, 256)
_DEPTHS_BYTES = (64, 128)
_WARPS = (1, 2, 4, 8)
# Registers of a thread for addresses, counters and what is copied, beside sums and operands.
REGISTERS_BESIDE = 56
_REGISTER_BYTES = 4
# Results of a thread that leave room for what is done with them: of 128 the assembler spills those of a bias, a GELU
# and a residual.
_MOST_WITH_EPILOGUE = 64
# Tiles whose operands pass through registers have four warps, and room for them in each thread.
_MOST_RESULTS_BY_REGISTERS = 128 * 64
_FEW_SIDES, _FEW_DEPTHS = (16, 32, 64, 128), (16, 32)
_STAGES = (2, 3, 4)
# Groups of warps that share a tile's rows, and the most results of a thread that leave it registers.
_WARPGROUPS, _MOST_OF_WARPGROUPS = (1, 2), 128
# What a machine copies by itself begins at multiples of so many bytes , and says so at barriers
# in shared memory.
TENSOR_COPY_BYTES = 16
_BARRIERS_BYTES = 1024
# Columns of tensor memory are allocated by powers of two from 32 on.
LEAST_TENSOR_COLUMNS = 32
# How much of what a step does beside its slowest part adds to its time.
_NOT_HIDDEN = 0.25
# Cycles between two copies of a warp: those of 16 bytes a lane fill the banks for as long.
_COPY_CYCLES = 4
# Cycles of a warp for an element a lane that comes alone: loaded, masked, stored to shared memory, loaded and packed.
_SCATTERED_CYCLES = 4


class Epilogue(Enum):
    """Work on the result of a matmul before it is stored: none; a bias, a residual and functions of one instruction; or
    more."""

    NONE, LIGHT, HEAVY = range(3)


class WarpProduct(msgspec.Struct, frozen=True):
    """`batches` matmuls of `rows` x `depth` with `depth` x `columns`, of type `operand`, or the right one of a type
    `right` as wide. `piece_bytes`: what a lane copies at once of the windows of both operands, where they can be copied
    ahead; else 0. `epilogue`: what is done with the result before it is stored, which takes registers next to it.
    `scattered`: whether elements of the left and of the right operand come into registers one by one: they are not
    along the depth, or begin anywhere. `trips`: how often a depth is gone through, each with elements of its own."""

    rows: int
    columns: int
    depth: int
    operand: DType
    accumulator: DType
    batches: int = 1
    piece_bytes: int = 0
    epilogue: Epilogue = Epilogue.NONE
    right: DType | None = None
    scattered: tuple[bool, bool] = (False, False)
    trips: int = 1

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """The types of both operands as they are multiplied, and of the sums."""
        return self.operand, self.right or self.operand, self.accumulator

    def warp_atom(self, machine: Machine) -> MatrixAtom | None:
        """The MMA instruction of single warps for the operands as they are, or None."""
        return machine.warp_atom_of(*self.types)


class WarpSchedule(msgspec.Struct, frozen=True):
    """A tile, how many warps share it along its rows and columns, and how many steps of the depth there are at a time:
    1 where nothing is copied ahead. Without `across`, the layouts of the tile's parts decide. `family`: by which
    instructions it is multiplied; None where they are not chosen."""

    tile: MatmulTile
    warps: int = 4
    across: tuple[int, int] | None = None
    stages: int = 1
    family: AtomFamily | None = None

    @property
    def atom(self) -> str:
        """The name of what multiplies a tile; empty where it is not declared."""
        if self.across is None or self.family is None:
            return ""
        if self.family.warps == 1:
            return self.family.by_warps(self.across)
        return self.family.by_groups(self.warps // self.family.warps)

    @property
    def is_asynchronous(self) -> bool:
        """Whether the tile is multiplied by instructions that complete later."""
        return self.family is not None and self.family.asynchronous

    @property
    def sums_in_tensor_memory(self) -> bool:
        return self.family is not None and self.family.sums_in_tensor_memory


def tensor_columns(columns: int) -> int:
    """How many columns of tensor memory are allocated for some of 32 bits."""
    return max(LEAST_TENSOR_COLUMNS, 1 << (columns - 1).bit_length())


def warp_schedule(product: WarpProduct, machine: Machine) -> WarpSchedule:
    """The schedule of a matmul that should take the least time: rows and columns of whole instructions, no larger than
    the result needs."""
    copied = list(_copied(product, machine))
    if copied:
        return min(copied, key=lambda each: (_copied_seconds(product, each, machine), -each.tile.depth))
    atom = product.warp_atom(machine)
    found = [each for tile in _tiles(product, machine) for each in _by_registers(product, tile, atom, machine)]
    return min(found, key=lambda each: (_seconds(product, each, machine), -each.warps, -each.tile.depth))


def warp_candidates(product: WarpProduct, machine: Machine) -> Iterator[WarpSchedule]:
    """All schedules that a matmul may have, each with the most stages."""
    yield from _copied(product, machine)
    atom = product.warp_atom(machine)
    for tile in _tiles(product, machine):
        yield from _by_registers(product, tile, atom, machine)


def warp_product_seconds(product: WarpProduct, machine: Machine) -> float:
    """The predicted time of a matmul by the schedule that it should have."""
    schedule = warp_schedule(product, machine)
    if schedule.stages > 1:
        return _copied_seconds(product, schedule, machine)
    return _seconds(product, schedule, machine) + _seconds_of_bringing(product, schedule, machine)


def _fitting(sizes: tuple[int, ...], extent: int) -> list[int]:
    """The sizes up to the first that covers an extent."""
    return [size for size in sizes if size == sizes[0] or size // 2 < extent]


# ---- operands that are copied ahead ---------------------------------------------------------------------------------


def _copied(product: WarpProduct, machine: Machine) -> Iterator[WarpSchedule]:
    item = product.operand.itemsize
    most = min(product.depth, product.depth * product.trips - 1)
    depths = [size // item for size in _DEPTHS_BYTES if size // item <= most]
    families = machine.families_of(*product.types)
    if not product.piece_bytes:
        return
    for rows in _fitting(_SIDES, product.rows):
        for columns in _fitting(_SIDES, product.columns):
            for depth in depths:
                tile = MatmulTile(rows, columns, depth)
                stages = _most_stages(product, tile, machine)
                for family, atom in families.items() if stages else ():
                    if not family.asynchronous or depth == max(depths):  # lines as long as they can be
                        yield from _by_family(product, tile, family, atom, stages, machine)


def _by_family(
    product: WarpProduct, tile: MatmulTile, family: AtomFamily, atom: MatrixAtom, stages: int, machine: Machine
) -> Iterator[WarpSchedule]:
    if family.warps == 1:
        for across in _splits(product, tile, atom, machine):
            yield WarpSchedule(tile, across[0] * across[1], across, stages, family)
        return
    if family.sums_in_tensor_memory and (tile.rows != atom.rows or product.piece_bytes % TENSOR_COPY_BYTES):
        return  # one accumulator, fed by tensor copies
    # Results in tensor memory are loaded for the epilogue, next to what it loads.
    light = Epilogue.NONE if family.sums_in_tensor_memory else Epilogue.LIGHT
    most = _MOST_OF_WARPGROUPS if product.epilogue in (Epilogue.NONE, light) else _MOST_WITH_EPILOGUE
    for groups in _WARPGROUPS:
        warps = family.warps * groups
        results = tile.rows * tile.columns // (machine.axes["lane"] * warps)
        own_rows = atom.rows if family.sums_in_tensor_memory else groups * atom.rows
        if tile.rows % own_rows == 0 and tile.columns % atom.columns == 0 and results <= most:
            yield WarpSchedule(tile, warps, (warps, 1), stages, family)


def _splits(product: WarpProduct, tile: MatmulTile, atom: MatrixAtom, machine: Machine) -> Iterator[tuple[int, int]]:
    """Warps along rows and columns that have whole instructions and whose threads have the registers."""
    lanes, registers = machine.axes["lane"], machine.axes["reg"]
    row_bytes = atom.depth * product.operand.itemsize
    for warps in _WARPS:
        for down in (size for size in _WARPS if size <= warps):
            rows, columns = tile.rows // down, tile.columns // (warps // down)
            if rows % atom.rows or columns % (2 * atom.columns) or not rows or not columns:
                continue
            sums = rows * columns // lanes
            # A step of both operands, and the next one.
            operands = 2 * (rows + columns) * row_bytes // (lanes * _REGISTER_BYTES)
            most = registers if product.epilogue == Epilogue.NONE else _MOST_WITH_EPILOGUE
            if sums <= most and sums + operands + REGISTERS_BESIDE <= registers:
                yield down, warps // down


def _stage_bytes(product: WarpProduct, tile: MatmulTile) -> int:
    return (tile.rows + tile.columns) * tile.depth * product.operand.itemsize


def _most_stages(product: WarpProduct, tile: MatmulTile, machine: Machine) -> int:
    """The most stages for which shared memory has room; 0 for less than two, or if the result has none."""
    room = machine.memories[0].bytes - _BARRIERS_BYTES
    if tile.rows * tile.columns * product.accumulator.itemsize > room:
        return 0
    fitting = (stages for stages in reversed(_STAGES) if stages * _stage_bytes(product, tile) <= room)
    return next(fitting, 0)


def _is_fed_by_a_warp(product: WarpProduct, schedule: WarpSchedule) -> bool:
    """Whether a producer warp issues TMA copies while the other warps run asynchronous MMAs."""
    return schedule.is_asynchronous and product.piece_bytes % TENSOR_COPY_BYTES == 0


def _copied_seconds(product: WarpProduct, schedule: WarpSchedule, machine: Machine) -> float:
    """The time of the blocks that the busiest core does. Of blocks that are on it together, each hides what the others
    wait for, in a step at the barrier and for the first operands; asynchronous MMAs continue meanwhile."""
    tile = schedule.tile
    near = machine.memories[1]
    blocks = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    turns = ceil(blocks / machine.cores)
    together = min(turns, _together(product, schedule, machine))
    busy = _busy_seconds(product, schedule, machine, together)
    waiting = machine.cycles["barrier"] / machine.clock_hertz + 2 * machine.memories[0].latency_s
    if _is_fed_by_a_warp(product, schedule):
        waiting = 0.0
    steps = product.trips * ceil(product.depth / tile.depth)
    # The first step is waited for, and the result is written.
    ends = machine.memories[-1].latency_s + near.latency_s
    written = tile.rows * tile.columns * product.accumulator.itemsize / near.bytes_per_second
    return turns * (steps * max(busy, (busy + waiting) / together) + written + ends / together)


def _busy_seconds(product: WarpProduct, schedule: WarpSchedule, machine: Machine, together: int) -> float:
    """A step of the depth of one block: the slowest of its parts, and some of the others, which it does not hide
    wholly."""
    tile, (down, side) = schedule.tile, schedule.across or (1, 1)
    shared, near = machine.memories[:2]
    atom = None if schedule.family is None else machine.atom_of(schedule.family.name, *product.types)
    if atom is None:
        raise CompilerBug(f"{machine.name} does not multiply {product.operand} by the instructions of its schedule")
    if schedule.is_asynchronous:  # the rows of each instruction read all columns once
        down = tile.rows // atom.rows
    instructions = tile.rows // atom.rows * (tile.columns // atom.columns) * (tile.depth // atom.depth)
    partitions = min(1.0, schedule.warps * together / _partitions(machine))
    brought = (tile.rows + tile.columns) * tile.depth * product.operand.itemsize
    read = (side * tile.rows + down * tile.columns) * tile.depth * product.operand.itemsize
    is_fed = _is_fed_by_a_warp(product, schedule)
    pieces = 0.0 if is_fed else brought / (product.piece_bytes * machine.axes["lane"])
    parts = sorted(
        (
            instructions * atom.cycles / partitions / machine.clock_hertz,
            pieces * _COPY_CYCLES / machine.clock_hertz,
            (read + brought) / shared.bytes_per_second,
            brought / near.bytes_per_second,
        )
    )
    return parts[-1] + _NOT_HIDDEN * sum(parts[:-1])


def _partitions(machine: Machine) -> int:
    """Number of partitions of a core, each of which issues the MMAs of its own warps."""
    return 1 if machine.residency is None else machine.residency.partitions


def _together(product: WarpProduct, schedule: WarpSchedule, machine: Machine) -> int:
    """Blocks that a core has room for: of shared memory, and of registers, 32 for each thread that it may have."""
    tile, (down, side) = schedule.tile, schedule.across or (1, 1)
    used = max(schedule.stages * _stage_bytes(product, tile), tile.rows * tile.columns * product.accumulator.itemsize)
    lanes = machine.axes["lane"]
    sums = tile.rows * tile.columns // (lanes * schedule.warps)
    operands = 0 if schedule.is_asynchronous else 2 * (tile.rows // down // 4 + tile.columns // side // 4)
    registers = (sums + operands + REGISTERS_BESIDE) * lanes * schedule.warps
    whole = machine.axes["warp"] * lanes * 32
    accumulators = 8
    if schedule.sums_in_tensor_memory:
        accumulators = machine.axes["tmem.col"] // tensor_columns(tile.columns)
    return max(1, min(machine.memories[0].bytes // used, whole // registers, accumulators, 8))


# ---- operands that pass through registers ---------------------------------------------------------------------------


def _by_registers(
    product: WarpProduct, tile: MatmulTile, atom: MatrixAtom | None, machine: Machine
) -> list[WarpSchedule]:
    """Schedules of a tile: four warps, or fewer for one that has not that many instructions."""
    if atom is None:
        return [WarpSchedule(tile)]
    family = machine.family_of(atom.name)
    splits = [across for across in _splits(product, tile, atom, machine) if across[0] * across[1] <= 4]
    return [
        WarpSchedule(tile, down * side, (down, side), family=family)
        for down, side in splits
        if tile.rows * tile.columns <= _MOST_RESULTS_BY_REGISTERS * down * side // 4
        and _registers_taken(product, tile, (down, side), machine.axes["lane"]) <= machine.axes["reg"]
    ]


def _registers_taken(product: WarpProduct, tile: MatmulTile, across: tuple[int, int], warp_lanes: int) -> float:
    """Registers of a thread: its sums, its part of both operands as instructions take them, and what it loads of the
    next ones meanwhile, where each scattered element has a register of its own, and one more for its position where
    some are beyond the array."""
    down, side = across
    item, lanes = product.operand.itemsize, warp_lanes * down * side
    sums = tile.rows * tile.columns / lanes
    multiplied = (tile.rows / down + tile.columns / side) * tile.depth * item / (warp_lanes * _REGISTER_BYTES)
    sizes = (product.rows, tile.rows), (product.columns, tile.columns), (product.depth, tile.depth)
    scattered = 2.0 if any(extent % size for extent, size in sizes) else 1.0
    brought = 0.0
    for side_length, is_scattered in zip((tile.rows, tile.columns), product.scattered, strict=True):
        brought += side_length * tile.depth / lanes * (scattered if is_scattered else item / _REGISTER_BYTES)
    return sums + multiplied + brought + REGISTERS_BESIDE


def _tiles(product: WarpProduct, machine: Machine) -> Iterator[MatmulTile]:
    """Tiles whose operands leave room for others; the smallest one in any case."""
    room = machine.memories[0].bytes // 4
    atom = product.warp_atom(machine)
    depths = _FEW_DEPTHS if atom is None else (atom.depth, 2 * atom.depth)
    for m in _fitting(_FEW_SIDES, product.rows):
        for n in _fitting(_FEW_SIDES, product.columns):
            for k in _fitting(depths, product.depth):
                is_smallest = (m, n, k) == (_FEW_SIDES[0], _FEW_SIDES[0], depths[0])
                has_room = (m + n) * k * product.operand.itemsize <= room and m * n <= _MOST_RESULTS_BY_REGISTERS
                if has_room or is_smallest:
                    yield MatmulTile(m, n, k)


def _seconds(product: WarpProduct, schedule: WarpSchedule, machine: Machine) -> float:
    tile, (down, side) = schedule.tile, schedule.across or (2, 2)
    blocks = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    waves = ceil(blocks / machine.cores)
    steps = product.trips * ceil(product.depth / tile.depth)
    item = product.operand.itemsize
    multiplied = tile.rows * tile.columns * tile.depth * steps
    atom = product.warp_atom(machine)
    peak = machine.peak_flops(product.accumulator) if atom is None else atom.flops_per_cycle * machine.clock_hertz
    shared, near = machine.memories[:2]
    moved = (tile.rows + tile.columns) * tile.depth * steps * item / near.bytes_per_second
    # Warps read each operand from shared memory as often as they need it.
    read = (side * tile.rows + down * tile.columns) * tile.depth * steps * item / shared.bytes_per_second
    barriers = 2 * steps * machine.cycles["barrier"] / machine.clock_hertz
    peak *= schedule.warps / _partitions(machine)
    return waves * (max(2.0 * multiplied / peak, moved, read) + barriers)


def _seconds_of_bringing(product: WarpProduct, schedule: WarpSchedule, machine: Machine) -> float:
    """The exposed latency of a matmul whose operands pass through registers. No other stage is in flight, so only
    neighbouring blocks hide it: loads of the operands from global memory, then from shared memory, and instructions for
    each scattered element."""
    tile = schedule.tile
    shared, near = machine.memories[:2]
    blocks = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    sides = zip((tile.rows, tile.columns), product.scattered, strict=True)
    elements = sum(side * tile.depth for side, is_scattered in sides if is_scattered)
    moved = elements / machine.axes["lane"] * _SCATTERED_CYCLES / machine.clock_hertz
    waited = (near.latency_s + 2 * shared.latency_s) / _together(product, schedule, machine)
    return ceil(blocks / machine.cores) * product.trips * ceil(product.depth / tile.depth) * (moved + waited)

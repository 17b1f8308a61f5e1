"""Tiles of reductions on machines with warps, what a block of four warps holds in registers at a time; and the warps of
other tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.machines.machine import Machine

# Elements of a block: 32 for each of 128 threads.
_ELEMENTS = 4096
# As many columns as make whole lines, and rows enough for all warps.
_COLUMNS, _ROWS = 64, 64
# Registers of a thread for its part of the largest tile, which leave as many for what is computed from it.
_MOST_OF_A_TILE, _REGISTER_BYTES = 64, 4


def warp_reduction_tile(shape: Sequence[int], axes: Sequence[int], cores: int) -> Mapping[int, int]:
    """Extents of all dims: along a reduced last dim whole rows, or long pieces of them, as many as fill a block; along
    other dims pieces of rows and columns: of few rows as many columns as fill a block, where that leaves a block for
    each of the machine's `cores`. The remaining dims go one at a time."""
    extents = dict.fromkeys(range(len(shape)), 1)
    last = len(shape) - 1
    if last in axes:
        extents[last] = min(shape[last], _ELEMENTS)
        others = [dim for dim in range(last) if dim not in axes]
        if others:
            extents[others[-1]] = min(shape[others[-1]], _power_down(max(1, _ELEMENTS // (4 * extents[last]))))
        return extents
    rows = min(shape[max(axes)], _ROWS)
    fill, share = _ELEMENTS // rows, prod(shape[dim] for dim in range(len(shape)) if dim not in axes) // cores
    columns = _power_down(max(_COLUMNS, min(fill, share)))
    return extents | {last: min(shape[last], columns), max(axes): rows}


def reduction_blocks(shape: Sequence[int], axes: Sequence[int], cores: int) -> int:
    """How many blocks a reduction of a shape has by its tile."""
    tile = warp_reduction_tile(shape, axes, cores)
    return prod(-(-n // tile[dim]) for dim, n in enumerate(shape) if dim not in axes)


def warp_transpose_tile(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents of all dims for a loop that reads one dimension and writes another contiguously: as much of the last two,
    in vectors wherever the rows are made of them; what goes beyond the array is masked."""
    *others, rows, columns = shape
    return (*[1] * len(others), min(rows, _ROWS), min(columns, _COLUMNS))


def _power_down(number: int) -> int:
    """The largest power of two that is not more."""
    return 1 << (number.bit_length() - 1)


def warps_of_tile(tile_bytes: int, machine: Machine, fewest: int) -> int:
    """The warps of a block for its largest tile: `fewest`, or twice as many as long as a thread holds too much of it,
    up to the most that a block has."""
    most = fewest if machine.residency is None else machine.residency.block_threads // machine.axes["lane"]
    warps = fewest
    while warps < most and registers_of_part(tile_bytes, machine, warps)[0] > _MOST_OF_A_TILE:
        warps *= 2
    return warps


def registers_of_part(tile_bytes: int, machine: Machine, warps: int) -> tuple[int, int]:
    """The registers of a thread for its part of a tile, and how many it has where so many warps share them."""
    threads = warps * machine.axes["lane"]
    room = machine.axes["reg"]
    if machine.residency is not None:
        room = min(room, machine.residency.registers // threads)
    return -(-tile_bytes // (_REGISTER_BYTES * threads)), room

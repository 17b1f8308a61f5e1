"""Tiles of matrix products on machines with warps.

A block computes a tile of the result, a step of the depth at a time, from shared memory. Large tiles read each operand
less often; small ones make more blocks, so that no core waits while others do a last tile (wave quantisation). Times
are those of the slower of arithmetic and memory, for the waves that the blocks make.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from tilewright.cost.products import MatmulTile
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# What warps multiply in 16 bits and less, in the order of operations in a cycle: twice the rate with half the bits.
_TENSOR_BITS = 16
_TENSOR_FLOPS_PER_CYCLE = 2048
# Accumulators that leave a thread of four warps room for operands.
_MOST_RESULTS = 128 * 64
_SIDES = (16, 32, 64, 128)
_DEPTHS = (16, 32)


def is_tensor_product(left: DType, right: DType, accumulator: DType) -> bool:
    """Whether tensor cores multiply such operands as they are."""
    exact = {"bf16": "f32", "f16": "f32", "i8": "i32"}
    return left == right and exact.get(left.name) == accumulator.name


def warp_tile(
    rows: int, columns: int, depth: int, operand: DType, accumulator: DType, machine: Machine, batches: int
) -> MatmulTile:
    """The tile of a product that should take the least time: rows and columns of whole instructions, no larger than the
    result needs."""

    def seconds(tile: MatmulTile) -> tuple[float, int]:
        return _seconds(rows, columns, depth, operand, accumulator, machine, batches, tile), -tile.depth

    return min(_tiles(rows, columns, depth, operand, machine), key=seconds)


def _tiles(rows: int, columns: int, depth: int, operand: DType, machine: Machine) -> Iterator[MatmulTile]:
    room = machine.memories[0].bytes // 4
    for m in _fitting(_SIDES, rows):
        for n in _fitting(_SIDES, columns):
            for k in _fitting(_DEPTHS, depth):
                if (m + n) * k * operand.itemsize <= room and m * n <= _MOST_RESULTS:
                    yield MatmulTile(m, n, k)


def _fitting(sizes: tuple[int, ...], extent: int) -> list[int]:
    """The sizes up to the first that covers an extent."""
    return [size for size in sizes if size == sizes[0] or size // 2 < extent]


def _seconds(
    rows: int,
    columns: int,
    depth: int,
    operand: DType,
    accumulator: DType,
    machine: Machine,
    batches: int,
    tile: MatmulTile,
) -> float:
    blocks = ceil(rows / tile.rows) * ceil(columns / tile.columns) * batches
    waves = ceil(blocks / machine.cores)
    steps = ceil(depth / tile.depth)
    flops = 2.0 * tile.rows * tile.columns * tile.depth * steps
    peak = machine.peak_flops(accumulator)
    if is_tensor_product(operand, operand, accumulator):
        peak = _TENSOR_FLOPS_PER_CYCLE * _TENSOR_BITS / operand.bits * machine.clock_hertz
    moved = (tile.rows + tile.columns) * tile.depth * steps * operand.itemsize
    shared = machine.memories[0]
    reads = flops / 2 * operand.itemsize * (1 / tile.rows + 1 / tile.columns) * 4
    barrier = 2 * steps * machine.cycles["barrier"] / machine.clock_hertz
    l2 = machine.memories[1]
    return waves * (max(flops / peak, moved / l2.bytes_per_second, reads / shared.bytes_per_second) + barrier)

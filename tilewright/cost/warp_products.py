"""Tiles of matrix products on machines with warps.

A block computes a tile of the result, a step of the depth at a time, from shared memory. Large tiles read each operand
less often; small ones make more blocks, so that no core waits while others do a last tile (wave quantisation). Times
are those of the slower of arithmetic and memory, for the waves that the blocks make.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tilewright.cost.products import MatmulTile
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# What tensor cores of all chips do in a cycle with operands of 16 bits; twice that with half the bits.
_TENSOR_FLOPS_PER_CYCLE = 2048
# Accumulators that leave a thread of four warps room for operands.
_MOST_RESULTS = 128 * 64
_SIDES = (16, 32, 64, 128)
_DEPTHS = (16, 32)
# What tensor cores multiply as it is, and what they add it up in.
_TENSOR_TYPES = {"bf16": "f32", "f16": "f32", "i8": "i32"}


@dataclass(frozen=True)
class WarpProduct:
    """`batches` products of `rows` x `depth` with `depth` x `columns`, both of type `operand`."""

    rows: int
    columns: int
    depth: int
    operand: DType
    accumulator: DType
    batches: int = 1

    @property
    def on_tensor_cores(self) -> bool:
        """Whether tensor cores multiply the operands as they are."""
        return _TENSOR_TYPES.get(self.operand.name) == self.accumulator.name


def warp_tile(product: WarpProduct, machine: Machine) -> MatmulTile:
    """The tile of a product that should take the least time: rows and columns of whole instructions, no larger than the
    result needs."""

    def seconds(tile: MatmulTile) -> tuple[float, int]:
        return _seconds(product, tile, machine), -tile.depth

    return min(_tiles(product, machine), key=seconds)


def _tiles(product: WarpProduct, machine: Machine) -> Iterator[MatmulTile]:
    room = machine.memories[0].bytes // 4
    for m in _fitting(_SIDES, product.rows):
        for n in _fitting(_SIDES, product.columns):
            for k in _fitting(_DEPTHS, product.depth):
                if (m + n) * k * product.operand.itemsize <= room and m * n <= _MOST_RESULTS:
                    yield MatmulTile(m, n, k)


def _fitting(sizes: tuple[int, ...], extent: int) -> list[int]:
    """The sizes up to the first that covers an extent."""
    return [size for size in sizes if size == sizes[0] or size // 2 < extent]


def _seconds(product: WarpProduct, tile: MatmulTile, machine: Machine) -> float:
    blocks = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    waves = ceil(blocks / machine.cores)
    steps = ceil(product.depth / tile.depth)
    item = product.operand.itemsize
    multiplied = tile.rows * tile.columns * tile.depth * steps
    peak = machine.peak_flops(product.accumulator)
    if product.on_tensor_cores:
        peak = _TENSOR_FLOPS_PER_CYCLE * 2 / item * machine.clock_hertz
    shared, near = machine.memories[:2]
    moved = (tile.rows + tile.columns) * tile.depth * steps * item / near.bytes_per_second
    # Four warps read each operand from shared memory as often as they need it.
    read = 4 * multiplied * item * (1 / tile.rows + 1 / tile.columns) / shared.bytes_per_second
    barriers = 2 * steps * machine.cycles["barrier"] / machine.clock_hertz
    return waves * (max(2.0 * multiplied / peak, moved, read) + barriers)

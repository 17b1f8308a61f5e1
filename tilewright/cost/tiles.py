"""Tile sizes from a machine's caches and registers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.register_blocks import best_block, even_split
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine


def _block_rows(rows: int, target: int, micro_rows: int) -> int:
    """Rows of a block near `target` that waste few rows of register blocks: every block is cut into equal panels, so
    what counts is how far panels times their height exceed the matrix. Short blocks pay for reloading the right
    operand's panels, about eight rows' worth."""

    def cost(blocks: int) -> float:
        block = -(-rows // blocks)
        panels = -(-block // micro_rows)
        height = -(-block // panels)
        return blocks * panels * height / rows * (1 + 8 / block)

    least = max(1, -(-rows // target))
    best = min(range(least, 2 * least + 1), key=cost)
    return -(-rows // best)


# Of a row of the left operand. Deep blocks read and write the accumulator less often; their panels of the right operand
# come from the second-level cache, which asking for the next panel ahead hides. Measured: 384 f32 are never worse than
# fewer, and 10 % better where the whole depth is one block.
DEPTH_BYTES = 1536


@dataclass(frozen=True)
class MatmulTile:
    """Block sizes of a matrix product."""

    rows: int
    columns: int
    depth: int


def matmul_tile(rows: int, columns: int, depth: int, dtype: DType, machine: Machine, threads: int) -> MatmulTile:
    """Blocks for an M x N x K product (Goto and van de Geijn, 2008): a block of A and of the accumulator stay in the
    second-level cache, a micro-panel of B in the first."""
    block = best_block(rows, columns, depth, dtype, machine)
    micro_rows, micro_columns = block.rows, block.columns
    item = dtype.compute.itemsize
    block_depth = even_split(depth, DEPTH_BYTES // item)
    budget = machine.memory("l2").bytes // 2
    block_columns = even_split(columns, max(micro_columns, 512 * 4 // item), micro_columns)
    room = budget // (item * (block_depth + block_columns))
    block_rows = _block_rows(rows, max(micro_rows, min(room, 192)), micro_rows)
    while -(-rows // block_rows) * -(-columns // block_columns) < 2 * threads and block_rows > 4 * micro_rows:
        block_rows = _block_rows(rows, block_rows // 2, micro_rows)
    while -(-rows // block_rows) * -(-columns // block_columns) < threads and block_columns > 2 * micro_columns:
        block_columns = even_split(columns, block_columns // 2, micro_columns)
    return MatmulTile(block_rows, block_columns, block_depth)


def loop_tile(shape: tuple[int, ...], elements: int, square: bool = False) -> tuple[int, ...]:
    """Tile extents for an elementwise loop: whole trailing dimensions up to `elements` in all; `square` bounds the last
    two dimensions evenly, for loops that read one and write the other contiguously."""
    if square and len(shape) >= 2:
        side = 64
        last, previous = even_split(shape[-1], side), even_split(shape[-2], side)
        return (*[1] * (len(shape) - 2), previous, last)
    extents: list[int] = []
    room = elements
    for n in reversed(shape):
        extent = even_split(n, max(1, room)) if n else 1
        extents.append(extent)
        room //= max(1, extent)
    return tuple(reversed(extents))

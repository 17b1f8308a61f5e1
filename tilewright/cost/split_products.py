"""How long a product in parts takes: of f32 by instructions that multiply narrower numbers, and its tiles.

A tile takes its rows of the left operand apart for itself; all threads take the right one apart first. Then it is
multiplied block by block of the instruction's accumulators, panel by panel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tilewright.cost.given import given
from tilewright.cost.products import TILE_S, TOGETHER_S, UNEVEN, MatmulTile, Product, dividing_split, far_share
from tilewright.cost.register_blocks import even_split
from tilewright.dtypes import by_name
from tilewright.machines.machine import Machine, MatrixAtom

# Measured on two cores of an AMX server beside the products of `cost/products.py`, in the time of those: how much
# longer the instructions take than one after the other from registers, with numbers that are not zeros; taking an
# element of either operand apart; adding a block of accumulators to the tile; looking at an element of the result.
SLOWER = 2.0
LEFT_S, RIGHT_S = 0.7e-9, 1.3e-9
BLOCK_S = 0.2e-6
CHECKED_S = 0.08e-9
# Of the time that bytes take at the third-level cache's bandwidth: the right operand's, which each tile reads there
# where it is too large for the second-level one, and the left one's, which are read again for each panel.
RIGHT_AFAR, LEFT_AFAR = 0.5, 0.4

ROW_TARGETS = (256, 128, 64, 32)
COLUMN_TARGETS = (2048, 1024, 512, 256, 128)
DEPTH_TARGETS = (2048, 1024, 512)


@dataclass(frozen=True)
class SplitSchedule:
    tile: MatmulTile
    seconds: float


def best_split(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> SplitSchedule | None:
    """The schedule of the least predicted time; None where another kind of schedule is given."""
    if given().split is not None:
        return SplitSchedule(given().split, 0.0)
    return None if given().product is not None else _predicted(product, atom, machine, threads)


@cache
def _predicted(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> SplitSchedule:
    return min(_schedules(product, atom, machine, threads), key=lambda schedule: schedule.seconds)


def _schedules(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> Iterator[SplitSchedule]:
    steps = -(-product.depth // atom.depth)
    depths = dict.fromkeys(atom.depth * dividing_split(steps, most // atom.depth) for most in DEPTH_TARGETS)
    heights = dict.fromkeys(even_split(product.rows, most, 2 * atom.rows) for most in ROW_TARGETS)
    widths = dict.fromkeys(even_split(product.columns, most, 2 * atom.columns) for most in COLUMN_TARGETS)
    for sizes in itertools.product(heights, widths, depths):
        tile = MatmulTile(*sizes)
        yield SplitSchedule(tile, split_seconds(product, tile, atom, machine, threads))


def split_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """A whole product: the tiles of the thread that has most of them, and taking the right operand apart."""
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * product.batches
    steps = -(-product.depth // tile.depth)
    blocks = -(-tile.rows // (2 * atom.rows)) * -(-tile.columns // (2 * atom.columns))
    instructions = 4 * blocks * steps * -(-tile.depth // atom.depth)
    one = instructions * atom.cycles * SLOWER / machine.clock_hertz + blocks * steps * BLOCK_S
    one += tile.rows * steps * tile.depth * LEFT_S + tile.rows * tile.columns * CHECKED_S + TILE_S
    one += steps * _afar_seconds(product, tile, atom, machine)
    right = product.batches * product.depth * product.columns * RIGHT_S / threads
    last = UNEVEN * one if min(tiles, threads) > 1 else 0.0
    return -(-tiles // threads) * one + last + right + (TOGETHER_S if threads > 1 else 0.0)


def _afar_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine) -> float:
    """Reading the parts of one step of a tile from the third-level cache, or memory, where the second-level one has no
    room."""
    item = atom.parts * by_name(atom.part).itemsize
    l2, l3, dram = (machine.memory(name) for name in ("l2", "l3", "dram"))
    left, panel = tile.rows * tile.depth * item, 2 * atom.columns * tile.depth * item
    whole = product.depth * product.columns * item
    again = -(-tile.columns // (2 * atom.columns)) * left * LEFT_AFAR * far_share(left + 2 * panel, machine)
    once = tile.columns * tile.depth * item * RIGHT_AFAR if whole > l2.bytes // 2 else 0.0
    memory = l3 if whole <= l3.bytes // 2 else dram
    return again / l3.bytes_per_second + once / memory.bytes_per_second

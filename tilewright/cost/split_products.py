"""How long a product in parts takes: of f32 by instructions that multiply narrower numbers, and its tiles.

A tile takes its rows of the left operand apart for itself; all threads take the right one apart first. Then it is
multiplied block by block of the instruction's accumulators, panel by panel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tilewright.cost.given import given
from tilewright.cost.products import TILE_S, TOGETHER_S, UNEVEN, MatmulTile, Product, dividing_split
from tilewright.cost.register_blocks import even_split
from tilewright.machines.machine import Machine, MatrixAtom

# Measured on two cores of an AMX server beside the products of `cost/products.py`, in the time of those: how much
# longer the instructions take than one after the other from registers, with numbers that are not zeros; taking an
# element of either operand apart; adding a block of accumulators to the tile; looking at an element of the result.
SLOWER = 1.75
LEFT_S, RIGHT_S = 0.55e-9, 0.85e-9
BLOCK_S = 0.25e-6
CHECKED_S = 0.08e-9

ROW_TARGETS = (256, 128, 64, 32)
COLUMN_TARGETS = (1024, 512, 256, 128)
# Steps of the depth that are taken apart at a time: with more, the rows of a tile have no room beside its result.
DEPTH = 512


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
    depth = atom.depth * dividing_split(steps, max(1, DEPTH // atom.depth))
    for rows in dict.fromkeys(even_split(product.rows, target, 2 * atom.rows) for target in ROW_TARGETS):
        for columns in dict.fromkeys(even_split(product.columns, most, 2 * atom.columns) for most in COLUMN_TARGETS):
            tile = MatmulTile(rows, columns, depth)
            yield SplitSchedule(tile, split_seconds(product, tile, atom, machine, threads))


def split_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """A whole product: the tiles of the thread that has most of them, and taking the right operand apart."""
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * product.batches
    steps = -(-product.depth // tile.depth)
    blocks = -(-tile.rows // (2 * atom.rows)) * -(-tile.columns // (2 * atom.columns))
    instructions = 4 * blocks * steps * -(-tile.depth // atom.depth)
    one = instructions * atom.cycles * SLOWER / machine.clock_hertz + blocks * steps * BLOCK_S
    one += tile.rows * steps * tile.depth * LEFT_S + tile.rows * tile.columns * CHECKED_S + TILE_S
    right = product.batches * product.depth * product.columns * RIGHT_S / threads
    last = UNEVEN * one if min(tiles, threads) > 1 else 0.0
    return -(-tiles // threads) * one + last + right + (TOGETHER_S if threads > 1 else 0.0)

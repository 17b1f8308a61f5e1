"""How long a matmul in parts takes: of f32 by instructions that multiply narrower numbers, and its tiles.

A tile takes its rows of the left operand apart for itself, between the instructions where it can; all threads take the
right one apart first, or each tile does so with its columns. Then it is multiplied block by block of the instruction's
accumulators, panel by panel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

from tilewright.cost.tiles import MatmulTile, dividing_split, even_split
from tilewright.cost.vectors.products import UNEVEN, Product, best_candidate, far_share
from tilewright.dtypes import by_name
from tilewright.machines.machine import Machine, MatrixAtom

# Fitted to some 3,000 times of 350 matmuls on two cores of an AMX server, none of them those of `tilewright bench
# schedules`, in units of the time that `cost/vectors/products.py` predicts, which is twice that of the server: the
# slowdown against instructions issued back to back from registers, and the overhead of each block of accumulators and
# of each kernel.
SLOWER = 2.4
BLOCK_S, KERNEL_S = 0.24e-6, 2.4e-6
# Taking an element apart: of the left operand by itself or between the instructions, of the right one by all threads,
# which then wait for each other, or by a tile.
LEFT_S, BESIDE_S, RIGHT_S, OWN_S = 0.41e-9, 0.18e-9, 1.5e-9, 0.38e-9
JOIN_S = 15e-6
# Of the time that the result's bytes take at the second-level cache's bandwidth, or at the third-level one's where the
# tile is too large: looking whether it is finite, copying it to its place where blocks reach beyond that, and adding to
# it what further steps of the depth give.
CHECKED, CHECKED_AFAR = 1.5, 2.5
COPIED, COPIED_AFAR = 2.4, 1.4
ADDED = 11.3
# Of the time that bytes take at the third-level cache's bandwidth where the second-level one has no room: the parts of
# the right operand, by all threads or by the tile, the right operand itself, which tiles take apart, and the parts of
# the left one, which are read again for each panel.
RIGHT_AFAR, OWN_AFAR, FIRST_AFAR, LEFT_AFAR = 0.75, 2.6, 1.0, 0.8
# Where two threads write the same row.
EDGE_S = 28e-9
# Fewer multiplications, of 64 to 512 cubed, took 0.7 to 1.8 of the usual time where 0.7 was predicted.
LEAST_WORK = 2**28

ROW_TARGETS = (512, 256, 128, 64, 32)
COLUMN_TARGETS = (2048, 1024, 512, 256, 128, 64)
# How much of the depth is taken apart at a time: all of it up to some size, so that no sum is read again, else less, so
# that more rows have room. Sums do not depend on the number of threads, nor does this.
WHOLE_DEPTH, DEPTH = 1024, 512


def split_tile(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> MatmulTile | None:
    """The tile of the least predicted time; None for a matmul that is not quicker in parts. That is decided for one
    thread and for two together, however many there are, so that results do not depend on that."""
    if product.rows * product.columns * product.depth * product.batches < LEAST_WORK:
        return None
    quickness = [_quickness(product, atom, machine, each) for each in (1, 2)]
    return _best_tile(product, atom, machine, threads) if math.prod(quickness) < atom.sure**2 else None


@cache
def _quickness(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """How long it takes in parts, of the time that the usual matmul takes."""
    tile = _best_tile(product, atom, machine, threads)
    seconds = split_seconds(product, tile, atom, machine, threads)
    return seconds / best_candidate(product, machine, threads).seconds


@cache
def _best_tile(product: Product, atom: MatrixAtom, machine: Machine, threads: int) -> MatmulTile:
    return min(split_tiles(product, atom), key=lambda tile: split_seconds(product, tile, atom, machine, threads))


def split_tiles(product: Product, atom: MatrixAtom) -> Iterator[MatmulTile]:
    """All tiles that are considered."""
    steps = -(-product.depth // atom.depth)
    most = WHOLE_DEPTH if product.depth <= WHOLE_DEPTH else DEPTH
    depth = atom.depth * dividing_split(steps, most // atom.depth)
    heights = dict.fromkeys(even_split(product.rows, most, 2 * atom.rows) for most in ROW_TARGETS)
    widths = dict.fromkeys(even_split(product.columns, most, 2 * atom.columns) for most in COLUMN_TARGETS)
    for rows, columns in itertools.product(heights, widths):
        yield MatmulTile(rows, columns, depth)


def split_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """A whole matmul: the tiles of the thread that has most of them, and taking the right operand apart."""
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * product.batches
    steps = -(-product.depth // tile.depth)
    blocks = -(-tile.rows // (2 * atom.rows)) * -(-tile.columns // (2 * atom.columns))
    instructions = 4 * blocks * steps * -(-tile.depth // atom.depth)
    one = instructions * atom.cycles * SLOWER / machine.clock_hertz + blocks * steps * BLOCK_S
    one += _numbers_apart(product, tile) * _row_seconds(product, tile, atom, machine, threads)
    one += _result_seconds(product, tile, atom, machine)
    one += steps * _afar_seconds(product, tile, atom, machine, threads)
    together = 0.0
    if _has_own_columns(product, tile, atom, threads):
        one += _own_seconds(product, tile, machine)
    else:
        panels, _ = _panels(product, tile, atom)
        together = _together_seconds(panels, 2 * atom.columns * _numbers_apart(product, tile), threads)
    edges = threads > 1 and tile.columns < product.columns and -(-product.rows // tile.rows) * product.batches < threads
    one += tile.rows * EDGE_S if edges else 0.0
    last = UNEVEN * one if min(tiles, threads) > 1 else 0.0
    return -(-tiles // threads) * one + last + together + KERNEL_S


def _numbers_apart(product: Product, tile: MatmulTile) -> float:
    """How many numbers of a row of an operand are taken apart: of those beyond its end, which are zeros, half count."""
    whole = -(-product.depth // tile.depth) * tile.depth
    return (product.depth + whole) / 2


def _result_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine) -> float:
    """All that is done with the result of a tile but to compute it."""
    result, steps = tile.rows * tile.columns * by_name(atom.accumulator).itemsize, -(-product.depth // tile.depth)
    is_whole = product.rows % tile.rows == 0 and product.columns % tile.columns == 0 and steps == 1
    near, far = (CHECKED, CHECKED_AFAR) if is_whole else (CHECKED + COPIED, CHECKED_AFAR + COPIED_AFAR)
    share = far_share(result if is_whole else 2 * result, machine)
    l2, l3 = (machine.memory(name).bytes_per_second for name in ("l2", "l3"))
    added = (steps - 1) * ADDED
    return result * ((1 - share) * (near + added) / l2 + share * (far + added) / l3)


def _own_seconds(product: Product, tile: MatmulTile, machine: Machine) -> float:
    """Taking a tile's columns apart."""
    numbers = tile.columns * _numbers_apart(product, tile)
    item = product.dtype.itemsize
    far = far_share(product.depth * product.columns * item, machine) * FIRST_AFAR
    return numbers * OWN_S + numbers * item * far / machine.memory("l3").bytes_per_second


def _row_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """Taking a column of the left operand apart."""
    rows = min(tile.rows, product.rows)
    if not _is_split_beside(product, tile, atom, machine, threads):
        return rows * LEFT_S
    return 2 * atom.rows * LEFT_S + (rows - 2 * atom.rows) * BESIDE_S


def _is_split_beside(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> bool:
    whole = product.depth % tile.depth == 0 and not product.copies_left
    panels, of_tile = -(-product.columns // (2 * atom.columns)), -(-tile.columns // (2 * atom.columns))
    even = _has_own_columns(product, tile, atom, threads) or panels % of_tile == 0
    parts_bytes = tile.columns * tile.depth * atom.parts * by_name(atom.part).itemsize
    return whole and even and can_split_beside(-(-tile.rows // (2 * atom.rows)), parts_bytes, machine)


def can_split_beside(blocks: int, right_bytes: int, machine: Machine) -> bool:
    """Whether the instructions are to take a block of rows apart while they multiply the one before. Blocks of rows are
    outside then, so that parts of all columns of the tile, of `right_bytes`, should stay in the second-level cache."""
    return blocks > 1 and right_bytes <= machine.memory("l2").bytes // 2


def _has_own_columns(product: Product, tile: MatmulTile, atom: MatrixAtom, threads: int) -> bool:
    panels, numbers = _panels(product, tile, atom)
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * product.batches
    return takes_own_columns(tiles, -(-tile.columns // (2 * atom.columns)), panels, numbers, threads)


def takes_own_columns(tiles: int, tile_panels: int, panels: int, numbers: int, threads: int) -> bool:
    """Whether each of the tiles of a matmul takes its columns of the right operand apart for itself: where no other
    tile reads them, or so few do that it takes less time than if all threads do it first and read what others wrote.
    `panels`: of the whole operand, of so many `numbers` each."""
    own = -(-tiles // threads) * tile_panels * numbers * OWN_S
    return tiles * tile_panels <= panels or own < _together_seconds(panels, numbers, threads)


def _panels(product: Product, tile: MatmulTile, atom: MatrixAtom) -> tuple[int, int]:
    """How many panels the right operand has, and how many numbers each."""
    numbers = 2 * atom.columns * -(-product.depth // tile.depth) * tile.depth
    return product.batches * -(-product.columns // (2 * atom.columns)), numbers


def _together_seconds(panels: int, numbers: float, threads: int) -> float:
    """Taking the right operand apart, and waiting for the last thread."""
    if threads == 1:
        return panels * numbers * OWN_S
    return -(-panels // threads) * numbers * RIGHT_S + JOIN_S


def _afar_seconds(product: Product, tile: MatmulTile, atom: MatrixAtom, machine: Machine, threads: int) -> float:
    """Reading the parts of one step of a tile from the third-level cache, or memory, where the second-level one has no
    room."""
    item = atom.parts * by_name(atom.part).itemsize
    l2, l3, dram = (machine.memory(name) for name in ("l2", "l3", "dram"))
    left, panel = tile.rows * tile.depth * item, 2 * atom.columns * tile.depth * item
    again = -(-tile.columns // (2 * atom.columns)) * left * LEFT_AFAR * far_share(left + 2 * panel, machine)
    if _is_split_beside(product, tile, atom, machine, threads):
        again = 0.0
    right, memory = tile.columns * tile.depth * item, l3
    if _has_own_columns(product, tile, atom, threads):
        right *= OWN_AFAR * far_share(left + right, machine)
    else:
        whole = product.depth * product.columns * item
        right *= RIGHT_AFAR * (whole > l2.bytes // 2)
        memory = l3 if whole <= l3.bytes // 2 else dram
    return again / l3.bytes_per_second + right / memory.bytes_per_second

"""How long a matmul in blocks takes, and the blocks with which it is quickest.

A tile of the result is computed panel by panel of the right operand, and each panel block by block of rows, in
registers (after Goto and van de Geijn, 2008, with the operands exchanged: the left one is read in place). A panel stays
in the second-level cache while the rows stream by, so each panel reads all rows of the tile again.

The constants state how much of the time that bytes take at a memory's bandwidth shows next to the arithmetic. They were
fitted to about 9,000 times of 420 matmuls on two cores of an AVX-512 server, 70 of them on one thread too: to how much
slower than the best of a matmul's schedules the chosen one is, and, with less weight, to the times themselves, by which
a matmul in parts is compared. They began as a fit to 266 others, some of them those of `tilewright bench gemm`;
`PACKED_ALONE`, `PANELS_AFAR`, `LEFT_COPIED`, `LEFT_COLLIDING` and the shares of caches are still from there, or set by
hand for narrower vectors and more threads. The matmuls of `tilewright bench schedules` are in no fit, but how the
constants did on them was seen before the last one. The clock of the machine file is the guaranteed one, so all
predictions are too slow by about as much as the clock is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import msgspec

from tilewright.cost.tiles import MatmulTile, dividing_split, even_split
from tilewright.cost.vectors.register_blocks import RegisterBlock, product_seconds, register_blocks
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# The left operand, from the second- or third-level cache, and what is added from memory; the right one, from the
# first-level cache in panels and in rows, from the second-level one in panels, in rows so near each other that the
# hardware follows, in rows farther apart, and what is added from the third-level one where the second has no room or
# rows fall on the same sets of it.
LEFT, LEFT_AFAR = 0.9, 0.6
RIGHT_L1, RIGHT_ROWS_L1 = 0.1, 0.45
RIGHT_PANELS, RIGHT_NEAR, RIGHT_FAR, RIGHT_COLLIDING = 0.18, 0.32, 0.45, 0.17
NEAR_BYTES, NEAR_LINES, SPLIT_LINES = 2048, 64, 4.1
# An element of a register block's rows that fall on the same sets of the first-level cache and have no room there, of
# the latency of the second-level one.
LEFT_COLLIDING = 0.03
# The shares of the second-level cache up to which what is read in turns stays in it, and from which nothing does.
L2_KEPT, L2_LOST = 0.5, 0.8
L1_SHARE, L2_RESULT_SHARE = 0.6, 0.75
# Reading a right operand for the first time, in rows near each other, farther apart, and what is added where it is as a
# whole too large for the second-level cache.
FIRST_NEAR, FIRST_FAR, FIRST_AFAR = 0.39, 0.45, 0.48
# Pages: the first touch of one by a tile, in latencies of the second-level cache; more than there are entries for in
# the table of translations are looked up again by each block of rows.
PAGE_BYTES, PAGE_LATENCIES, TRANSLATIONS, WALK_LATENCIES = 4096, 0.4, 1024, 0.21
# Packing, of third-level bandwidth: by the first rows that meet a panel, and what is added where the right operand as a
# whole is too large for the second-level cache; by a pass of the thread that reads it, and by all for all, read by
# others. Reading panels of a right operand that is packed as a whole and larger than what is near, again for each tile.
KEPT, KEPT_AFAR, PACKED_ALONE, PACKED_TOGETHER, PANELS_AFAR = 1.3, 0.7, 5.6, 10.7, 0.26
# Rows up to which columns are what threads share: more in one tile would leave a thread idle, for less than is
# predicted for waiting (bf16, 999 x 4 by 4 x 20: 22 us in one tile, 9 in two).
PACKED_ONCE_ROWS = 64
# Copying, and turning, a tile's rows of the left operand, of third-level bandwidth.
LEFT_COPIED = 6.9
# Writing the result, of third-level bandwidth; a short run of a row of it far from the one before, of the latency of
# the second-level cache.
WRITTEN, RUN_LATENCIES = 1.6, 0.29
# Where two threads write the same row, the lines that the hardware fetches ahead for the one are the other's.
EDGE_S = 100e-9
# Threads that wait for each other between packing and multiplying; a tile's own overhead.
TOGETHER_S = 10e-6
TILE_S = 0.35e-6
# The part of a tile for which threads wait at the end, as no two are equally fast on a machine that others use too.
UNEVEN = 0.009

# Steps of the depth in one block. Deep blocks read and write the accumulator less often; a panel of them is still small
# beside the second-level cache. Does not depend on the number of threads, nor do then the sums.
DEPTH = 2048
ROW_TARGETS = (32, 64, 128, 256, 512, 1024, 2048)
COLUMN_TARGETS = (16, 32, 64, 128, 256, 512, 1024)


class Right(Enum):
    """The source from which a matmul reads its right operand."""

    READY = "panels made when the program was compiled"
    IN_PLACE = "in place"
    KEPT = "a panel that the first rows of each tile keep"
    ALONE = "panels that each tile makes for itself"
    TOGETHER = "panels that all threads make for all tiles"


class Product(msgspec.Struct, frozen=True):
    """`batches` matmuls of `rows` x `depth` with `depth` x `columns`. `pitch_bytes` is from row to row of the right
    operand in memory, `choices` what can be done with it. `copies_left`: a tile copies its rows of the left operand
    first. `buffered`: a tile's result is not written directly, so it should stay in a cache."""

    rows: int
    columns: int
    depth: int
    dtype: DType
    batches: int = 1
    pitch_bytes: int = 0
    choices: tuple[Right, ...] = (Right.ALONE,)
    copies_left: bool = False
    buffered: bool = False


@dataclass(frozen=True)
class Candidate:
    """A schedule of a matmul with its predicted time."""

    tile: MatmulTile
    block: RegisterBlock = field(compare=False)
    right: Right
    seconds: float = field(compare=False)


@cache
def best_candidate(product: Product, machine: Machine, threads: int) -> Candidate:
    """The candidate of the least predicted time; of equals the first, with the largest tiles."""
    return min(candidates(product, machine, threads), key=lambda candidate: candidate.seconds)


def candidates(product: Product, machine: Machine, threads: int) -> Iterator[Candidate]:
    """All that are considered: tiles of some sizes, by register blocks and what can be done with the right operand."""
    depth = dividing_split(product.depth, DEPTH)
    for block, rows, columns in _tiles(product, machine):
        for right in product.choices:
            tile = MatmulTile(rows, columns, depth)
            seconds = schedule_seconds(product, tile, block, right, machine, threads)
            yield Candidate(tile, block, right, seconds)


def _tiles(product: Product, machine: Machine) -> Iterator[tuple[RegisterBlock, int, int]]:
    """Tile sizes in whole register blocks."""
    heights = dict.fromkeys(even_split(product.rows, target) for target in reversed(ROW_TARGETS))
    for block in register_blocks(product.dtype, machine):
        widths = dict.fromkeys(
            even_split(product.columns, max(block.columns, target), block.columns)
            for target in reversed(COLUMN_TARGETS)
        )
        for rows in heights:
            for columns in widths:
                yield block, rows, columns


def tile_seconds(rows: int, columns: int, depth: int, block: RegisterBlock, dtype: DType, machine: Machine) -> float:
    """Multiplying the operands of one tile, the right one in panels: arithmetic, and what shows next to it of reading
    the rows again for each panel and a panel again for each block of rows."""
    item = dtype.compute.itemsize
    left = _left_seconds(rows, columns, depth, block, item, machine)
    read = _panel_bytes(rows, columns, depth, block, item)
    small = block.columns * depth * item <= L1_SHARE * machine.memory("l1").bytes
    exposed, memory = (RIGHT_L1, "l1") if small else (RIGHT_PANELS, "l2")
    right = read * exposed / machine.memory(memory).bytes_per_second
    return product_seconds(rows, columns, depth, block, machine) + left + right


def _left_seconds(rows: int, columns: int, depth: int, block: RegisterBlock, item: int, machine: Machine) -> float:
    """Reading all rows for each panel, from the nearest cache that has room for them next to two panels."""
    left, panel = rows * depth * item, block.columns * depth * item
    if left <= machine.memory("l1").bytes // 2:
        return 0.0
    far = far_share(left + 2 * panel, machine)
    l2, l3 = (machine.memory(name).bytes_per_second for name in ("l2", "l3"))
    return -(-columns // block.columns) * left * LEFT * ((1 - far) / l2 + far / l3)


def far_share(nbytes: float, machine: Machine) -> float:
    """The part of what is read again and again next to each other that the second-level cache does not keep: none of
    what fills a third of it, all of what is as large as it is."""
    return min(1.0, max(0.0, (nbytes / machine.memory("l2").bytes - L2_KEPT) / (L2_LOST - L2_KEPT)))


def _panel_bytes(rows: int, columns: int, depth: int, block: RegisterBlock, item: int) -> int:
    """Of the right operand that all blocks of rows read."""
    panels, blocks = -(-columns // block.columns), -(-rows // block.rows)
    return panels * blocks * block.columns * depth * item


def schedule_seconds(
    product: Product, tile: MatmulTile, block: RegisterBlock, right: Right, machine: Machine, threads: int
) -> float:
    """A whole matmul: the tiles of the thread that has most of them, and making panels."""
    rows, columns = min(tile.rows, product.rows), min(tile.columns, product.columns)
    steps = -(-product.depth // tile.depth)
    tiles = -(-product.rows // rows) * -(-product.columns // columns) * product.batches
    taken = -(-tiles // threads)
    one = TILE_S + steps * tile_seconds(rows, tile.columns, tile.depth, block, product.dtype, machine)
    one += _result_seconds(product, rows, columns, steps, block, machine)
    one += steps * _rows_afar_seconds(product, rows, tile, block, machine, threads)
    if product.copies_left:
        copied = rows * product.depth * product.dtype.compute.itemsize
        one += copied * LEFT_COPIED / machine.memory("l3").bytes_per_second
    else:
        one += _colliding_rows_seconds(product, rows, columns, block, machine)
    # Threads begin with ranges of tiles, a row of tiles after the other.
    edges = threads > 1 and columns < product.columns and -(-product.rows // rows) * product.batches < threads
    shared = rows * EDGE_S if edges else 0.0
    last = UNEVEN * one if min(tiles, threads) > 1 else 0.0
    return taken * one + last + shared + right_seconds(product, tile, block, right, machine, threads)


def _rows_afar_seconds(
    product: Product, rows: int, tile: MatmulTile, block: RegisterBlock, machine: Machine, threads: int
) -> float:
    """Extra time to read a tile's rows again for each panel, if half of the third-level cache, which is shared with
    other data, has no room for the rows in use by all threads."""
    left = rows * tile.depth * product.dtype.compute.itemsize
    sets = min(threads, -(-product.rows // rows) * product.batches)
    l3, dram = machine.memory("l3"), machine.memory("dram")
    if sets * left <= l3.bytes // 2:
        return 0.0
    slower = 1 / dram.bytes_per_second - 1 / l3.bytes_per_second
    return -(-tile.columns // block.columns) * left * LEFT_AFAR * slower


def _colliding_rows_seconds(product: Product, rows: int, columns: int, block: RegisterBlock, machine: Machine) -> float:
    """Extra time to read a tile's rows again for each panel, if the stride between the rows of a register block is so
    large that the first-level cache does not keep a line of each."""
    height = even_split(rows, block.rows)
    kept = machine.memory("l1").lines_at(product.depth * product.dtype.compute.itemsize)
    missed = max(0.0, 1 - kept / height) * rows * product.depth * -(-columns // block.columns)
    return missed * LEFT_COLLIDING * machine.memory("l2").latency_s


def best_right(product: Product, tile: MatmulTile, block: RegisterBlock, machine: Machine, threads: int) -> Right:
    """The cheapest source of a matmul's right operand."""
    return min(product.choices, key=lambda right: right_seconds(product, tile, block, right, machine, threads))


def right_seconds(
    product: Product, tile: MatmulTile, block: RegisterBlock, right: Right, machine: Machine, threads: int
) -> float:
    """The time of a thread that depends on the source of the right operand, in addition to `tile_seconds`."""
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns) * product.batches
    taken = -(-tiles // threads)
    item = product.dtype.compute.itemsize
    l3 = machine.memory("l3").bytes_per_second
    own = tile.columns * product.depth * item
    whole = product.columns * product.depth * item
    made, sets = (tile.columns * tile.depth * item, threads) if right == Right.ALONE else (whole, 1)
    panels = _panels_memory(made, sets, machine)
    afar = taken * own * PANELS_AFAR / panels
    if right == Right.READY:
        return afar
    if right == Right.KEPT:
        kept = KEPT + KEPT_AFAR * far_share(whole, machine)
        return taken * (own * kept / l3 + _pages_seconds(product, machine))
    # `scheduled-pack-operands` lets a tile pack what it alone reads, where the panels of all threads stay near.
    near = threads * tile.columns * tile.depth * item <= machine.memory("l3").bytes // 4
    is_read_once = product.rows <= min(tile.rows, PACKED_ONCE_ROWS) and near
    if right == Right.ALONE or (right == Right.TOGETHER and is_read_once):
        return afar + taken * (own * PACKED_ALONE / l3 + _pages_seconds(product, machine))
    if right == Right.TOGETHER:
        panels_made = product.batches * -(-product.columns // block.columns)
        packed = product.batches * whole / min(threads, panels_made) * PACKED_TOGETHER / l3
        return afar + packed + (TOGETHER_S if threads > 1 else 0.0)
    return taken * _in_place_seconds(product, tile, block, machine)


def _panels_memory(nbytes: int, sets: int, machine: Machine) -> float:
    """Bytes a second at which panels are read again for each tile, of which there are `sets` of `nbytes`: infinite if
    half of the second-level cache has room for one, from memory if a quarter of the third, which is shared with other
    data, has no room for all."""
    if nbytes <= machine.memory("l2").bytes // 2:
        return math.inf
    l3 = machine.memory("l3")
    return (l3 if sets * nbytes <= l3.bytes // 4 else machine.memory("dram")).bytes_per_second


def _in_place_seconds(product: Product, tile: MatmulTile, block: RegisterBlock, machine: Machine) -> float:
    """Reading rows of a right operand instead of panels."""
    item = product.dtype.compute.itemsize
    l1, l2, l3 = (machine.memory(name) for name in ("l1", "l2", "l3"))
    rows = min(tile.rows, product.rows)
    # A row that does not start where a line does reaches into one line more.
    split = 1 + SPLIT_LINES * l1.line_bytes / (block.columns * item)
    read = _panel_bytes(rows, tile.columns, tile.depth, block, item) * split
    panel = block.columns * tile.depth * item
    small = panel <= L1_SHARE * l1.bytes
    near = product.pitch_bytes <= NEAR_BYTES and l1.lines_at(product.pitch_bytes) >= NEAR_LINES
    if small and tile.depth <= l1.lines_at(product.pitch_bytes):
        each = RIGHT_ROWS_L1 / l1.bytes_per_second
    else:
        each = (RIGHT_NEAR if near else RIGHT_FAR) / l2.bytes_per_second
        colliding = 2 * tile.depth > l2.lines_at(product.pitch_bytes)
        far = far_share((rows + tile.columns) * tile.depth * item, machine) + (1.0 if colliding else 0.0)
        each += far * RIGHT_COLLIDING / l3.bytes_per_second
    packed = RIGHT_L1 / l1.bytes_per_second if small else RIGHT_PANELS / l2.bytes_per_second
    whole = product.columns * product.depth * item
    first = (FIRST_NEAR if near else FIRST_FAR) + FIRST_AFAR * far_share(whole, machine)
    first *= tile.columns * tile.depth * item / l3.bytes_per_second
    steps = -(-product.depth // tile.depth)
    pages = tile.depth * min(1.0, product.pitch_bytes / PAGE_BYTES)
    walks = 0.0 if pages <= TRANSLATIONS else pages * read / split / panel * WALK_LATENCIES * l2.latency_s
    return steps * (read * (each - packed) + first + walks) + _pages_seconds(product, machine)


def _pages_seconds(product: Product, machine: Machine) -> float:
    """A tile's first touch of the pages that the rows of a right operand are on."""
    pages = product.depth * min(1.0, product.pitch_bytes / PAGE_BYTES)
    return pages * PAGE_LATENCIES * machine.memory("l2").latency_s


def _result_seconds(
    product: Product, rows: int, columns: int, steps: int, block: RegisterBlock, machine: Machine
) -> float:
    """Writing one tile's result: short runs far apart, and blocks of the depth and other work read and write it."""
    item = product.dtype.compute.itemsize
    l2, l3 = machine.memory("l2"), machine.memory("l3")
    runs = 0.0
    if product.columns * item > NEAR_BYTES:
        runs = -(-columns // block.columns) * rows * RUN_LATENCIES * l2.latency_s
    # What follows a product does so block by block where all blocks are whole and the depth is one.
    blockwise = steps == 1 and columns % block.columns == 0
    passes = 2 * (steps - 1) + (2 if (product.buffered and not blockwise) or steps > 1 else 0)
    written, left = rows * columns * item, rows * min(product.depth, DEPTH) * item
    memory = l2 if written + left <= L2_RESULT_SHARE * l2.bytes else l3
    return runs + written * WRITTEN / l3.bytes_per_second + passes * written * LEFT / memory.bytes_per_second

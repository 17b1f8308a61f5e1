"""Predicted time of a tiled reduction, and the tile with the lowest.

Reduced dimensions have two forms. If the last dimension is kept, vectors of neighbouring results go down the rows, one
chain of additions for each, or, of many rows of some vectors, whole rows are added to totals; if it is reduced, vectors
run along the row and are added up at its end. A tile with a part of the reduced extent adds to running results, which
costs a pass over them a step.

The constants are cycles. They began as the least squares of the logarithms of about 4,000 measured times of 240 random
reductions of f32 on two cores of an AVX-512 server (median error 15 %, rows along the last dimension 20 %);
`SHARE`, `TILE`, `TAIL`, `AHEAD`, `GATHERED`, `SPILLED` and all of runs, steps and segments were then set by hand,
after single reductions that were chosen wrongly. `tilewright bench schedules` measures how good the choices are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import msgspec

from tilewright.cost.tiles import dividing_split, even_split
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine

# Threads for which the steps of a reduction are chosen, and whole tiles where they decide in which order is added up:
# sums must not depend on how many threads there are. What four can share is shared well by two, and tiles for more have
# more overhead.
THREADS = 4
# The part of the last tile's time that other threads wait.
TAIL = 0.15
# An array up to so many second-level caches is read from caches near the threads.
NEAR_CACHES = 1.5

# Sharing tiles at all; a tile; reading a line of an array that is far, beside what is done with it.
SHARE, TILE, FAR_LINE = 1000.0, 20.0, 1.3
# Results in vectors: a vector of them; adding the sums of a step to it, with what a step beyond the end costs, and
# where a row is shorter than a vector: what was stored under a mask has to reach the cache before it is read again. A
# vector of a tile whose results do not stay in the first-level cache until they are copied to the array.
VECTOR, STEP, STEP_BEYOND, STEP_NARROW, SPILLED = 6.0, 5.0, 19.0, 18.0, 3.0
# A row of one vector: while the next vector's begin before the last are done (`SHORT` rows), and in long columns, which
# wait for the addition before; sums of narrow rows are interleaved, maxima are not. Where a tile's results reach beyond
# the end too, each row is masked.
ROW_SHORT, ROW_LONG, ROW_LONG_NARROW, MASKED = 2.6, {True: 3.0, False: 4.6}, {True: 1.3, False: 4.0}, 1.7
# Rows far away on pages of their own: of columns longer than the hardware has streams for, for each doubling; at the
# beginning of a run, for each of its first vectors; at the beginning of a step of many rows. Lines of near rows that
# are fetched ahead in vain. Lines that neighbouring vectors share, read again.
PAGES, RUN, RUN_VECTOR, RESTART, AHEAD, SHARED_L2, SHARED_FAR = 1.0, 35.0, 9.0, 350.0, 3.5, 0.6, 11.0
# One column of many, element by element, and its end.
GATHERED, GATHERED_END = 0.6, 8.5
# Rows along the last dimension: a short and a long one, their vectors, an element of a row shorter than a vector;
# adding the sum of a step; of rows apart from each other the beginning, near and far, and more for each doubling.
ROW_END_SHORT, ROW_END_LONG, ELEMENT, ROW_STEP = 4.5, 5.0, 0.8, 12.0
NEAR_RUN, FAR_RUN, FAR_SEGMENT = 2.0, 25.0, 4.0
ALONG_SHORT, ALONG_LONG = {True: 1.8, False: 3.5}, 2.2

# Rows of so many vectors at least are added to totals one after the other, where a tile has so many of them; a vector
# of such a row.
MANY_ROWS, WIDE_VECTORS, ROW_BY_ROW = 12, 2, 1.5

SHORT, LONG_ROW, STREAMS = 24, 128, 16
NEAR_ROW_BYTES = 1024
# Elements of a tile along reduced dimensions, and extents along kept ones, that are considered.
REDUCED_ROOMS = (16, 64, 256, 1024, 4096, 16384, 65536)
KEPT_TARGETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
OUTER_TARGETS = (2, 4, 8, 16, 32, 64, 256)
MOST_RESULTS_BYTES = 1 << 18


class Reduction(msgspec.Struct, frozen=True):
    """An array of `shape` of which the dimensions `axes` are reduced. `adds`: by addition, of which the order is free
    (maxima have to pass NaNs on)."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: DType
    adds: bool = True

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.axes)

    @property
    def keeps_last(self) -> bool:
        return len(self.shape) - 1 not in self.axes

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] * self.dtype.itemsize


@cache
def best_reduction_tile(reduction: Reduction, machine: Machine, threads: int) -> tuple[int, ...]:
    """The extents of a tile, the one of the least predicted time; of equals the first, with the largest steps."""
    tiles = list(reduction_tiles(reduction, machine))
    best = min(tiles, key=lambda tile: reduction_seconds(reduction, tile, machine, THREADS))
    lanes = machine.lanes(reduction.dtype)
    if best[-1] < lanes:
        # Vectors run along one dimension or the other, whichever the tile has more of.
        return best
    same = [t for t in tiles if t[-1] >= lanes and all(t[d] == best[d] for d in reduction.axes)]
    return min(same, key=lambda tile: reduction_seconds(reduction, tile, machine, threads))


def reduction_tiles(reduction: Reduction, machine: Machine) -> Iterator[tuple[int, ...]]:
    """All tiles that are considered."""
    kept = list(_kept_extents(reduction, machine))
    for reduced in _reduced_extents(reduction):
        for extents in kept:
            yield tuple((reduced | extents)[d] for d in range(len(reduction.shape)))


def _reduced_extents(reduction: Reduction) -> Iterator[dict[int, int]]:
    """The whole of the reduced dimensions, then steps of them, innermost whole first."""
    shape, inner = reduction.shape, 1 if reduction.keeps_last else reduction.shape[-1]
    rooms = (math.prod(shape[d] for d in reduction.axes), STREAMS * inner, *REDUCED_ROOMS)
    for room in dict.fromkeys(rooms):
        extents: dict[int, int] = {}
        for d in sorted(reduction.axes, reverse=True):
            extents[d] = dividing_split(shape[d], max(1, room))
            room //= max(1, extents[d])
        yield extents


def _kept_extents(reduction: Reduction, machine: Machine) -> Iterator[dict[int, int]]:
    """Of the innermost kept dimension parts, in whole vectors if these may run along it, or all and parts of the next:
    they do if it is the last, or, gathering, if the rows that are reduced are shorter than a vector."""
    kept, shape = reduction.kept, reduction.shape
    ones = dict.fromkeys(kept, 1)
    if not kept:
        yield ones
        return
    inner, lanes = kept[-1], machine.lanes(reduction.dtype)
    least = min(shape[inner], lanes) if reduction.keeps_last else 1
    found: set[int] = set()
    for n in _targets(shape[inner], KEPT_TARGETS):
        whole = reduction.keeps_last or (shape[-1] < lanes <= n)
        found.add(min(shape[inner], even_split(shape[inner], n, lanes if whole else 1)))
    item = reduction.dtype.itemsize
    if reduction.keeps_last and shape[inner] < lanes:
        yield ones
    for extent in sorted(n for n in found if n >= least and n * item <= MOST_RESULTS_BYTES):
        yield ones | {inner: extent}
    if len(kept) > 1 and shape[inner] in found:
        outer, most = kept[-2], max(1, MOST_RESULTS_BYTES // (shape[inner] * item))
        for n in dict.fromkeys(even_split(shape[outer], n) for n in _targets(shape[outer], OUTER_TARGETS)):
            if 1 < n <= most:
                yield ones | {inner: shape[inner], outer: n}


def _targets(size: int, targets: tuple[int, ...]) -> list[int]:
    shares = [-(-size // (THREADS * n)) for n in (1, 2, 4)]
    return [n for n in (*targets, *shares, -(-size // 2), size) if 0 < n <= size]


def reduction_seconds(reduction: Reduction, tile: tuple[int, ...], machine: Machine, threads: int) -> float:
    """The tiles of the thread that has most of them."""
    grid = math.prod(-(-reduction.shape[d] // tile[d]) for d in reduction.kept)
    steps = math.prod(-(-reduction.shape[d] // tile[d]) for d in reduction.axes)
    far = math.prod(reduction.shape) * reduction.dtype.itemsize > NEAR_CACHES * machine.memory("l2").bytes
    columns = _columns_cycles if reduction.keeps_last else _rows_cycles
    one = TILE + columns(reduction, tile, steps, far, machine)
    if far:
        one += steps * math.prod(tile) * reduction.dtype.itemsize / machine.memory("l2").line_bytes * FAR_LINE
    cycles = (-(-grid // threads) + TAIL) * one + SHARE if grid > 1 else one
    return cycles / machine.clock_hertz + _reread_seconds(reduction, tile, machine)


def _reread_seconds(reduction: Reduction, tile: tuple[int, ...], machine: Machine) -> float:
    """To read cache lines from memory again, in which columns of several tiles are."""
    item, nbytes = reduction.dtype.itemsize, math.prod(reduction.shape) * reduction.dtype.itemsize
    if not reduction.keeps_last or tile[-1] >= reduction.shape[-1] or nbytes <= machine.memory("l3").bytes:
        return 0.0
    read = min(reduction.row_bytes, tile[-1] * item + machine.memory("l2").line_bytes - item)
    times = -(-reduction.shape[-1] // tile[-1]) * read / reduction.row_bytes
    return (times - 1) * nbytes / machine.memory("dram").bytes_per_second


def _columns_cycles(reduction: Reduction, tile: tuple[int, ...], steps: int, far: bool, machine: Machine) -> float:
    """Adding up rows of a tile."""
    *outer, last = tile
    inner_axis = reduction.axes[-1]
    rows = tile[inner_axis]
    bodies = steps * math.prod(outer) // max(1, rows)
    if last == 1 and reduction.shape[-1] > 1:
        lines = rows * min(1.0, reduction.row_bytes / machine.memory("l2").line_bytes)
        return bodies * (GATHERED_END + rows * GATHERED + lines * FAR_LINE * far)
    vectors = -(-last // machine.lanes(reduction.dtype))
    narrow = last < machine.lanes(reduction.dtype)
    long = (ROW_LONG_NARROW if narrow else ROW_LONG)[reduction.adds]
    overlapped = min(rows, SHORT) if rows <= SHORT or long > ROW_SHORT else 0
    row_by_row = _goes_row_by_row(reduction, tile, machine)
    down = rows * ROW_BY_ROW if row_by_row else overlapped * ROW_SHORT + (rows - overlapped) * long
    cycles = bodies * vectors * (VECTOR + down)
    if steps > 1 and narrow:
        cycles += bodies * STEP_NARROW
    elif steps > 1:
        cycles += bodies * vectors * STEP
        if _reaches_beyond(reduction, tile, reduction.axes):
            cycles += bodies * vectors * STEP_BEYOND
    if _reaches_beyond(reduction, tile, reduction.axes) and _reaches_beyond(reduction, tile, reduction.kept[:-1]):
        cycles += bodies * vectors * rows * MASKED
    cycles += bodies * vectors * SPILLED * _spilled_part(reduction, tile, machine)
    if row_by_row:
        gap = reduction.row_bytes - last * reduction.dtype.itemsize
        return cycles + (bodies * rows * min(RUN, vectors * RUN_VECTOR) if far and gap else 0.0)
    return cycles + bodies * _column_lines_cycles(reduction, last, rows, steps, far, machine)


def _goes_row_by_row(reduction: Reduction, tile: tuple[int, ...], machine: Machine) -> bool:
    wide = tile[-1] >= WIDE_VECTORS * machine.lanes(reduction.dtype)
    return wide and tile[reduction.axes[-1]] >= MANY_ROWS and not reduction.dtype.is_bool


def _spilled_part(reduction: Reduction, tile: tuple[int, ...], machine: Machine) -> float:
    """None of a tile's results while they fill half of the first-level cache, all once they would fill it."""
    nbytes = math.prod(tile[d] for d in reduction.kept) * reduction.dtype.itemsize
    return min(1.0, max(0.0, 2.0 * nbytes / machine.memory("l1").bytes - 1.0))


def _column_lines_cycles(reduction: Reduction, last: int, rows: int, steps: int, far: bool, machine: Machine) -> float:
    """Cycles of reading the cache lines of `rows` rows of a tile, of `last` elements each, that other work does not
    hide."""
    item, pitch, line = reduction.dtype.itemsize, reduction.row_bytes, machine.memory("l2").line_bytes
    vectors = -(-last // machine.lanes(reduction.dtype))
    gap = pitch - last * item
    cycles = 0.0
    if far and pitch >= NEAR_ROW_BYTES and rows > STREAMS:
        cycles += vectors * rows * PAGES * math.log2(rows / STREAMS)
    if far and pitch >= NEAR_ROW_BYTES and steps > 1 and gap > 0:
        cycles += rows * min(RUN, vectors * RUN_VECTOR) + (vectors * RESTART if rows > SHORT else 0.0)
    if far and pitch <= NEAR_ROW_BYTES and gap >= line:
        cycles += rows * gap / line * AHEAD
    aligned = pitch % line == 0 and last * item % line == 0
    touched = rows * min(2 * line, pitch)
    if not aligned and touched > machine.memory("l1").bytes / 2:
        beyond = touched > machine.memory("l2").bytes / 2
        cycles += (vectors - 1) * rows * (SHARED_FAR if beyond else SHARED_L2)
    return cycles


def _rows_cycles(reduction: Reduction, tile: tuple[int, ...], steps: int, far: bool, machine: Machine) -> float:
    """Adding up rows along the last dimension."""
    length = tile[-1]
    rows = steps * math.prod(tile[:-1])
    results = steps * math.prod(tile[d] for d in reduction.kept)
    vectors = -(-length // machine.lanes(reduction.dtype))
    if length < machine.lanes(reduction.dtype):
        cycles = rows * length * ELEMENT
    elif length < LONG_ROW:
        cycles = rows * (ROW_END_SHORT + vectors * ALONG_SHORT[reduction.adds])
    else:
        cycles = rows * (ROW_END_LONG + vectors * ALONG_LONG)
    if steps > 1:
        cycles += results * ROW_STEP
    apart = rows // max(1, results)
    if len(reduction.axes) > 1:
        cycles += steps * apart * (FAR_RUN if far else NEAR_RUN)
    if far and apart > STREAMS:
        cycles += rows * FAR_SEGMENT * math.log2(apart / STREAMS)
    return cycles


def _reaches_beyond(reduction: Reduction, tile: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return any(reduction.shape[d] % tile[d] for d in dims)

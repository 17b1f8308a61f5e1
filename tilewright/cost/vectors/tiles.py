"""Tile sizes from a machine's caches and registers."""

from __future__ import annotations

import math

from tilewright.cost.tiles import MatmulTile, dividing_split, even_split
from tilewright.cost.vectors.register_blocks import RegisterBlock
from tilewright.dtypes import DType
from tilewright.machines.machine import Machine, MatrixAtom

# For matrix instructions: of a row of the left operand (deep blocks read and write the accumulator less often; their
# panels of the right operand come from the second-level cache), of a row of the right one, and of a column of the left.
DEPTH_BYTES = 4096
COLUMN_BYTES = 512
ROW_BYTES = 2048
# Tiles a thread: enough that one thread more or less busy with something else does not show.
TILES_A_THREAD = 2
# Rows of a right operand that are read side by side, rows of a product that is bound by reading them, and how long
# those are.
STREAMED_DEPTH = 8
STREAMED_ROWS = 4
STREAMED_ROW_BYTES = 2048
# The least work of a tile that another thread may take.
SHARED_S = 2e-6
# Tiles for each thread of which one more or less counts.
FEW_TILES = 4


def shared_elements(size: int, seconds: float, most: int, threads: int) -> int:
    """Elements of a tile of a loop over `size` of them that takes `seconds` on one core: `most`, or fewer, so that
    each thread has a tile that is worth it, and of few tiles as many as another."""
    worth = int(seconds / SHARED_S)
    tiles = max(1, min(threads, worth), -(-size // most))
    if tiles <= min(worth, FEW_TILES * threads):
        tiles += -tiles % threads
    return min(most, -(-size // tiles))


def is_streamed(rows: int, columns: int, dtype: DType) -> bool:
    """Whether reading a right operand in place, once, is what a matmul's time goes into, and its rows are so long that
    its panels would be read in short pieces far apart."""
    return rows <= STREAMED_ROWS and columns * dtype.compute.itemsize >= STREAMED_ROW_BYTES


def streaming_tile(rows: int, columns: int, depth: int, dtype: DType, machine: Machine, threads: int) -> MatmulTile:
    """Blocks for a matmul of few rows whose right operand is read once, from memory, in place: as many columns as keep
    the accumulator in the first-level cache, so that memory is read in long runs."""
    item = dtype.compute.itemsize
    most = machine.memory("l1").bytes // 2 // (item * rows)
    lanes = 4 * machine.lanes(dtype)
    return MatmulTile(
        rows, even_split(columns, max(lanes, min(most, columns // threads)), lanes), min(depth, STREAMED_DEPTH)
    )


# Rows of a product that is bound by reading a right operand from memory, and the depth of a step.
READ_ONCE_ROWS, READ_ONCE_DEPTH = 16, 128


def read_once_tile(
    rows: int, columns: int, depth: int, block: RegisterBlock, dtype: DType, machine: Machine, threads: int
) -> MatmulTile | None:
    """The tile of a matmul of some rows, several blocks wide, whose right operand comes from memory, in place: all
    columns of a thread, so that no line is read for two tiles, in steps so short that the lines of one are still near
    for the next block. None where the first-level cache has no room for the results."""
    if columns <= block.columns or dtype.compute.itemsize * rows * columns > machine.memory("l1").bytes:
        return None
    wide = even_split(columns, max(block.columns, columns // threads), block.columns)
    return MatmulTile(rows, wide, min(depth, READ_ONCE_DEPTH))


def matrix_tile(rows: int, columns: int, depth: int, atom: MatrixAtom, machine: Machine, threads: int) -> MatmulTile:
    """Blocks for a matmul by a matrix instruction, of blocks of 2 x 2 of its accumulators."""
    height, width = 2 * atom.rows, 2 * atom.columns
    item = 4 // atom.group
    block_columns = even_split(columns, max(width, COLUMN_BYTES // 4), width)
    block_rows = even_split(rows, max(height, ROW_BYTES // 4), height)

    def tiles() -> int:
        return -(-rows // block_rows) * -(-columns // block_columns)

    while tiles() < TILES_A_THREAD * threads and block_columns > width:
        block_columns = even_split(columns, block_columns // 2, width)
    while tiles() < TILES_A_THREAD * threads and block_rows > 4 * height:
        block_rows = even_split(rows, block_rows // 2, height)
    steps = dividing_split(depth // atom.depth, DEPTH_BYTES // item // atom.depth)
    return MatmulTile(block_rows, block_columns, steps * atom.depth)


# Rows of which each reads a right operand that is contiguous along the depth in place, at least; the depth for each of
# them, at least; columns of a tile, at most, and bytes that it reads, at least: less is not worth a thread.
ROWS_ALONG_DEPTH, DEPTH_OF_A_ROW, COLUMNS_ALONG_DEPTH, BYTES_ALONG_DEPTH = 4, 6, 512, 32768


def rows_along_depth(depth: int, dtype: DType, machine: Machine) -> int:
    """Rows that read a right operand that is contiguous along the depth in place, at most. Sums along the depth take a
    load for two multiplications where four rows meet four columns, which are the lanes of sixteen sums; packing pays
    off for more rows (measured with vectors of 16 lanes: from about 20 rows on). Adding up the lanes of a sum takes as
    long as packing six elements of its column (measured with vectors of 8 lanes: packing pays off for more rows than 1
    to 2 of 8 elements, 3 of 16, 4 of 32, 7 of 64)."""
    return min(max(ROWS_ALONG_DEPTH, machine.lanes(dtype.compute)), max(1, depth // DEPTH_OF_A_ROW))


def along_depth_tile(rows: int, columns: int, depth: int, dtype: DType, machine: Machine, threads: int) -> MatmulTile:
    """Blocks for a matmul of few rows whose right operand is read once, from memory, along the depth: the whole of it
    where the rows of the left operand stay in the first-level cache, as memory is read faster in long runs. A single
    row is copied, so that both operands would be, filled up, if its last step reached beyond the end. Columns are whole
    blocks of any width, else the right operand would be packed for some numbers of threads."""
    item, lanes = dtype.compute.itemsize, machine.lanes(dtype)
    steps = even_split(depth, max(lanes, machine.memory("l1").bytes // 2 // (item * rows)), lanes)
    if rows == 1 and depth % steps:
        steps = depth
    most = min(COLUMNS_ALONG_DEPTH, columns // (TILES_A_THREAD * threads))
    least = max(lanes, BYTES_ALONG_DEPTH // (item * max(1, depth)))
    return MatmulTile(rows, even_split(columns, max(least, most), 4 * lanes), min(depth, steps))


# Elements of columns that are reduced and read again, whole ones, so that what is dear to compute of them is kept: how
# many side by side, in lines of memory, and the most elements of such a tile, which stays in the second-level cache.
WHOLE_COLUMNS, LEAST_SIDE, MOST_SIDE, MOST_OF_COLUMNS = 16384, 16, 64, 65536


def whole_columns_tile(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The tile of a reduction of columns whose elements are needed again; None where they are too long, or are rows."""
    column, last = math.prod(shape[d] for d in axes), len(shape) - 1
    if last in axes or column * LEAST_SIDE > MOST_OF_COLUMNS:
        return None
    side = max(LEAST_SIDE, min(MOST_SIDE, WHOLE_COLUMNS // column // LEAST_SIDE * LEAST_SIDE))
    columns = even_split(shape[last], side, LEAST_SIDE if shape[last] > side else 1)
    return tuple(n if d in axes else columns if d == last else 1 for d, n in enumerate(shape))


# Of arrays that come from memory: two lines of each row that is written, so that as many rows are read side by side as
# a prefetcher follows streams, and how long those are.
TURNED_BYTES = 128
TURNED_RUN = 1024
# Of arrays in the second-level cache: as much along one dimension as along the other.
TURNED_SIDE = 64
# Of arrays whose last dimension is a few elements: how many, how many of its neighbours are written as whole vectors,
# and how much is read.
TURNED_FEW, TURNED_FEW_SIDE, TURNED_FEW_RUN = 4, 16, 256


def turned_tile(shape: tuple[int, ...], turned: int, elements: int, dtype: DType, machine: Machine) -> tuple[int, ...]:
    """Tile extents for a loop that reads along dimension `turned` and writes along the last one; other dimensions fill
    up to `elements`."""
    extents = [1] * len(shape)
    item, last = dtype.itemsize, len(shape) - 1
    from_memory = item * math.prod(shape) > machine.memory("l2").bytes
    run, piece = (TURNED_RUN, TURNED_BYTES // item) if from_memory else (TURNED_SIDE, TURNED_SIDE)
    extents[last] = min(shape[last], even_split(shape[last], piece, machine.lanes(dtype)))
    others = [d for d in reversed(range(last)) if d != turned and shape[d] > 1]
    if others and turned < others[0] and shape[last] <= TURNED_FEW:
        run = min(run, TURNED_FEW_RUN)
        dim = others.pop(0)
        extents[dim] = min(shape[dim], even_split(shape[dim], TURNED_FEW_SIDE, TURNED_FEW_SIDE))
    extents[turned] = even_split(shape[turned], run)
    room = elements // math.prod(extents)
    for dim in others:
        extents[dim] = even_split(shape[dim], max(1, room))
        room //= extents[dim]
    return tuple(extents)


# Elements of a reduction's tile along the dimension that an operand is read along, for whole lines, and along a last
# dimension that is reduced; lines of the operand in a tile, which may be on as many pages.
TURNED_LINE, TURNED_ROW, TURNED_ROWS = 16, 1024, 2048


def turned_reduction_tile(
    tile: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...], turned: int, threads: int
) -> tuple[int, ...]:
    """A reduction's `tile`, or one with so much of dimension `turned`, along which an operand is read, that its lines
    are used whole: in place of other kept dimensions, of long rows and of many."""
    last = len(shape) - 1
    rows = math.prod(tile) // tile[turned]
    if tile[turned] >= min(TURNED_LINE, -(-shape[turned] // 2)) and (turned not in axes or rows <= TURNED_ROWS):
        return tile
    extents = [n if d in axes else 1 for d, n in enumerate(tile)]
    if last in axes:
        extents[last] = dividing_split(shape[last], TURNED_ROW)
    else:
        extents[last] = min(shape[last], even_split(shape[last], TURNED_SIDE, TURNED_LINE))
    others = math.prod(-(-n // extents[d]) for d, n in enumerate(shape) if d not in (*axes, turned))
    if turned in axes:
        extents[turned] = dividing_split(shape[turned], TURNED_SIDE)
    else:
        sides = [n for n in (64, 32, 16) if others * -(-shape[turned] // n) >= TILES_A_THREAD * threads]
        extents[turned] = even_split(shape[turned], sides[0] if sides else TURNED_LINE)
    room = TURNED_ROWS // extents[last]
    for dim in sorted(set(axes) - {last, turned}, reverse=True):
        extents[dim] = dividing_split(extents[dim], max(1, room))
        room //= extents[dim]
    return tuple(extents)


# Bytes of neighbouring rows that are read before others are stored.
EXCHANGED_RUN = 2048


def exchanged_tile(shape: tuple[int, ...], exchanged: int, elements: int, dtype: DType) -> tuple[int, ...]:
    """Tile extents for a loop that reads rows along dimension `exchanged` and writes them along the second last one:
    some of both, so that whole pages are used, where rows are short."""
    extents = [1] * len(shape)
    last = len(shape) - 1
    extents[last] = even_split(shape[last], elements)
    extents[exchanged] = even_split(shape[exchanged], max(1, EXCHANGED_RUN // (extents[last] * dtype.itemsize)))
    room = elements // (extents[last] * extents[exchanged])
    for dim in reversed([d for d in range(last) if d != exchanged]):
        extents[dim] = even_split(shape[dim], max(1, room))
        room //= extents[dim]
    return tuple(extents)

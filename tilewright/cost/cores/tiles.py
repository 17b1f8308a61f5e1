"""Tile sizes on a grid of cores: whole pages of 32 x 32, as many as keep all cores busy and fit their memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod

import msgspec

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CORE_WRITE, DRAM_READ, CoreGrid

# Pages of a tile: enough that a queue's step costs little beside them.
_LOOP_PAGES = 8
_REDUCED_PAGES = 16
# Of a row whose elements are read again, in one tile.
_ROW_PAGES = 32
# Pages along a side of a product's tile, and steps of its depth together.
_PRODUCT_SIDE = 8
_PRODUCT_DEPTH = 8
# Between two blocks of a product: registers are handed over.
_BLOCK_CYCLES = 50.0
# Cores of a group that fetch parts of what all of it needs, at most; and pages of a part, at least.
_MOST_FETCHING, _LEAST_FETCHED = 2, 8
# Of the time that a short step is multiplied, what bringing the next one may be predicted to take.
_HIDDEN_SHARE = 0.75
# How many short steps queues have room for: two that are multiplied together, and the last ones.
_SHORT_STEPS = 6
# What tiles of a product may take of a core's memory: what follows it has queues, too.
_PRODUCT_SHARE = 0.6
_SUM_BYTES = 4 * TILE * TILE
# Bits of the integers that registers hold, of the widest digits that floats of 16 bits hold, and up to which sum floats
# of 32 bits hold all integers.
_INTEGER_BITS = 32
_DIGIT_BITS = 8
_EXACT = 2**24
# Pages of queries in a tile of an attention, and of keys in a step.
_ATTENTION_ROWS, _ATTENTION_KEYS = 4, 8
# What cores that share a loop send to one of them.
_PARTIAL_PAGES = 64


def _pages(size: int) -> int:
    return max(1, -(-size // TILE))


def _extent(size: int, pages: int) -> int:
    """Elements of so many pages; all of a dim that has no more."""
    return max(1, min(size, pages * TILE))


def even_pages(pages: int, most: int) -> int:
    """Pages of parts of equal size of at most `most`, the last one of which may be shorter."""
    parts = -(-pages // max(1, most))
    return -(-pages // parts)


def loop_extents(shape: Sequence[int], grid: CoreGrid) -> tuple[int, ...]:
    """Tile extents of a loop over a shape, of one page at least along the last two dims."""
    if not shape:
        return ()
    extents = [1] * len(shape)
    rows = _pages(shape[-2]) if len(shape) > 1 else 1
    columns = _pages(shape[-1])
    total = prod(max(1, n) for n in shape[:-2]) * rows * columns
    most = max(1, min(_LOOP_PAGES, total // (grid.rows * grid.columns)))
    wide = even_pages(columns, most)
    extents[-1] = _extent(shape[-1], wide)
    if len(shape) > 1:
        extents[-2] = _extent(shape[-2], even_pages(rows, most // wide))
    return tuple(extents)


def reduction_extents(shape: Sequence[int], axes: Sequence[int], is_read_again: bool, grid: CoreGrid) -> list[int]:
    """Tile extents of a reduction over some dims. Rows that are read again are in one tile, where they are not long."""
    extents = [1] * len(shape)
    last = len(shape) - 1
    left = _ROW_PAGES if is_read_again else _REDUCED_PAGES
    for dim in sorted(axes, reverse=True):
        if dim >= last - 1:
            most = even_pages(_pages(shape[dim]), left)
            extents[dim] = _extent(shape[dim], most)
            left //= most
        else:
            extents[dim] = max(1, min(shape[dim], left))
            left //= extents[dim]
        left = max(1, left)
    for dim in (last, last - 1):
        if dim >= 0 and dim not in axes:
            extents[dim] = _extent(shape[dim], 1)
    return extents


class ProductTile(msgspec.Struct, frozen=True):
    """Elements along rows, columns and depth."""

    rows: int
    columns: int
    depth: int


def digits_of(depth: int) -> tuple[int, int]:
    """How many bits digits of integers have, and how many there are, where the sum of all matmuls of one weight over a
    depth is exact in f32: of the largest weight there are as many as digits."""
    for bits in range(_DIGIT_BITS, 1, -1):
        count = -(-_INTEGER_BITS // bits)
        if (2**bits - 1) ** 2 * count * depth <= _EXACT:
            return bits, count
    return 1, _INTEGER_BITS


def product_tile(
    rows: int,
    columns: int,
    depth: int,
    batches: int,
    page_bytes: int,
    grid: CoreGrid,
    is_exact: bool = False,
    cycles_after: float = 0.0,
) -> ProductTile:
    """The tile of a matmul that is predicted to take the least time, of those that a core has room for. `is_exact`: of
    integers, whose digits are multiplied; `cycles_after`: of what is computed of each page of the result."""
    high, wide, deep = _pages(rows), _pages(columns), _pages(depth)
    page_bytes, sum_bytes, deepest = _product_bytes(page_bytes, is_exact)
    sides = [(h, w) for h in range(1, min(high, _PRODUCT_SIDE) + 1) for w in range(1, min(wide, _PRODUCT_SIDE) + 1)]
    found: list[tuple[float, int, int, int]] = []
    for height, width in sides:
        pages = _product_pages(height, width, page_bytes, sum_bytes, grid)
        steps = _steps(deep, max(1, min(deepest, pages // 2)))
        for step in steps:
            time = _product_cycles((high, wide, deep), (height, width, step), batches, page_bytes, cycles_after, grid)
            # Short steps take room for several; and where they are not multiplied for long, what makes some of them
            # come late holds up all others.
            is_hidden = time.brought <= _HIDDEN_SHARE * time.multiplied
            if 2 * step > steps[0] or (is_hidden and pages >= _SHORT_STEPS * step):
                found.append((time.cycles, height, width, step))
    _, height, width, step = min(found)
    return ProductTile(_extent(rows, height), _extent(columns, width), _extent(depth, step))


def _product_bytes(page_bytes: int, is_exact: bool) -> tuple[int, int, int]:
    """Bytes of a page of the operands and of a sum, and the most pages of a step."""
    if not is_exact:
        return page_bytes, _SUM_BYTES, _PRODUCT_DEPTH
    # Digits of 16 bits beside the operands; a sum of each weight, the one before it, and what they are added to.
    digits = _INTEGER_BITS // _DIGIT_BITS
    deepest = max(n for n in range(1, _PRODUCT_DEPTH + 1) if digits_of(n * TILE)[0] == _DIGIT_BITS)
    return page_bytes + digits * TILE * TILE, _SUM_BYTES * (digits + 3), deepest


def _product_pages(height: int, width: int, page_bytes: int, sum_bytes: int, grid: CoreGrid) -> int:
    """The pages of the depth for which a core has room next to the sums of a tile."""
    room = _PRODUCT_SHARE * grid.memory_bytes - height * width * sum_bytes
    return int(room // ((height + width) * page_bytes))


def most_product_pages(height: int, width: int, page_bytes: int, is_exact: bool, grid: CoreGrid) -> int:
    """The most pages of a step of a matmul whose tiles have so many pages; 0 for tiles that are too large."""
    page_bytes, sum_bytes, deepest = _product_bytes(page_bytes, is_exact)
    pages = _product_pages(height, width, page_bytes, sum_bytes, grid)
    if max(height, width) > _PRODUCT_SIDE or pages < 1:
        return 0
    return max(1, min(deepest, pages // 2))


def _steps(deep: int, most: int) -> list[int]:
    """Pages of a step: as many as there is room for, or half of them, so that the first ones come sooner, and fewer
    where that leaves less of the last step empty."""
    found = [even_pages(deep, most)]
    for pages in range(most - 1, most // 2, -1):
        step = even_pages(deep, pages)
        if -(-deep // step) * step < -(-deep // found[-1]) * found[-1]:
            found.append(step)
    return found if most < 2 else [*found, even_pages(deep, most // 2)]


class _ProductTime(msgspec.Struct, frozen=True):
    """Cycles of a matmul, and for a step those to multiply, and to load what is multiplied."""

    cycles: float
    multiplied: float
    brought: float


def _product_cycles(
    pages: tuple[int, int, int],
    tile: tuple[int, int, int],
    batches: int,
    page_bytes: int,
    cycles_after: float,
    grid: CoreGrid,
) -> _ProductTime:
    """How long the core with the most tiles takes: to load the first operands, then for each step to multiply or to
    load what is next, whichever takes longer, and to write what is not written meanwhile."""
    (high, wide, deep), (height, width, step) = pages, tile
    down, across = -(-high // height), -(-wide // width)
    if batches == 1 and min(down, across) > 1:
        tiles = -(-down // grid.rows) * -(-across // grid.columns)
        rows, columns = min(down, grid.rows), min(across, grid.columns)
        cores = rows * columns
        operands = [(height * step, rows, columns), (width * step, columns, rows)]
    else:
        tiles = -(-batches * down * across // (grid.rows * grid.columns))
        cores = min(batches * down * across, grid.rows * grid.columns)
        shared = [cores if batches == 1 and count == 1 else 1 for count in (across, down)]
        left, right = cores // shared[1], cores // shared[0]
        operands = [(height * step, right, cores // right), (width * step, left, cores // left)]
    brought = _brought_cycles(operands, page_bytes, grid)
    blocks = product_blocks(height, width, grid.half_registers(True))
    unpacked = blocks.unpacked / (height * width)
    one = max(grid.multiply_cycles, unpacked * grid.unpack_cycles(page_bytes))
    # Steps that are not deep are multiplied several at a time.
    handed = len(blocks.sizes) * _BLOCK_CYCLES * min(1.0, step / _PRODUCT_DEPTH)
    multiplied = height * width * step * one + handed
    # What all cores write goes through the same banks: beside the last steps, but for the last block.
    written = cores * height * width * page_bytes / (grid.dram_bytes_per_second / grid.clock_hertz)
    beside = min(deep, max(step, _PRODUCT_DEPTH)) * height * width * one
    last = max(written / len(blocks.sizes), written - beside)
    between = len(blocks.sizes) * 4 * grid.configure_cycles
    between += height * width * (grid.unpack_cycles(_SUM_BYTES) + cycles_after)
    steps = -(-deep // step)
    # What the last step has beyond the depth is filled before it is multiplied.
    filled = (steps * step - deep) / step * _own_pages(operands) * grid.fill_cycles * page_bytes / 4
    multiplying = (steps - 1) * max(multiplied, brought) + max(multiplied, brought + filled)
    cycles = brought + tiles * (multiplying + between) + last
    return _ProductTime(cycles, multiplied, brought)


def fetching_cores(pages: int, count: int) -> int:
    """How many cores of a group of so many that needs the same pages fetch parts of them, and send them to all: each
    part takes semaphores, and as long to agree on as some pages take to be sent."""
    return max(1, min(_MOST_FETCHING, count, pages // _LEAST_FETCHED))


def _own_pages(operands: Sequence[tuple[int, int, int]]) -> int:
    """Pages of a step that a core fetches itself, at most: all but those that others send."""
    shared = max((pages for pages, _, count in operands if count > 1), default=0)
    return shared + sum(pages for pages, _, count in operands if count == 1)


def _brought_cycles(operands: Sequence[tuple[int, int, int]], page_bytes: int, grid: CoreGrid) -> float:
    """How long the operands of a step take. Of each: its pages, how many cores or groups of cores need others, and of
    how many cores a group is, some of which fetch and send parts."""
    own = sum(pages for pages, _, count in operands if count == 1)
    parts = [pages / fetching_cores(pages, count) for pages, _, count in operands if count > 1]
    sent_pages = max(parts, default=0.0)
    of_all = sum(pages * groups for pages, groups, _ in operands) * page_bytes / grid.dram_bytes_per_second
    of_core = (own + sent_pages) * page_bytes / grid.transfer(DRAM_READ).rate_of(page_bytes)
    sent = sent_pages * page_bytes * grid.clock_hertz / grid.transfer(CORE_WRITE).rate_of(page_bytes)
    received = sum(pages for pages, _, count in operands if count > 1) * page_bytes / grid.network_bytes_per_cycle
    agreed = 2 * grid.latency_cycles(CORE_WRITE) if parts else 0.0
    return max(of_core, of_all) * grid.clock_hertz + max(sent, received) + grid.latency_cycles(DRAM_READ) + agreed


class ProductTrips(msgspec.Struct, frozen=True):
    """How the trips of a matmul are done: those between the first and the last ones `together` at a time, the `last`
    ones block by block, with what follows; queues have room for the pages of `ring` trips, 0 where they stay."""

    together: int
    last: int
    ring: int


def product_trips(
    trips: int, tile: tuple[int, int, int], cores: int, written_bytes: int, room: int, grid: CoreGrid
) -> ProductTrips | None:
    """As many trips together as make a deep step, and as many at the end as all cores' results take to be written.
    `tile`: pages along rows, columns and depth of a trip; `written_bytes`: of results for each page; `room`: the trips
    that queues may have room for. None where that is no more than one."""
    rows, columns, depth = tile
    together = max(1, _PRODUCT_DEPTH // depth)
    multiplied = rows * columns * depth * grid.multiply_cycles
    written = cores * rows * columns * written_bytes / (grid.dram_bytes_per_second / grid.clock_hertz)
    wanted = -(-ceil(written / multiplied) // together) * together
    for last in range(min(wanted, trips - together), 0, -1):
        if (trips - last) % together:
            continue
        # Pages that are waited for together lie side by side, and what comes next has room beside them.
        for ring in range(-(-(last + together) // together) * together, room + 1, together):
            if (trips - last) % ring + last <= ring:
                return ProductTrips(together, last, ring)
    return None


class ProductBlocks(msgspec.Struct, frozen=True):
    """Blocks of `rows` by `columns` pages that a tile of pages is multiplied in, those at its end smaller. `sizes`: of
    all of them."""

    rows: int
    columns: int
    sizes: tuple[tuple[int, int], ...]

    @property
    def unpacked(self) -> int:
        """Pages of both operands that are unpacked for one page of the depth: one of the operand with fewer pages
        stays while those of the other come by."""
        return sum(rows * columns + min(rows, columns) for rows, columns in self.sizes)


@lru_cache
def product_blocks(rows: int, columns: int, registers: int) -> ProductBlocks:
    """The fewest blocks of pages that have room in the registers; of as many, those that unpack the fewest pages."""
    blocks = [
        ProductBlocks(height, width, tuple((h, w) for h in parts(rows, height) for w in parts(columns, width)))
        for height in range(1, min(rows, registers) + 1)
        for width in range(1, min(columns, registers // height) + 1)
    ]
    return min(blocks, key=lambda each: (len(each.sizes), each.unpacked, -each.columns))


def parts(extent: int, size: int) -> list[int]:
    """The sizes of parts of an extent, the last one of which may be smaller."""
    whole, left = divmod(extent, size)
    return [size] * whole + [left] * (left > 0)


class Attention(msgspec.Struct, frozen=True):
    """Sizes of an attention: `depth` is that of the scores, `values` the columns of the result, `others` how many there
    are of both, such as heads; `page_bytes` of an operand."""

    queries: int
    keys: int
    depth: int
    values: int
    others: int
    page_bytes: int

    def fits(self, grid: CoreGrid) -> bool:
        """Whether a core has room for tiles of queries, two steps of keys and values, scores and weights, and the sums
        of three trips with the result. With smaller tiles keys would be read too often: two matmuls and a softmax are
        faster then."""
        deep, wide = _pages(self.depth), _pages(self.values)
        rows, step = min(_ATTENTION_ROWS, _pages(self.queries)), min(_ATTENTION_KEYS, _pages(self.keys))
        loaded = rows * deep + 2 * step * (deep + wide) + 2 * rows * wide
        return loaded * self.page_bytes + 3 * rows * (step + wide) * _SUM_BYTES <= grid.memory_bytes


def attention_tile(sizes: Attention, grid: CoreGrid) -> tuple[int, int]:
    """Queries of a tile, and keys of a step: fewer queries while cores would be idle."""
    queries, keys, rows = _pages(sizes.queries), _pages(sizes.keys), _ATTENTION_ROWS
    while rows > 1 and sizes.others * -(-queries // rows) < grid.rows * grid.columns:
        rows //= 2
    return _extent(sizes.queries, even_pages(queries, rows)), _extent(sizes.keys, even_pages(keys, _ATTENTION_KEYS))


class Split(msgspec.Struct, frozen=True):
    """How points of a kernel and parts of their loops are dealt to cores: rows and columns of points, each of them rows
    and columns of cores that share its loop."""

    points: tuple[int, int]
    parts: tuple[int, int]


def shared_loop(points: int, trips: int, loaded_pages: int, result_pages: int, grid: CoreGrid) -> Split | None:
    """The cores that share each point's loop, where that is predicted to take less time than one for each point. The
    pages of a trip are loaded to each core, and from the same banks to all, or reduced, which the vector unit does for
    numbers of 32 bits; what cores have found is sent to one of them, and combined there."""
    page = 4 * TILE * TILE
    rate = grid.transfer(DRAM_READ).rate_of(page) / grid.clock_hertz
    most_of_all = grid.dram_bytes_per_second / grid.clock_hertz
    reduced = grid.unpack_cycles(page) + 2 * grid.vector_tile_cycles("alu")
    found: list[tuple[float, int, Split]] = []
    for down in range(1, min(points, grid.rows) + 1):
        across = points // down
        if points % down or across > grid.columns:
            continue
        for rows in range(1, grid.rows // down + 1):
            for columns in range(1, grid.columns // across + 1):
                parts = rows * columns
                each = -(-trips // parts)
                if parts > 1 and ((parts - 1) * each >= trips or parts * result_pages > _PARTIAL_PAGES):
                    continue
                trip = loaded_pages * max(page / rate, page * points * parts / most_of_all, reduced)
                combined = result_pages * (page / grid.network_bytes_per_cycle + 2 * grid.unpack_cycles(page))
                together = parts * combined + 4 * grid.latency_cycles(CORE_WRITE) if parts > 1 else 0.0
                found.append((each * trip + together, parts, Split((down, across), (rows, columns))))
    if not found:
        return None
    best = min(found, key=lambda each: each[:2])[2]
    return best if prod(best.parts) > 1 else None

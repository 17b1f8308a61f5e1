"""A grid of cores: device tiles with faces, pages over DRAM banks, and shards in the memories of cores.

Axes: `mem` counts elements in one core's or bank's memory, or in a page, `page` the pages of a tile, `dram.bank` the
banks, `core.y` and `core.x` the virtual cores; `core` is a line of virtual cores that `fold_cores` lays over a grid.
Source: tt-metal's tile and tensor layout documentation (Tile, ShardSpec, NdShardSpec, interleaved buffers) and D2M's
virtual grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.pieces import one_of
from tilewright.layout.composition import compose
from tilewright.layout.construct import column_major, row_major
from tilewright.layout.dims import ceil_divide, is_integer
from tilewright.layout.iters import Digits, Iter
from tilewright.layout.layout import Layout
from tilewright.layout.operations import product

TILE_SHAPES = tuple((rows, columns) for columns in (32, 16) for rows in (32, 16, 8, 4, 2, 1))
"""The tiles that the hardware knows: whole or tiny."""

_FACE, _TILE_SIDE = 16, 32


def tile_faces(
    tile_shape: tuple[int, int] = (32, 32), *, transposed_faces: bool = False, transposed_within: bool = False
) -> Layout:
    """One device tile: shape 32 x 32, or tiny (1, 2, 4, 8, 16 or 32 rows by 16 or 32 columns), any element type.

    Faces of 16 x 16 (or all rows x 16, where the tile is lower) follow one another row-major, each row-major inside;
    transposed, column-major. Axis mem.

    Raises:
        LayoutError: there is no such tile.
    """
    one_of(tuple(tile_shape), TILE_SHAPES, "the shape of a device tile")
    face = (min(tile_shape[0], _FACE), _FACE)
    counts = (tile_shape[0] // face[0], tile_shape[1] // face[1])
    inner = column_major(face) if transposed_within else row_major(face)
    return product(column_major(counts) if transposed_faces else row_major(counts), inner)


def tilized(
    shape: Sequence[int],
    tile_shape: tuple[int, int] = (32, 32),
    *,
    transposed_faces: bool = False,
    transposed_within: bool = False,
) -> Layout:
    """An array in device tiles, row-major tiles one after another: any shape of rank 2 or more, any element type.

    The last two dims are padded to whole tiles. Axis mem.

    Raises:
        LayoutError: there is no such tile, or the rank is below 2.
    """
    tile = tile_faces(tile_shape, transposed_faces=transposed_faces, transposed_within=transposed_within)
    return _paged(shape, tile, "mem")


def paged_tile(shape: Sequence[int], rows: int | None, columns: int | None, *, column_major: bool = False) -> Layout:
    """A tile in device tiles, one a page, as a queue of a core holds it: any shape, any element type.

    Dim `rows` runs along the rows of pages, dim `columns` along their columns, each padded to whole pages; where it is
    None, the tile is in the first row, or column, of its pages. The other dims count pages, row-major, before the rows
    of pages do, and those before the columns, or with `column_major` after them. Axes page, mem.
    """
    faces = _whole_tile().shard
    along = {dim: digits for dim, digits in zip((rows, columns), faces, strict=True) if dim is not None}
    outer = [dim for dim in range(len(shape)) if dim not in along]
    inner = [dim for dim in ((columns, rows) if column_major else (rows, columns)) if dim is not None]
    shard: dict[int, Digits] = {}
    stride = 1
    for dim in reversed([*outer, *inner]):
        count = -(-shape[dim] // _TILE_SIDE) if dim in along else shape[dim]
        pages = (Iter(count, stride, "page"),) if count != 1 else ()
        shard[dim] = (*pages, *along.get(dim, ()))
        stride *= count
    return Layout(tuple(shape), tuple(shard[dim] for dim in range(len(shape))))


@cache
def _whole_tile() -> Layout:
    return tile_faces()


def deal_pages(
    pages: int, page_elements: int, holders: int, axis: str = "dram.bank", *, contiguous: bool = False
) -> Layout:
    """Pages of equal size dealt over banks or cores: shape (pages, page_elements).

    Page p is in slot p // holders of holder p % holders, or with `contiguous` each holder has a run of pages. Axes
    `axis` and mem.

    Raises:
        LayoutError: a number is not positive.
    """
    if not all(is_integer(count) and count > 0 for count in (pages, page_elements, holders)):
        raise LayoutError(
            f"{pages} pages of {page_elements} elements cannot be dealt over {holders}", help="use positive numbers"
        )
    slots = -(-pages // holders)
    slot, holder = Iter(slots, page_elements, "mem"), Iter(holders, 1, axis)
    order = (holder, slot) if contiguous else (slot, holder)
    dealt = tuple(digit for digit in order if digit.extent != 1)
    return Layout((pages, page_elements), (dealt, _digits(page_elements, "mem")))


def interleaved(shape: Sequence[int], banks: int, tile_shape: tuple[int, int] | None = (32, 32)) -> Layout:
    """An array interleaved over DRAM banks: pages are device tiles, or rows of the last dim when `tile_shape` is None.

    Page p, counted row-major, is in slot p // banks of bank p % banks. Axes dram.bank, mem.

    Raises:
        LayoutError: the pages of a row and the banks do not divide one another, so that the bank is no digit of a dim.
    """
    pages = _paged(shape, tile_faces(tile_shape) if tile_shape else row_major((1, shape[-1])), "page")
    count, elements = _size_on(pages, "page"), _size_on(pages, "mem")
    return _dealt(pages, deal_pages(count, elements, banks), "page")


def height_sharded(
    shape: Sequence[int],
    shard_rows: int,
    grid: tuple[int, int],
    tile_shape: tuple[int, int] | None = None,
    *,
    column_major_cores: bool = False,
) -> Layout:
    """Runs of `shard_rows` whole rows, one for each core: shape (H, W), the last shard may be uneven.

    Cores of `grid` = (rows, columns) are counted row-major, or column-major when asked. A shard is row-major, or in
    device tiles of `tile_shape`. Axes core.y, core.x, mem.

    Raises:
        LayoutError: there are more shards than cores, or a shard is not made of whole tiles.
    """
    _check_matrix(shape)
    line = _sharded(shape, (shard_rows, shape[1]), tile_shape, "core", "_")
    return fold_cores(line, grid, column_major_cores=column_major_cores)


def width_sharded(
    shape: Sequence[int],
    shard_columns: int,
    grid: tuple[int, int],
    tile_shape: tuple[int, int] | None = None,
    *,
    column_major_cores: bool = False,
) -> Layout:
    """Runs of `shard_columns` whole columns, one for each core: shape (H, W), the last shard may be uneven.

    Cores of `grid` = (rows, columns) are counted row-major, or column-major when asked. A shard is row-major, or in
    device tiles of `tile_shape`. Axes core.y, core.x, mem.

    Raises:
        LayoutError: there are more shards than cores, or a shard is not made of whole tiles.
    """
    _check_matrix(shape)
    line = _sharded(shape, (shape[0], shard_columns), tile_shape, "_", "core")
    return fold_cores(line, grid, column_major_cores=column_major_cores)


def block_sharded(
    shape: Sequence[int],
    shard_shape: tuple[int, int],
    grid: tuple[int, int],
    tile_shape: tuple[int, int] | None = None,
    *,
    transposed: bool = False,
) -> Layout:
    """Blocks of `shard_shape`, one for each core: shape (H, W), the last shards may be uneven.

    Blocks below one another are on `core.y`, blocks side by side on `core.x`; `transposed` (column-major orientation)
    swaps the two. A shard is row-major, or in device tiles of `tile_shape`. Axes core.y, core.x, mem.

    Raises:
        LayoutError: there are more shards along a dim than cores, or a shard is not made of whole tiles.
    """
    _check_matrix(shape)
    axes = ("core.x", "core.y") if transposed else ("core.y", "core.x")
    layout = _sharded(shape, shard_shape, tile_shape, *axes)
    for axis, cores in zip(("core.y", "core.x"), grid, strict=True):
        _check_cores(_size_on(layout, axis), cores, f" along `{axis}`")
    return layout


def nd_sharded(
    shape: Sequence[int],
    shard_shape: Sequence[int],
    cores: int,
    tile_shape: tuple[int, int] | None = None,
    *,
    contiguous: bool = False,
) -> Layout:
    """Blocks of `shard_shape` of any rank, counted row-major and dealt over a line of cores; a core may hold several.

    Shard s is in slot s // cores of core s % cores, or with `contiguous` each core has a run of shards. The last shards
    along a dim may be uneven. A shard is row-major, or in device tiles of `tile_shape`. Axes core, mem: see
    `fold_cores`.

    Raises:
        LayoutError: a shard is not made of whole tiles, or the shards of one dim and the cores do not divide one
            another, so that the core is no digit of a dim.
    """
    shards = _paged(shape, _shard(shard_shape, tile_shape), "shard")
    count, elements = _size_on(shards, "shard"), _size_on(shards, "mem")
    return _dealt(shards, deal_pages(count, elements, cores, "core", contiguous=contiguous), "shard")


def fold_cores(layout: Layout, grid: tuple[int, int], *, column_major_cores: bool = False) -> Layout:
    """A layout on a line of virtual cores, `core`, folded over `grid` = (rows, columns), core c at divmod(c, columns).

    With `column_major_cores` core c is in row c % rows of column c // rows. This is how a 1-D grid of 64 covers 8 x 8.
    Axes core.y, core.x and those of the layout. D2M's virtual grids.

    Raises:
        LayoutError: the layout reaches beyond the grid, or its digits on `core` do not fall on whole rows.
    """
    rows, columns = grid
    _check_cores(_size_on(layout, "core"), rows * columns, "")
    line = [Iter(rows, 1, "core.y"), Iter(columns, 1, "core.x")]
    digits = tuple(digit for digit in (reversed(line) if column_major_cores else line) if digit.extent != 1)
    return compose(Layout((rows * columns,), (digits,)), layout, ["core"]) if "core" in layout.axes else layout


def _paged(shape: Sequence[int], tile: Layout, axis: str) -> Layout:
    """Tiles of the last dims, padded to whole ones and counted row-major on `axis`."""
    tile = _with_rank(tile, len(shape))
    counts = [ceil_divide(size, step) for size, step in zip(shape, tile.static_shape, strict=True)]
    return replace(product(row_major(counts, axis), tile), shape=tuple(shape))


def _with_rank(tile: Layout, rank: int) -> Layout:
    if rank < tile.rank:
        raise LayoutError(
            f"tiles of {tile.rank} dims do not fit an array of {rank}", help="reshape the array to two dims or more"
        )
    missing = rank - tile.rank
    return replace(tile, shape=(*(1,) * missing, *tile.shape), shard=(*((),) * missing, *tile.shard))


def _dealt(pages: Layout, dealt: Layout, axis: str) -> Layout:
    try:
        return compose(dealt, pages, [axis, "mem"])
    except LayoutError as error:
        raise LayoutError(
            f"the holder of a page is no digit of a dim here: {error.message}",
            help="use `deal_pages` on the flat page index, or counts that divide one another",
        ) from None


def _sharded(
    shape: Sequence[int], shard_shape: Sequence[int], tile_shape: tuple[int, int] | None, *axes: str
) -> Layout:
    shard = _shard(shard_shape, tile_shape)
    counts = [-(-size // step) for size, step in zip(shape, shard_shape, strict=True)]
    spread = tuple(_digits(count, axis) for count, axis in zip(counts, axes, strict=True))
    return replace(product(Layout(tuple(counts), spread), shard), shape=tuple(shape))


def _shard(shard_shape: Sequence[int], tile_shape: tuple[int, int] | None) -> Layout:
    if not all(is_integer(size) and size > 0 for size in shard_shape):
        raise LayoutError(f"{tuple(shard_shape)} is not the shape of a shard", help="use positive sizes")
    if tile_shape is None:
        return row_major(shard_shape)
    layout = tilized(shard_shape, tile_shape)
    if layout.padded_shape != layout.shape:
        raise LayoutError(
            f"a shard of {tuple(shard_shape)} is not made of whole tiles of {tile_shape}",
            help=f"use a multiple of {tile_shape[0]} by a multiple of {tile_shape[1]}",
        )
    return layout


def _digits(extent: int, axis: str) -> Digits:
    return (Iter(extent, 1, axis),) if extent != 1 else ()


def _size_on(layout: Layout, axis: str) -> int:
    """How many positions on `axis` the logical part of a static layout without gaps covers."""
    steps = [part.extent for part in layout.iters if part.axis == axis and isinstance(part.extent, int)]
    return prod(steps)


def _check_matrix(shape: Sequence[int]) -> None:
    if len(shape) != 2:
        raise LayoutError(
            f"an array of {len(shape)} dims is not sharded by height, width or block",
            help="reshape it to (all leading dims, last dim), or use nd_sharded",
        )


def _check_cores(shards: int, cores: int, where: str) -> None:
    if shards > cores:
        raise LayoutError(
            f"{shards} shards{where} do not fit {cores} cores", help="use larger shards, a larger grid, or nd_sharded"
        )

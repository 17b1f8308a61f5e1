"""Limits of requested schedules on a grid of cores: tiles are of whole pages."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import schedules
from tilewright.cost.cores.tiles import even_pages, most_product_pages
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.kernels.contract_facts import depth_of, result_dims
from tilewright.passes.kernels.lower_attention_group import AttentionParts, query_dim
from tilewright.passes.kernels.lower_contract_group import contract_of
from tilewright.passes.kernels.lower_convolve_group import convolve_of, row_sizes
from tilewright.passes.kernels.lower_loop_group import group_space
from tilewright.passes.kernels.lower_ordered_group import axis_of, ordered_op
from tilewright.passes.kernels.schedule_limits import (
    check_extents,
    check_multiple,
    check_no_fallback,
    check_one_of,
    check_rows,
    check_single,
    refused,
)

# Pages of a line that a core goes through at a time.
CORE_PAGES = 32
# Queries of a tile of attention, and keys of a step, for which a core that fuses it has room.
_MOST_QUERIES, _MOST_KEYS = 4 * TILE, 8 * TILE


def check_core_schedule(group: array.FusedOp, schedule: schedules.Schedule, grid: CoreGrid) -> None:
    """Check a schedule of a kind that the group admits.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    match schedule:
        case schedules.Loop():
            _check_loop(group, schedule)
        case schedules.CoreMatmul():
            _check_matmul(group, schedule, grid)
        case schedules.Convolution():
            _check_convolution(group, schedule, grid)
        case schedules.Ordered():
            _check_ordered(group, schedule)
        case schedules.Reshape():
            (root,) = yielded(group.body.block)
            _check_pages(schedule.tile, array_type(root).shape, ())
        case _:
            raise refused(repr(schedule), "leave the schedule out")
    check_no_fallback(schedule)


def _check_pages(tile: tuple[int, ...], shape: Sequence[int], axes: Sequence[int]) -> None:
    """Check that a tile has whole pages along the last two dimensions, one element along other kept ones, and no more
    pages than a core goes through at a time."""
    check_extents(tile, shape)
    last = len(shape) - 1
    check_single(tile, sorted({*axes, *(dim for dim in (last - 1, last) if dim >= 0)}))
    pages = 1
    for dim, (extent, size) in enumerate(zip(tile, shape, strict=True)):
        if dim >= last - 1:
            check_multiple(f"tile[{dim}]", extent, size, TILE)
        pages *= -(-extent // TILE) if dim >= last - 1 else extent
    if pages > CORE_PAGES:
        raise refused(f"tile={tile} of {pages} pages", f"use at most {CORE_PAGES} pages of {TILE} x {TILE} elements")


def _check_loop(group: array.FusedOp, schedule: schedules.Loop) -> None:
    space, axes = group_space(group)
    _check_pages(schedule.tile, space, axes)


def _check_matmul(group: array.FusedOp, schedule: schedules.CoreMatmul, grid: CoreGrid) -> None:
    op = contract_of(group)
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    _, rows, columns = result_dims(op)
    sizes = [result.shape[dims[-1]] if dims else 1 for dims in (rows, columns)]
    page_bytes = TILE * TILE * max(left.dtype.itemsize, right.dtype.itemsize)
    _check_product(schedule.tile, (*sizes, depth_of(op)), page_bytes, not result.dtype.is_float, grid)


def _check_convolution(group: array.FusedOp, schedule: schedules.Convolution, grid: CoreGrid) -> None:
    op = convolve_of(group)
    kernel = array_type(op.operands[1])
    check_rows(op, schedule)
    page_bytes = TILE * TILE * kernel.dtype.itemsize
    _check_product(schedule.tile, row_sizes(op), page_bytes, not kernel.dtype.is_float, grid, divides=True)


def _check_product(
    tile: tuple[int, int, int],
    sizes: Sequence[int],
    page_bytes: int,
    is_exact: bool,
    grid: CoreGrid,
    divides: bool = False,
) -> None:
    """Check a tile of a matmul; with `divides`, its rows divide a group of channels and need not be whole pages."""
    check_extents(tile, sizes)
    for name, extent, size in zip(("rows", "columns", "depth"), tile, sizes, strict=True):
        if name != "rows" or not divides:
            check_multiple(f"tile {name}", extent, size, TILE)
    height, width, step = (-(-extent // TILE) for extent in tile)
    most = most_product_pages(height, width, page_bytes, is_exact, grid)
    if not most:
        raise refused(f"tile={tile}", "use fewer rows or columns: L1 has no room for the sums and operands")
    if step > most:
        raise refused(f"tile={tile}", f"use a depth of at most {most * TILE}: L1 has no room for longer steps")
    deep = -(-sizes[2] // TILE)
    even = list(dict.fromkeys(even_pages(deep, n) for n in range(1, most + 1)))
    check_one_of("depth in pages", step, even)


def check_core_attention(parts: AttentionParts, schedule: schedules.Attention) -> None:
    """Check the schedule of attention.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    shape = array_type(parts.scores).shape
    sizes = (shape[query_dim(parts)], shape[-1])
    check_extents((schedule.rows, schedule.keys), sizes)
    most = (_MOST_QUERIES, _MOST_KEYS)
    for name, extent, size, room in zip(("rows", "keys"), (schedule.rows, schedule.keys), sizes, most, strict=True):
        check_multiple(name, extent, size, TILE)
        if extent > room:
            raise refused(f"{name}={extent}", f"use at most {room}")
    check_one_of("warpgroups", schedule.warpgroups, (0,))
    check_no_fallback(schedule)


def _check_ordered(group: array.FusedOp, schedule: schedules.Ordered) -> None:
    op = ordered_op(group)
    shape, axis, tile = array_type(op.operands[0]).shape, axis_of(op), schedule.tile
    check_extents(tile, shape)
    last = len(shape) - 1
    beside = last if axis != last else last - 1
    check_single(tile, (axis, *([beside] if beside >= 0 else [])))
    if beside >= 0 and tile[beside] > TILE:
        raise refused(f"tile={tile}", f"use at most {TILE} lines next to each other")
    if beside >= 0:
        check_multiple(f"tile[{beside}]", tile[beside], shape[beside], TILE)
    is_whole = tile[axis] == max(1, shape[axis])
    if not is_whole and (isinstance(op, array.SortOp | array.TopKOp) or tile[axis] % TILE):
        raise refused(
            f"tile={tile}", f"use all {shape[axis]} elements along dimension {axis}, or whole pages of a scan"
        )
    if not is_whole and tile[axis] > CORE_PAGES * TILE:
        raise refused(f"tile={tile}", f"use at most {CORE_PAGES * TILE} elements along dimension {axis}")

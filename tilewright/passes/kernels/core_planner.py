"""Plans of kernels for a grid of cores: tiles of whole pages, for each core about as many."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright import ops, schedules
from tilewright.cost.cores.tiles import (
    Attention,
    attention_tile,
    even_pages,
    loop_extents,
    product_tile,
    reduction_extents,
)
from tilewright.cost.tiles import MatmulTile
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.contract_facts import accumulator_of, depth_of, depth_sizes_of, result_dims
from tilewright.passes.kernels.core_limits import CORE_PAGES, check_core_attention, check_core_schedule
from tilewright.passes.kernels.lower_attention_group import (
    AttentionParts,
    AttentionPlan,
    attention_plan,
    query_dim,
    rounded_type,
)
from tilewright.passes.kernels.lower_contract_group import ContractPlan, contract_of
from tilewright.passes.kernels.lower_convolve_group import convolve_of, plan_rows, row_sizes, rows_of_group
from tilewright.passes.kernels.lower_loop_group import group_space
from tilewright.passes.kernels.lower_ordered_group import Ordered, axis_of
from tilewright.passes.kernels.lower_reshape_group import reshape_schedule


@dataclass(frozen=True)
class CorePlanner:
    """The `KernelPlanner` of grids of cores."""

    grid: CoreGrid
    matmuls: tuple[type[schedules.Schedule], ...] = (schedules.CoreMatmul,)
    tile_kernels: tuple[type[schedules.Schedule], ...] = ()
    most_operations: int = 64
    most_of_window: int = 32
    shuffles_lanes: bool = False
    sums_in_blocks: bool = False  # cores share the one loop of a long sum, and add partial sums in their own order
    scans_in_turns: bool = True
    scatter_shares: int = 1

    @property
    def most_windows(self) -> int:
        """Three of four of a core's queues, as intermediate tiles take some too."""
        return self.grid.queues * 3 // 4

    def check(self, group: array.FusedOp, schedule: schedules.Schedule) -> None:
        check_core_schedule(group, schedule, self.grid)

    def check_tile_kernel(self, kernel: tile.KernelOp, schedule: schedules.TileKernel) -> None:
        raise CompilerBug("nothing is decided of kernels that the user wrote")

    def check_attention(self, parts: AttentionParts, schedule: schedules.Attention) -> None:
        check_core_attention(parts, schedule)

    def loop(self, group: array.FusedOp, level: int = 0) -> schedules.Loop:
        space, axes = group_space(group)
        if not axes:
            return schedules.Loop(tile=loop_extents(space, self.grid))
        again = any(array_type(value).shape == space for value in yielded(group.body.block))
        return schedules.Loop(tile=tuple(reduction_extents(space, axes, again, self.grid)))

    def contract(self, group: array.FusedOp, level: int = 0) -> schedules.CoreMatmul:
        op = contract_of(group)
        left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
        cycles_after = _cycles_after(group, op, self.grid)
        _, rows, columns = result_dims(op)
        ends = [result.shape[dims[-1]] if dims else 1 for dims in (rows, columns)]
        batches = math.prod(result.shape) // max(1, ends[0] * ends[1])
        page_bytes = TILE * TILE * max(left.dtype.itemsize, right.dtype.itemsize)
        is_exact = not result.dtype.is_float
        tile = product_tile(
            ends[0], ends[1], depth_of(op), max(1, batches), page_bytes, self.grid, is_exact, cycles_after
        )
        return schedules.CoreMatmul(tile=(tile.rows, tile.columns, max(1, min(tile.depth, depth_of(op)))))

    def contract_plan(self, group: array.FusedOp, schedule: schedules.Matmul) -> ContractPlan:
        op, (tile_rows, tile_columns, depth) = contract_of(group), schedule.tile
        left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
        _, rows, columns = result_dims(op)
        extents = [1] * result.rank
        if rows:
            extents[rows[-1]] = tile_rows
        if columns:
            extents[columns[-1]] = tile_columns
        same = left.dtype == right.dtype and left.dtype.is_float
        operand = None if same else accumulator_of(result.dtype)
        return ContractPlan(result.shape, tuple(extents), depth_sizes_of(op), depth, operand, part=op.part)

    def convolve(self, group: array.FusedOp, level: int = 0) -> schedules.Convolution:
        op = convolve_of(group)
        result, kernel = array_type(op.results[0]), array_type(op.operands[1])
        batches = op.groups * math.prod((result.shape[0], *result.shape[2:-1]))
        page_bytes, is_exact = TILE * TILE * kernel.dtype.itemsize, not kernel.dtype.is_float
        found = product_tile(*row_sizes(op), batches, page_bytes, self.grid, is_exact)
        return rows_of_group(op, MatmulTile(found.rows, found.columns, found.depth))

    def convolve_plan(self, group: array.FusedOp, schedule: schedules.Convolution) -> ContractPlan:
        return plan_rows(convolve_of(group), MatmulTile(*schedule.tile))

    def fuses_attention(self, parts: AttentionParts) -> bool:
        """Cores need room for tiles of everything, and round weights as the array program does."""
        if not _attention_sizes(parts, array_type(parts.scores).rank - 2).fits(self.grid):
            return False
        operand = rounded_type(parts)
        return parts.weights is None or (operand is not None and operand.is_narrow_float)

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        return fallback, True

    def attention(self, parts: AttentionParts, fallback: Fallback) -> schedules.Attention:
        rows, keys = attention_tile(_attention_sizes(parts, query_dim(parts)), self.grid)
        return schedules.Attention(rows=rows, keys=keys)

    def attention_plan(self, parts: AttentionParts, schedule: schedules.Attention) -> AttentionPlan:
        return attention_plan(parts, schedule)

    def ordered(self, op: Ordered, level: int = 0) -> schedules.Ordered:
        """Lines of one page side by side: whole ones where they are put in order, else in parts of as many pages as a
        tile has."""
        shape, axis = array_type(op.operands[0]).shape, axis_of(op)
        last = len(shape) - 1
        extents = [1] * len(shape)
        beside = last if axis != last else last - 1
        if beside >= 0:
            extents[beside] = min(shape[beside], TILE)
        is_whole = isinstance(op, array.SortOp | array.TopKOp) or shape[axis] <= TILE
        extents[axis] = shape[axis] if is_whole else even_pages(-(-shape[axis] // TILE), CORE_PAGES) * TILE
        return schedules.Ordered(tile=tuple(extents))

    def reshape(self, group: array.FusedOp) -> schedules.Reshape:
        return reshape_schedule(group, self.grid)


def _cycles_after(group: array.FusedOp, op: array.ContractOp, grid: CoreGrid) -> float:
    """Of the vector unit, for what follows one page of the matmul: functions of arrays of its shape."""
    shape = array_type(op.results[0]).shape
    maps = [each for each in group.body.walk() if isinstance(each, array.MapOp)]
    after = [each for each in maps if array_type(each.results[0]).shape == shape]
    return sum(grid.vector_tile_cycles(ops.FUNCTIONS[each.fn].cost) for each in after)


def _attention_sizes(parts: AttentionParts, row_dim: int) -> Attention:
    """The sizes that decide how an attention is computed on a grid of cores."""
    shape, operand = array_type(parts.scores).shape, array_type(parts.score_product.operands[0])
    others = math.prod(shape[:-1]) // max(1, shape[row_dim])
    values = array_type(parts.value_product.results[0]).shape[-1]
    page_bytes = TILE * TILE * operand.dtype.itemsize
    return Attention(shape[row_dim], shape[-1], operand.shape[-1], values, others, page_bytes)

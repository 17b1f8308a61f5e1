"""Lowering of `convolve` groups to tile kernels."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright import dtypes, schedules
from tilewright.cost.tiles import MatmulTile
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.passes.kernels.contract_facts import accumulator_of
from tilewright.passes.kernels.indexing import Axis, Linear, Tile
from tilewright.passes.kernels.lower_contract_group import (
    COLUMN,
    DEPTH,
    ROW,
    ContractPlan,
    depth_loop,
    depth_positions,
    squeeze,
    store_roots,
    tile_position,
)
from tilewright.passes.kernels.tile_builder import TileBuilder


def convolve_plan(op: array.ConvolveOp, rows: int, columns: int, depth: int, operand: DType | None) -> ContractPlan:
    """The plan of a convolution by tiles of some output channels and columns, and so many channels a step."""
    shape, kernel = array_type(op.results[0]).shape, array_type(op.operands[1]).shape
    extents = [1] * len(shape)
    extents[1], extents[-1] = rows, columns
    return ContractPlan(shape, tuple(extents), (*kernel[2:], kernel[1]), depth, operand)


def row_sizes(op: array.ConvolveOp) -> tuple[int, int, int]:
    """Rows, columns and depth of the matmul that computes a row of a convolution's result for one window position."""
    kernel = array_type(op.operands[1])
    per_group = kernel.shape[0] // op.groups
    return max(1, per_group), max(1, array_type(op.results[0]).shape[-1]), kernel.shape[1]


def rows_of_group(op: array.ConvolveOp, tile: MatmulTile) -> schedules.Convolution:
    """The schedule of a convolution row by row of its result, by about such a tile: no tile has channels of two
    groups."""
    per_group = array_type(op.operands[1]).shape[0] // op.groups
    rows = max(1, tile.rows)
    while per_group % rows:
        rows -= 1
    columns = max(1, min(tile.columns, array_type(op.results[0]).shape[-1]))
    return schedules.Convolution(tile=(rows, columns, max(1, tile.depth)))


def plan_rows(op: array.ConvolveOp, tile: MatmulTile) -> ContractPlan:
    """The plan of a convolution row by row of its result."""
    accumulator = accumulator_of(array_type(op.results[0]).dtype)
    return convolve_plan(op, tile.rows, tile.columns, tile.depth, accumulator)


def convolve_of(group: array.FusedOp) -> array.ConvolveOp:
    return next(op for op in group.body.block.ops if isinstance(op, array.ConvolveOp))


def lower_convolve_group(
    group: array.FusedOp,
    plan: ContractPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """A matmul of weights (rows) with shifted windows of the image (columns), summed over window positions."""
    op = convolve_of(group)
    image, weights = op.operands
    image_type, kernel_type, result = array_type(image), array_type(weights), array_type(op.results[0])
    row, column = Axis(plan.extents[1], ROW, "o"), Axis(plan.extents[-1], COLUMN, "x")
    at: list[Linear] = []
    for d, counter in enumerate(indices):
        axis = row if d == 1 else column if d == result.rank - 1 else None
        at.append(tile_position(axis, counter, plan.extents[d], plan.shape[d]))
    depth = Axis(plan.depth_extent, DEPTH, "c")
    acc_type = accumulator_of(result.dtype)
    per_group, channels = kernel_type.shape[0] // op.groups, kernel_type.shape[1]
    group_start = _group_start(builder, at[1], indices[1], plan.extents[1], per_group, channels, op.groups)

    def step(counters: Sequence[SSAValue], total: Tile) -> Tile:
        *window, channel = depth_positions(plan, depth, counters)
        spatial: list[Linear] = []
        masks: list[Tile] = []
        for d, w in enumerate(window):
            position = at[d + 2] * op.strides[d] + w * op.dilation[d] + -op.low[d]
            spatial.append(position)
            masks.extend(_inside(builder, position, image_type.shape[d + 2], op.low[d], op.high[d]))
        left = builder.pull(weights, (at[1], channel, *window))
        right = builder.pull(image, (at[0], group_start + channel, *spatial))
        zero = builder.full(0, image_type.dtype)
        for mask in masks:
            right = builder.map("select", mask, right, zero)
        if plan.operand is not None:
            left, right = builder.cast(left, plan.operand), builder.cast(right, plan.operand)
        if channels % plan.depth_extent:
            left = builder.fill_padding(left, channel, channels, 0)
            right = builder.fill_padding(right, channel, channels, 0)
        return builder.dot(left, right, total, (row, column, depth), plan.atom)

    total = builder.full(0, acc_type, (row, column))
    if 0 not in plan.depth_sizes:
        total = depth_loop(plan, builder, total, step)
    product = builder.cast(squeeze(builder, total, at), result.dtype)
    builder.define(op.results[0], tuple(at), product)
    store_roots(group, op.results[0], builder, tuple(at), outputs)


def _inside(builder: TileBuilder, position: Linear, size: int, low: int, high: int) -> list[Tile]:
    conditions: list[Tile] = []
    if low:
        conditions.append(builder.map("greater_equal", builder.position(position), builder.full(0, dtypes.i64)))
    if high:
        conditions.append(builder.map("less", builder.position(position), builder.full(size, dtypes.i64)))
    return conditions


def _group_start(
    builder: TileBuilder, at: Linear, counter: SSAValue, extent: int, per_group: int, channels: int, groups: int
) -> Linear:
    """First input channel of the group that this row block belongs to (blocks never straddle groups)."""
    if groups == 1:
        return Linear()
    first = builder.position(Linear.of(counter, extent) if extent < per_group * groups else Linear())
    index = builder.map("floor_divide", first, builder.full(per_group, dtypes.i64))
    return Linear.of(builder.map("multiply", index, builder.full(channels, dtypes.i64)))

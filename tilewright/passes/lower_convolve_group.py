"""Lowering of `convolve` groups to tile kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.cost.core_tiles import product_tile
from tilewright.cost.products import MatmulTile, Product, best_schedule
from tilewright.cost.warp_products import WarpProduct, warp_schedule
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.machine import Machine
from tilewright.passes.contract_facts import accumulator_of, multiplied_type
from tilewright.passes.indexing import Axis, Linear, Tile
from tilewright.passes.lower_contract_group import (
    COLUMN,
    DEPTH,
    ROW,
    ContractPlan,
    depth_loop,
    depth_positions,
    has_more,
    squeeze,
    store_roots,
    tile_position,
)
from tilewright.passes.tile_builder import TileBuilder


def plan_convolve(group: array.FusedOp, machine: Machine, threads: int) -> ContractPlan:
    """Tiles of (N, O, *spatial): output channels are rows, the last spatial dimension columns."""
    op = convolve_of(group)
    result, kernel = array_type(op.results[0]), array_type(op.operands[1])
    per_group = kernel.shape[0] // op.attributes_of()["groups"]
    plan = _plan_convolve_for_warps(group, op, machine)
    if plan is not None:
        return plan
    sizes = max(1, per_group), max(1, result.shape[-1]), kernel.shape[1]
    accumulator = accumulator_of(result.dtype)
    if machine.grid is not None:
        groups = op.attributes_of()["groups"]
        batches = groups * math.prod((result.shape[0], *result.shape[2:-1]))
        page_bytes, is_exact = TILE * TILE * kernel.dtype.itemsize, not kernel.dtype.is_float
        found = product_tile(*sizes, batches, page_bytes, machine.grid, is_exact)
        tile = MatmulTile(found.rows, found.columns, found.depth)
    elif machine.has_warps:
        tile = warp_schedule(WarpProduct(*sizes, accumulator, accumulator, result.shape[0]), machine).tile
    else:
        tile = best_schedule(Product(*sizes, accumulator, copies_left=True), machine, 1).tile
    rows = max(1, tile.rows)
    while per_group % rows:
        rows -= 1
    columns = max(1, min(tile.columns, result.shape[-1]))
    return _convolve_plan(op, rows, columns, max(1, tile.depth), accumulator)


def _plan_convolve_for_warps(group: array.FusedOp, op: array.ConvolveOp, machine: Machine) -> ContractPlan | None:
    """Tiles of whole instructions, where one multiplies the operands: what reaches beyond the result is masked, but
    none may have rows of two groups of channels."""
    if not is_multiplied_by_warps(op, machine):
        return None
    product = replace(row_product(op, machine), is_followed=has_more(group, op))
    schedule = warp_schedule(product, machine)
    tile = schedule.tile
    if schedule.across is None or (op.attributes_of()["groups"] > 1 and product.rows % tile.rows):
        return None
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    multiplied = multiplied_type(image.dtype, kernel.dtype, accumulator_of(result.dtype), machine)
    # Of one channel or column a tile has one: it is no axis of the result, and padded for the instruction alone.
    rows, columns = (
        1 if size == 1 else extent for size, extent in ((result.shape[1], tile.rows), (result.shape[-1], tile.columns))
    )
    plan = _convolve_plan(op, rows, columns, tile.depth, multiplied)
    return replace(plan, atom=schedule.atom, warps=schedule.warps)


def row_product(op: array.ConvolveOp, machine: Machine) -> WarpProduct:
    """Facts for the cost model of warps of a convolution that runs row by row of its result, with the image in
    registers."""
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    groups = op.attributes_of()["groups"]
    accumulator = accumulator_of(result.dtype)
    multiplied = multiplied_type(image.dtype, kernel.dtype, accumulator, machine)
    return WarpProduct(
        kernel.shape[0] // groups,
        result.shape[-1],
        kernel.shape[1],
        multiplied or kernel.dtype,
        accumulator,
        groups * result.shape[0] * math.prod(result.shape[2:-1]),
        right=multiplied or image.dtype,
        scattered=(False, True),  # neighbours of the image are columns, and windows begin anywhere
        trips=math.prod(kernel.shape[2:]),
    )


def is_multiplied_by_warps(op: array.ConvolveOp, machine: Machine) -> bool:
    """Whether the instructions of warps multiply a convolution's operands, as they are or converted without a loss."""
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    if not machine.has_warps or 0 in (*result.shape, *kernel.shape):
        return False
    accumulator = accumulator_of(result.dtype)
    return multiplied_type(image.dtype, kernel.dtype, accumulator, machine) != accumulator


def _convolve_plan(op: array.ConvolveOp, rows: int, columns: int, depth: int, operand: DType | None) -> ContractPlan:
    shape, kernel = array_type(op.results[0]).shape, array_type(op.operands[1]).shape
    extents = [1] * len(shape)
    extents[1], extents[-1] = rows, columns
    return ContractPlan(shape, tuple(extents), (*kernel[2:], kernel[1]), depth, operand)


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
    a = op.attributes_of()
    image, weights = op.operands
    image_type, kernel_type, result = array_type(image), array_type(weights), array_type(op.results[0])
    row, column = Axis(plan.extents[1], ROW, "o"), Axis(plan.extents[-1], COLUMN, "x")
    at: list[Linear] = []
    for d, counter in enumerate(indices):
        axis = row if d == 1 else column if d == result.rank - 1 else None
        at.append(tile_position(axis, counter, plan.extents[d], plan.shape[d]))
    depth = Axis(plan.depth_extent, DEPTH, "c")
    acc_type = accumulator_of(result.dtype)
    per_group, channels = kernel_type.shape[0] // a["groups"], kernel_type.shape[1]
    group_start = _group_start(builder, at[1], indices[1], plan.extents[1], per_group, channels, a["groups"])

    def step(counters: Sequence[SSAValue], total: Tile) -> Tile:
        *window, channel = depth_positions(plan, depth, counters)
        spatial: list[Linear] = []
        masks: list[Tile] = []
        for d, w in enumerate(window):
            position = at[d + 2] * a["strides"][d] + w * a["dilation"][d] + -a["low"][d]
            spatial.append(position)
            masks.extend(_inside(builder, position, image_type.shape[d + 2], a["low"][d], a["high"][d]))
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

"""Plans of kernels for warps: tiles of whole matrix instructions, or as large as the registers of a thread block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xdsl.ir import BlockArgument

from tilewright.cost.tiles import even_split, loop_tile, reread_tile
from tilewright.cost.warps.loops import warp_reduction_tile, warp_transpose_tile
from tilewright.cost.warps.products import WARPGROUP, WarpProduct, warp_schedule
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.passes.array.attention_masks import causal_masks
from tilewright.passes.fallbacks import Fallback, halved, with_less_room
from tilewright.passes.kernels.attention_warpgroups import chain_of
from tilewright.passes.kernels.contract_facts import accumulator_of, array_behind, depth_sizes_of, result_dims
from tilewright.passes.kernels.lower_attention_group import (
    LEAST_KEYS,
    LEAST_ROWS,
    AttentionParts,
    AttentionPlan,
    key_steps,
    plan_in_blocks,
    query_dim,
    rounded_type,
    shared_heads,
)
from tilewright.passes.kernels.lower_contract_group import ContractPlan, contract_of, has_more
from tilewright.passes.kernels.lower_convolve_group import convolve_of, convolve_plan, plan_rows, row_sizes
from tilewright.passes.kernels.lower_loop_group import (
    ROW_ELEMENTS,
    LoopPlan,
    group_space,
    has_transpose,
    reduced_space,
    reduction_plan,
)
from tilewright.passes.kernels.lower_ordered_group import PART_COLUMNS, Ordered, OrderedPlan, axis_of
from tilewright.passes.kernels.lower_reshape_group import ReshapePlan
from tilewright.passes.kernels.tile_builder import held_window
from tilewright.passes.kernels.warp_products import (
    is_multiplied_by_warps,
    multiplied_as,
    multiplied_type,
    piece_bytes,
    row_product,
    warp_product,
)
from tilewright.passes.layouts.layout_rules import location_of

LEAST_ELEMENTS = 32
# Elements that the threads of a block hold in registers at a time.
BLOCK_ELEMENTS = 4096
# A line that is scanned is within one warp: 32 words a lane.
WARP_LINE_BYTES = 4096
# Of attention that warps hold in registers: scores, weights and results of 16 rows a warp.
REGISTER_ROWS, REGISTER_KEYS = 64, 64
# How often the tiles of attention are halved until they are the smallest, without and with operands that are rounded:
# with fewer rows keys and values are read so often that storing the scores costs less.
MOST_HALVINGS, MOST_HALVINGS_ROUNDED = 3, 1


@dataclass(frozen=True)
class WarpPlanner:
    """The `KernelPlanner` of GPUs."""

    machine: Machine
    threads: int
    most_windows: None = None
    most_of_window: int = 256
    sums_in_blocks: bool = True
    scans_in_turns: bool = True

    def loop(self, group: array.FusedOp, level: int = 0) -> LoopPlan:
        plan = self._loop(group)
        smaller = halved(plan.extents | ({} if plan.in_parts else plan.reduced), level)
        reduced = {d: smaller.get(d, extent) for d, extent in plan.reduced.items()}
        return replace(plan, extents={d: smaller[d] for d in plan.extents}, reduced=reduced)

    def _loop(self, group: array.FusedOp) -> LoopPlan:
        space, axes = group_space(group)
        if axes:
            reduced = reduced_space(group)
            if reduced.is_read_again:
                return reduction_plan(reduced, reread_tile(reduced.shape, reduced.axes))
            return reduction_plan(reduced, warp_reduction_tile(reduced.shape, reduced.axes, self.machine.cores))
        if has_transpose(group, space):
            extents = warp_transpose_tile(space)
        else:
            extents = loop_tile(space, max(LEAST_ELEMENTS, ROW_ELEMENTS // self._window_elements(group)))
        return LoopPlan(space, dict(enumerate(extents)), {})

    def _window_elements(self, group: array.FusedOp) -> int:
        """How many registers the elements of the largest window take for each result: warps hold that many at once."""
        reductions = (op for op in group.body.block.ops if isinstance(op, array.WindowReduceOp))
        windows = [held_window(op.window, self.most_of_window) for op in reductions]
        return max((math.prod(1 << (n - 1).bit_length() for n in window) for window in windows), default=1)

    def contract(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        """Tiles of whole instructions: what reaches beyond the result is masked."""
        op, machine = contract_of(group), with_less_room(self.machine, level)
        depth_sizes = depth_sizes_of(op)
        result = array_type(op.results[0])
        _, rows, columns = result_dims(op)
        pieces = [_piece_bytes(op, n) for n in range(2)]
        product = replace(warp_product(op, pieces, machine), is_followed=has_more(group, op))
        schedule = warp_schedule(product, machine)
        tile = schedule.tile
        extents = [1] * result.rank
        if product.rows > 1:
            extents[rows[-1]] = tile.rows
        if product.columns > 1:
            extents[columns[-1]] = tile.columns
        step = tile.depth if depth_sizes else 1
        return ContractPlan(
            result.shape,
            tuple(extents),
            depth_sizes,
            step,
            multiplied_as(op, machine),
            schedule.atom,
            None if schedule.across is None else schedule.warps,
            schedule.stages if schedule.stages > 1 else None,
            part=op.part,
        )

    def convolve(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        op, machine = convolve_of(group), with_less_room(self.machine, level)
        plan = _convolve_by_instructions(group, op, machine)
        if plan is not None:
            return plan
        accumulator, batch = accumulator_of(array_type(op.results[0]).dtype), array_type(op.results[0]).shape[0]
        return plan_rows(op, warp_schedule(WarpProduct(*row_sizes(op), accumulator, accumulator, batch), machine).tile)

    def fuses_attention(self, parts: AttentionParts) -> bool:
        """Weights that the array program rounds are multiplied so within the tile as well."""
        return parts.weights is None or self._rounded_operands(parts) is not None

    def _rounded_operands(self, parts: AttentionParts) -> DType | None:
        """The operand type of both matmuls, if MMA instructions take it and the weights are rounded to it; else
        None."""
        operand = rounded_type(parts)
        if operand is None:
            return None
        atom = self.machine.warp_atom_of(operand, operand, array_type(parts.scores).dtype.compute)
        return None if atom is None else operand

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        """Tiles fit where a thread has registers for its results and queries; shared memory overflows later, which is
        what the fallback is of."""
        operand = self._rounded_operands(parts)
        most = MOST_HALVINGS if operand is None else MOST_HALVINGS_ROUNDED
        level, reason, registers = fallback.level, fallback.reason, self.machine.axes["reg"]
        while level <= most and (needed := _registers_of(parts, operand, level, self.machine)) > registers:
            machine = self.machine.name
            reason = (
                reason or f"needs {needed} registers of a thread for results and queries, {machine} has {registers}"
            )
            level += 1
        return Fallback(level, reason), level <= most

    def attention(self, parts: AttentionParts, fallback: Fallback) -> AttentionPlan:
        operand, level = self._rounded_operands(parts), fallback.level
        if operand is None:
            return plan_in_blocks(parts, self.threads, level)
        shape, row_dim = array_type(parts.scores).shape, query_dim(parts)
        rows, keys = max(REGISTER_ROWS >> level, LEAST_ROWS), max(REGISTER_KEYS >> level, LEAST_KEYS)
        whole = shape[row_dim] > 1  # warps multiply whole tiles
        row_extent = rows if whole else even_split(shape[row_dim], rows)
        steps, heads = key_steps(shape[-1], keys), shared_heads(parts)
        plan = AttentionPlan(shape, row_dim, row_extent, steps, heads, operand, in_base_2=True)
        return _by_warpgroups(parts, plan, operand, self.machine) if whole and not level else plan

    def ordered(self, op: Ordered, level: int = 0) -> OrderedPlan:
        if isinstance(op, array.SortOp | array.TopKOp):
            message = f"`{op.name}` is not compiled for warps yet"
            raise UnsupportedOnTargetError(message, help="use the cpu target", location=location_of(op))
        shape, axis = array_type(op.operands[0]).shape, axis_of(op)
        if isinstance(op, array.ScanOp):
            room = WARP_LINE_BYTES // array_type(op.operands[0]).dtype.compute.itemsize
            plan = _plan_in_registers(shape, axis, max(1, room >> level), bool(op.reverse))
        else:
            plan = _plan_in_registers(shape, axis, max(1, BLOCK_ELEMENTS >> level))
        return replace(plan, extents=halved(plan.extents, level))

    def reshape(self, group: array.FusedOp) -> ReshapePlan:
        raise CompilerBug("a reshape is copied on a grid of cores only")


def _piece_bytes(op: array.ContractOp, operand: int) -> int:
    """Bytes of the pieces in which a matmul's operand can be copied, if the operand is an array of the group; else
    0."""
    return piece_bytes(op, operand) if isinstance(array_behind(op.operands[operand]), BlockArgument) else 0


def _convolve_by_instructions(group: array.FusedOp, op: array.ConvolveOp, machine: Machine) -> ContractPlan | None:
    """Tiles of whole instructions, where one multiplies the operands: what reaches beyond the result is masked, but
    none may have rows of two groups of channels."""
    if not is_multiplied_by_warps(op, machine):
        return None
    product = replace(row_product(op, machine), is_followed=has_more(group, op))
    schedule = warp_schedule(product, machine)
    tile = schedule.tile
    if schedule.across is None or (op.groups > 1 and product.rows % tile.rows):
        return None
    image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
    multiplied = multiplied_type(image.dtype, kernel.dtype, accumulator_of(result.dtype), machine)
    # Of one channel or column a tile has one: it is no axis of the result, and padded for the instruction alone.
    rows, columns = (
        1 if size == 1 else extent for size, extent in ((result.shape[1], tile.rows), (result.shape[-1], tile.columns))
    )
    plan = convolve_plan(op, rows, columns, tile.depth, multiplied)
    return replace(plan, atom=schedule.atom, warps=schedule.warps)


def _registers_of(parts: AttentionParts, operand: DType | None, level: int, machine: Machine) -> int:
    """Registers of a thread for what it holds during the whole loop: its part of the results, and of the queries, which
    the warps next to it hold as well. Queries that are not rounded are in shared memory, which overflows before."""
    if operand is None:
        return 0
    lanes, rows = machine.axes["lane"], max(REGISTER_ROWS >> level, LEAST_ROWS)
    columns = array_type(parts.value_product.results[0]).shape[-1]
    inner = array_type(parts.score_product.operands[0]).shape[-1]
    return rows * columns // (WARPGROUP * lanes) + LEAST_ROWS * inner * operand.itemsize // (4 * lanes)


def _by_warpgroups(parts: AttentionParts, plan: AttentionPlan, operand: DType, machine: Machine) -> AttentionPlan:
    """The plan for warpgroups, where they multiply the type and the machine copies the arrays for them."""
    products = (parts.score_product, parts.value_product)
    masks = [mask for mask in causal_masks(parts.scores) if mask.hides(plan.shape)]
    if any(mask.query_dim != plan.row_dim for mask in masks):
        return plan
    offset = min((mask.offset for mask in masks), default=None)
    chain = chain_of(products, operand, plan.shape, plan.row_dim, offset, machine)
    if chain is None:
        return plan
    return replace(plan, row_extent=chain.rows, key_extent=chain.keys, chain=chain)


def _plan_in_registers(shape: tuple[int, ...], axis: int, room: int, reverse: bool = False) -> OrderedPlan:
    """Lines side by side, or parts of long ones, as many as a block holds in registers. `room`: elements of a line of
    which there is one, and of as many lines as a part has where they run across memory."""
    last = len(shape) - 1
    extents = {d: 1 for d in range(len(shape)) if d != axis}
    if axis != last:
        extents[last] = even_split(shape[last], PART_COLUMNS)
    elif last:
        extents[last - 1] = even_split(shape[last - 1], max(1, BLOCK_ELEMENTS // max(1, shape[axis])))
    room = max(1, room // (extents[last] if axis != last else 1))
    return OrderedPlan(shape, axis, even_split(shape[axis], room), extents, reverse)

"""Plans of kernels for warps: tiles of whole matrix instructions, or as large as the registers of a thread block."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from tilewright import schedules
from tilewright.cost.tiles import MatmulTile, even_split, loop_tile, reread_tile
from tilewright.cost.warps.loops import warp_reduction_tile, warp_transpose_tile
from tilewright.cost.warps.products import WarpProduct, WarpSchedule, warp_schedule
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType, i32
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.passes.fallbacks import Fallback, halved, with_less_room
from tilewright.passes.kernels.contract_facts import accumulator_of, depth_sizes_of, result_dims
from tilewright.passes.kernels.lower_attention_group import (
    LEAST_KEYS,
    LEAST_ROWS,
    AttentionParts,
    AttentionPlan,
    attention_in_blocks,
    attention_plan,
    key_steps,
    query_dim,
)
from tilewright.passes.kernels.lower_contract_group import ContractPlan, contract_of
from tilewright.passes.kernels.lower_convolve_group import (
    convolve_of,
    convolve_plan,
    plan_rows,
    row_sizes,
    rows_of_group,
)
from tilewright.passes.kernels.lower_loop_group import (
    ROW_ELEMENTS,
    group_space,
    has_transpose,
    reduced_space,
)
from tilewright.passes.kernels.lower_ordered_group import PART_COLUMNS, Ordered, axis_of
from tilewright.passes.kernels.warp_attention import (
    REGISTER_KEYS,
    REGISTER_ROWS,
    chain_for,
    registers_of,
    rounded_operands,
)
from tilewright.passes.kernels.warp_epilogues import epilogue_of
from tilewright.passes.kernels.warp_limits import (
    BLOCK_ELEMENTS,
    WARP_LINE_BYTES,
    check_tile_kernel,
    check_warp_attention,
    check_warp_schedule,
    window_elements,
)
from tilewright.passes.kernels.warp_products import (
    contract_product,
    is_multiplied_by_warps,
    multiplied_as,
    multiplied_type,
    row_product,
)
from tilewright.passes.layouts.layout_rules import location_of

LEAST_ELEMENTS = 32
# How often the tiles of attention are halved until they are the smallest, without and with operands that are rounded:
# with fewer rows keys and values are read so often that storing the scores costs less.
MOST_HALVINGS, MOST_HALVINGS_ROUNDED = 3, 1


@dataclass(frozen=True)
class WarpPlanner:
    """The `KernelPlanner` of GPUs."""

    machine: Machine
    threads: int
    matmuls: tuple[type[schedules.Schedule], ...] = (schedules.WarpMatmul,)
    tile_kernels: tuple[type[schedules.Schedule], ...] = (schedules.TileKernel,)
    most_operations: int = 64
    most_windows: None = None
    most_of_window: int = 256
    shuffles_lanes: bool = False
    sums_in_blocks: bool = True
    scans_in_turns: bool = True
    scatter_shares: int = 1

    def check(self, group: array.FusedOp, schedule: schedules.Schedule) -> None:
        check_warp_schedule(group, schedule, self.machine)

    def check_tile_kernel(self, kernel: tile.KernelOp, schedule: schedules.TileKernel) -> None:
        check_tile_kernel(kernel, schedule, self.machine)

    def check_attention(self, parts: AttentionParts, schedule: schedules.Attention) -> None:
        check_warp_attention(parts, schedule, self.machine)

    def loop(self, group: array.FusedOp, level: int = 0) -> schedules.Loop:
        """Smaller tiles of each level; of a reduction in parts, the extents of a part stay."""
        tile = dict(enumerate(self._loop_tile(group)))
        _, axes = group_space(group)
        reduced = reduced_space(group) if axes else None
        kept = {d: extent for d, extent in tile.items() if reduced is None or d not in reduced.axes}
        # Kept dimensions come before reduced ones, and those from the last to the first.
        steps = {d: tile[d] for d in sorted(tile.keys() - kept.keys(), reverse=True)}
        smaller = halved(kept | ({} if reduced is not None and reduced.in_parts else steps), level)
        return schedules.Loop(tile=tuple(smaller.get(d, extent) for d, extent in tile.items()))

    def _loop_tile(self, group: array.FusedOp) -> tuple[int, ...]:
        space, axes = group_space(group)
        if axes:
            reduced = reduced_space(group)
            if reduced.is_read_again:
                return reread_tile(reduced.shape, reduced.axes)
            extents = warp_reduction_tile(reduced.shape, reduced.axes, self.machine.cores)
            return tuple(extents[d] for d in range(len(reduced.shape)))
        if has_transpose(group, space):
            return warp_transpose_tile(space)
        return loop_tile(space, max(LEAST_ELEMENTS, ROW_ELEMENTS // window_elements(group, self.most_of_window)))

    def contract(self, group: array.FusedOp, level: int = 0) -> schedules.WarpMatmul:
        machine = with_less_room(self.machine, level)
        schedule = warp_schedule(contract_product(group, machine), machine)
        return schedules.WarpMatmul(
            tile=(schedule.tile.rows, schedule.tile.columns, schedule.tile.depth),
            warps=schedule.warps,
            across=schedule.across,
            stages=schedule.stages,
            family=None if schedule.family is None else schedule.family.name,
        )

    def contract_plan(self, group: array.FusedOp, schedule: schedules.Matmul) -> ContractPlan:
        """Tiles of whole instructions: what reaches beyond the result is masked."""
        if not isinstance(schedule, schedules.WarpMatmul):
            raise CompilerBug(f"{schedule} is no schedule of a matmul on warps")
        op, (tile_rows, tile_columns, depth) = contract_of(group), schedule.tile
        result, depth_sizes = array_type(op.results[0]), depth_sizes_of(op)
        _, rows, columns = result_dims(op)
        extents = [1] * result.rank
        if rows and result.shape[rows[-1]] > 1:
            extents[rows[-1]] = tile_rows
        if columns and result.shape[columns[-1]] > 1:
            extents[columns[-1]] = tile_columns
        return ContractPlan(
            result.shape,
            tuple(extents),
            depth_sizes,
            depth if depth_sizes else 1,
            multiplied_as(op, self.machine),
            self._atom_name(schedule.family, schedule.warps, schedule.across),
            None if schedule.across is None else schedule.warps,
            schedule.stages if schedule.stages > 1 else None,
            part=op.part,
        )

    def _atom_name(self, family: str | None, warps: int, across: tuple[int, int] | None) -> str:
        """The name of what multiplies a tile; empty where it is not declared."""
        found = None if family is None else self.machine.family_of(family)
        return WarpSchedule(MatmulTile(0, 0, 0), warps, across, family=found).atom

    def convolve(self, group: array.FusedOp, level: int = 0) -> schedules.Convolution:
        op, machine = convolve_of(group), with_less_room(self.machine, level)
        schedule = _convolve_by_instructions(group, op, machine)
        if schedule is not None:
            return schedule
        accumulator, batch = accumulator_of(array_type(op.results[0]).dtype), array_type(op.results[0]).shape[0]
        product = WarpProduct(*row_sizes(op), accumulator, accumulator, batch)
        return rows_of_group(op, warp_schedule(product, machine).tile)

    def convolve_plan(self, group: array.FusedOp, schedule: schedules.Convolution) -> ContractPlan:
        op, tile = convolve_of(group), MatmulTile(*schedule.tile)
        if schedule.family is None:
            return plan_rows(op, tile)
        image, kernel, result = (array_type(value) for value in (*op.operands, op.results[0]))
        multiplied = multiplied_type(image.dtype, kernel.dtype, accumulator_of(result.dtype), self.machine)
        # Of one channel or column a tile has one: it is no axis of the result, and padded for the instruction alone.
        rows, columns = (
            1 if size == 1 else extent
            for size, extent in ((result.shape[1], tile.rows), (result.shape[-1], tile.columns))
        )
        plan = convolve_plan(op, rows, columns, tile.depth, multiplied)
        name = self._atom_name(schedule.family, schedule.warps, schedule.across)
        return replace(plan, atom=name, warps=schedule.warps)

    def fuses_attention(self, parts: AttentionParts) -> bool:
        """Weights that the array program rounds are multiplied so within the tile as well."""
        return parts.weights is None or rounded_operands(parts, self.machine) is not None

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        """Tiles fit where a thread has registers for its results and queries; shared memory overflows later, which is
        what the fallback is of."""
        operand = rounded_operands(parts, self.machine)
        most = MOST_HALVINGS if operand is None else MOST_HALVINGS_ROUNDED
        level, reason, registers = fallback.level, fallback.reason, self.machine.axes["reg"]
        while level <= most and (needed := self._registers(parts, operand, level)) > registers:
            machine = self.machine.name
            reason = (
                reason or f"needs {needed} registers of a thread for results and queries, {machine} has {registers}"
            )
            level += 1
        return Fallback(level, reason), level <= most

    def _registers(self, parts: AttentionParts, operand: DType | None, level: int) -> int:
        return (
            0
            if operand is None
            else registers_of(parts, operand, max(REGISTER_ROWS >> level, LEAST_ROWS), self.machine)
        )

    def attention(self, parts: AttentionParts, fallback: Fallback) -> schedules.Attention:
        operand, level = rounded_operands(parts, self.machine), fallback.level
        if operand is None:
            return attention_in_blocks(parts, self.threads, level)
        shape, row_dim = array_type(parts.scores).shape, query_dim(parts)
        rows, keys = max(REGISTER_ROWS >> level, LEAST_ROWS), max(REGISTER_KEYS >> level, LEAST_KEYS)
        whole = shape[row_dim] > 1  # warps multiply whole tiles
        chain = chain_for(parts, operand, self.machine) if whole and not level else None
        if chain is not None:
            return schedules.Attention(rows=chain.rows, keys=chain.keys, warpgroups=chain.groups)
        row_extent = rows if whole else even_split(shape[row_dim], rows)
        return schedules.Attention(rows=row_extent, keys=key_steps(shape[-1], keys))

    def attention_plan(self, parts: AttentionParts, schedule: schedules.Attention) -> AttentionPlan:
        operand, chain = rounded_operands(parts, self.machine), None
        if operand is not None and schedule.warpgroups:
            chain = chain_for(parts, operand, self.machine, (schedule.warpgroups, schedule.keys))
        return replace(attention_plan(parts, schedule, operand, chain), in_base_2=operand is not None)

    def ordered(self, op: Ordered, level: int = 0) -> schedules.Ordered:
        if isinstance(op, array.SortOp | array.TopKOp):
            message = f"`{op.name.removeprefix('array.')}` is not compiled for GPUs yet"
            help = 'compute this part in a program of its own with target="cpu", and pass its results'
            raise UnsupportedOnTargetError(message, help=help, location=location_of(op))
        shape, axis = array_type(op.operands[0]).shape, axis_of(op)
        if shape[axis] > i32.highest:  # an axis that is not stored: indices have 32 bits
            message = f"`{op.name.removeprefix('array.')}` of {shape[axis]} elements"
            help = "use axes of fewer than 2**31 elements"
            raise UnsupportedOnTargetError(message, help=help, location=location_of(op))
        if isinstance(op, array.ScanOp):
            room = WARP_LINE_BYTES // array_type(op.operands[0]).dtype.compute.itemsize
        else:
            room = BLOCK_ELEMENTS
        tile = dict(enumerate(_tile_in_registers(shape, axis, max(1, room >> level))))
        smaller = halved({d: extent for d, extent in tile.items() if d != axis}, level)
        return schedules.Ordered(tile=tuple(smaller.get(d, extent) for d, extent in tile.items()))

    def reshape(self, group: array.FusedOp) -> schedules.Reshape:
        raise CompilerBug("a reshape is copied on a grid of cores only")


def _convolve_by_instructions(
    group: array.FusedOp, op: array.ConvolveOp, machine: Machine
) -> schedules.Convolution | None:
    """Tiles of whole instructions, where one multiplies the operands: what reaches beyond the result is masked, but
    none may have rows of two groups of channels."""
    if not is_multiplied_by_warps(op, machine):
        return None
    product = replace(row_product(op, machine), epilogue=epilogue_of(group, op))
    schedule = warp_schedule(product, machine)
    tile = schedule.tile
    if schedule.across is None or schedule.family is None or (op.groups > 1 and product.rows % tile.rows):
        return None
    extents = (tile.rows, tile.columns, tile.depth)
    family = schedule.family.name
    return schedules.Convolution(tile=extents, warps=schedule.warps, across=schedule.across, family=family)


def _tile_in_registers(shape: tuple[int, ...], axis: int, room: int) -> tuple[int, ...]:
    """Lines side by side, or parts of long ones, as many as a block holds in registers. `room`: elements of a line of
    which there is one, and of as many lines as a part has where they run across memory."""
    last = len(shape) - 1
    extents = [1] * len(shape)
    if axis != last:
        extents[last] = even_split(shape[last], PART_COLUMNS)
    elif last:
        extents[last - 1] = even_split(shape[last - 1], max(1, BLOCK_ELEMENTS // max(1, shape[axis])))
    room = max(1, room // (extents[last] if axis != last else 1))
    extents[axis] = even_split(shape[axis], room)
    return tuple(extents)

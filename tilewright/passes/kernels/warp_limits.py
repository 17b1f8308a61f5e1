"""Limits of requested schedules on warps."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from tilewright import schedules
from tilewright.cost.warps.loops import registers_of_part, warps_of_tile
from tilewright.cost.warps.products import WARPGROUP, WarpProduct, WarpSchedule, warp_candidates
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine
from tilewright.passes.kernels.attention_warpgroups import STEPS_OF_KEYS
from tilewright.passes.kernels.lower_attention_group import LEAST_KEYS, LEAST_ROWS, AttentionParts, query_dim
from tilewright.passes.kernels.lower_convolve_group import convolve_of
from tilewright.passes.kernels.lower_loop_group import loop_space
from tilewright.passes.kernels.lower_ordered_group import PART_COLUMNS, axis_of, ordered_op
from tilewright.passes.kernels.schedule_limits import (
    check_extents,
    check_multiple,
    check_one_of,
    check_rows,
    check_single,
    refused,
)
from tilewright.passes.kernels.tile_builder import held_window
from tilewright.passes.kernels.warp_attention import (
    REGISTER_KEYS,
    REGISTER_ROWS,
    chain_for,
    registers_of,
    rounded_operands,
)
from tilewright.passes.kernels.warp_epilogues import epilogue_of
from tilewright.passes.kernels.warp_products import contract_product, is_multiplied_by_warps, row_product

# Elements that the threads of a block hold in registers at a time.
BLOCK_ELEMENTS = 4096
# A line that is scanned is within one warp: 32 words a lane.
WARP_LINE_BYTES = 4096
# Channels of a tile of a convolution without MMA instructions.
_LEAST_DEPTH = 32
# The most steps of a loop that are copied ahead.
_MOST_STAGES = 8
# The most elements of a window that a tile holds at once.
_MOST_OF_WINDOW = 256


def check_warp_schedule(group: array.FusedOp, schedule: schedules.Schedule, machine: Machine) -> None:
    """Check a schedule of a kind that the group admits.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    match schedule:
        case schedules.Loop():
            check_extents(schedule.tile, loop_space(group))
            _check_registers(group, schedule.tile, machine)
        case schedules.WarpMatmul():
            _check_matmul(contract_product(group, machine), schedule, machine)
        case schedules.Convolution():
            _check_convolution(group, schedule, machine)
        case schedules.Ordered():
            _check_ordered(group, schedule, machine)
        case _:
            raise refused(repr(schedule), "leave the schedule out")


def check_tile_kernel(kernel: tile.KernelOp, schedule: schedules.TileKernel, machine: Machine) -> None:
    """Check the schedule of a kernel that the user wrote.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    most = WARPGROUP if machine.residency is None else machine.residency.block_threads // machine.axes["lane"]
    check_one_of("warps", schedule.warps, (None, *(1 << n for n in range(most.bit_length()))))
    check_one_of("stages", schedule.stages, (None, *range(2, _MOST_STAGES + 1)))
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    if schedule.stages is not None and not any(isinstance(op, tile.DotOp) for loop in loops for op in loop.walk()):
        raise refused(f"stages={schedule.stages}", "leave `stages` out: there is no matmul in a loop of the kernel")


def window_elements(group: array.FusedOp, most_of_window: int) -> int:
    """How many registers the elements of the largest window take for each result: warps hold that many at once."""
    reductions = (op for op in group.body.block.ops if isinstance(op, array.WindowReduceOp))
    windows = [held_window(op.window, most_of_window) for op in reductions]
    return max((prod(1 << (n - 1).bit_length() for n in window) for window in windows), default=1)


def _check_registers(group: array.FusedOp, tile: tuple[int, ...], machine: Machine) -> None:
    """Check that the threads of a block have registers for a tile of the group's widest type."""
    values = [value for op in group.body.block.ops for value in op.results]
    item_bytes = max(array_type(value).dtype.compute.itemsize for value in (*group.body.block.args, *values))
    nbytes = prod(tile) * item_bytes * window_elements(group, _MOST_OF_WINDOW)
    needed, room = registers_of_part(nbytes, machine, warps_of_tile(nbytes, machine, WARPGROUP))
    if needed > room:
        what = f"tile={tile}, which needs {needed} registers of a thread where {machine.name} has {room}"
        raise refused(what, f"use a tile of at most {prod(tile) * room // needed} elements")


def _check_matmul(product: WarpProduct, schedule: schedules.WarpMatmul, machine: Machine) -> None:
    candidates = list(warp_candidates(product, machine))
    of_family = [each for each in candidates if _family(each) == schedule.family]
    check_one_of("family", schedule.family, dict.fromkeys(map(_family, candidates)))
    check_one_of("tile", schedule.tile, dict.fromkeys(map(_extents, of_family)))
    of_tile = [each for each in of_family if _extents(each) == schedule.tile]
    shares = dict.fromkeys((each.warps, each.across) for each in of_tile)
    check_one_of("(warps, across)", (schedule.warps, schedule.across), shares)
    of_share = [each for each in of_tile if (each.warps, each.across) == (schedule.warps, schedule.across)]
    check_one_of("stages", schedule.stages, dict.fromkeys(n for each in of_share for n in _stages(each)))


def _family(candidate: WarpSchedule) -> str | None:
    return None if candidate.family is None else candidate.family.name


def _extents(candidate: WarpSchedule) -> tuple[int, int, int]:
    return candidate.tile.rows, candidate.tile.columns, candidate.tile.depth


def _stages(candidate: WarpSchedule) -> range:
    """The numbers of stages up to that of a candidate: operands that are copied ahead have two at least."""
    return range(min(2, candidate.stages), candidate.stages + 1)


def _check_convolution(group: array.FusedOp, schedule: schedules.Convolution, machine: Machine) -> None:
    op = convolve_of(group)
    if schedule.family is None or not is_multiplied_by_warps(op, machine):
        check_rows(op, schedule, _LEAST_DEPTH)
        return
    product = replace(row_product(op, machine), epilogue=epilogue_of(group, op))
    as_matmul = schedules.WarpMatmul(
        tile=schedule.tile, warps=schedule.warps, across=schedule.across, family=schedule.family
    )
    _check_matmul(product, as_matmul, machine)
    if op.groups > 1 and product.rows % schedule.tile[0]:
        raise refused(f"tile={schedule.tile}", f"use output channels that divide the {product.rows} of a group")


def check_warp_attention(parts: AttentionParts, schedule: schedules.Attention, machine: Machine) -> None:
    """Check the schedule of attention.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    operand, shape = rounded_operands(parts, machine), array_type(parts.scores).shape
    queries, keys = shape[query_dim(parts)], shape[-1]
    if operand is not None and schedule.warpgroups:
        wanted = (schedule.warpgroups, schedule.keys if schedule.keys in STEPS_OF_KEYS else None)
        chain = chain_for(parts, operand, machine, wanted) if queries > 1 else None
        if chain is None or chain.groups != schedule.warpgroups:
            raise refused(f"warpgroups={schedule.warpgroups}", "use 1, or 0 for single warps")
        if (schedule.rows, schedule.keys) != (chain.rows, chain.keys):
            what = f"rows={schedule.rows} and keys={schedule.keys} on {chain.groups} warpgroups"
            raise refused(what, f"use rows={chain.rows} and keys={chain.keys}")
        return
    check_one_of("warpgroups", schedule.warpgroups, (0,))
    if operand is None:
        check_extents((schedule.rows, schedule.keys), (queries, keys))
        check_multiple("keys", schedule.keys, keys, LEAST_KEYS)
        return
    check_one_of("rows", schedule.rows, _halves(REGISTER_ROWS, LEAST_ROWS) if queries > 1 else (1,))
    steps = [step for step in _halves(REGISTER_KEYS, LEAST_KEYS) if step < keys]
    check_one_of("keys", schedule.keys, [*steps, *([keys] if keys <= REGISTER_KEYS else [])])
    needed, room = registers_of(parts, operand, schedule.rows, machine), machine.axes["reg"]
    if needed > room:
        what = f"rows={schedule.rows}, which needs {needed} registers of a thread where {machine.name} has {room}"
        raise refused(what, "use fewer rows")


def _halves(most: int, least: int) -> list[int]:
    return [most >> level for level in range(most.bit_length()) if most >> level >= least]


def _check_ordered(group: array.FusedOp, schedule: schedules.Ordered, machine: Machine) -> None:
    op = ordered_op(group)
    type, axis, tile = array_type(op.operands[0]), axis_of(op), schedule.tile
    check_extents(tile, type.shape)
    last = len(type.shape) - 1
    beside = last if axis != last else last - 1
    check_single(tile, (axis, beside))
    is_scan = isinstance(op, array.ScanOp)
    room = WARP_LINE_BYTES // type.dtype.compute.itemsize if is_scan else BLOCK_ELEMENTS
    lines = tile[beside] if axis != last else 1
    if tile[axis] * lines > room:
        raise refused(f"tile={tile}", f"use at most {room} elements of lines that a block holds")
    if axis != last and lines > PART_COLUMNS:
        raise refused(f"tile={tile}", f"use at most {PART_COLUMNS} lines next to each other")
    _check_registers(group, tile, machine)

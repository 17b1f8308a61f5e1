"""Limits of requested schedules on vectors."""

from __future__ import annotations

from math import prod

from tilewright import schedules
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import Machine
from tilewright.passes.kernels.contract_facts import accumulator_of
from tilewright.passes.kernels.lower_attention_group import KEY_MULTIPLE, AttentionParts, query_dim
from tilewright.passes.kernels.lower_contract_group import contract_of
from tilewright.passes.kernels.lower_convolve_group import convolve_of
from tilewright.passes.kernels.lower_loop_group import group_space, loop_space, reduced_space
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
from tilewright.passes.kernels.vector_products import atom_of_parts, last_sizes, matrix_atom_for

# Results of a reduction's tile, which are kept in a buffer of the thread.
_MOST_RESULTS_BYTES = 1 << 20


def check_vector_schedule(group: array.FusedOp, schedule: schedules.Schedule, machine: Machine) -> None:
    """Check a schedule of a kind that the group admits.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    match schedule:
        case schedules.Loop():
            _check_loop(group, schedule)
        case schedules.VectorMatmul():
            _check_matmul(contract_of(group), schedule, machine)
        case schedules.SplitMatmul():
            _check_split(group, schedule, machine)
        case schedules.Convolution():
            check_rows(convolve_of(group), schedule)
        case schedules.Ordered():
            _check_ordered(group, schedule)
        case _:
            raise refused(repr(schedule), "leave the schedule out")
    check_no_fallback(schedule)


def _check_loop(group: array.FusedOp, schedule: schedules.Loop) -> None:
    check_extents(schedule.tile, loop_space(group))
    _, axes = group_space(group)
    if axes:
        reduced = reduced_space(group)
        results = prod(extent for dim, extent in enumerate(schedule.tile) if dim not in reduced.axes)
        if results * reduced.dtype.itemsize > _MOST_RESULTS_BYTES:
            most = _MOST_RESULTS_BYTES // reduced.dtype.itemsize
            raise refused(f"tile={schedule.tile}", f"use a tile of at most {most} results")


def _check_matmul(op: array.ContractOp, schedule: schedules.VectorMatmul, machine: Machine) -> None:
    rows, columns, depth = last_sizes(op)
    _check_positive(schedule.tile)
    atom = matrix_atom_for(op, machine)
    if atom is not None:
        check_multiple("tile rows", min(schedule.tile[0], rows), rows, 2 * atom.rows)
        check_multiple("tile columns", min(schedule.tile[1], columns), columns, 2 * atom.columns)
        check_multiple("tile depth", min(schedule.tile[2], depth), depth, atom.depth)
        if schedule.block is not None:
            raise refused(f"block={schedule.block}", f"leave `block` out: {atom.name} multiplies the tile")
        return
    dtype = accumulator_of(array_type(op.results[0]).dtype)
    blocks = [(block.rows, block.columns) for block in register_blocks(dtype, machine)]
    if schedule.block is not None:
        check_one_of("block", schedule.block, blocks)
        check_multiple("tile columns", min(schedule.tile[1], columns), columns, schedule.block[1])
    else:
        check_multiple("tile columns", min(schedule.tile[1], columns), columns, machine.lanes(dtype))


def _check_split(group: array.FusedOp, schedule: schedules.SplitMatmul, machine: Machine) -> None:
    op = contract_of(group)
    atom = atom_of_parts(group, op, machine)
    if atom is None:
        what = "matmuls of f32 arrays of two dimensions or more, on machines with matrix instructions"
        raise refused(f"a `SplitMatmul` on {machine.name}", f"use a `VectorMatmul`: operands are split of {what}")
    _check_positive(schedule.tile)
    if schedule.tile[2] % atom.depth:
        raise refused(f"tile={schedule.tile}", f"use a depth that is a multiple of {atom.depth}")


def _check_positive(tile: tuple[int, int, int]) -> None:
    """Check that a tile has elements; one that is larger than the matmul is cut to it."""
    if min(tile) < 1:
        raise refused(f"tile={tile}", "use rows, columns and a depth of 1 at least")


def check_vector_attention(parts: AttentionParts, schedule: schedules.Attention) -> None:
    """Check the schedule of attention.

    Raises:
        ScheduleError: the kernel or the machine does not admit it.
    """
    shape = array_type(parts.scores).shape
    check_extents((schedule.rows, schedule.keys), (shape[query_dim(parts)], shape[-1]))
    check_multiple("keys", schedule.keys, shape[-1], KEY_MULTIPLE)
    check_one_of("warpgroups", schedule.warpgroups, (0,))
    check_no_fallback(schedule)


def _check_ordered(group: array.FusedOp, schedule: schedules.Ordered) -> None:
    op = ordered_op(group)
    shape, axis = array_type(op.operands[0]).shape, axis_of(op)
    check_extents(schedule.tile, shape)
    last, part = len(shape) - 1, schedule.tile[axis]
    is_whole = part == max(1, shape[axis])
    beside = last if axis != last else last - 1
    check_single(schedule.tile, (axis, beside) if is_whole or axis != last else (axis,))
    if is_whole:
        return
    if isinstance(op, array.SortOp | array.TopKOp) or (isinstance(op, array.ScanOp) and keeps_order(op)):
        raise refused(f"tile={schedule.tile}", f"use all {shape[axis]} elements along dimension {axis}")
    if isinstance(op, array.ScanOp) and op.reverse and shape[axis] % part:
        raise refused(f"tile={schedule.tile}", f"use a part that divides the {shape[axis]} elements")


def keeps_order(op: array.ScanOp) -> bool:
    """Whether a scan must not be split: a part of a cumulative product of floats might overflow although the whole does
    not."""
    return op.fn == "multiply" and array_type(op.operands[0]).dtype.is_float

"""The schedule of a group: the one that is requested, where the kernel admits it, or else the planner's choice."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from tilewright import schedules
from tilewright.dialects import array, tile
from tilewright.errors import ScheduleError
from tilewright.passes.array.array_fuse_attention import attention_parts
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import MOST_LEVELS, Fallback
from tilewright.passes.kernels.lower_ordered_group import ordered_op
from tilewright.passes.kernels.planners import KernelPlanner
from tilewright.passes.kernels.schedule_limits import refused
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.passes.requested import Kinds, wrong_kind

_KINDS: dict[str, Kinds] = {
    "loop": (schedules.Loop,),
    "convolve": (schedules.Convolution,),
    "attention": (schedules.Attention,),
    "scan": (schedules.Ordered,),
    "sort": (schedules.Ordered,),
    "arg_reduce": (schedules.Ordered,),
    "top_k": (schedules.Ordered,),
    "reshape": (schedules.Reshape,),
}
_REASON = "the requested schedule states it"


def kinds_of(planner: KernelPlanner, group: array.FusedOp) -> Kinds:
    """The kinds of schedules that a group admits; none where nothing is decided."""
    return planner.matmuls if group.kind == "contract" else _KINDS.get(group.kind, ())


def chosen_schedule(planner: KernelPlanner, group: array.FusedOp, fallback: Fallback) -> schedules.Schedule | None:
    """The planner's choice at a fallback; None for groups of which nothing is decided."""
    match group.kind:
        case "loop":
            return planner.loop(group, fallback.level)
        case "contract":
            return planner.contract(group, fallback.level)
        case "convolve":
            return planner.convolve(group, fallback.level)
        case "attention":
            return planner.attention(attention_parts(group), fallback)
        case "scan" | "sort" | "arg_reduce" | "top_k":
            return planner.ordered(ordered_op(group), fallback.level)
        case "reshape":
            return planner.reshape(group)
        case _:
            return None


def requested_schedule(
    unit: Unit, planner: KernelPlanner, group: array.FusedOp, name: str, key: Hashable
) -> schedules.Schedule | None:
    """The schedule that is requested of a kernel; None if there is none, or the kernel does not admit it."""
    requested, kinds = unit.requested, kinds_of(planner, group)
    if kinds:
        requested.known[name] = kinds
    schedule = requested.of_kernel(name, kinds)
    if schedule is None:
        return None
    try:
        _check(planner, group, schedule, kinds)
    except ScheduleError as error:
        error.location = location_of(group)
        requested.refuse(name, error)
        return None
    _accept(unit, name, schedule, key)
    return schedule


def _accept(unit: Unit, name: str, schedule: schedules.Schedule, key: Hashable) -> None:
    """Take a requested schedule, with the level of the fallback that it states."""
    unit.requested.accepted[name] = key
    level = level_of(schedule)
    if level:
        unit.fallbacks.by_key[key] = Fallback(level, _REASON)


def _check(planner: KernelPlanner, group: array.FusedOp, schedule: schedules.Schedule, kinds: Kinds) -> None:
    if not isinstance(schedule, kinds):
        raise wrong_kind(schedule, kinds)
    _check_level(schedule)
    if _without_later_decisions(schedule) == chosen_schedule(planner, group, Fallback.NONE):
        return
    if isinstance(schedule, schedules.Attention):
        planner.check_attention(attention_parts(group), schedule)
    else:
        planner.check(group, schedule)


def _check_level(schedule: schedules.Schedule) -> None:
    if not 0 <= level_of(schedule) <= MOST_LEVELS:
        raise refused(f"fallback={level_of(schedule)}", f"a level is a number from 0 to {MOST_LEVELS}")


def level_of(schedule: schedules.Schedule) -> int:
    """The level of the fallback that a schedule states."""
    return getattr(schedule, "fallback", 0)


def with_level(schedule: schedules.Schedule | None, level: int) -> schedules.Schedule | None:
    """A schedule that states the level of its kernel's fallback."""
    return schedule if schedule is None or not level else msgspec.structs.replace(schedule, fallback=level)


def _without_later_decisions(schedule: schedules.Schedule) -> schedules.Schedule:
    """A schedule as planners give it: passes after them decide the rest."""
    if isinstance(schedule, schedules.VectorMatmul):
        return msgspec.structs.replace(schedule, right=None)
    return msgspec.structs.replace(schedule, fallback=0) if level_of(schedule) else schedule


def schedule_tile_kernels(unit: Unit, planner: KernelPlanner) -> None:
    """State the schedules of the kernels that the user wrote, where the machine decides something of them."""
    for kernel in unit.kernels() if planner.tile_kernels else ():
        unit.requested.known[kernel.sym_name] = planner.tile_kernels
        schedule = _of_tile_kernel(unit, planner, kernel)
        unit.schedules[kernel.sym_name] = schedule
        if schedule.warps is not None:
            kernel.warps = schedule.warps
        if schedule.stages is not None:
            kernel.stages = schedule.stages


def _of_tile_kernel(unit: Unit, planner: KernelPlanner, kernel: tile.KernelOp) -> schedules.TileKernel:
    """The requested schedule of a kernel that the user wrote, or one that leaves all to later passes."""
    name = kernel.sym_name
    usual = schedules.TileKernel(fallback=unit.fallbacks.level_of(name))
    schedule = unit.requested.of_kernel(name, planner.tile_kernels)
    if schedule is None:
        return usual
    try:
        if not isinstance(schedule, schedules.TileKernel):
            raise wrong_kind(schedule, planner.tile_kernels)
        _check_level(schedule)
        planner.check_tile_kernel(kernel, schedule)
    except ScheduleError as error:
        unit.requested.refuse(name, error)
        return usual
    _accept(unit, name, schedule, unit.fallbacks.key_of(name))
    return schedule

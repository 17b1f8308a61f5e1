"""Limits that requested schedules have on every machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright import schedules
from tilewright.dialects import array
from tilewright.errors import ScheduleError
from tilewright.passes.kernels.lower_convolve_group import row_sizes
from tilewright.passes.requested import listed


def refused(what: str, allowed: str) -> ScheduleError:
    """The error of a field that a kernel does not admit, and what it admits; the caller adds the kernel's name."""
    return ScheduleError(what, help=allowed)


def check_extents(tile: Sequence[int], sizes: Sequence[int]) -> None:
    """Check that a tile has an extent for each dimension, and none beyond its size.

    Raises:
        ScheduleError: it has not.
    """
    most = tuple(max(1, size) for size in sizes)
    if len(tile) != len(most) or any(not 1 <= extent <= size for extent, size in zip(tile, most, strict=True)):
        raise refused(f"tile={tuple(tile)}", f"use extents from 1 to {most}, one for each dimension")


def check_one_of(name: str, value: object, allowed: Collection[object]) -> None:
    """Check that a field has one of some values.

    Raises:
        ScheduleError: it has another one.
    """
    if value not in allowed:
        raise refused(f"{name}={value!r}", f"use one of {listed(map(repr, allowed))}")


def check_multiple(name: str, extent: int, size: int, multiple: int) -> None:
    """Check that an extent is a whole dimension, or a multiple of a number.

    Raises:
        ScheduleError: it is neither.
    """
    whole = max(1, size)
    if extent != whole and not (0 < extent < whole and extent % multiple == 0):
        raise refused(f"{name}={extent}", f"use {whole}, or a smaller multiple of {multiple}")


def check_single(tile: Sequence[int], dims: Collection[int]) -> None:
    """Check that a tile has one element along all but some dimensions.

    Raises:
        ScheduleError: it has more.
    """
    if any(extent != 1 for dim, extent in enumerate(tile) if dim not in dims):
        raise refused(f"tile={tuple(tile)}", f"use an extent of 1 along all dimensions but {listed(map(str, dims))}")


def check_rows(op: array.ConvolveOp, schedule: schedules.Convolution, least_depth: int = 1) -> None:
    """Check the schedule of a convolution without MMA instructions of warps: no tile has channels of two
    groups. A tile may have up to `least_depth` channels although there are fewer.

    Raises:
        ScheduleError: the kernel does not admit it.
    """
    rows, columns, depth = row_sizes(op)
    check_extents(schedule.tile, (rows, columns, max(depth, least_depth)))
    if rows % schedule.tile[0]:
        raise refused(f"tile={schedule.tile}", f"use output channels that divide the {rows} of a group")
    usual = schedules.Convolution(tile=schedule.tile, fallback=schedule.fallback)
    if schedule != usual:
        raise refused(repr(schedule), f"use {usual!r}: the operands have no MMA instruction of warps")


def check_no_fallback(schedule: schedules.Schedule) -> None:
    """Check that a schedule states no level of a fallback, on machines that have none.

    Raises:
        ScheduleError: it states one.
    """
    level = getattr(schedule, "fallback", 0)
    if level:
        raise refused(f"fallback={level}", "leave `fallback` out: nothing is copied ahead on this machine")

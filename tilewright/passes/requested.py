"""Requested schedules: those that a caller passes in place of the choice of the cost model.

A schedule that a kernel does not admit is recorded, and the kernel is lowered with the schedule that the model chooses.
The first such error is raised once the program has passed all phases: only then it is known which kernels there are, as
a kernel without room may have been replaced by others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping

import msgspec

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.schedules import Request, Schedule

Kinds = tuple[type[Schedule], ...]

_NOTHING = "leave the schedule out: on this machine nothing but parameters of the program's kernels is to be decided"


class RequestedSchedules(msgspec.Struct):
    """Requested schedules of a program's kernels.

    Attributes:
        by_name: those of kernels by name.
        for_all: one for every kernel of its kind.
        accepted: the kernels that have their requested schedule, with the keys of their groups.
        packed: the kernels whose right operand is read as their schedule states.
        refused: errors of schedules that kernels did not admit.
        known: the kernels that were lowered, with the kinds of schedules that they admit.
    """

    by_name: Mapping[str, Schedule] = msgspec.field(default_factory=dict[str, Schedule])
    for_all: Schedule | None = None
    accepted: dict[str, Hashable] = msgspec.field(default_factory=dict[str, Hashable])
    packed: set[str] = msgspec.field(default_factory=set[str])
    refused: list[ScheduleError] = msgspec.field(default_factory=list[ScheduleError])
    known: dict[str, Kinds] = msgspec.field(default_factory=dict[str, Kinds])

    @staticmethod
    def of(request: Request | None) -> RequestedSchedules:
        """The schedules of a request."""
        if request is None:
            return RequestedSchedules()
        if isinstance(request, Schedule):
            return RequestedSchedules(for_all=request)
        return RequestedSchedules(dict(request))

    def __bool__(self) -> bool:
        return bool(self.by_name) or self.for_all is not None

    def of_kernel(self, kernel: str, kinds: Kinds) -> Schedule | None:
        """The schedule that is requested of a kernel which admits some kinds, of whatever kind it is."""
        if self.for_all is not None and isinstance(self.for_all, kinds):
            return self.for_all
        return self.by_name.get(kernel)

    def refuse(self, kernel: str, error: ScheduleError) -> None:
        """Record that a kernel does not admit its schedule; the error's message is what it does not admit."""
        error.message = f"`{kernel}` does not admit {error.message}"
        self.refused.append(error)

    def restart(self) -> None:
        """Forget what was found out: the program is lowered again."""
        self.refused.clear()
        self.known.clear()
        self.accepted.clear()
        self.packed.clear()

    def check(self) -> None:
        """Raise the first error of the program's schedules.

        Raises:
            ScheduleError: a kernel does not admit its schedule, or there is no kernel of a name.
        """
        for error in (*self.refused, *self._without_kernel()):
            raise error

    def check_fits(self, keys: Mapping[str, Hashable], misfit: TilewrightError) -> None:
        """Refuse requested schedules of kernels that need more memory than there is.

        Raises:
            ScheduleError: one of the kernels, which go by some keys, has a requested schedule.
        """
        for kernel, key in keys.items():
            if key in self.accepted.values():
                message = f"the requested schedule of `{kernel}` does not fit the machine: {misfit.message}"
                raise ScheduleError(message, help="use a smaller tile or fewer stages") from misfit

    def check_room(self, error: TilewrightError) -> None:
        """Refuse requested schedules where a program has no room.

        Raises:
            ScheduleError: a kernel of the program has a requested schedule.
        """
        if self.accepted:
            message = f"with the requested schedules, {error.message}"
            raise ScheduleError(message, help="use smaller tiles", location=error.location) from error

    def _without_kernel(self) -> Iterator[ScheduleError]:
        names = listed(f"`{name}`" for name in self.known)
        help = f"the kernels with schedules are {names}" if names else _NOTHING
        for name in self.by_name:
            if name not in self.known:
                yield ScheduleError(f"there is no kernel `{name}` that has a schedule", help=help)
        if self.for_all is not None and not any(isinstance(self.for_all, kinds) for kinds in self.known.values()):
            admitted = dict.fromkeys(kind for kinds in self.known.values() for kind in kinds)
            message = f"no kernel of the program admits `tw.schedules.{type(self.for_all).__name__}`"
            yield ScheduleError(message, help=f"the kernels admit {kinds_text(admitted)}" if admitted else _NOTHING)


def wrong_kind(schedule: Schedule, kinds: Kinds) -> ScheduleError:
    """The error of a schedule of another kind than a kernel admits, without the kernel's name."""
    return ScheduleError(f"`tw.schedules.{type(schedule).__name__}`", help=f"the kernel admits {kinds_text(kinds)}")


def unscheduled(target: str) -> ScheduleError:
    """The error of schedules for a target that runs operations one by one."""
    message = f"the target `{target}` has no kernels to schedule"
    return ScheduleError(message, help="leave the schedule out, or compile for a target that has kernels")


def kinds_text(kinds: Collection[type[Schedule]]) -> str:
    """The names of kinds of schedules."""
    return listed(f"`{kind.__name__}`" for kind in kinds) or "no schedule"


def listed(texts: Collection[str] | Iterator[str]) -> str:
    """Texts one after another, at most a dozen of them."""
    every = list(texts)
    return ", ".join(every[:12]) + (", ..." if len(every) > 12 else "")

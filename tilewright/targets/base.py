"""The protocols of targets and of compiled programs."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tilewright.errors import TargetError, UnsupportedOnTargetError
from tilewright.runtime.manifest import ArraySpec
from tilewright.runtime.program_file import UNSETTLED, Settled

if TYPE_CHECKING:
    from tilewright.cost.program import ProgramCost
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.primitives import ArrayType
    from tilewright.runtime.program import AnyProgram
    from tilewright.runtime.program_file import ProgramFile
    from tilewright.runtime.shared_constants import Keep

Tensor = np.ndarray[Any, Any]


class KernelTime(msgspec.Struct, frozen=True):
    """How often a kernel runs in a call of its program, and what all these runs take: as measured, and as predicted of
    one core."""

    name: str
    calls: float
    seconds: float
    estimated_s: float
    flops: float
    bytes: float


class Executable(Protocol):
    """A compiled program. Arrays in and out are NumPy arrays of exactly the traced types.

    Attributes:
        unit: the program in its last phase, with the decisions of all passes.
        program: the runnable program, which can be saved. Linked on first use.
        settled: the function that serves plain calls without this class.
        cache_state: `hit` or `miss` of the compile cache, or `off` where it was not asked.
    """

    @property
    def unit(self) -> Unit: ...

    @property
    def program(self) -> AnyProgram: ...

    @property
    def settled(self) -> Settled: ...

    @property
    def cache_state(self) -> str: ...

    def settled_on_device(self, arrays: Sequence[object], outputs: Sequence[object] = ()) -> Settled:
        """The function that serves plain calls on arrays on a device such as these, with results of the kind of the
        first."""
        ...

    def link(self, keep: Keep) -> AnyProgram:
        """The runnable program with its constants as `keep` has them.

        Raises:
            UnsupportedOnTargetError: the target makes no program files.
        """
        ...

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Run the program; results are written to `out` where it is given."""
        ...

    def ir(self, phase: str) -> str:
        """The program's text at the end of a phase: `array`, `tile`, `scheduled` or the target's own."""
        ...

    def asm(self) -> str:
        """Machine code as text."""
        ...

    def cost(self) -> ProgramCost:
        """Predicted time and work, per kernel and in all.

        Raises:
            UnsupportedOnTargetError: the target has no cost model.
        """
        ...

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        """How long each kernel takes in a call with these arrays, longest first, on average of `repeat` calls.

        Raises:
            UnsupportedOnTargetError: kernels of the target are not measured.
        """
        ...

    def explain(self) -> str:
        """Why the program was fused and scheduled as it was."""
        ...

    def save(self, path: str, inputs: Sequence[str] = ()) -> None:
        """Write a program file that runs without the compiler, with these names of its inputs where they are given."""
        ...


class LinkedExecutable(ABC):
    """An executable that runs its linked program."""

    @property
    @abstractmethod
    def program(self) -> AnyProgram:
        """The runnable program, linked on first use."""

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        result = self.program(*arrays) if out is None else self.program(*arrays, out=tuple(out))
        return [*result] if isinstance(result, tuple) else [result]

    @property
    def settled(self) -> Settled:
        return self.program.settled

    def settled_on_device(self, arrays: Sequence[object], outputs: Sequence[object] = ()) -> Settled:
        return self.program.settled_on_device(arrays, outputs)

    @property
    def cache_state(self) -> str:
        return "off"

    def save(self, path: str, inputs: Sequence[str] = ()) -> None:
        self.program.save(path, inputs)


class UnlinkedExecutable(ABC):
    """An executable that runs its unit as it is, and makes no program file."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit

    @abstractmethod
    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Run the unit; results are written to `out` where it is given."""

    @property
    def program(self) -> AnyProgram:
        raise self._not_linked()

    def link(self, keep: Keep) -> AnyProgram:
        raise self._not_linked()

    @property
    def settled(self) -> Settled:
        return UNSETTLED

    def settled_on_device(self, arrays: Sequence[object], outputs: Sequence[object] = ()) -> Settled:
        return UNSETTLED

    @property
    def cache_state(self) -> str:
        return "off"

    def _not_linked(self) -> UnsupportedOnTargetError:
        message = f"`{self.unit.name}` is compiled for a target that makes no program files"
        return UnsupportedOnTargetError(message, help='compile with target="cpu"')


def unmeasured(target: str) -> UnsupportedOnTargetError:
    """The error of a profile on a target whose kernels are not measured one by one."""
    return UnsupportedOnTargetError(f"the kernels of {target} are not measured one by one", help='compile for "cpu"')


def spec_of(name: str, type: ArrayType) -> ArraySpec:
    """The entry of an array in a manifest."""
    return ArraySpec(name=name, shape=type.shape, dtype=type.dtype.name)


def as_list(arrays: Sequence[Tensor]) -> list[Tensor]:
    return [np.asarray(a) for a in arrays]


class Target(msgspec.Struct, frozen=True):
    """A target's manifest. It is light: what it names is imported when it is called.

    Attributes:
        lowered: programs go through the passes; otherwise they stay in the `array` phase.
        scheduled: kernels go to the `scheduled` phase of their machine's model; otherwise they stay in `tile`.
        program_files: the compile cache keeps compiled programs as files.
        opens_anywhere: so it does for machines that are named, too: what runs the program is looked for at its call.
        check_storage: refuses with a `TilewrightError` what states how an array is stored and is not known; None where
            arrays are stored as NumPy does.
        device_arrays: its programs take arrays that are not in the host's memory.
        viewed_inputs: its programs read the memory of views, which are not copied before the call.
        open_file: a program file that the runtime loaded, as a program that runs; None where it runs as it is.
        calls_libraries: its programs call routines of libraries on the CPU.
        machine_named: the machine of a target string's second part, which is empty for the one that is here.
        executable: the target's own lowering, from the program and the texts of its phases.
        start: starts work for a machine (as `machine_named` takes it) that lowering needs whatever the program, without
            waiting for it.
    """

    name: str
    lowered: bool
    program_files: bool
    machine_named: Callable[[str], Machine]
    executable: Callable[[Unit, dict[str, str]], Executable]
    scheduled: bool = True
    opens_anywhere: bool = False
    device_arrays: bool = False
    viewed_inputs: bool = False
    calls_libraries: bool = False
    check_storage: Callable[[str], None] | None = None
    open_file: Callable[[ProgramFile], AnyProgram] | None = None
    start: Callable[[str], None] | None = None


_REGISTERED: dict[str, Target] = {}
_FOLDER = os.path.dirname(__file__)


def register(target: Target) -> None:
    """Add a target that is not part of the package: strings that begin with its name compile for it.

    Raises:
        TargetError: another target has that name.
    """
    if target.name in built_in() or _REGISTERED.get(target.name, target) != target:
        raise TargetError(f"there is a target `{target.name}` already", help="give it another name")
    _REGISTERED[target.name] = target


@cache
def built_in() -> tuple[str, ...]:
    """The targets of the package: its folders with a `target.py`."""
    folders = [each.name for each in pkgutil.iter_modules([_FOLDER]) if each.ispkg]
    return tuple(sorted(filter(_is_built_in, folders)))


@cache
def _is_built_in(name: str) -> bool:
    """Whether a folder of the package holds a target. Only that folder is looked at: to list all takes a while."""
    folder = os.path.join(_FOLDER, name)
    if not name.isidentifier() or any(each.name == "target" for each in pkgutil.iter_modules([folder])):
        return name.isidentifier()
    # A folder that cannot be read, for lack of file descriptors, was an empty one to that.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.listdir(folder)
    return False


def target_named(text: str) -> tuple[Target, str]:
    """The target and the machine name of a string such as `cpu` or `cpu:x86-64-v3`.

    Raises:
        TargetError: there is no such target.
    """
    name, _, machine_name = text.partition(":")
    if name in _REGISTERED:
        return _REGISTERED[name], machine_name
    if not _is_built_in(name):
        known = ", ".join((*built_in(), *_REGISTERED))
        raise TargetError(f"there is no target `{text}`", help=f"use {known}, or one with a machine: TARGET:MACHINE")
    return _target_of_package(name), machine_name


@cache
def _target_of_package(name: str) -> Target:
    return importlib.import_module(f"tilewright.targets.{name}").TARGET

"""Lowered and compiled programs: the common parts of functions and kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.api.array import located, locating
from tilewright.cost.program import ProgramCost
from tilewright.driver.compile import compile_graph
from tilewright.driver.explain import explain_compiled, explain_program, explanation_text
from tilewright.errors import ArgumentError, TargetError
from tilewright.frontend.trace import Graph
from tilewright.records import dataclass
from tilewright.schedules import Request, Schedule, checked_request
from tilewright.targets.base import Executable, KernelTime

Code = TypeVar("Code", bound="CompiledProgram")


@dataclass(frozen=True, repr=False)
class LoweredProgram(ABC, Generic[Code]):
    """A program in its first phase.

    Attributes:
        graph: the traced program.
        names: its inputs.
        outputs: the names of its outputs.
        donated: inputs and the outputs that may take their memory, by index.
        target: the target that it is compiled for by default.
        phase: the phase of its text, `array` or `tile`.
        schedule: the schedules that it is compiled with by default; None: those that the cost model chooses.
    """

    graph: Graph
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    donated: tuple[tuple[int, int], ...]
    target: str
    schedule: Request | None = field(default=None, kw_only=True)

    phase: ClassVar[str]

    @abstractmethod
    def _text(self) -> str:
        """The program's IR in its first phase."""

    @abstractmethod
    def _code(self, executable: Executable, target: str) -> Code:
        """The compiled program with its calling convention."""

    def __repr__(self) -> str:
        return f"<traced program `{self.graph.name}` for {self.target}>"

    def ir(self, phase: str | None = None) -> str:
        """The text of the `array` phase of a function, of the `tile` phase of a kernel. Later phases belong to a
        compiled program.

        Raises:
            ArgumentError: another phase was asked for.
            TilewrightError: the kernel has a mistake.
        """
        if phase not in (None, self.phase):
            message = f"a program that is not compiled has no `{phase}` phase"
            raise located(ArgumentError(message, help=f'use `.compile().ir("{phase}")`'))
        return self._text()

    @locating
    def explain(self, machine: str | None = None) -> str:
        """Why the tiles of the program's kernels have the layouts that inference gives them on a machine such as
        "sm_90a"; the target's, if None.

        Raises:
            TargetError: there is no such machine.
            TilewrightError: the kernel has a mistake.
        """
        return explanation_text(explain_program(self.graph, self.target, machine))

    @locating
    def compile(
        self,
        target: str | None = None,
        *,
        storage: Mapping[str, str] | None = None,
        schedule: Request | None = None,
    ) -> Code:
        """Code for a target such as "cpu" or "interp"; that of the decorator, or of the options, if None.

        `storage` maps arguments by name to a storage format of the target, such as `{"w": "bfp8"}`; of a function,
        `return` stands for the result, `return[1]` for one of several. Elements are rounded to the format when they are
        stored.

        `schedule` maps kernels by the names that `explain` prints to values of `tw.schedules`, which take the place of
        the schedules that the cost model chooses; one schedule applies to every kernel of its kind. None: that of
        `tw.jit(..., schedule=...)` or `kernel.lower(..., schedule=...)`.

        Raises:
            TargetError: there is no such target.
            ArgumentError: there is no such argument or result.
            ScheduleError: there is no such kernel, or it or the machine does not admit the schedule.
            UnsupportedOnTargetError: the target has no such format, or something else than whole pages of an array
                that is stored in it is read or written.
            TilewrightError: the kernel has a mistake.
        """
        chosen = checked_target(target) or self.target
        stored = storage_by_index(storage, self.names, self.outputs)
        request = self.schedule if schedule is None else checked_request(schedule)
        return self._code(compile_graph(self.graph, chosen, self.donated, stored, request), chosen)


@dataclass(frozen=True, repr=False)
class CompiledProgram(ABC):
    """A program compiled for one signature and one target."""

    executable: Executable
    target: str
    lowered: LoweredProgram[Any]

    @property
    def graph(self) -> Graph:
        """The traced program."""
        return self.lowered.graph

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules of the program's kernels by name: chosen by the cost model, or requested."""
        return dict(self.executable.unit.schedules)

    @abstractmethod
    def inputs_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """The inputs of the program for the arguments of a call; copies of those that it overwrites.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those that the program was compiled for.
        """

    def __repr__(self) -> str:
        return f"<program `{self.graph.name}` compiled for {self.target}>"

    @locating
    def ir(self, phase: str) -> str:
        """The program's text at the end of a phase: `array`, `tile`, `scheduled` or the target's own."""
        return self.executable.ir(phase)

    @locating
    def asm(self) -> str:
        """Machine code as text."""
        return self.executable.asm()

    @locating
    def cost(self) -> ProgramCost:
        """Predicted time and work of one call, in all and for each kernel: `.total` and `.kernels` are `Cost`s of
        seconds, bytes and FLOPs; `cost()["kernels"]` are plain values, with those of the target, such as registers.

        Raises:
            UnsupportedOnTargetError: the target has no cost model.
        """
        return self.executable.cost()

    @locating
    def profile(self, *args: Any, repeat: int = 20, **kwargs: Any) -> list[KernelTime]:
        """How long each kernel takes in a call with these arguments, longest first, on average of `repeat` calls. On a
        grid of cores the times are those of the simulator, on a GPU those between events around each launch. Arguments
        that a call would overwrite are copied.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those that the program was compiled for.
            UnsupportedOnTargetError: kernels of this target are not measured.
        """
        return self.executable.profile(self.inputs_of(args, kwargs), repeat)

    @locating
    def explain(self, machine: str | None = None) -> str:
        """Why the program was fused and scheduled as it was, the schedules of its kernels as code, and why their tiles
        have the layouts that inference gives them on a machine such as "sm_90a"; its own, if None.

        Raises:
            TargetError: there is no such machine.
        """
        return explain_compiled(self.executable, self.graph, self.target, machine)

    @locating
    def save(self, path: str) -> None:
        """Write a program file that runs without the compiler. Its messages name inputs as the function does.

        Raises:
            ArgumentError: `path` is no path.
            ProgramFileError: the path is a directory, a pipe or a device.
            OSError: the file cannot be written.
        """
        self.executable.save(path, self.lowered.names)


def checked_target(target: object) -> str | None:
    """The target that the user passed.

    Raises:
        TargetError: the target is no string.
    """
    if target is not None and not isinstance(target, str):
        raise located(TargetError(f"the target is {target!r}, not a string", help='use "cpu", "interp" or "null"'))
    return target


def storage_by_index(
    storage: Mapping[str, str] | None, inputs: Sequence[str], outputs: Sequence[str]
) -> dict[int, str]:
    """Storage formats by the index of an input, or of an output after all inputs, from formats by name. An array that
    is both an input and an output has one format.

    Raises:
        ArgumentError: there is no array of a name.
    """
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate((*inputs, *outputs)):
        numbers.setdefault(name, []).append(number)
    if len(outputs) == 1 and outputs[0] == "return[0]":
        numbers["return"] = numbers[outputs[0]]
    unknown = [name for name in storage or {} if name not in numbers]
    if unknown:
        known = ", ".join(f"`{name}`" for name in numbers)
        raise located(ArgumentError(f"there is no argument `{unknown[0]}` to store", help=f"name one of {known}"))
    return {number: format for name, format in (storage or {}).items() for number in numbers[name]}

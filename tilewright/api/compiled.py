"""Compiled programs: what a compiled function and a compiled kernel have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.api.array import located, locating
from tilewright.driver.explain import explain_compiled
from tilewright.errors import ArgumentError
from tilewright.frontend.trace import Graph
from tilewright.targets.base import Executable, KernelTime


@dataclass(frozen=True, repr=False)
class CompiledProgram(ABC):
    """A program compiled for one signature and one target."""

    executable: Executable
    target: str

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The traced program."""

    @abstractmethod
    def inputs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
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
    def cost(self) -> dict[str, Any]:
        """Predicted time and work, per kernel and in all."""
        return self.executable.cost()

    @locating
    def profile(self, *args: Any, repeat: int = 20, **kwargs: Any) -> list[KernelTime]:
        """How long each kernel takes in a call with these arguments, longest first, on average of `repeat` calls. On a
        grid of cores the times are those of the simulator. Arguments that a call would overwrite are copied.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those that the program was compiled for.
            UnsupportedOnTargetError: kernels of this target are not measured.
        """
        return self.executable.profile(self.inputs_of(args, kwargs), repeat)

    @locating
    def explain(self, machine: str | None = None) -> str:
        """Why the program was fused and scheduled as it was, and why the tiles of its kernels have the layouts that
        inference gives them on a machine such as "sm_90a"; its own, if None.

        Raises:
            TargetError: there is no such machine.
        """
        return explain_compiled(self.executable.explain(), self.graph, self.target, machine)

    @locating
    def save(self, path: str) -> None:
        """Write a program file that runs without the compiler.

        Raises:
            ProgramFileError: the path is a directory, a pipe or a device.
            OSError: the file cannot be written.
        """
        self.executable.save(path)


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

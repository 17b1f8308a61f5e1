"""Runs the host program: launches of kernels, copies, and what the host decides in between.

Each array of a run is one of its own, with a format and a placement, and a buffer is the name of the array that was
written to it last: slots of the arena that overlap in the memory plan share nothing here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import tile
from tilewright.dtypes import bool_, by_name, from_numpy
from tilewright.errors import TilewrightError, user_location
from tilewright.layout.catalogue.placements import Storage, parse_storage
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType
from tilewright.runtime.arguments import check_array, check_count
from tilewright.runtime.array_spec import ArraySpec
from tilewright.runtime.host_program import Copy, If, Launch, Step, While, take
from tilewright.targets.base import Tensor
from tilewright.targets.grid.core_program import CoreProgram, core_program, has_program

T = TypeVar("T")


class HostRun(ABC, Generic[T]):
    """One run of a program, whose arrays are of a type `T`. Without values no array is given, and none comes out."""

    def __init__(self, program: CoreProgram | Unit, *, has_values: bool = True) -> None:
        self.program = core_program(program) if isinstance(program, Unit) else program
        self.has_values = has_values
        self._buffers: dict[int, T] = {}
        first = len(self.program.inputs)
        self._donors = {first + output: number for number, output in self.program.donated.items()}

    # ---- operations on arrays ---------------------------------------------------------------------------------------

    @abstractmethod
    def given(self, array: Tensor | None, type: ArrayType, stored: Storage) -> T:
        """An array, stored as it states; None has no values."""

    @abstractmethod
    def undefined(self, ref: SSAValue) -> T:
        """An array that nothing was written to."""

    @abstractmethod
    def copied(self, array: T) -> T: ...

    @abstractmethod
    def viewed(self, array: T, shape: tuple[int, ...]) -> T:
        """The pages as an array of another shape."""

    @abstractmethod
    def to_numpy(self, array: T, type: ArrayType) -> Tensor: ...

    @abstractmethod
    def run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[T]) -> None:
        """Run a kernel that holds a program for a grid of cores."""

    # ---- a run ------------------------------------------------------------------------------------------------------

    def run(self, arrays: Sequence[Tensor] | None) -> list[Tensor]:
        """The results for some arguments; without values, for none.

        Raises:
            ArgumentError, DTypeError, ShapeError: the arguments are not those that the program takes.
            HazardError: accesses of a kernel are not ordered, or a wait is never signalled.
            UnsupportedOnTargetError: an array has a type that the machine does not store.
        """
        program = self.program
        if arrays is not None:
            arrays = _checked(program, arrays)
        self._buffers = self._filled(arrays)
        take(program.host.steps if self.has_values else tuple(_undecided(program.host.steps)), self)
        if arrays is None:
            return []
        first = len(program.inputs)
        return [self._read(first + n, type_of(spec)) for n, spec in enumerate(program.outputs)]

    def _filled(self, arrays: Sequence[Tensor] | None) -> dict[int, T]:
        """Inputs and constants."""
        program = self.program
        buffers: dict[int, T] = {}
        for number, spec in enumerate(program.inputs):
            array = None if arrays is None else arrays[number]
            text = program.storage.get(number)
            stored = Storage() if text is None else parse_storage(text)
            buffers[number] = self.given(array, type_of(spec), stored)
        for number, constant in enumerate(program.constants, len(program.inputs) + len(program.outputs)):
            buffers[number] = self.given(constant, ArrayType(constant.shape, from_numpy(constant.dtype)), Storage())
        return buffers

    def _array(self, number: int) -> T | None:
        """The array in a buffer; None where it has no element, so that nothing was written. An output that an input is
        donated for begins as a copy of it."""
        if number not in self._buffers and number in self._donors:
            self._buffers[number] = self.copied(self._buffers[self._donors[number]])
        return self._buffers.get(number)

    def _read(self, number: int, type: ArrayType) -> Tensor:
        array = self._array(number)
        if array is None:
            return np.empty(type.shape, type.dtype.numpy)
        return self.to_numpy(self.viewed(array, type.shape), type)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def launch(self, step: Launch) -> None:
        kernel = self.program.kernels[self.program.host.kernels[step.kernel]]
        effects = kernel.effects
        arrays = [
            self.undefined(ref) if effect == tile.OUT else self._operand(number, ref)
            for ref, effect, number in zip(kernel.refs, effects, step.buffers, strict=True)
        ]
        if has_program(kernel):
            self.run_kernel(kernel, arrays)
        for array, effect, number in zip(arrays, effects, step.buffers, strict=True):
            if effect != tile.IN:
                self._buffers[number] = array

    def _operand(self, number: int, ref: SSAValue) -> T:
        array = self._array(number)
        return self.undefined(ref) if array is None else self.viewed(array, tile.ref_type(ref).shape)

    def copy(self, step: Copy) -> None:
        array = self._array(step.source)
        if array is not None:
            self._buffers[step.target] = self.copied(array)

    def is_set(self, flag: int) -> bool:
        return bool(self._read(flag, ArrayType((), bool_)))


def _checked(program: CoreProgram, arguments: Sequence[object]) -> list[Tensor]:
    """The arguments of a call as arrays.

    Raises:
        ArgumentError, DTypeError, ShapeError: they are not those that the program takes.
    """
    try:
        check_count(program, arguments)
        arrays = [np.asarray(argument) for argument in arguments]
        for spec, array in zip(program.inputs, arrays, strict=True):
            check_array(program, spec, array)
    except TilewrightError as error:
        error.location = user_location()
        raise
    return arrays


def _undecided(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps of a run without values, where the host can decide nothing: conditions of loops without their bodies,
    and the first branches."""
    for step in steps:
        match step:
            case While(condition):
                yield from _undecided(condition)
            case If(_, then):
                yield from _undecided(then)
            case _:
                yield step


def type_of(spec: ArraySpec) -> ArrayType:
    """The type that an array has in the compiler."""
    return ArrayType(spec.shape, by_name(spec.dtype))

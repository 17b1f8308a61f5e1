"""Programs of array operators as values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tilewright.dtypes import ALL, by_name
from tilewright.errors import ArgumentError, TilewrightError

Tensor: TypeAlias = Any  # an array of any library
Library: TypeAlias = Any  # its module: numpy, jax.numpy, torch or tilewright
Record: TypeAlias = dict[str, Any]  # of a measurement, as `bench` has them
Parameter: TypeAlias = int | float | str | list[int]

# How an input is laid out in memory.
CONTIGUOUS, TRANSPOSED, STRIDED = "contiguous", "transposed", "strided"
_FORMS = (CONTIGUOUS, TRANSPOSED, STRIDED)
_HELP = "write it with the hunt"
# Python's errors on a step that no hunt wrote.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
# Integers are drawn below this: sums of them stay exact.
_MOST_INTEGER = 50


class Input(msgspec.Struct, frozen=True):
    """An input array: shape, element type and memory layout."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    form: str = CONTIGUOUS


class Step(msgspec.Struct, frozen=True):
    """An operator on earlier values, counted from the inputs on."""

    op: str
    operands: tuple[int, ...]
    parameters: dict[str, Parameter] = {}

    def on(self, renamed: Mapping[int, int]) -> Step:
        """The step with its operands renumbered."""
        return Step(self.op, tuple(renamed[n] for n in self.operands), self.parameters)


class Program(msgspec.Struct, frozen=True):
    """Inputs and steps; the result is the value of the last step."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"{_name(n)} = {each.dtype}{list(each.shape)}{_form(each)}" for n, each in enumerate(self.inputs)]
        lines += [self._line(n) for n in range(len(self.steps))]
        return "; ".join(lines)

    def _line(self, number: int) -> str:
        step = self.steps[number]
        given = [*map(_name, step.operands), *(f"{key}={value}" for key, value in step.parameters.items())]
        return f"{_name(len(self.inputs) + number)} = {step.op}({', '.join(given)})"

    def run(
        self, library: str, module: Library, arrays: Sequence[Tensor], after: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The result, by the functions of a library; `after` is applied to what each gives."""
        values = list(arrays)
        for step in self.steps:
            value = _run_step(step, library, module, *(values[n] for n in step.operands))
            values.append(value if after is None else after(value))
        return values[-1]

    def arrays(self, generator: np.random.Generator) -> tuple[Tensor, ...]:
        """Random inputs."""
        return tuple(_array(each, generator) for each in self.inputs)


@dataclass(frozen=True)
class Type:
    """Shape and element type of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * by_name(self.dtype).itemsize


def types_of(program: Program) -> list[Type]:
    """The types of all values, as our own tracing infers them.

    Raises:
        TilewrightError: an operator does not take its operands.
    """
    import tilewright as tw

    types = [Type(each.shape, each.dtype) for each in program.inputs]
    for step in program.steps:
        with _refusing(step):
            given = [tw.ShapeDtype(types[n].shape, by_name(types[n].dtype)) for n in step.operands]
            graph = tw.jit(partial(_run_step, step, "tilewright", tw)).lower(*given).graph
        result = graph.outputs[0].type
        types.append(Type(result.shape, result.dtype.name))
    return types


@contextlib.contextmanager
def _refusing(step: Step) -> Generator[None]:
    """Report Python's errors on parameters that the operator lacks, or on too few or too many operands."""
    try:
        yield
    except TilewrightError:
        raise
    except _MALFORMED as error:
        message = f"`{step.op}` does not take these operands or parameters: {error}"
        raise ArgumentError(message, help=_HELP) from None


def _run_step(step: Step, library: str, module: Library, *operands: Tensor) -> Tensor:
    from tilewright.cli.hunt.operators import form_of

    return form_of(step.op, library)(module, *operands, **step.parameters)


def read_program(text: str | bytes) -> Program:
    """The program of a JSON text.

    Raises:
        ArgumentError: the text is no program.
    """
    from tilewright.cli.hunt.operators import OPERATORS

    try:
        program = msgspec.json.decode(text, type=Program)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArgumentError(f"the text is no program of `bench hunt`: {error}", help=_HELP) from None
    if not program.steps:
        raise ArgumentError("the text is no program of `bench hunt`: it has no steps", help=_HELP)
    for number, given in enumerate(program.inputs):
        if not _is_input(given):
            raise ArgumentError(f"input {number} is no array that a hunt makes: {given}", help=_HELP)
    for number, step in enumerate(program.steps):
        earlier = len(program.inputs) + number
        if step.op not in OPERATORS or any(not 0 <= n < earlier for n in step.operands):
            message = f"step {number} is no operator on earlier values: {step}"
            raise ArgumentError(message, help=_HELP)
    return program


def _is_input(given: Input) -> bool:
    has_rows = given.form != STRIDED or len(given.shape) > 0
    is_known = given.dtype in {dtype.name for dtype in ALL} and given.form in _FORMS
    return is_known and has_rows and all(size >= 0 for size in given.shape)


def _array(given: Input, generator: np.random.Generator) -> Tensor:
    shape = given.shape
    if given.form == TRANSPOSED:
        shape = shape[::-1]
    elif given.form == STRIDED:
        shape = (*shape[:-1], 2 * shape[-1])
    dtype = by_name(given.dtype)
    if dtype.is_float:
        array = np.asarray(generator.random(shape, np.float32) + 0.25).astype(dtype.numpy)
    else:
        array = np.asarray(generator.integers(0, 2 if dtype.is_bool else _MOST_INTEGER, shape)).astype(dtype.numpy)
    if given.form == TRANSPOSED:
        return array.T
    return array[..., ::2] if given.form == STRIDED else array


def _name(number: int) -> str:
    return f"v{number}"


def _form(given: Input) -> str:
    return "" if given.form == CONTIGUOUS else f" {given.form}"

"""The host program: the steps of a call over numbered buffers.

A target runs it in its own way: one prints it as native code, one records what it launches, one interprets it with
`take`. Buffers are numbered: inputs, outputs, constants, then slots of the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from tilewright.errors import CompilerBug


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Run a kernel on buffers."""

    kernel: int
    buffers: tuple[int, ...]


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy the first bytes of a buffer to another."""

    source: int
    target: int
    nbytes: int


class While(msgspec.Struct, frozen=True, tag="while"):
    """Take the steps of `condition`, and while the byte in the buffer `flag` is not 0 then, those of `body` and again
    those of `condition`. The host reads the byte."""

    condition: tuple[Step, ...]
    flag: int
    body: tuple[Step, ...]


class If(msgspec.Struct, frozen=True, tag="if"):
    """Take the steps of `then`, or of `otherwise` where the byte in the buffer `flag` is 0, which the host reads."""

    flag: int
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step: TypeAlias = Launch | Copy | While | If


class Slot(msgspec.Struct, frozen=True):
    """An offset in the arena, in bytes. Slots overlap where the arrays in them are not alive together."""

    offset: int
    nbytes: int


class HostProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a call, the names of its kernels and constants, and the slots of the arena.

    The memory of an input may be that of the output which it was donated for: no step copies between the two.
    """

    inputs: int
    outputs: int
    constants: tuple[str, ...]
    arena: tuple[Slot, ...]
    kernels: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def first_slot(self) -> int:
        """The number of the first buffer in the arena."""
        return self.inputs + self.outputs + len(self.constants)

    def __str__(self) -> str:
        """The buffers and steps as text, for people."""
        slots = (
            f"%{self.first_slot + n}: arena byte {slot.offset}, {slot.nbytes} bytes"
            for n, slot in enumerate(self.arena)
        )
        return "\n".join([*slots, *_lines(self, self.steps)])


def _lines(program: HostProgram, steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        match step:
            case Launch(kernel, buffers):
                yield f"launch {program.kernels[kernel]}({', '.join(f'%{number}' for number in buffers)})"
            case Copy(source, target, nbytes):
                yield f"copy {nbytes} bytes of %{source} to %{target}"
            case While(condition, flag, body):
                yield "condition:"
                yield from (f"  {line}" for line in _lines(program, condition))
                yield f"while %{flag}:"
                yield from (f"  {line}" for line in _lines(program, body))
            case If(flag, then, otherwise):
                yield f"if %{flag}:"
                yield from (f"  {line}" for line in _lines(program, then))
                yield "else:"
                yield from (f"  {line}" for line in _lines(program, otherwise))


class Executor(Protocol):
    """The machine that steps are taken on."""

    def launch(self, step: Launch) -> None: ...

    def copy(self, step: Copy) -> None: ...

    def is_set(self, flag: int) -> bool:
        """Whether the byte in a buffer is not 0."""
        ...


def take(steps: Sequence[Step], executor: Executor) -> None:
    """Interpret steps in order."""
    for step in steps:
        match step:
            case Launch():
                executor.launch(step)
            case Copy():
                executor.copy(step)
            case If(flag, then, otherwise):
                take(then if executor.is_set(flag) else otherwise, executor)
            case While(condition, flag, body):
                take(condition, executor)
                while executor.is_set(flag):
                    take(body, executor)
                    take(condition, executor)


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps and those inside them."""
    for step in steps:
        yield step
        if isinstance(step, While):
            yield from all_steps((*step.condition, *step.body))
        elif isinstance(step, If):
            yield from all_steps((*step.then, *step.otherwise))


def check_steps(
    name: str, steps: Sequence[Step], kernels: Sequence[tuple[str, Sequence[int]]], sizes: Sequence[int]
) -> None:
    """Refuse steps that contradict the program: `kernels` are names with the bytes of each buffer that they take,
    `sizes` the bytes of all buffers.

    Raises:
        CompilerBug: they do; the compiler wrote them.
    """
    for step in all_steps(steps):
        wanted = _touched(name, kernels, step)
        if any(not 0 <= number < len(sizes) or not 0 <= nbytes <= sizes[number] for number, nbytes in wanted):
            raise CompilerBug(f"`{name}` has a step on buffers that it does not have, or that are too small: {step}")


def _touched(name: str, kernels: Sequence[tuple[str, Sequence[int]]], step: Step) -> list[tuple[int, int]]:
    """Numbers of the buffers that a step itself uses, and the bytes of each."""
    if isinstance(step, Launch):
        if not 0 <= step.kernel < len(kernels):
            raise CompilerBug(f"`{name}` launches kernel {step.kernel} of {len(kernels)}")
        kernel, parameters = kernels[step.kernel]
        if len(parameters) != len(step.buffers):
            raise CompilerBug(f"`{name}` launches `{kernel}` on {len(step.buffers)} buffers")
        return list(zip(step.buffers, parameters, strict=True))
    if isinstance(step, Copy):
        return [(step.source, step.nbytes), (step.target, step.nbytes)]
    return [(step.flag, 1)]

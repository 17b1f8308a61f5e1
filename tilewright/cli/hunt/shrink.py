"""The smallest program that is as slow, next to the best peer, as a program that was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.cli.hunt.program import Input, Program, Step, Type, types_of
from tilewright.errors import TilewrightError

# A smaller program counts as slow as the one it is made of if its ratio is at most this factor better.
_SLACK = 1.15


def shrunk(program: Program, ratio: float, measured: Callable[[Program], float | None]) -> tuple[Program, float]:
    """The program with the fewest steps and inputs that is reached by leaving out one after another, and its ratio.

    `measured` gives the ratio of a program, the best peer's time over ours; None where it does not run.
    """
    limit = min(ratio * _SLACK, 1.0)
    while True:
        for smaller in _smaller(program):
            found = measured(smaller)
            if found is not None and found <= limit:
                program, ratio = smaller, found
                break
        else:
            return program, ratio


def _smaller(program: Program) -> Iterator[Program]:
    """Programs of one step less: without the last one, or with an input in place of a step's result."""
    try:
        types = types_of(program)
    except TilewrightError:
        return
    if len(program.steps) < 2:
        return
    yield _pruned(Program(program.inputs, program.steps[:-1]))
    for number in range(len(program.steps) - 1):
        yield _pruned(_with_input(program, number, types[len(program.inputs) + number]))


def _with_input(program: Program, number: int, type: Type) -> Program:
    """The program with an input in place of the result of a step, which nothing reads then."""
    count = len(program.inputs)
    moved = {n: n if n < count else n + 1 for n in range(count + len(program.steps))}
    for_readers = {**moved, count + number: count}
    steps = [step.on(for_readers) for step in program.steps]
    return Program((*program.inputs, Input(type.shape, type.dtype)), tuple(steps))


def _pruned(program: Program) -> Program:
    """The program without steps and inputs that the result does not depend on."""
    count = len(program.inputs)
    needed = {count + len(program.steps) - 1}
    for number in reversed(range(len(program.steps))):
        if count + number in needed:
            needed |= {*program.steps[number].operands}
    moved = {old: new for new, old in enumerate(sorted(needed))}
    inputs = tuple(each for n, each in enumerate(program.inputs) if n in needed)
    steps: tuple[Step, ...] = tuple(s.on(moved) for n, s in enumerate(program.steps) if count + n in needed)
    return Program(inputs, steps)

"""The host program: its steps, checked on an arena of real bytes against NumPy and the interpreter of `main`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests import host_programs
from tests.fuzz.mutants import Mutant, planted
from tests.numerics.test_phases import close, expected_of
from tests.passes.pass_support import parse, unit_of
from tests.passes.test_docstrings import example
from tests.programs import PROGRAMS
from tests.sampling import sampled
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.errors import CompilerBug
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes import host_program as host_programs_pass
from tilewright.passes.base import Unit
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.pipelines import run_passes
from tilewright.runtime.host_program import Copy, HostProgram, If, Launch, While, all_steps, check_steps
from tilewright.semantics.host import HostMemory, in_place
from tilewright.semantics.tile import run_call

Tensor = np.ndarray[Any, Any]


MOST_LAUNCHES = 5000
"""A program that launches more repeats a loop forever."""


class Memory:
    """A host program on bytes, whose kernels run by definition."""

    def __init__(self, unit: Unit) -> None:
        kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self.program = host_program(unit, plan_memory(unit), list(kernels))
        self.types = [array_type(each) for each in unit.main.function_type.outputs]
        self.memory = HostMemory(self.program, kernels, unit.constants, unit.donated, in_place(self.run_kernel))
        self.launches = 0

    def run_kernel(self, kernel: tile.KernelOp, operands: list[Tensor]) -> list[Tensor]:
        self.launches += 1
        assert self.launches < MOST_LAUNCHES
        return run_call(kernel, operands)

    def run(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        return self.memory.run(arrays, self.types)


def lowered(function: Callable[..., Any], arrays: Sequence[Tensor], donated: Sequence[str] = ()) -> Unit:
    """The program with kernels of the `tile` phase."""
    traced = tw.jit(function, donate=tuple(donated)).lower(*arrays)
    constants = dict(traced.graph.snapshot())
    unit = Unit(build_module(traced.graph), constants, load("x86-64-v3"), 2, dict(traced.donated))
    run_passes(unit, keep_stages=False, scheduled=False)
    return unit


def test_the_steps_are_those_in_the_docstring() -> None:
    shown = example(host_programs_pass)
    unit = unit_of(parse(shown.before), {})
    program = host_program(unit, plan_memory(unit), [kernel.sym_name for kernel in unit.kernels()])
    assert str(program).splitlines() == shown.after.splitlines()


@pytest.mark.parametrize("seed", sampled(range(120), 3))
def test_random_programs_on_bytes_agree_with_numpy(seed: int) -> None:
    case = host_programs.case(seed)
    memory = Memory(lowered(case.function, case.arrays, case.donated))
    for found, expected in zip(memory.run(case.arrays), case.expected, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_programs_on_bytes_agree_with_numpy(make: Callable[..., Any]) -> None:
    program, arrays, expected = expected_of(make)
    unit = Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2)
    run_passes(unit, keep_stages=False, scheduled=False)
    close(Memory(unit).run(arrays), expected)


def mutant(name: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.host_program:_Writer.{method}", old, new)


MUTANTS = [
    mutant("no array through spare memory", "_through_spares", "spare is not None and nbytes", "False"),
    mutant("written before all are set aside", "_through_spares", "[*before, *after]", "[*after, *before]"),
    mutant("any output is donated for", "_share_memory", "self.unit.donated.get(a.index) == b.index", "True"),
    mutant("branches exchanged", "_if", "*branches)", "*reversed(branches))"),
    mutant("a branch keeps its results", "_if", "steps += self._assigned(value, target)", "pass"),
    mutant("loops of what is not assigned", "_while", "steps += self._assigned(source, target)", "pass"),
    mutant(
        "results that stay where they are", "_copied_results", "self.inputs + index, False", "self.inputs + index, True"
    ),
    mutant("updates of what is not copied", "_call", "steps += self._assigned(next(inputs), output)", "next(inputs)"),
    mutant(
        "slots as small as their last buffer",
        "_list_slots",
        "max(buffer.bytes, sizes.get(buffer.offset, 0))",
        "buffer.bytes",
    ),
    mutant(
        "constants after the arena", "_number_at", "self.outputs + self.constants", "self.outputs + 1 + self.constants"
    ),
]


def runs_right(function: Callable[..., Any], arrays: Sequence[Tensor], donated: Sequence[str], expected: Any) -> bool:
    """Whether a program that is lowered now gives the results of NumPy."""
    try:
        found = Memory(lowered(function, arrays, donated)).run(arrays)
    except Exception:
        return False
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def all_right() -> bool:
    """Whether a program with a constant is right, and all random ones are, up to the first that is not."""
    weights, x = np.arange(6, dtype=np.int32), np.ones(6, np.int32)
    if not runs_right(lambda x: (x + 1, weights, x * weights), [x], (), [x + 1, weights, weights]):
        return False
    cases = map(host_programs.case, range(120))
    return all(runs_right(each.function, each.arrays, each.donated, each.expected) for each in cases)


@pytest.mark.parametrize("wrong", MUTANTS, ids=lambda each: each.name)
def test_mutants_are_found(wrong: Mutant) -> None:
    with planted(wrong):
        assert not all_right()


def test_random_programs_have_all_kinds_of_steps() -> None:
    """Loops in branches, branches in loops, arrays that go through spare memory, and donations without a copy."""
    kinds: set[type] = set()
    nested = rotated = 0
    for seed in range(40):
        case = host_programs.case(seed)
        program = Memory(lowered(case.function, case.arrays, case.donated)).program
        steps = list(all_steps(program.steps))
        kinds |= set(map(type, steps))
        nested += sum(isinstance(step, If | While) for step in steps) > sum(
            isinstance(step, If | While) for step in program.steps
        )
        rotated += any(isinstance(a, Copy) and isinstance(b, Copy) for a, b in pairwise(steps))
    assert kinds == {Launch, Copy, While, If}
    assert nested > 5
    assert rotated > 5


def test_a_kernel_that_computes_nothing_is_not_launched() -> None:
    unit = lowered(lambda x: tw.sum(x * 2, axis=0), [np.ones((300, 8), np.float32)])
    names = [kernel.sym_name for kernel in unit.kernels()]
    assert all_launches(host_program(unit, plan_memory(unit), names)) == names
    assert all_launches(host_program(unit, plan_memory(unit), names[1:])) == names[1:]


def all_launches(program: HostProgram) -> list[str]:
    return [program.kernels[step.kernel] for step in all_steps(program.steps) if isinstance(step, Launch)]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Launch(1, (0,)), "launches kernel 1 of 1"),
        (Launch(0, (0, 1)), "launches `k` on 2 buffers"),
        (Launch(0, (2,)), "does not have"),
        (Launch(0, (1,)), "too small"),
        (Copy(0, 1, 16), "too small"),
        (Copy(0, 1, -1), "too small"),
        (Copy(-1, 0, 4), "does not have"),
        (While((), 2, ()), "does not have"),
        (If(0, (Copy(0, 1, 9),), ()), "too small"),
        (While((Copy(1, 0, 9),), 0, ()), "too small"),
    ],
)
def test_steps_that_contradict_the_program_are_refused(step: Any, message: str) -> None:
    check_steps("p", (Launch(0, (0,)), Copy(1, 0, 8)), [("k", (16,))], [16, 8])
    with pytest.raises(CompilerBug, match=message):
        check_steps("p", (step,), [("k", (16,))], [16, 8])

"""What the tests of layout inference share: kernels inferred for a machine, conflicts with the lines that they name,
and an oracle that says by itself whether some of a problem's constraints can be satisfied together."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace
from xdsl.ir import Operation

import tilewright as tw
from tilewright.dialects import tile
from tilewright.errors import LayoutConflictError
from tilewright.layout import Layout
from tilewright.layout.solver import Choice, Constraint, Origin, Problem, Relation, Solution
from tilewright.machines import machine as machines
from tilewright.machines.machine import Machine
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts
from tilewright.passes.layouts.layout_spaces import Space
from tilewright.passes.spaces import space_of

GPU, CPU = "sm_90a", "x86-64-v4"
# Two layouts of 64 x 64 elements in registers, between which data moves.
PAIRS = {
    GPU: (tw.layouts.wgmma_accumulator((64, 64)), tw.layouts.wgmma_transposed((64, 64))),
    CPU: (
        Layout.parse("(64, 64) : [4@reg 16@simd | 64@reg*4]"),
        Layout.parse("(64, 64) : [64@reg*4 | 4@reg 16@simd]"),
    ),
}
MARK = "# <- conflict"


@cache
def machine(name: str) -> Machine:
    """A machine that ships, or `blackwell`: one with tensor memory."""
    if name != "blackwell":
        return machines.load(name)
    gpu = machines.load(GPU)
    # PTX ISA, tensor memory: 128 lanes of 512 columns of 32 bits.
    return replace(gpu, name="blackwell", axes={**gpu.axes, "tmem.row": 128, "tmem.col": 512, "tmem.part": 4})


def space(name: str) -> Space:
    return space_of(machine(name))


def build(kernel: tw.Kernel, *types: tw.ShapeDtype, **static: Any) -> tile.KernelOp:
    """The kernel for arrays of these types, squares by default."""
    given = types or [square()] * len(kernel.kernel_signature.inputs)
    return kernel.lower(*given, **static).specialisation.build()


def square(size: int = 64, dtype: tw.DType = tw.f32) -> tw.ShapeDtype:
    return tw.ShapeDtype((size, size), dtype)


def infer(kernel: tw.Kernel, *types: tw.ShapeDtype, on: str = GPU, **static: Any) -> Inferred:
    """The layouts of a kernel's tiles on a machine."""
    ir = build(kernel, *types, **static)
    return Inferred(ir, infer_layouts(ir, space(on)))


@dataclass(frozen=True)
class Inferred:
    kernel: tile.KernelOp
    inference: Inference

    def ops(self, name: str) -> list[Operation]:
        """The operations called `tile.NAME`, or the maps of the function NAME, in order."""
        found = [op for op in self.kernel.walk() if op.name == f"tile.{name}"]
        return found or [op for op in self.kernel.walk() if isinstance(op, tile.MapOp) and op.fn == name]

    def layout(self, name: str, number: int = 0) -> Layout:
        """The layout of the result of the `number`-th of these operations."""
        layout = self.inference.layout(self.ops(name)[number].results[0])
        assert layout is not None
        return layout

    @property
    def moving_seconds(self) -> float:
        """What is spent between values: without loads, stores and computation."""
        problem, values = self.inference.problem, self.inference.solution.values
        return sum(problem.cost_of(c, values) for c in problem.constraints if isinstance(c, Relation))


@dataclass(frozen=True)
class Conflict:
    """A contradiction.

    Attributes:
        error: what the user sees.
        problem: what was asked.
        core: the origins that the error names.
        lines: the lines of the user's file on which they are.
    """

    error: LayoutConflictError
    problem: Problem
    core: tuple[Origin, ...]
    lines: frozenset[int]


def conflict_of(kernel: tw.Kernel, *types: tw.ShapeDtype, on: str = GPU, **static: Any) -> Conflict:
    """The contradiction of a kernel on a machine."""
    ir = build(kernel, *types, **static)
    asked: list[Problem] = []
    solve = Problem.solve

    def noting(self: Problem, budget: int = 100_000) -> Solution:
        asked.append(self)
        return solve(self, budget)

    with mock.patch.object(Problem, "solve", noting), pytest.raises(LayoutConflictError) as caught:
        infer_layouts(ir, space(on))
    (problem,) = asked
    named = caught.value.message.splitlines()[1:]
    origins = dict.fromkeys(constraint.origin for constraint in problem.constraints)
    core = tuple(origin for origin in origins if f"  {origin}" in named)
    assert len(core) == len(named)
    lines = frozenset(int(line) for text in named for line in re.findall(r"\.py:(\d+):", text))
    return Conflict(caught.value, problem, core, lines)


def marked_lines(kernel: tw.Kernel) -> frozenset[int]:
    """The lines of a kernel's source that end in the mark."""
    lines, first = inspect.getsourcelines(kernel.__wrapped__)  # type: ignore[attr-defined]
    return frozenset(first + n for n, line in enumerate(lines) if line.rstrip().endswith(MARK))


# ---- the oracle -----------------------------------------------------------------------------------------------------


def constraints_of(problem: Problem, origins: Iterable[Origin]) -> list[Constraint]:
    wanted = set(origins)
    return [constraint for constraint in problem.constraints if constraint.origin in wanted]


def is_satisfiable(problem: Problem, constraints: Sequence[Constraint]) -> bool:
    """Whether some assignment satisfies all constraints, by trying value after value: nothing of the solver is used."""
    order = list(dict.fromkeys(v for constraint in constraints for v in _variables(constraint)))
    return next(_assignments(problem, constraints, order, {}), None) is not None


def _assignments(
    problem: Problem, constraints: Sequence[Constraint], order: Sequence[int], chosen: dict[int, object]
) -> Iterator[dict[int, object]]:
    if len(chosen) == len(order):
        yield chosen
        return
    variable = order[len(chosen)]
    for value in problem.domains[variable]:
        tried = {**chosen, variable: value}
        due = (c for c in constraints if variable in _variables(c) and set(_variables(c)) <= tried.keys())
        if all(_holds(constraint, tried) for constraint in due):
            yield from _assignments(problem, constraints, order, tried)


def _variables(constraint: Constraint) -> tuple[int, ...]:
    return (constraint.variable,) if isinstance(constraint, Choice) else (constraint.first, constraint.second)


def _holds(constraint: Constraint, chosen: dict[int, object]) -> bool:
    if isinstance(constraint, Choice):
        return constraint.cost(chosen[constraint.variable]) is not None
    first, second = chosen[constraint.first], chosen[constraint.second]
    return first == second if constraint.cost is None else constraint.cost(first, second) is not None


def places(layout: Layout, index: tuple[int, ...], *, registers: bool = True) -> set[frozenset[tuple[str, int]]]:
    """The places of an element as sets of (axis, coordinate), zeros left out; without the registers if so asked."""
    return {
        frozenset(
            (axis, at) for axis, at in zip(layout.axes, place, strict=True) if at and (registers or axis != "reg")
        )
        for place in layout.places(index)
    }


def same_places(first: Layout, second: Layout, *, registers: bool = True) -> bool:
    """Whether two layouts put every element at the same places, found by looking at each element."""
    shape = first.static_shape
    return shape == second.static_shape and all(
        places(first, i, registers=registers) == places(second, i, registers=registers) for i in np.ndindex(*shape)
    )

"""Random array programs on targets that this machine lacks: GPUs as emulated, grids of cores as simulated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

import tilewright as tw
from tests.fuzz.bounds import MOVES, Oracle, compare
from tests.fuzz.check import Outcome
from tests.fuzz.generate import Case, generate
from tests.fuzz.intervals import Bounded, Tensor, bounded, unknown_where, widen
from tests.interop.targets import is_grid, is_near, outcome_of, running, short
from tilewright import dtypes
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Node
from tilewright.pipelines import compile_module

# What numbers of a grid of cores may be, but for some programs: the rest is refused by name.
_GRID_TYPES = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.i32, dtypes.u32, dtypes.i64, dtypes.bool_)

# Of the largest operand or result: matrices of f32 are multiplied with 11 bits, functions have 8.
_GRID_ERROR = 2.0**-8


class GridOracle(Oracle):
    """Bounds of what cores compute: wider than those of a CPU wherever floats are not just moved, so that what is cut
    off, compared or sorted afterwards is certain only where it is so on a grid."""

    def _evaluate(self, node: Node, operands: list[Bounded]) -> Sequence[Bounded]:
        results = super()._evaluate(node, operands)
        if node.op in MOVES or node.op in ("while", "if", "constant", "bitcast", "iota"):
            return results
        return [_widened(result, operands) for result in results]


def _widened(result: Bounded, operands: Sequence[Bounded]) -> Bounded:
    if result.dtype == dtypes.i64:
        # Cores compute it in 32 bits.
        beyond = (result.value < -(2**31)) | (result.value >= 2**31)
        return bounded(result.value, result.errors + unknown_where(beyond))
    if not result.dtype.is_float or not result.value.size:
        return result
    with np.errstate(all="ignore"):
        sizes = [np.abs(widen(x.value)) for x in (result, *operands) if x.dtype.is_float and x.value.size]
        largest = max(float(np.max(size[np.isfinite(size)], initial=0.0)) for size in sizes)
    return bounded(result.value, result.errors + _GRID_ERROR * largest, False)


def generate_for(target: str, seed: int) -> Case:
    """The program of a seed of types that a target mostly has."""
    return generate(seed, _GRID_TYPES, GridOracle) if is_grid(target) else generate(seed)


def check_on(case: Case, target: str) -> Outcome:
    """Compile, run and compare one program; `refused` says which type or operation the target lacks."""
    try:
        with tw.options(cache=False, verify=1), running(target), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            constants = dict(case.graph.constants)
            executable = compile_module(build_module(case.graph), constants, target, keep_stages=False)
            outputs = executable(*(x.copy() for x in case.inputs))
    except Exception as error:  # the compiler's own bugs come in any class
        state, reason = outcome_of(error, target)
        if state == "unsupported":
            return Outcome(refused=short(reason))
        return Outcome(f"raised {type(error).__name__}", reason[:600])
    elements = unknown = 0
    for position, (expected, got) in enumerate(zip(case.expected, outputs, strict=True)):
        elements, unknown = elements + expected.value.size, unknown + int(expected.unknown.sum())
        problem = _problem(expected, np.asarray(got), target)
        if problem:
            return Outcome("wrong", f"output {position} {problem}", elements, unknown)
    return Outcome("", "", elements, unknown)


def _problem(expected: Bounded, got: Tensor, target: str) -> str | None:
    """The mismatch of an output, or None if it is within its error bounds. On a grid the rounding errors of a chain of
    operations may exceed the sum of their bounds slightly."""
    verdict = compare(expected, got)
    if verdict.problem is None or not is_grid(target) or got.shape != expected.value.shape:
        return verdict.problem
    known = ~expected.unknown
    return None if is_near(got[known], expected.value[known]) else verdict.problem

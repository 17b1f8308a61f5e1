"""Random array programs on targets that this machine lacks: GPUs as emulated, grids of cores as simulated."""

from __future__ import annotations

import warnings

import numpy as np

import tilewright as tw
from tests.fuzz.bounds import Bounded, compare
from tests.fuzz.check import Outcome
from tests.fuzz.generate import Case, generate
from tests.fuzz.intervals import Tensor
from tests.interop.targets import is_grid, is_near, outcome_of, running, short
from tilewright import dtypes
from tilewright.frontend.build import build_module
from tilewright.pipelines import compile_module

# What numbers of a grid of cores may be, but for some programs: the rest is refused by name.
_GRID_TYPES = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.i32, dtypes.u32, dtypes.i64, dtypes.bool_)


def generate_for(target: str, seed: int) -> Case:
    """The program of a seed of types that a target mostly has."""
    return generate(seed, _GRID_TYPES if is_grid(target) else dtypes.ALL)


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
    """What is wrong with an output. Cores compute floats less exactly than the bounds say."""
    verdict = compare(expected, got)
    if verdict.problem is None or not is_grid(target):
        return verdict.problem
    known = ~expected.unknown
    return None if is_near(got[known], expected.value[known]) else verdict.problem

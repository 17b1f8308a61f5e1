"""Outcomes of cases on targets other than the cpu, and with which tolerance they are compared there."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    ResourceExhausted,
    TilewrightError,
    UnsupportedOnTargetError,
    UnsupportedOperatorError,
)

CPU = "cpu"
STATES = ("passed", "unsupported", "noise", "wrong", "deadlock", "race", "error", "killed", "hung")
_REFUSALS = (UnsupportedOperatorError, DataDependentShapeError, DTypeError, UnsupportedOnTargetError)
# Of the largest result: the matrix unit of a grid multiplies 11 bits of f32, its vector unit has functions of 8 bits.
_GRID_BOUND = 2.0**-6


def outcome_of(error: Exception, target: str) -> tuple[str, str]:
    """The state and the reason of a case that raised an error. A refusal names the operation or the type; memory of a
    core that is too small is one only where it says so."""
    kind = type(error).__name__
    if not isinstance(error, TilewrightError):
        return "error", f"{kind}: {error}"[:2000]
    refusals = _REFUSALS if target == CPU else (*_REFUSALS, ResourceExhausted)
    if isinstance(error, refusals):
        return "unsupported", error.message
    if target != CPU and isinstance(error, ArgumentError) and "do not fit 32 bits" in error.message:
        return "unsupported", error.message
    if "Deadlock" in kind:
        return "deadlock", error.message[:2000]
    if "Race" in kind:
        return "race", error.message[:2000]
    return "error", f"{kind}: {error.message}"[:2000]


def running(target: str) -> AbstractContextManager[Any]:
    """A context in which programs for a target run: that of a GPU has an emulated device."""
    if not target.startswith("cuda:"):
        return nullcontext()
    from tests.cuda.emulated_chip import emulated_chip

    return emulated_chip(target.removeprefix("cuda:"))


def is_grid(target: str) -> bool:
    return target.startswith("grid:")


def is_near(found: Any, expected: Any) -> bool:
    """Whether results of a grid of cores are as near to what is expected as its units are: floats within a bound of
    the largest one, anything else equal."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "iubOSU" or "int" in expected.dtype.name:
        return bool(np.array_equal(found, expected))
    kind = np.complex128 if expected.dtype.kind == "c" else np.float64
    wide, wanted = found.astype(kind), expected.astype(kind)
    finite = np.abs(wanted[np.isfinite(wanted)])
    bound = _GRID_BOUND * max(1e-3, float(finite.max(initial=0.0)))
    return bool(np.allclose(wide, wanted, rtol=_GRID_BOUND, atol=bound, equal_nan=True))


def short(reason: str) -> str:
    """A reason without what differs from case to case."""
    line = reason.splitlines()[0] if reason else ""
    line = re.sub(r"node .*?\) of [^:]*: ", "", line)
    return re.sub(r"\(\d+, \d+\)|\b\d+\b", "N", line)[:160]

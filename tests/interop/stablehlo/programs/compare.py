"""Runs a program here and in JAX."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import tilewright as tw
from tests.interop.stablehlo.programs.registry import PROGRAMS, Program
from tilewright.errors import TilewrightError

_MODULES = ("complex_numbers", "decompositions", "models", "physics", "samplers", "spectral", "statistics")


def programs() -> dict[str, Program]:
    """All programs by name."""
    for name in _MODULES:
        importlib.import_module(f"tests.interop.stablehlo.programs.{name}")
    return PROGRAMS


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program: "agrees", "wrong" or "rejected", with the largest difference, by the largest element
    of each result, and the seconds that it took here."""

    status: str
    difference: float
    seconds: float
    message: str = ""


def outcome(program: Program) -> Outcome:
    """Compile and run a program, and compare its results."""
    with jax.enable_x64(program.is_wide):
        arguments = program.arguments(np.random.default_rng(0))
        expected = jax.jit(program.function)(*arguments)
        start = time.perf_counter()
        try:
            found = tw.from_jax(program.function, *arguments)(*arguments)
        except TilewrightError as error:
            return Outcome("rejected", 0.0, time.perf_counter() - start, error.message)
        seconds = time.perf_counter() - start
        if jax.tree.structure(found) != jax.tree.structure(expected):
            return Outcome("wrong", np.inf, seconds, "the results have another structure")
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        worst = max(_difference(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return Outcome("agrees" if worst <= program.bound else "wrong", worst, seconds)


def _difference(found: Any, expected: Any) -> float:
    """The largest difference of two arrays by the largest element; infinite where they are of different kinds."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return np.inf
    if found.dtype.kind not in "fc":
        return 0.0 if np.array_equal(found, expected) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return np.inf
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    distance = np.abs(found[finite].astype(wide) - expected[finite].astype(wide))
    scale = np.abs(expected[finite]).max(initial=0.0)
    return float(distance.max(initial=0.0) / (scale or 1.0))

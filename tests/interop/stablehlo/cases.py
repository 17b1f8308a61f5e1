"""Functions of JAX, each around one operation in one form, and how they are compared with JAX on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

import tilewright as tw
from tests.interop.targets import CPU, is_grid, is_near, outcome_of
from tilewright.frontend.trace import digest

# Relative and absolute tolerances, in steps of the type around 1: XLA and we round sums in different orders.
_STEPS = 32.0


@dataclass(frozen=True)
class Case:
    """A function and its arguments. `steps` is the tolerance, `reason` why a case is expected to be refused."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    steps: float = _STEPS
    refused: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case: `state` is one of `tests.interop.targets.STATES`, or jax."""

    name: str
    state: str
    reason: str = ""
    operations: tuple[str, ...] = ()


def texts(case: Case) -> tuple[str, str, list[Any]]:
    """The program in the generic form and in the default one, and what JAX computes."""
    with _precision(case):
        lowered = jax.jit(case.function, keep_unused=True).lower(*case.arguments)
        module = lowered.compiler_ir("stablehlo").operation
        generic = module.get_asm(print_generic_op_form=True, enable_debug_info=False)
        results = jax.tree.leaves(lowered.compile()(*case.arguments))
        return generic, lowered.as_text(), [np.asarray(r) for r in results]


def generic_text(case: Case) -> str:
    """The program in the generic form."""
    with _precision(case):
        module = jax.jit(case.function, keep_unused=True).lower(*case.arguments).compiler_ir("stablehlo").operation
        return module.get_asm(print_generic_op_form=True, enable_debug_info=False)


def _precision(case: Case) -> Any:
    wide = any(np.asarray(leaf).real.dtype.itemsize == 8 for leaf in jax.tree.leaves(case.arguments))
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def run_case(case: Case, target: str = CPU) -> Outcome:
    """Read both forms, which must give one program, run it on a target and compare."""
    import re

    try:
        generic, pretty, expected = texts(case)
    except Exception as error:
        return Outcome(case.name, "jax", f"{type(error).__name__}: {error}"[:300])
    operations = tuple(sorted(set(re.findall(r'"((?:stablehlo|chlo)\.\w+)"', generic)) - {"stablehlo.return"}))
    try:
        model = tw.from_stablehlo(generic, target=target)
        leaves = jax.tree.leaves(case.arguments)
        other = tw.from_stablehlo(pretty, target=target)
        if digest(model.lower(*leaves).graph) != digest(other.lower(*leaves).graph):
            return Outcome(case.name, "wrong", "the two forms of the text give different programs", operations)
        result = model(*leaves)
        results = [result] if len(model.outputs) == 1 else list(result)
        difference = _far(results, expected) if is_grid(target) else compared(results, expected, case.steps)
    except Exception as error:
        return Outcome(case.name, *outcome_of(error, target), operations)
    return Outcome(case.name, "wrong" if difference else "passed", difference, operations)


def _far(found: list[Any], expected: list[Any]) -> str:
    """The results of a grid that are not near; nothing where all are."""
    far = [f"{a} instead of {b}" for a, b in zip(found, expected, strict=True) if not is_near(a, b)]
    return far[0][:2000] if far else ""


def compared(found: list[Any], expected: list[Any], steps: float) -> str:
    """What differs; nothing where all are alike."""
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"result {n} is {a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        tolerance = steps * _step(b.dtype)
        wide = (np.complex128 if b.dtype.kind == "c" else np.float64) if tolerance else b.dtype
        if not np.allclose(a.astype(wide), b.astype(wide), tolerance, tolerance, equal_nan=True):
            bad = ~np.isclose(a.astype(wide), b.astype(wide), tolerance, tolerance, equal_nan=True)
            return f"result {n} of {b.dtype}{b.shape}: {a[bad][:4]} instead of {b[bad][:4]}, {bad.sum()} of {bad.size}"
    return ""


def _step(dtype: np.dtype[Any]) -> float:
    if dtype.kind in "iub" or "int" in dtype.name:
        return 0.0
    return float(ml_dtypes.finfo(dtype).eps)

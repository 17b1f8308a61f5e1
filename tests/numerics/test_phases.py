"""One program in every phase: NumPy on arrays, tile kernels, scheduled kernels in random order, native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.programs import PROGRAMS, build, inputs_for
from tests.sampling import alternating
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.pipelines import array_to_tile, compile_module, tile_to_vectors
from tilewright.semantics import scheduled, tile
from tilewright.semantics.array import Interpreter

Tensor = np.ndarray[Any, Any]


def close(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(a, b)


def expected_of(make: Callable[..., Any]) -> tuple[Any, list[Tensor], list[Tensor]]:
    program = build(make)
    arrays = inputs_for(program)
    return program, arrays, compile_module(build_module(program), program.constants, "interp")(*arrays)


def run_kernels(unit: Unit, arrays: list[Tensor], call: Callable[..., list[Tensor]]) -> list[Tensor]:
    interpreter = Interpreter(unit.constants, lambda callee, operands: call(unit.kernel(callee), operands))
    return interpreter.run(unit.main.body.block, arrays)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_tile_phase_agrees_with_array_semantics(make: Callable[..., Any]) -> None:
    program, arrays, expected = expected_of(make)
    unit = Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2)
    for each in array_to_tile(unit.machine.model):
        each.apply(unit)
        unit.module.verify()
    close(run_kernels(unit, arrays, tile.run_call), expected)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_scheduled_phase_agrees_in_any_order(make: Callable[..., Any]) -> None:
    program, arrays, expected = expected_of(make)
    unit = Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2)
    for each in (*array_to_tile(unit.machine.model), *tile_to_vectors()[:2]):
        each.apply(unit)
        unit.module.verify()
    for seed in range(2):
        close(run_kernels(unit, arrays, lambda k, o, s=seed: scheduled.run_call(k, o, s)), expected)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_native_code_agrees(make: Callable[..., Any]) -> None:
    program, arrays, expected = expected_of(make)
    executable = compile_module(build_module(program), program.constants, "cpu")
    close(executable(*arrays), expected)


@pytest.mark.parametrize(
    ("make", "machine"),
    alternating(PROGRAMS, ("x86-64-v3", "x86-64-v4", "aarch64-neon")),
    ids=lambda v: getattr(v, "__name__", v),
)
def test_every_machine_compiles(make: Callable[..., Any], machine: str) -> None:
    program = build(make)
    executable = compile_module(build_module(program), program.constants, f"cpu:{machine}")
    assert "tw_main" in executable.asm()

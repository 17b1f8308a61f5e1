"""Functions that the vector unit has no call for are made of others, which agree with NumPy; all have device source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import MACHINES, VARIANTS, Variant, compiled, simulated
from tests.programs import Program
from tilewright import dtypes, ops
from tilewright.machines.machine import load
from tilewright.targets.grid.emit import emit_program

Tensor = np.ndarray[Any, Any]
WORDS = np.array([0, 1, 2, 3, 7, 100, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1], np.uint32)
FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-38, 5.0, 1e20, np.inf, -np.inf], np.float32)


def program_of(fn: str, dtype: dtypes.DType, shape: tuple[int, ...]) -> Program:
    function = ops.FUNCTIONS[fn]
    types = [dtype] * function.arity
    if function.result == ops.SELECT:
        types[0] = dtypes.bool_
    program = Program("main")
    program.outputs = [program.map(fn, *[program.array(*shape, dtype=each) for each in types])]
    return program


@pytest.mark.parametrize("dtype", [dtypes.i32, dtypes.u32], ids=str)
@pytest.mark.parametrize("fn", ["power", "sign", "absolute", "floor_divide", "remainder"])
def test_integers_at_their_ends(fn: str, dtype: dtypes.DType) -> None:
    """Each number with each, and numbers of all sizes."""
    random = np.random.default_rng(1)
    drawn = random.integers(0, 2**32, (2, 1000), np.uint64) >> random.integers(0, 32, (2, 1000)).astype(np.uint64)
    pairs = np.stack(np.meshgrid(WORDS, WORDS)).reshape(2, -1)
    given = np.concatenate([drawn.astype(np.uint32), pairs], 1).view(dtype.numpy)
    arrays = list(given[: ops.FUNCTIONS[fn].arity])
    with np.errstate(all="ignore"):
        wanted = ops.evaluate(fn, arrays)
        for machine, variant in zip(MACHINES, (VARIANTS[0], VARIANTS[5]), strict=True):
            (got,) = simulated(program_of(fn, dtype, arrays[0].shape), arrays, machine, variant)
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, 31, -1, -2])
def test_powers_that_are_known(exponent: int) -> None:
    x = np.concatenate([np.arange(-40, 40), WORDS.view(np.int32)]).astype(np.int32)
    program = Program("main")
    value = program.array(*x.shape, dtype=dtypes.i32)
    program.outputs = [program.map("power", value, program.splat(exponent, x.shape, dtypes.i32))]
    (got,) = simulated(program, [x], "wormhole", Variant(seed=2))
    np.testing.assert_array_equal(got, ops.evaluate("power", [x, np.full_like(x, exponent)]))


def test_powers_of_what_is_computed() -> None:
    x, n = (np.random.default_rng(seed).integers(-9, 9, (40, 70)).astype(np.int32) for seed in range(2))
    found = tw.jit(lambda x, n: (x * 2 + n) ** (n - x) + x, target="grid:blackhole")(x, n)
    np.testing.assert_array_equal(found, ops.evaluate("power", [x * 2 + n, n - x]) + x)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16], ids=str)
@pytest.mark.parametrize("fn", ["copysign", "hypot"])
def test_floats_at_their_ends(fn: str, dtype: dtypes.DType) -> None:
    """Without an overflow on the way; `copysign` of what is no number is none."""
    floats = np.append(FLOATS, np.nan).astype(np.float32) if fn == "copysign" else FLOATS
    a, b = (each.copy().astype(dtype.numpy) for each in np.meshgrid(floats, floats))
    with np.errstate(all="ignore"):
        wanted = ops.evaluate(fn, [a, b]).astype(np.float64)
        (got,) = simulated(program_of(fn, dtype, a.shape), [a, b], "wormhole", Variant(seed=3))
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-6 if dtype == dtypes.f32 else 2.0**-6)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(wanted)[~np.isnan(got)])


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.i32, dtypes.u32, dtypes.bool_], ids=str)
def test_all_functions_have_device_source(dtype: dtypes.DType) -> None:
    for name, function in ops.FUNCTIONS.items():
        if dtype.kind in function.kinds:
            unit = compiled(program_of(name, dtype, (33, 40)), "wormhole")
            for kernel in unit.kernels():
                assert emit_program(kernel, load("wormhole")).compute is not None

"""Functions of f32 by the chip's instructions, as PTX on an emulator, against NumPy and mpmath in higher precision."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, emulated
from tests.cuda.test_arrays import run
from tests.emulators.ptx import floats
from tilewright.cli.bench_suites.cuda_static import subroutines

Tensor = np.ndarray[Any, Any]
OWN = ("exp", "exp2", "sigmoid", "tanh", "erf", "rsqrt")
FUNCTIONS = (
    *OWN,
    "log",
    "sin",
    "cos",
    "sqrt",
    "reciprocal",
    "expm1",
    "log1p",
    "atan",
    "sinh",
    "cosh",
    "atanh",
    "asinh",
)
NUMPY = {"atan": "arctan", "atanh": "arctanh", "asinh": "arcsinh"}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e-45, 3.4e38, 0.3333, 1e10, np.inf, -np.inf, np.nan)
# Where the ways that a function is computed meet, and where results leave the normal numbers, on either side.
BORDERS = (0.55, 1.0, 4.0, 9.1, 17.5, 87.3, 87.4, 88.72, 88.73, 88.8, 103.9, 104.1, 125.9, 127.9, 128.0, 149.1, 150.1)


def numbers(count: int) -> Tensor:
    generator = np.random.default_rng(2)
    powers = generator.standard_normal(count) * 2.0 ** generator.integers(-20, 6, count)
    borders = np.array(BORDERS, np.float32)
    near = [np.nextafter(borders, np.float32(side)) for side in (0, 1000)]
    return np.concatenate([SPECIAL, powers, borders, -borders, *near, *(-each for each in near)]).astype(np.float32)


def exact_of(name: str, x: Tensor) -> Tensor:
    """In float64, from x as it is."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            return np.where(wide < 0, np.exp(wide) / (1 + np.exp(wide)), 1 / (1 + np.exp(-wide)))
        if name == "rsqrt":
            return 1 / np.sqrt(wide)
        if name == "erf":
            return np.copysign([float(mpmath.erf(each)) for each in wide], wide)
        return getattr(np, NUMPY.get(name, name))(wide)


def errors(name: str, x: Tensor) -> Tensor:
    """In ULP of the exact results. What is infinite or no number must be so, and a zero have its sign."""
    with np.errstate(all="ignore"):
        exact = exact_of(name, x)
        single = exact.astype(np.float32)
        got = run(getattr(tw, name) if hasattr(tw, name) else getattr(tw.nn, name), x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[np.isinf(single)], single[np.isinf(single)])
    np.testing.assert_array_equal(np.signbit(got[exact == 0]), np.signbit(exact[exact == 0]))
    finite = np.isfinite(single)
    return np.abs(got[finite] - exact[finite]) / np.spacing(np.abs(single[finite])).astype(np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_their_bounds(name: str) -> None:
    """Of approximations that are rounded correctly: 2 ULP."""
    assert errors(name, numbers(3000)).max() <= 2.0


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf"])
def test_functions_with_the_largest_errors_that_the_chip_may_make(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exponential within 2^-22 and an inverse within 1 ULP (PTX ISA): the functions are within 8 ULP."""

    def off(function: Any, relative: float) -> Any:
        """Errors of both signs, by the bits of the argument."""
        return lambda x: function(x) * (1 + relative * (2.0 * (np.frexp(x)[0] * 2**20 % 2 >= 1) - 1))

    for called, function in {"ex2": off(np.exp2, 2.0**-22), "rcp": off(np.reciprocal, 2.0**-23)}.items():
        monkeypatch.setitem(floats.APPROXIMATE, called, (function, floats.APPROXIMATE[called][1]))
    found = errors(name, numbers(3000))
    assert 0.6 < found.max() <= 8.0


@pytest.mark.parametrize("name", [*OWN, "rsqrt", "sqrt", "reciprocal", "log", "sin", "atan", "atanh", "cbrt"])
def test_functions_that_call_no_subroutine(name: str) -> None:
    with tw.options(cache=False):
        function = getattr(tw, name) if hasattr(tw, name) else getattr(tw.nn, name)
        program: Any = tw.jit(function).lower(tw.ShapeDtype((256,), tw.f32)).compile("cuda:sm_90a").executable.built
    (sass,) = program.sass.values()
    assert subroutines(sass) == []


def test_division_is_rounded_correctly_away_from_the_ends_of_the_range() -> None:
    generator = np.random.default_rng(3)
    x, y = (
        (generator.standard_normal(4000) * 2.0 ** generator.integers(-40, 40, 4000)).astype(np.float32)
        for _ in range(2)
    )
    np.testing.assert_array_equal(run(lambda a, b: a / b, x, y), x / y)


def test_division_at_the_ends_of_the_range() -> None:
    numbers = np.array([*SPECIAL, 2.0**126, 2.0**127, 2.0**-126, 2.0**-149, 1e-30, 3e38], np.float32)
    x, y = (each.ravel() for each in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        exact = x / y
    got = run(lambda a, b: a / b, x, y)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[np.isinf(exact)], exact[np.isinf(exact)])
    assert (np.abs(got[finite] - exact[finite]) <= 2 * np.spacing(np.abs(exact[finite]))).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainders_are_exact(dtype: str) -> None:
    """And so are quotients that are rounded down: on special values and on numbers of other sizes, as NumPy's."""
    info = np.finfo(dtype)
    special = [0.0, -0.0, 1, -3, 7.25, np.inf, -np.inf, np.nan, info.max, info.max / 3, info.tiny]
    special += [info.smallest_subnormal, -3 * info.smallest_subnormal, 0.1]
    generator = np.random.default_rng(0)
    others = generator.standard_normal((60, 2)) * np.exp2(generator.integers(-12, 12, (60, 2)))
    x, y = np.concatenate([[*itertools.product(special, special)], others]).astype(dtype).T.copy()
    program = built(tw.jit(lambda x, y: (tw.remainder(x, y), x // y)).lower(x, y), "cuda:sm_90a")
    with np.errstate(all="ignore"):
        expected = [np.remainder(x, y), np.floor_divide(x, y)]
    for found, right in zip(emulated(program, [x, y]), expected, strict=True):
        np.testing.assert_array_equal(found, right)
        is_number = ~np.isnan(right)
        np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(right)[is_number])

"""The cpu target's vector mathematics: accuracy, special cases, symmetry, lanes, and no calls to a library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from math_references import DOUBLE, EXACT
from native_elementwise import (
    INSPECTED_MACHINES,
    Compiled,
    ElementwiseModule,
    host_features,
    inspected_features,
    ulp_errors,
)

import tilewright as tw
from tilewright import ops
from tilewright.errors import CompilerBug
from tilewright.targets.llvm.values import DOUBLE as F64
from tilewright.targets.llvm.values import FLOAT as F32
from tilewright.targets.llvm.values import declare_features
from tilewright.targets.llvm.vector_math import SUPPORTED, ULP, emit_math

TWO_ARGUMENTS = ("atan2", "hypot", "power")
ONE_ARGUMENT = sorted(SUPPORTED - set(TWO_ARGUMENTS))
KINDS = {"f32": (F32, np.float32), "f64": (F64, np.float64)}
VECTOR_LANES = {"f32": 16, "f64": 8}
ODD = ("tanh", "sinh", "asinh", "atanh", "sin", "tan", "asin", "atan", "erf", "cbrt")
EVEN = ("cosh", "cos")
BOUNDS = {"sin": (-1, 1), "cos": (-1, 1), "tanh": (-1, 1), "erf": (-1, 1), "sigmoid": (0, 1), "erfc": (0, 2)}
ALWAYS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-45, -1e-45, 1e-40, -1e-40]
ALWAYS += [3.4028235e38, -3.4028235e38, 1.1754944e-38, -1.1754944e-38, 10.0, 100.0, 3.0, -3.0, 7.5]
# Where results are neither constant nor equal to the argument, by function; the rest take (-4, 4).
INTERVALS = {
    "exp": [(-104.5, -87), (-88, 89)],
    "exp2": [(-150.5, -126), (-127, 129)],
    "expm1": [(-18, 89.5), (-1, 1)],
    "sigmoid": [(-105, -85), (-20, 20)],
    "tanh": [(-10, 10), (-0.4, 0.4)],
    "sinh": [(-90, 90), (-1, 1)],
    "cosh": [(-90, 90), (-1, 1)],
    "log": [(0, 4), (0.9, 1.1)],
    "log2": [(0, 4), (0.9, 1.1)],
    "log10": [(0, 12), (0.9, 1.1)],
    "log1p": [(-1, 4), (-0.1, 0.1)],
    "asinh": [(-4, 4), (-1e6, 1e6)],
    "acosh": [(1, 1.01), (1, 40)],
    "atanh": [(-1, 1), (0.99, 1)],
    "sin": [(-10, 10), (-2e5, 2e5), (-1e30, 1e30)],
    "cos": [(-10, 10), (-2e5, 2e5), (-1e30, 1e30)],
    "tan": [(-10, 10), (-2e5, 2e5), (-1e30, 1e30)],
    "asin": [(-1, 1), (0.99, 1)],
    "acos": [(-1, 1), (0.99, 1)],
    "atan": [(-2, 2), (-50, 50)],
    "erf": [(-1, 1), (-4.5, 4.5)],
    "erfc": [(-4, 10.2), (0.4, 1.2)],
    "rsqrt": [(0, 4)],
    "cbrt": [(-8, 8)],
}


def function_name(name: str, kind: str, lanes: int) -> str:
    return f"{name}_{kind}_{lanes}"


def math_module(lanes: dict[str, tuple[int, ...]], features: Sequence[str] = ()) -> ElementwiseModule:
    built = ElementwiseModule()
    declare_features(built.module, features)
    for name in sorted(SUPPORTED):
        arity = 2 if name in TWO_ARGUMENTS else 1
        for kind, counts in lanes.items():
            element = KINDS[kind][0]
            for count in counts:
                built.add(
                    function_name(name, kind, count),
                    [element] * arity,
                    element,
                    count,
                    lambda builder, values, name=name: emit_math(builder, name, values),
                )
    return built


@pytest.fixture(scope="module", params=["plain", "without AVX-512", "host"])
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """Without what not every processor has, with what this one has, and with that of it which most have."""
    wide = ("avx512", "evex512", "amx")
    features = [] if request.param == "plain" else host_features()
    if request.param == "without AVX-512":
        features = [each for each in features if not each.startswith(wide)]
    return math_module({"f32": (1, 4, 16), "f64": (1, 2, 8)}, features).compile()


def apply(compiled: Compiled, name: str, *operands: np.ndarray, lanes: int | None = None) -> np.ndarray:
    kind = "f32" if operands[0].dtype == np.float32 else "f64"
    padded = [np.resize(o, -(-len(o) // 16) * 16) for o in operands]
    result = np.empty_like(padded[0])
    compiled.call(function_name(name, kind, lanes or VECTOR_LANES[kind]), padded, result)
    return result[: len(operands[0])]


@cache
def single_samples(name: str) -> np.ndarray:
    """Random bit patterns, random numbers of the interesting intervals, and neighbours of their ends."""
    generator = np.random.default_rng(11)
    patterns = generator.integers(0, 2**32, 40000, np.uint64).astype(np.uint32).view(np.float32)
    parts = [patterns, np.array(ALWAYS, np.float32)]
    for low, high in INTERVALS.get(name, [(-4, 4)]):
        parts.append(generator.uniform(low, high, 20000).astype(np.float32))
        ends = np.array([low, high], np.float32)
        parts += [ends, np.nextafter(ends, np.float32(-np.inf)), np.nextafter(ends, np.float32(np.inf))]
    return np.concatenate(parts)


@cache
def double_samples(name: str) -> np.ndarray:
    generator = np.random.default_rng(12)
    parts = [np.exp(generator.uniform(-700, 700, 200)) * generator.choice([-1.0, 1.0], 200)]
    for low, high in INTERVALS.get(name, [(-4, 4)]):
        parts.append(generator.uniform(low, high, 500))
    if name in ("exp", "sinh", "cosh", "expm1"):
        parts.append(generator.uniform(-746, 711, 300))
    if name == "exp2":
        parts.append(generator.uniform(-1076, 1025, 300))
    if name == "erfc":
        parts.append(generator.uniform(5, 27.5, 300))
    if name in ("sin", "cos", "tan"):
        # The double nearest to a multiple of pi / 2, and some that take the reduction by bits.
        parts += [np.array([6381956970095103.0 * 2.0**797]), generator.uniform(1e300, 1e308, 40)]
    return np.concatenate(parts)


def exact_ulp_error(got: float, exact: mpmath.mpf) -> float:
    """The distance of a double from an exact value, an infinity counting as 2^1024."""
    if abs(exact) >= mpmath.mpf(2) ** 1024:
        exact = mpmath.sign(exact) * mpmath.mpf(2) ** 1024
    result = np.sign(got) * mpmath.mpf(2) ** 1024 if np.isinf(got) else mpmath.mpf(float(got))
    exponent = max(mpmath.frexp(exact)[1] - 53, -1074) if exact else -1074
    return float(abs(result - exact) / mpmath.mpf(2) ** min(exponent, 971))


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_single_precision_keeps_its_bound(compiled: Compiled, name: str) -> None:
    values = single_samples(name)
    with np.errstate(all="ignore"):
        errors = ulp_errors(apply(compiled, name, values), DOUBLE[name](values.astype(np.float64)))
    at = int(errors.argmax())
    assert errors[at] <= ULP[name, "f32"], f"{name}({values[at]!r}) is {errors[at]} ULP off"


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_double_precision_keeps_its_bound(compiled: Compiled, name: str) -> None:
    values = double_samples(name)
    got = apply(compiled, name, values)
    with mpmath.workprec(1300 if name in ("sin", "cos", "tan") else 240):
        for value, result in zip(values, got, strict=True):
            try:
                exact = EXACT[name](mpmath.mpf(float(value)))
            except (ValueError, ZeroDivisionError):
                exact = mpmath.mpc(0, 1)
            if isinstance(exact, mpmath.mpc):
                assert np.isnan(result), f"{name}({value!r}) gives {result!r}"
            else:
                error = exact_ulp_error(result, exact)
                assert error <= ULP[name, "f64"], f"{name}({value!r}) is {error} ULP off"


def pair_samples(generator: np.random.Generator, count: int, largest: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs for the functions of two arguments: any size, moderate, a base near 1 with a large exponent, tiny."""
    signs = generator.choice([-1.0, 1.0], count)
    near_one = 1 + generator.normal(size=count) * 1e-4
    exponents = [generator.uniform(-k, k, count) for k in (largest, 5.0, 3e4 * largest / 38, 3.0)]
    return [
        (10.0 ** exponents[0] * signs, generator.uniform(-2, 2, count)),
        (generator.uniform(-3, 3, count), exponents[1]),
        (near_one, exponents[2]),
        (generator.uniform(0, 4, count), np.rint(exponents[3])),
        (10.0 ** -abs(exponents[0]), 10.0 ** -abs(exponents[0][::-1]) * signs),
    ]


@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_pairs_in_single_precision_keep_their_bound(compiled: Compiled, name: str) -> None:
    generator = np.random.default_rng(13)
    patterns = generator.integers(0, 2**32, (2, 16000), np.uint64).astype(np.uint32).view(np.float32)
    pairs = [(a.astype(np.float32), b.astype(np.float32)) for a, b in pair_samples(generator, 8000, 38.0)]
    for a, b in [(patterns[0], patterns[1]), *pairs]:
        with np.errstate(all="ignore"):
            errors = ulp_errors(apply(compiled, name, a, b), DOUBLE[name](a.astype(np.float64), b.astype(np.float64)))
        at = int(errors.argmax())
        assert errors[at] <= ULP[name, "f32"], f"{name}({a[at]!r}, {b[at]!r}) is {errors[at]} ULP off"


@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_pairs_in_double_precision_keep_their_bound(compiled: Compiled, name: str) -> None:
    for a, b in pair_samples(np.random.default_rng(14), 300, 300.0):
        base = abs(a) if name == "power" else a
        got = apply(compiled, name, base, b)
        with mpmath.workprec(240):
            for x, y, result in zip(base, b, got, strict=True):
                error = exact_ulp_error(result, EXACT[name](mpmath.mpf(float(x)), mpmath.mpf(float(y))))
                assert error <= ULP[name, "f64"], f"{name}({x!r}, {y!r}) is {error} ULP off"


@pytest.mark.parametrize("distance", [None, 0.5, 0.1, 0.03, 1e-3, 1e-6])
def test_powers_up_to_the_ends_of_the_range_keep_their_bound(compiled: Compiled, distance: float | None) -> None:
    """Exponents up to those that overflow or underflow, of bases near 1 and of subnormal ones: the logarithm's error
    counts for most there."""
    generator = np.random.default_rng(17)
    count, bound = 1 << 16, ULP["power", "f32"]
    if distance is None:
        bases = generator.integers(1, 2**23, count).astype(np.uint32).view(np.float32)
    else:
        bases = (1 + generator.uniform(-distance, distance, count)).astype(np.float32)
    for low, high in ((-150.0, -120.0), (-128.0, 128.0), (120.0, 128.0)):
        with np.errstate(all="ignore"):
            exponents = (generator.uniform(low, high, count) / np.log2(bases.astype(np.float64))).astype(np.float32)
            exact = DOUBLE["power"](bases.astype(np.float64), exponents.astype(np.float64))
            errors = ulp_errors(apply(compiled, "power", bases, exponents), exact)
        at = int(errors.argmax())
        assert errors[at] <= bound, f"{bases[at]!r} to the power {exponents[at]!r} is {errors[at]} ULP off"


def special_case(value: np.floating) -> str:
    """What a special case must get right: NaN, or the sign and whether it is zero, finite or infinite."""
    if np.isnan(value):
        return "nan"
    size = "zero" if value == 0 else "inf" if np.isinf(value) else "finite"
    return ("-" if np.signbit(value) else "+") + size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_special_values_are_those_of_numpy(compiled: Compiled, name: str, kind: str) -> None:
    ends = [-0.999, 0.999, 1.5, -1.5, 1e-300, 1e300, 20.0, -20.0]
    with np.errstate(all="ignore"):
        values = np.array(ALWAYS + ends, KINDS[kind][1])
        expected = DOUBLE[name](values.astype(np.float64)).astype(values.dtype)
    for lanes in (1, None):
        got = apply(compiled, name, values, lanes=lanes)
        for value, result, wanted in zip(values, got, expected, strict=True):
            assert special_case(result) == special_case(wanted), f"{name}({value!r}) gives {result!r}, not {wanted!r}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_special_pairs_are_those_of_numpy(compiled: Compiled, name: str, kind: str) -> None:
    single = [*ALWAYS, 1.5, -1.5, 2.0**31 + 1, 16777215.0, -16777217.0, 2.0**53, 2.0**53 - 1, 5.0, -5.0, 4.0, -4.0]
    values = np.array(single, KINDS[kind][1])
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = DOUBLE[name](a.astype(np.float64), b.astype(np.float64)).astype(values.dtype)
    for lanes in (1, None):
        got = apply(compiled, name, a, b, lanes=lanes)
        for x, y, result, wanted in zip(a, b, got, expected, strict=True):
            assert special_case(result) == special_case(wanted), f"{name}({x!r}, {y!r}): {result!r}, not {wanted!r}"


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_lane_count_gives_the_same_bits(compiled: Compiled, name: str) -> None:
    """Scalars against vectors: a lane must not see its neighbours, not even where one of them needs the slow path."""
    for samples in (single_samples("sin")[:6000], double_samples("sin")[:300]):
        operands = [samples] if name in ONE_ARGUMENT else [samples, samples[::-1].copy()]
        vector = apply(compiled, name, *operands)
        scalar = apply(compiled, name, *operands, lanes=1)
        same = (vector == scalar) & (np.signbit(vector) == np.signbit(scalar)) | (np.isnan(vector) & np.isnan(scalar))
        assert same.all(), f"{name}: {[(o[~same][:3]) for o in operands]}"


def test_other_lane_counts_compile_and_agree(compiled: Compiled) -> None:
    values = {"f32": single_samples("exp")[:1600], "f64": double_samples("exp")[:160]}
    for name in ONE_ARGUMENT:
        for kind, lanes in (("f32", 4), ("f64", 2)):
            got = apply(compiled, name, values[kind], lanes=lanes)
            np.testing.assert_array_equal(got, apply(compiled, name, values[kind]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=16, max_size=16))
def test_symmetries_are_exact(compiled: Compiled, numbers: list[float]) -> None:
    for dtype in (np.float32, np.float64):
        values = np.array(numbers, dtype)
        for name in ODD:
            np.testing.assert_array_equal(apply(compiled, name, -values), -apply(compiled, name, values))
        for name in EVEN:
            np.testing.assert_array_equal(apply(compiled, name, -values), apply(compiled, name, values))


@pytest.mark.parametrize("name", BOUNDS)
def test_results_stay_within_the_range_of_the_function(compiled: Compiled, name: str) -> None:
    low, high = BOUNDS[name]
    for values in (single_samples(name), np.concatenate([double_samples(name), np.linspace(-20, 20, 20000)])):
        got = apply(compiled, name, values)
        ordered = got[~np.isnan(got)]
        assert np.all((ordered >= low) & (ordered <= high))


def test_exact_powers(compiled: Compiled) -> None:
    bases, exponents = (g.ravel() for g in np.meshgrid(np.arange(-9.0, 10.0), np.arange(0.0, 8.0)))
    for dtype in (np.float32, np.float64):
        got = apply(compiled, "power", bases.astype(dtype), exponents.astype(dtype))
        np.testing.assert_array_equal(got, [b**e for b, e in zip(bases, exponents, strict=True)])
    halves = np.arange(-126.0, 128.0).astype(np.float32)
    np.testing.assert_array_equal(apply(compiled, "exp2", halves), np.float32(2.0) ** halves)


def test_scaling_in_one_step_changes_no_result() -> None:
    counts = {"f32": (1, 4, 16), "f64": (1, 2, 8)}
    compiled, special = math_module(counts).compile(), math_module(counts, host_features()).compile()
    for name in ("exp", "exp2", "sigmoid"):
        for samples, lanes in ((single_samples(name), (1, 4, 16)), (double_samples(name), (1, 2, 8))):
            plain = apply(compiled, name, samples)
            for count in lanes:
                np.testing.assert_array_equal(apply(special, name, samples, lanes=count), plain)


@pytest.mark.parametrize("dtype", [tw.bf16, tw.f16])
def test_functions_of_all_narrow_floats_are_those_of_f32_rounded(dtype: tw.DType) -> None:
    """The margin moves a number across a rounding boundary to a neighbour at most."""
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    for name in sorted(SUPPORTED - {"atan2", "hypot", "power"}):
        got = tw.jit(getattr(tw, name), target="cpu")(values)
        with np.errstate(all="ignore"):
            exact = DOUBLE[name](values.astype(np.float64))
            margin = np.nan_to_num(ops.NARROW_ULP * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64))
            low, high = (ops.cast(ops.cast(exact + side, tw.f32), dtype) for side in (-margin, margin))
            assert np.all((low <= got) & (got <= high) | np.isnan(exact) & np.isnan(got)), name


@pytest.mark.parametrize("machine", INSPECTED_MACHINES)
def test_no_function_calls_a_library(machine: str) -> None:
    vector = {"avx512": (16, 8), "avx2": (8, 4), "neon": (4, 2)}[machine]
    module = math_module({"f32": (1, vector[0]), "f64": (1, vector[1])}, inspected_features(machine))
    assembly = module.assembly(machine)
    assert "power_f64_1" in assembly
    assert re.findall(r"^\s+(?:call\w*|bl|jmp\s+\w+@PLT).*$", assembly, re.MULTILINE) == []


def test_every_transcendental_function_of_the_table_is_here_within_its_bound() -> None:
    for name, function in ops.FUNCTIONS.items():
        if function.cost == ops.TRANSCENDENTAL:
            assert max(ULP[name, "f32"], ULP[name, "f64"]) <= function.ulp


def test_misuse_is_a_compiler_bug() -> None:
    function = ir.Function(ir.Module(), ir.FunctionType(F32, [F32, F64, ir.IntType(32)]), "misuse")
    builder = ir.IRBuilder(function.append_basic_block())
    single, double, integer = function.args
    for name, arguments in (
        ("gamma", [single]),
        ("exp", [single, single]),
        ("power", [single]),
        ("power", [single, double]),
        ("exp", [integer]),
    ):
        with pytest.raises(CompilerBug):
            emit_math(builder, name, arguments)

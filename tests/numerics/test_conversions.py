"""Conversions between all element types, against exact rational arithmetic."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from native_elementwise import Compiled, ElementwiseModule

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.llvm.conversions import emit_cast, load_form, narrow, register_form, round_to, widen

LANES = (1, 8)
# Bits of the significand and the exponent of the smallest subnormal.
FORMATS = {"f8e4m3fn": (4, -9, 448.0), "f8e5m2": (3, -16, 57344.0)}
FORMATS |= {"f16": (11, -24, 65504.0), "bf16": (8, -133, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max))}
FORMATS |= {"f32": (24, -149, float(np.finfo(np.float32).max)), "f64": (53, -1074, float(np.finfo(np.float64).max))}


def pair_name(source: DType, destination: DType, lanes: int) -> str:
    return f"{source}_to_{destination}_{lanes}"


def cast_module(lanes: tuple[int, ...] = LANES) -> ElementwiseModule:
    built = ElementwiseModule()
    for count in lanes:
        for source in dtypes.ALL:
            for destination in dtypes.ALL:

                def body(builder, values, source=source, destination=destination):
                    cast = emit_cast(builder, widen(builder, values[0], source), source, destination)
                    return narrow(builder, cast, destination)

                name = pair_name(source, destination, count)
                built.add(name, [load_form(source)], load_form(destination), count, body)
    return built


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return cast_module().compile()


def round_exactly(value: Fraction, destination: DType) -> float:
    """`value` rounded to nearest even into a float type, by integer arithmetic alone."""
    precision, smallest, largest = FORMATS[destination.name]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, smallest)
    rounded = round(magnitude / unit) * unit  # Python rounds a Fraction half to even
    result = math.inf if rounded > Fraction(largest) else float(rounded)
    return math.copysign(result, value)


def expected_value(value: float | int | bool, source: DType, destination: DType) -> float | int | bool:
    if destination.is_bool:
        return value != 0
    if source.is_float and destination.is_integer:
        if math.isnan(value):
            return 0
        clamped = min(max(value, destination.lowest), destination.highest)
        return int(clamped)
    if destination.is_integer:
        wrapped = int(value) % 2**destination.bits
        return wrapped - 2**destination.bits if wrapped > destination.highest else wrapped
    if not math.isfinite(value):
        return value
    result = round_exactly(Fraction(value), destination)
    return math.copysign(result, value) if source.is_float else result


@cache
def samples(source: DType) -> np.ndarray:
    """Boundary and random values of a type; the count is a multiple of 8."""
    generator = np.random.default_rng(7)
    if source.is_bool:
        return np.array([False, True] * 4)
    if source.is_integer:
        return _integer_samples(source, generator)
    return _float_samples(source, generator)


def _integer_samples(source: DType, generator: np.random.Generator) -> np.ndarray:
    # Ties and near ties of every float type at every size, either sign.
    values = {0, 1, int(source.lowest), int(source.highest)}
    for bit in range(source.bits):
        for precision in (8, 11, 24, 53):
            tie = (1 << bit) + (1 << max(bit - precision, 0))
            values |= {sign * (tie + near) for near in (-1, 0, 1) for sign in (1, -1)}
            values |= {
                sign * (tie + (1 << max(bit - precision + 1, 0)) + near) for near in (-1, 0, 1) for sign in (1, -1)
            }
    values |= {int(v) for v in generator.integers(source.lowest, source.highest, 200, source.numpy, endpoint=True)}
    inside = sorted(v for v in values if source.lowest <= v <= source.highest)
    return _padded(np.array(inside, source.numpy))


def _float_samples(source: DType, generator: np.random.Generator) -> np.ndarray:
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 0.5, 0.999, 1.0, 1.5]
    for integer in dtypes.INTEGERS:
        edge = float(integer.highest)
        values += [edge, edge + 1, edge - 1, np.nextafter(edge, 0), np.nextafter(edge, math.inf)]
    for precision, smallest, largest in FORMATS.values():
        for base in (2.0**smallest, 1.0, largest):
            # Ties, and values too close to a tie for a second rounding to see which side they were on.
            for step in (0.5, 1.0, 1.5, 2.5):
                near = base + step * base * 2.0 ** (1 - precision) if base > 2.0**smallest else base * step
                values += [near, near * (1 + 2.0**-40), near * (1 - 2.0**-40), np.nextafter(near, 0)]
    values += list(generator.normal(size=100)) + list(np.exp(generator.uniform(-700, 700, 200)))
    with np.errstate(all="ignore"):
        both = np.array([*values, *(-v for v in values)], np.float64).astype(source.numpy)
    bits = generator.integers(0, 2**8, 100 * source.itemsize, np.uint8, endpoint=False)
    return _padded(np.concatenate([both, bits.view(source.numpy)]))


def _padded(values: np.ndarray) -> np.ndarray:
    return np.resize(values, -(-len(values) // 8) * 8)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_every_pair_is_exact(compiled: Compiled, source: DType) -> None:
    values = samples(source)
    plain = [v.item() if not source.is_float else float(v) for v in values]
    for destination in dtypes.ALL:
        exact = [expected_value(v, source, destination) for v in plain]
        # Rounded already: the step through float64 changes nothing.
        expected = np.array(exact, np.float64 if destination.is_float else destination.numpy)
        expected = expected.astype(destination.numpy)
        for lanes in LANES:
            got = np.empty(len(values), destination.numpy)
            compiled.call(pair_name(source, destination, lanes), [values], got)
            assert_same(got, expected, values, f"{source} to {destination}, {lanes} lanes")


def assert_same(got: np.ndarray, expected: np.ndarray, values: np.ndarray, what: str) -> None:
    """Equal bit for bit, except that any NaN equals any other."""
    same = got.view(f"u{got.itemsize}") == expected.view(f"u{got.itemsize}")
    if got.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            same |= (got != got) & (expected != expected)
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, f"{what}: {[(values[i], got[i], expected[i]) for i in wrong[:5]]}"


def test_signalling_nan_becomes_quiet(compiled: Compiled) -> None:
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7FC00000] * 2, np.uint32).view(np.float32)
    for destination, quiet_bit in ((dtypes.f16, 0x0200), (dtypes.bf16, 0x0040), (dtypes.f8e5m2, 0x02)):
        got = compiled.call(pair_name(dtypes.f32, destination, 8), [signalling], np.empty(8, destination.numpy))
        assert np.all(np.isnan(got))
        assert np.all(got.view(f"u{destination.itemsize}") & quiet_bit)


NARROW = [each for each in dtypes.FLOATS if each.is_narrow_float]


def every_code(dtype: DType) -> np.ndarray:
    return np.arange(2**dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_all_patterns_survive_a_round_trip(dtype: DType) -> None:
    built = ElementwiseModule()
    for lanes in LANES:
        built.add(
            f"trip_{lanes}",
            [load_form(dtype)],
            load_form(dtype),
            lanes,
            lambda builder, values: narrow(builder, round_to(builder, widen(builder, values[0], dtype), dtype), dtype),
        )
    code = built.compile()
    values = every_code(dtype)
    for lanes in LANES:
        got = code.call(f"trip_{lanes}", [values], np.empty_like(values))
        assert_same(got, values, values, f"{dtype}, {lanes} lanes")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_widening_gives_the_same_number(dtype: DType) -> None:
    built = ElementwiseModule()
    built.add("widen", [load_form(dtype)], register_form(dtype), 8, lambda builder, v: widen(builder, v[0], dtype))
    values = every_code(dtype)
    got = built.compile().call("widen", [values], np.empty(len(values), np.float32))
    np.testing.assert_array_equal(got, values.astype(np.float32))


@pytest.mark.parametrize("dtype", [dtypes.f8e4m3fn, dtypes.f8e5m2], ids=str)
def test_floats_of_8_bits_round_as_ml_dtypes_does(dtype: DType) -> None:
    """Every bf16 number, all middles of neighbours and the f32 numbers beside them; of NaN the sign as well."""
    built = ElementwiseModule()
    form = load_form(dtypes.f32), load_form(dtype)
    built.add("narrow", form[:1], form[1], 8, lambda builder, v: narrow(builder, v[0], dtype))
    numbers = np.unique(every_code(dtype).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    step = numbers[-1] - numbers[-2]
    middles = np.concatenate([(numbers[1:] + numbers[:-1]) / 2, [numbers[-1] + step / 2, -numbers[-1] - step / 2]])
    beside = [np.nextafter(middles, np.float32(to)) for to in (np.inf, -np.inf)]
    bf16 = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    values = _padded(np.concatenate([bf16, middles, *beside]).astype(np.float32))
    got = built.compile().call("narrow", [values], np.empty(len(values), dtype.numpy))
    with np.errstate(all="ignore"):
        expected = values.astype(dtype.numpy)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


def test_bool_bytes_other_than_one_are_true(compiled: Compiled) -> None:
    stored = np.array([0, 1, 2, 255, 128, 0, 7, 1], np.uint8)
    got = compiled.call(pair_name(dtypes.bool_, dtypes.f32, 8), [stored], np.empty(8, np.float32))
    np.testing.assert_array_equal(got, [0, 1, 1, 1, 1, 0, 1, 1])


@pytest.mark.parametrize("machine", ["avx2", "avx512", "neon"])
def test_no_conversion_calls_a_library(machine: str) -> None:
    assembly = cast_module((8,)).assembly(machine)
    assert "i64_to_bf16_8" in assembly
    assert re.findall(r"^\s+(?:call\w*|bl)\s.*$", assembly, re.MULTILINE) == []

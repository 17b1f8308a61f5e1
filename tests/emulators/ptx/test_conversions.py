"""cvt of the PTX emulator against exact fractions, struct and ml_dtypes."""

import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.kernels import apply, bits_of_type, kernel
from tests.emulators.ptx.test_arithmetic import assert_same_floats, exact_rounding, finite, floats, integers, numbers

INTEGERS = [f"{kind}{bits}" for bits in (16, 32, 64) for kind in "us"]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_between_integers(source: str, target: str) -> None:
    values = integers(source, 100, 1)
    bits = bits_of_type(target)
    plain = apply(f"cvt.{target}.{source}", target, (source, values)).tolist()
    assert plain == [value % (1 << bits) for value in values.tolist()]
    limits = np.iinfo(f"{'int' if target[0] == 's' else 'uint'}{bits}")
    given = np.iinfo(values.dtype)
    if limits.min <= given.min and given.max <= limits.max:
        return  # There is nothing to clamp, and no such instruction.
    clamped = apply(f"cvt.sat.{target}.{source}", target, (source, values)).tolist()
    assert clamped == [max(limits.min, min(limits.max, value)) % (1 << bits) for value in values.tolist()]


def test_bytes_in_wider_registers() -> None:
    """Sources of 8 bits are the low bits of a register, results are extended to it (PTX ISA, operand sizes)."""
    values = integers("u32", 100, 2)
    low = [value & 255 for value in values.tolist()]
    signed = [value - 256 if value > 127 else value for value in low]
    assert apply("cvt.u32.u8", "u32", ("u32", values)).tolist() == low
    assert apply("cvt.s32.s8", "s32", ("u32", values)).tolist() == [value % (1 << 32) for value in signed]
    assert apply("cvt.s8.s32", "s32", ("u32", values)).tolist() == [value % (1 << 32) for value in signed]
    assert apply("cvt.rn.f32.s8", "f32", ("u32", values)).view(np.float32).tolist() == signed


FROM_INTEGER = [(mode, target) for mode in ("rn", "rz", "rm", "rp") for target in ("f32", "f16")] + [("rn", "f64")]


@pytest.mark.parametrize(("mode", "target"), FROM_INTEGER)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_floats(mode: str, target: str, source: str) -> None:
    values = integers(source, 300, 3)
    generator = np.random.default_rng(4)
    if source.endswith("64"):
        # A bit far below the middle of two f32 numbers decides.
        upper = (generator.integers(1 << 62, (1 << 63) - 1, 100) >> 39) << 39
        values[100:200] = (upper + (1 << 38) + generator.integers(-1, 2, 100)).astype(values.dtype)
    actual = apply(f"cvt.{mode}.{target}.{source}", target, (source, values))
    expected = [exact_rounding(Fraction(value), target, mode) if value else 0.0 for value in values.tolist()]
    assert_same_floats(actual, expected, target, values)


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_to_integers(source: str, target: str) -> None:
    values = floats(source, 300, 5)
    values[20:40] = np.array([2.5, -2.5, 0.5, -0.5, 3.5, 1e4, -1e4, 6e4, -3e4, 99.9] * 2).astype(values.dtype)
    if source != "f16":
        values[40:48] = np.array([2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30])
    bits = bits_of_type(target)
    limits = np.iinfo(f"{'int' if target[0] == 's' else 'uint'}{bits}")
    missing = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
    for mode, function in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():
        expected = []
        for value in numbers(values):
            if math.isnan(value):
                expected.append(missing)
            elif math.isinf(value):
                expected.append((limits.max if value > 0 else limits.min) % (1 << bits))
            else:
                expected.append(max(limits.min, min(limits.max, function(value))) % (1 << bits))
        assert apply(f"cvt.{mode}.{target}.{source}", target, (source, values)).tolist() == expected, mode


NARROWING = [(source, target) for source in ("f64", "f32") for target in ("f32", "f16", "bf16") if source != target]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "target"), NARROWING)
def test_narrower_floats(source: str, target: str, mode: str) -> None:
    values = floats(source, 600, 6)
    generator = np.random.default_rng(7)
    # Middles of neighbours, subnormal results and overflow.
    middles = (1 + generator.integers(0, 256, 100) / 128 + 1 / 256) * 2.0 ** generator.integers(-30, 18, 100)
    values[100:200] = middles.astype(values.dtype)
    values[200:210] = np.array(
        [65504, 65519.996, 65520, 65536, 3.3e38, 3.4e38, -65520, 2.0**-25, 1.5 * 2.0**-25, 1e-44]
    )
    actual = apply(f"cvt.{mode}.{target}.{source}", target, (source, values))
    every = numbers(values)
    expected = [exact_rounding(Fraction(x), target, mode) if finite(x) and x else x for x in every]
    assert_same_floats(actual, expected, target, values)


def test_f16_follows_struct_and_bf16_follows_ml_dtypes() -> None:
    values = floats("f32", 600, 8)
    values = values[np.isfinite(values) & (np.abs(values) < 65000)]
    halves = [struct.unpack("<H", struct.pack("<e", value))[0] for value in values.tolist()]
    assert apply("cvt.rn.f16.f32", "f16", ("f32", values)).tolist() == halves
    np.testing.assert_array_equal(
        apply("cvt.rn.bf16.f32", "bf16", ("f32", values)), values.astype(ml_dtypes.bfloat16).view(np.uint16)
    )


@pytest.mark.parametrize(("source", "target"), [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64")])
def test_wider_floats_are_exact(source: str, target: str) -> None:
    values = floats(source, 300, 9)
    actual = apply(f"cvt.{target}.{source}", target, (source, values))
    assert_same_floats(actual, numbers(values), target, values)


def test_rounding_to_integral_floats() -> None:
    values = floats("f32", 200, 10)
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        actual = apply(f"cvt.{mode}.f32.f32", "f32", ("f32", values))
        assert_same_floats(actual, numbers(function(values)), "f32", values)


def test_saturation_and_flushing() -> None:
    values = np.array([-1, -0.0, 0.25, 1, 2, np.inf, np.nan, 1e-40], np.float32)
    saturated = apply("cvt.sat.f32.f32", "f32", ("f32", values)).view(np.float32)
    np.testing.assert_array_equal(saturated, np.array([0, 0, 0.25, 1, 1, 1, 0, 1e-40], np.float32))
    assert apply("cvt.ftz.f32.f32", "f32", ("f32", values)).tolist()[-1] == 0
    assert apply("cvt.rpi.ftz.s32.f32", "s32", ("f32", values)).tolist()[-1] == 0
    assert apply("cvt.rpi.s32.f32", "s32", ("f32", values)).tolist()[-1] == 1


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packed_halves(name: str) -> None:
    dtype = np.float16 if name == "f16x2" else ml_dtypes.bfloat16
    upper, lower = np.random.default_rng(11).standard_normal((2, 200)).astype(np.float32)
    actual = apply(f"cvt.rn.{name}.f32", "b32", ("f32", upper), ("f32", lower)).view(dtype)
    np.testing.assert_array_equal(actual[::2], lower.astype(dtype))
    np.testing.assert_array_equal(actual[1::2], upper.astype(dtype))
    relu = apply(f"cvt.rn.relu.{name}.f32", "b32", ("f32", upper), ("f32", lower)).view(dtype)
    np.testing.assert_array_equal(relu[1::2].astype(np.float32), np.maximum(upper.astype(dtype).astype(np.float32), 0))


def test_tf32_ties_go_away_from_zero() -> None:
    values = (1 + np.arange(64) / 2.0**12).astype(np.float32)
    values = np.concatenate([values, -values])
    actual = apply("cvt.rna.tf32.f32", "b32", ("f32", values)).view(np.float32)
    scaled = np.abs(values.astype(np.float64)) * 2**10
    np.testing.assert_array_equal(np.abs(actual), np.floor(scaled + 0.5) / 2**10)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)])
def test_pairs_of_eight_bits(name: str, dtype: type) -> None:
    """All numbers of the format there and back; what is too large becomes the largest."""
    both = f"cvt.rn.f16x2.{name} %r1, %h1; cvt.rn.satfinite.{name}.f32 %h2, %r2, %r3;"
    assembled(kernel(both, 0), "sm_90a")
    every = np.arange(256, dtype=np.uint8)
    pairs = np.stack([every, every[::-1]], axis=1).copy().view(np.uint16)[:, 0]
    halves = apply(f"cvt.rn.f16x2.{name}", "u32", ("u16", pairs)).view(np.float16).reshape(256, 2)
    np.testing.assert_array_equal(halves[:, 0], every.view(dtype).astype(np.float16))
    np.testing.assert_array_equal(halves[:, 1], every[::-1].copy().view(dtype).astype(np.float16))
    largest = float(ml_dtypes.finfo(dtype).max)
    numbers = np.concatenate([np.random.default_rng(0).standard_normal(500) * 40, [1e9, -1e9, np.inf, -np.inf, 0.0]])
    numbers = numbers.astype(np.float32)
    got = (
        apply(f"cvt.rn.satfinite.{name}.f32", "u16", ("f32", numbers), ("f32", -numbers)).view(np.uint8).reshape(-1, 2)
    )
    for column, values in enumerate((-numbers, numbers)):
        expected = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
        np.testing.assert_array_equal(got[:, column], expected)
    nan = apply(f"cvt.rn.satfinite.{name}.f32", "u16", ("f32", np.full(2, np.nan, np.float32)), "0f00000000")
    assert nan.tolist() == [0x7F00] * 2

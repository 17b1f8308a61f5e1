"""Division of integers in vectors against NumPy: all pairs of 8 bits, all dividends of 16, edges of 32 and 64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from native_elementwise import INSPECTED_MACHINES, ElementwiseModule, host_features, inspected_features

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.cpu.loops import broadcast
from tilewright.targets.llvm.conversions import register_form
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.integer_division import divide_unsigned, remainder_unsigned
from tilewright.targets.llvm.values import declare_features, splat

FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {"floor_divide": np.floor_divide, "remainder": np.remainder}
INTEGERS = [d for d in dtypes.ALL if d.is_integer]
NARROW = [d for d in INTEGERS if d.bits == 8]
WIDE = [d for d in INTEGERS if d.bits > 8]
# Those whose multiplier has one bit too many are among them: 7, 19 and others without sign.
DIVISORS = (0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 14, 19, 25, 28, 100, 125, 127, 128, 255, 641, 1000, 1023, 1024, 1025, 32767)
LARGE_DIVISORS = (32768, 65535, 65537, 10**6, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 + 1, 10**18, 2**62)


def divisors_of(dtype: DType) -> list[int]:
    """Divisors of both signs and next to the ends of a type."""
    near_end = [dtype.highest, dtype.highest - 1, dtype.highest // 2, dtype.highest // 2 + 1, dtype.highest // 3]
    found = {*DIVISORS, *LARGE_DIVISORS, *near_end}
    found |= {-d for d in found} | {dtype.lowest, dtype.lowest + 1}
    return sorted(d for d in found if dtype.lowest <= d <= dtype.highest)


def dividends_of(dtype: DType, divisors: list[int]) -> np.ndarray:
    """All numbers of 16 bits; of more, those next to multiples of divisors and powers of two, and random ones."""
    if dtype.bits <= 16:
        return np.arange(dtype.lowest, dtype.highest + 1).astype(dtype.numpy)
    edges = {dtype.lowest, dtype.highest, 0}
    edges |= {sign * 2**k for k in range(dtype.bits) for sign in (1, -1)}
    for divisor in divisors:
        whole = dtype.highest // divisor if divisor else 0
        edges |= {divisor * n for n in (1, 2, 3, whole, whole - 1, whole // 2)}
        edges |= {-divisor * n for n in (1, 2, whole)}
    near = {e + n for e in edges for n in (-2, -1, 0, 1, 2)}
    held = [n for n in near if dtype.lowest <= n <= dtype.highest]
    drawn = np.random.default_rng(dtype.bits).integers(dtype.lowest, dtype.highest, 4096, dtype.numpy, endpoint=True)
    values = np.concatenate([np.array(held, dtype.numpy), drawn])
    return values[: len(values) // 64 * 64]


def expected(fn: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's result, with 0 for division by 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(y == 0, 0, FUNCTIONS[fn](x, y)).astype(x.dtype)


def lanes_for(dtype: DType) -> int:
    return 512 // dtype.bits


def known_module(dtype: DType, divisors: list[int], lanes: int) -> ElementwiseModule:
    """A function for each divisor, which is a constant of its code."""
    built, element = ElementwiseModule(), register_form(dtype)
    for fn in FUNCTIONS:
        for divisor in divisors:

            def body(builder, values, fn=fn, divisor=divisor):
                constant = broadcast(builder, splat(element, divisor), lanes)
                return emit_function(builder, fn, dtype, [values[0], constant])

            built.add(f"{fn}_{divisor}", [element], element, lanes, body)
    return built


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_known_divisor(dtype):
    divisors = list(range(dtype.lowest, dtype.highest + 1)) if dtype.bits == 8 else divisors_of(dtype)
    compiled = known_module(dtype, divisors, lanes_for(dtype)).compile()
    x = dividends_of(dtype, divisors)
    for fn in FUNCTIONS:
        for divisor in divisors:
            got = compiled.call(f"{fn}_{divisor}", [x], np.empty_like(x))
            np.testing.assert_array_equal(got, expected(fn, x, np.full_like(x, divisor)), f"{fn} by {divisor}")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_few_lanes(dtype):
    divisors = [d for d in (3, 7, -5, dtype.highest) if d >= dtype.lowest]
    x = dividends_of(dtype, divisors)
    for lanes in (1, 2, 4):
        compiled = known_module(dtype, divisors, lanes).compile()
        for fn in FUNCTIONS:
            for divisor in divisors:
                got = compiled.call(f"{fn}_{divisor}", [x], np.empty_like(x))
                np.testing.assert_array_equal(got, expected(fn, x, np.full_like(x, divisor)))


def variable_module(dtype: DType, lanes: int, features: Sequence[str] = ()) -> ElementwiseModule:
    built, element = ElementwiseModule(), register_form(dtype)
    declare_features(built.module, features)
    for fn in FUNCTIONS:
        built.add(fn, [element] * 2, element, lanes, lambda b, values, fn=fn: emit_function(b, fn, dtype, values))
    return built


@pytest.mark.parametrize("lanes", [1, 2, 16])
@pytest.mark.parametrize("features", ["plain", "host"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_divisor_of_each_lane(dtype, features, lanes):
    declared = host_features() if features == "host" else []
    numbers = dividends_of(dtype, [3, 7]) if dtype.bits > 16 else None
    divisors = np.array(divisors_of(dtype), dtype.numpy)
    if dtype.bits == 8:
        divisors = np.arange(dtype.lowest, dtype.highest + 1).astype(dtype.numpy)
    numbers = dividends_of(dtype, []) if numbers is None else numbers
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(numbers, divisors))
    compiled = variable_module(dtype, lanes, declared).compile()
    for fn in FUNCTIONS:
        np.testing.assert_array_equal(compiled.call(fn, [x, y], np.empty_like(x)), expected(fn, x, y), fn)


def test_quotients_next_to_integers():
    """Pairs whose quotient is as near to an integer as it can be."""
    rng = np.random.default_rng(5)
    y = rng.integers(1, 2**31, 2**16, np.int64)
    quotient = rng.integers(0, 2**31 // y + 1)
    for dtype in (dtypes.i32, dtypes.u32, dtypes.i64, dtypes.u64):
        compiled = variable_module(dtype, 16, host_features()).compile()
        for offset in (-1, 0, 1):
            x = np.clip(y * quotient + offset, dtype.lowest, dtype.highest).astype(dtype.numpy)
            got = compiled.call("floor_divide", [x, y.astype(dtype.numpy)], np.empty_like(x))
            np.testing.assert_array_equal(got, x.astype(np.int64) // y)


@pytest.mark.parametrize("divisor", [1, 3, 7, 24, 64, 4082, 2**33 + 1])
def test_unsigned_index_arithmetic(divisor):
    built, word = ElementwiseModule(), register_form(dtypes.i64)
    for lanes in (1, 8):
        built.add(f"quotient_{lanes}", [word], word, lanes, lambda b, v: divide_unsigned(b, v[0], divisor))
        built.add(f"rest_{lanes}", [word], word, lanes, lambda b, v: remainder_unsigned(b, v[0], divisor))
    compiled = built.compile()
    x = dividends_of(dtypes.u64, [divisor])
    for lanes in (1, 8):
        for name, function in (("quotient", np.floor_divide), ("rest", np.remainder)):
            got = compiled.call(f"{name}_{lanes}", [x], np.empty_like(x))
            np.testing.assert_array_equal(got, function(x, np.uint64(divisor)))


@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_no_lane_is_divided_by_itself(machine, dtype):
    """Vectors stay whole: neither a division of scalars nor a lane of its own."""
    assert machine in INSPECTED_MACHINES
    lanes = lanes_for(dtype) if machine == "avx512" else 256 // dtype.bits
    for built in (known_module(dtype, [7, 10], lanes), variable_module(dtype, lanes, inspected_features(machine))):
        if dtype.bits == 64 and machine == "avx2" and built.names == list(FUNCTIONS):
            continue  # it has no conversion of 64 bits
        words = built.assembly(machine).split()
        assert not [w for w in words if w.startswith(("idiv", "div", "vpinsr", "vpextr"))]

"""Sorts by digits, in native code: every type, both orders, zeros of both signs, NaN and infinities, against NumPy's
stable sorts of exact values."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.machines.machine import load
from tilewright.targets.cpu.radix_sort import Digits

LENGTH = 10007


def drawn(dtype: DType, count: int, kind: str) -> np.ndarray:
    generator = np.random.default_rng(7)
    if kind == "equal":
        return np.full(count, 1, dtype.numpy)
    if kind == "few":
        return generator.integers(0, 2 if dtype.is_bool else 7, count).astype(dtype.numpy)
    if dtype.is_bool:
        return generator.integers(0, 2, count).astype(bool)
    if not dtype.is_float:
        low, high = int(dtype.lowest), int(dtype.highest)
        return generator.integers(low, high, count, dtype=dtype.numpy, endpoint=True)
    with np.errstate(over="ignore", invalid="ignore"):
        x = (generator.standard_normal(count) * 10.0 ** generator.integers(-8, 8, count)).astype(dtype.numpy)
        x[::17], x[::23] = 0.0, -0.0
        x[::101] = np.nan
        x[3], x[5] = np.inf, -np.inf
    return x


def exact(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def order(x: np.ndarray, descending: bool) -> np.ndarray:
    """Indices of a stable sort; NaN last, and first of a descending one."""
    keys = exact(x)
    if not descending:
        return np.argsort(keys, kind="stable")
    # Equal elements keep their order: a stable ascending sort of the reversed array, reversed.
    return len(x) - 1 - np.argsort(keys[::-1], kind="stable")[::-1]


def bits(x: np.ndarray) -> bytes:
    """NaN are all alike."""
    values = exact(x)
    return np.where(values != values, np.nan, values).tobytes() if x.dtype.kind not in "iub" else x.tobytes()


@pytest.mark.parametrize("kind", ["all", "few", "equal"])
@pytest.mark.parametrize("dtype", [each for each in dtypes.ALL if each.bits >= 8], ids=repr)
def test_sorts_of_every_type(dtype: DType, kind: str) -> None:
    x = drawn(dtype, LENGTH, kind)

    @tw.jit
    def sorts(x: tw.Array) -> tuple[tw.Array, ...]:
        both = (False, True)
        return (*(tw.sort(x, descending=d) for d in both), *(tw.argsort(x, descending=d) for d in both))

    results = [np.asarray(each) for each in sorts(x)]
    for n, descending in enumerate((False, True)):
        expected = order(x, descending)
        np.testing.assert_array_equal(results[2 + n], expected)
        assert bits(results[n]) == bits(x[expected])


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.i16, dtypes.u8], ids=repr)
@pytest.mark.parametrize("count", [300, 1025, 5000, 20000])
def test_lines_that_are_nearly_sorted(count: int, dtype: DType) -> None:
    """In order, or not at one place: in a vector, between two of them, at either end."""
    x = drawn(dtype, count, "all")
    in_order = x[order(x, False)]
    both = tw.jit(lambda x: (tw.sort(x), tw.argsort(x), tw.sort(x, descending=True)))
    for place in (None, 0, 5, 7, 31, 32, 255, count // 2, count - 2):
        x = in_order.copy()
        if place is not None:
            x[[place, place + 1]] = x[[count - 1, place]]
        results = [np.asarray(each) for each in both(x)]
        np.testing.assert_array_equal(results[1], order(x, False))
        assert bits(results[0]) == bits(x[order(x, False)])
        assert bits(results[2]) == bits(x[order(x, True)])


@pytest.mark.parametrize("count", [262145, 400003])
def test_long_lines_of_floats(count: int) -> None:
    x = drawn(dtypes.f32, count, "all")
    assert Digits.of_ranks(dtypes.f32).worth(count, load("x86-64-v3"))
    assert bits(np.asarray(tw.jit(lambda x: tw.sort(x))(x))) == bits(x[order(x, False)])


@pytest.mark.parametrize("axis", [0, 1])
def test_lines_side_by_side(axis: int) -> None:
    """Each line in the memory of the one before."""
    x = np.random.default_rng(1).standard_normal((5, LENGTH) if axis else (LENGTH, 5))
    both = tw.jit(lambda x: (tw.sort(x, axis=axis), tw.argsort(x, axis=axis)))(x.astype(np.float32))
    np.testing.assert_array_equal(both[0], np.sort(x.astype(np.float32), axis=axis))
    np.testing.assert_array_equal(both[1], np.argsort(x.astype(np.float32), axis=axis, kind="stable"))
    np.testing.assert_array_equal(tw.jit(lambda x: tw.sort(x, axis=axis))(x), np.sort(x, axis=axis))


@pytest.mark.parametrize(
    ("dtype", "places"),
    [
        (dtypes.f32, (0, 1, 2, 3)),
        (dtypes.bf16, (2, 3)),
        (dtypes.f16, (1, 2, 3)),
        (dtypes.f64, tuple(range(8))),
        (dtypes.u8, (0,)),
        (dtypes.i16, (0, 1)),
        (dtypes.bool_, (0,)),
    ],
    ids=repr,
)
def test_digits_that_decide(dtype: DType, places: tuple[int, ...]) -> None:
    digits = Digits.of_ranks(dtype)
    assert digits.places == places
    assert digits.of_records.places == tuple(place + 4 for place in places)

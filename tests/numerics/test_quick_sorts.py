"""Sorts of elements alone by partitions, merges of their halves, and what takes their place without such instructions,
against NumPy's sorts."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.machines.machine import load
from tilewright.runtime.cpu import features
from tilewright.targets.cpu import quick_sort

TARGETS = [name for name in ("x86-64-v4", "x86-64-v3") if not features.missing(load(name).llvm_features)]
SORT = tw.jit(lambda x: tw.sort(x))
ROWS = tw.jit(lambda x: tw.sort(x, axis=1))
TYPES = ["int32", "int64", "float32", "float64", "uint8", "int16", "uint64", "float16"]


def kinds(count: int, dtype: str) -> dict[str, np.ndarray]:
    g = np.random.default_rng(count)
    rising = np.arange(count)
    found = {
        "random": g.standard_normal(count) * 100,
        "two values": g.integers(0, 2, count),
        "few": g.integers(0, 50, count),
        "equal": np.full(count, 7),
        "reversed": rising[::-1] % 100,
        "organ pipe": np.minimum(rising, rising[::-1]),
        "one out of order": np.where(rising == count // 2, 0, rising),
        "largest first": np.where(rising == 0, count, rising),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: x.astype(dtype) for name, x in found.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [63, 129, 255, 257, 511, 513, 1000, 5003, 16385, 40002])
def test_sorts_of_any_values(count: int, dtype: str, target: str) -> None:
    sorts = [tw.jit(lambda x, d=d: tw.sort(x, descending=d), target=f"cpu:{target}") for d in (False, True)]
    for name, x in kinds(count, dtype).items():
        expected = np.sort(x)
        np.testing.assert_array_equal(np.asarray(sorts[0](x)), expected, name)
        np.testing.assert_array_equal(np.asarray(sorts[1](x)), expected[::-1], name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [300, 3001, 40001])
def test_nan_infinities_and_zeros(count: int, dtype: str) -> None:
    g = np.random.default_rng(1)
    x = g.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -3.0], dtype), count)
    result = np.asarray(SORT(x))
    np.testing.assert_array_equal(result, np.sort(x))
    # Zeros of both signs are equal, and stay in order.
    assert np.signbit(result[result == 0]).tolist() == np.signbit(x[x == 0]).tolist()


@pytest.mark.parametrize("length", [130, 700, 3001])
def test_lines_beside_each_other_are_left_alone(length: int) -> None:
    x = np.random.default_rng(2).integers(-9, 9, (5, length, 3), np.int32)
    np.testing.assert_array_equal(np.asarray(ROWS(x)), np.sort(x, axis=1))
    rows = np.ascontiguousarray(x[:, :, 0])
    np.testing.assert_array_equal(np.asarray(ROWS(rows)), np.sort(rows, axis=1))


@pytest.mark.parametrize("dtype", TYPES)
def test_parts_go_by_digits_after_bad_pivots(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for partitions in (0, 1):
        monkeypatch.setattr(quick_sort, "_PARTITIONS", partitions)
        with tw.options(cache=False):
            sort = tw.jit(lambda x: tw.sort(x))
            for name, x in kinds(5003, dtype).items():
                np.testing.assert_array_equal(np.asarray(sort(x)), np.sort(x), name)


def test_pivots_of_a_sequence_that_is_bad_for_them() -> None:
    """Each time, samples are the largest integers that are left."""
    count, lanes = 4096, 16
    places, x = list(range(count)), np.zeros(count, np.int32)
    for value in range(count, lanes, -lanes):
        step = len(places) // lanes
        chosen = [places[step * lane + step // 2] for lane in range(lanes)]
        x[chosen] = np.arange(value - lanes, value)
        places = [place for place in places if place not in set(chosen)]
    np.testing.assert_array_equal(np.asarray(SORT(x)), np.sort(x))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [16384, 16386, 16415, 30000])
def test_halves_that_end_anywhere_are_merged(count: int, target: str) -> None:
    g = np.random.default_rng(count)
    low, high = g.integers(-9, 0, count // 2), g.integers(0, 9, count - count // 2)
    largest = np.full(count // 2, 2**31 - 1)
    lines = [np.concatenate(pair) for pair in ((low, high), (high, low), (largest, high), (high, largest))]
    for x in [*lines, g.integers(-(2**31), 2**31, count)]:
        keys = x.astype(np.int32)
        result = tw.jit(lambda x: tw.sort(x), target=f"cpu:{target}")(keys)
        np.testing.assert_array_equal(np.asarray(result), np.sort(keys))

"""Gathers along inner dimensions in native code: rows that share their indices, all element sizes, tails, against
NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.sampling import alternating
from tilewright.options import options

DTYPES = (np.uint8, np.bool_, np.int16, np.float16, np.float32, np.int64, np.float64)
# Shapes, and how many indices along the last dimension: whole vectors, tails, fewer than a vector has lanes.
CASES = [((40, 1000), 512), ((7, 333), 500), ((129, 64), 7), ((3, 5, 70), 65), ((1, 100), 33), ((300, 2), 1)]


def sample(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 120, shape).astype(dtype)


@pytest.mark.parametrize(("case", "dtype"), alternating(CASES, DTYPES), ids=str)
def test_elements_of_each_row(case, dtype):
    shape, count = case
    x = sample(shape, dtype)
    index = np.random.default_rng(count).integers(-shape[-1], shape[-1], count)

    @tw.jit
    def take(x, index):
        return tw.take(x, index, axis=-1)

    @tw.jit
    def squares(x, index):
        return tw.astype(tw.take(x, index, axis=-1), tw.f32) ** 2

    for threads in (1, 3):
        with options(threads=threads):
            np.testing.assert_array_equal(np.asarray(take(x, index)), np.take(x, index, -1))
            expected = np.take(x, index, -1).astype(np.float32) ** 2
            np.testing.assert_array_equal(np.asarray(squares(x, index)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_by_indices_of_their_own(dtype):
    x = sample((37, 210), dtype)
    index = np.random.default_rng(3).integers(0, 210, (37, 75))
    got = tw.jit(lambda x, index: tw.take_along_axis(x, index, axis=1))(x, index)
    np.testing.assert_array_equal(np.asarray(got), np.take_along_axis(x, index, 1))


@pytest.mark.parametrize("axis", [1, 2])
def test_middle_dimensions(axis):
    x = sample((9, 31, 45), np.float32)
    index = np.random.default_rng(4).integers(0, x.shape[axis], (6, 4))
    got = tw.jit(lambda x, index: tw.take(x, tw.reshape(index, (24,)), axis=axis))(x, index)
    np.testing.assert_array_equal(np.asarray(got), np.take(x, index.ravel(), axis))


def test_two_indices_of_each_element():
    x = sample((60, 80), np.float32)
    rng = np.random.default_rng(6)
    rows, columns = rng.integers(0, 60, (50, 1)), rng.integers(0, 80, 70)
    got = tw.jit(lambda x, rows, columns: x[rows, columns])(x, rows, columns)
    np.testing.assert_array_equal(np.asarray(got), x[rows, columns])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [5, 7, -6])
def test_elements_far_apart(stride, dtype):
    x = sample((23, 400), dtype)

    @tw.jit
    def take(x):
        return tw.astype(x[1:, 3::stride], tw.f32) * 2

    np.testing.assert_array_equal(np.asarray(take(x)), x[1:, 3::stride].astype(np.float32) * 2)


@pytest.mark.parametrize(
    ("rows", "count", "function"), alternating([1, 2, 3, 52], [8, 17, 64, 100, 128, 1000], ["sum", "max", "norm"])
)
def test_reductions_along_the_gathered_axis(rows: int, count: int, function: str) -> None:
    rng = np.random.default_rng(count)
    x, index = rng.standard_normal((rows, 56)).astype(np.float32), rng.integers(0, 56, count)
    taken = x[:, index].astype(np.float64)
    ours, expected = {
        "sum": (lambda v: tw.sum(v, axis=1), taken.sum(1)),
        "max": (lambda v: tw.max(v, axis=1), taken.max(1)),
        "norm": (lambda v: v - tw.mean(v, axis=1, keepdims=True), taken - taken.mean(1, keepdims=True)),
    }[function]
    found = np.asarray(tw.jit(lambda x, index: ours(tw.take(x, index, axis=1)), target="cpu")(x, index))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


_TAKEN = {
    "rows": (lambda x, i: tw.take(x, i, axis=0), (64, 64), "i8"),
    "elements of rows": (lambda x, i: tw.take(x, i, axis=1) * 2, (64, 64), "i8"),
    "elements along an axis": (lambda x, i: tw.take_along_axis(x, i[:, None], axis=1), (64, 64), "i8"),
    "rows by bytes, of as many as there are bytes": (lambda x, i: x[i], (256, 64), "u1"),
}


@pytest.mark.parametrize(("function", "shape", "index"), _TAKEN.values(), ids=_TAKEN)
def test_indices_that_are_kept_inside_are_not_compared_again(function, shape, index) -> None:
    """They are clamped, or all values of their type are inside: loads have no masks."""
    x, i = tw.ShapeDtype(shape, tw.f32), tw.ShapeDtype((64,), tw.u8 if index == "u1" else tw.i64)
    text = tw.jit(function).lower(x, i).compile("cpu:x86-64-v3").asm()
    assert "vmaskmov" not in text


def test_indices_at_the_ends_of_their_types() -> None:
    x = np.arange(300 * 8, dtype=np.float32).reshape(300, 8)
    take = tw.jit(lambda x, i: x[i])
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64):
        info = np.iinfo(dtype)
        i = np.array([0, 1, info.max, info.min, min(299, info.max), max(-300, info.min)], dtype)
        wide = np.array([int(n) for n in i])
        rows = np.clip(np.where(wide < 0, wide + 300, wide), 0, 299)
        np.testing.assert_array_equal(take(x, i), x[rows])


def test_indices_that_are_inside_on_one_side_only() -> None:
    """Rows at bytes plus a row, of fewer than those reach: what is beyond the last row is dropped, nothing else."""
    x = np.arange(100 * 8, dtype=np.float32).reshape(100, 8)
    i = np.array([0, 7, 98, 99, 100, 255], np.uint8)

    def program(x: tw.Array, i: tw.Array) -> tw.Array:
        return tw.zeros((100, 8)).at[i].add(x[tw.minimum(i, 99)])

    expected = np.zeros((100, 8), np.float32)
    np.add.at(expected, i[i < 100], x[i[i < 100]])
    np.testing.assert_array_equal(tw.jit(program)(x, i), expected)

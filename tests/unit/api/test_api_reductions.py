"""Reductions, running totals, order and search against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from api_support import FLOAT_DTYPES, INTEGER_DTYPES, close, numbers, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import ArgumentError, DataDependentShapeError, DTypeError, IndexError_, ShapeError

AXES = [None, 0, -1, (0, 2), (1,), ()]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "max", "min"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_reductions_of_floats(name, axis, keepdims, dtype):
    x = numbers((3, 4, 5), dtype)
    expected = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims)
    # Sums cancel, so their error is measured against the sum of magnitudes.
    offset = np.sum(np.abs(x.astype(np.float64)), axis=axis, keepdims=keepdims) if name in ("sum", "mean") else 0.0
    actual = run(lambda a: getattr(tw, name)(a, axis=axis, keepdims=keepdims), x)
    assert actual.dtype == x.dtype
    tolerance = 8 * dtypes.by_name(dtype).epsilon
    np.testing.assert_allclose(actual.astype(np.float64) + offset, expected + offset, rtol=tolerance, atol=tolerance)
    method = run(lambda a: getattr(a, name)(axis, keepdims=keepdims), x)
    same(method, actual)


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("dtype", [*INTEGER_DTYPES, "bool"])
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_sums_of_integers_are_wide(name, dtype, axis):
    x = numbers((3, 4, 2), dtype)
    wide = np.uint64 if dtype.startswith("u") else np.int64
    same(run(lambda a: getattr(tw, name)(a, axis=axis), x), getattr(np, name)(x, axis=axis, dtype=wide))
    same(run(lambda a: getattr(a, name)(axis, dtype=tw.i32), x), getattr(np, name)(x, axis=axis, dtype=np.int32))


@pytest.mark.parametrize("dtype", [*INTEGER_DTYPES, "bool"])
def test_extremes_and_means_of_integers(dtype):
    x = numbers((3, 4), dtype)
    same(run(lambda a: tw.max(a, axis=1), x), x.max(1))
    same(run(lambda a: tw.min(a, axis=0), x), x.min(0))
    close(run(lambda a: tw.mean(a, axis=0), x), x.mean(0), "f32")


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["all", "any", "count_nonzero"])
def test_counting(name, axis):
    x = numbers((3, 4, 2), "i8", 7, 0, 2)
    x[0] = 1
    reference = getattr(np, name)
    same(run(lambda a: getattr(tw, name)(a, axis=axis), x), np.asarray(reference(x, axis=axis)))
    same(run(lambda a: getattr(tw, name)(a, axis=axis), x.astype(bool)), np.asarray(reference(x, axis=axis)))


def test_reductions_over_nothing():
    x = np.zeros((3, 0), np.float32)
    same(run(lambda a: tw.sum(a, axis=1), x), np.zeros(3, np.float32))
    same(run(lambda a: tw.prod(a, axis=1), x), np.ones(3, np.float32))
    same(run(lambda a: tw.all(a, axis=1), x), np.ones(3, bool))
    same(run(lambda a: tw.mean(a, axis=1), x), np.full(3, math.nan, np.float32))
    same(run(lambda a: tw.max(a, axis=0), x), np.zeros(0, np.float32))
    with pytest.raises(ShapeError):
        run(lambda a: tw.max(a, axis=1), x)


def test_nan_wins():
    x = np.array([[1.0, math.nan, 3.0], [2.0, 1.0, 0.0]], np.float32)
    same(run(lambda a: tw.max(a, axis=1), x), x.max(1))
    same(run(lambda a: tw.argmax(a, axis=1), x), x.argmax(1))
    same(run(lambda a: tw.argmin(a, axis=1), x), x.argmin(1))


def test_half_precision_means_do_not_overflow():
    x = np.full((4096,), 60000, np.float16)
    same(run(tw.mean, x), np.asarray(60000, np.float16))
    close(run(tw.std, numbers((1000,), "f16")), numbers((1000,), "f16").astype(np.float64).std(), "f16")


@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_corrected_variance(correction):
    x = numbers((5, 6), "f64")
    close(run(lambda a: tw.var(a, axis=0, correction=correction), x), x.var(0, ddof=correction), "f64", 16)
    close(run(lambda a: a.std(1, correction=correction), x), x.std(1, ddof=correction), "f64", 16)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis, keepdims):
    x = numbers((3, 4), "f64", low=-900, high=900)
    expected = np.logaddexp.reduce(x, axis=axis, keepdims=keepdims)
    close(run(lambda a: tw.logsumexp(a, axis=axis, keepdims=keepdims), x), expected, "f64", 8)


def test_logsumexp_of_infinities():
    inf = math.inf
    x = np.array([[-inf, -inf], [-inf, 2.0], [inf, 1.0], [math.nan, 1.0]])
    same(run(lambda a: tw.logsumexp(a, axis=1), x), np.array([-inf, 2.0, inf, math.nan]))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_places_of_extremes(name, axis, keepdims):
    x = numbers((4, 5), "i8")
    expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))
    same(run(lambda a: getattr(tw, name)(a, axis=axis, keepdims=keepdims), x), expected)
    same(run(lambda a: getattr(a, name)(axis, keepdims=keepdims), x), expected)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_totals(name, axis, initial):
    x = numbers((3, 4), "i32")
    expected = getattr(np, name)(x, axis=axis, include_initial=initial, dtype=np.int64)
    same(run(lambda a: getattr(tw, name)(a, axis=axis, include_initial=initial), x), expected)


def test_running_totals_of_vectors_and_floats():
    x = numbers((7,), "f64")
    same(run(lambda a: tw.cumsum(a), x), np.cumsum(x))
    same(run(lambda a: a.cumsum(), x), np.cumsum(x))
    with pytest.raises(ArgumentError):
        run(tw.cumsum, np.zeros((2, 2)))


@pytest.mark.parametrize("n", [0, 1, 2, 9])
@pytest.mark.parametrize("axis", [0, -1])
def test_diff(n, axis):
    x = numbers((3, 5), "i32")
    same(run(lambda a: tw.diff(a, n=n, axis=axis), x), np.diff(x, n, axis))


def test_diff_with_ends_and_bools():
    x = numbers((3, 5), "i32")
    same(run(lambda a: tw.diff(a, prepend=a[:, :1], append=a[:, :2]), x), np.diff(x, prepend=x[:, :1], append=x[:, :2]))
    mask = x > 0
    same(run(tw.diff, mask), np.diff(mask))
    with pytest.raises(ArgumentError):
        run(lambda a: tw.diff(a, n=-1), x)


def test_isin():
    x, wanted = numbers((3, 5), "i32"), np.array([[1, -2], [3, 1]], np.int32)
    same(run(tw.isin, x, wanted), np.isin(x, wanted))
    same(run(lambda a, b: tw.isin(a, b, invert=True), x, wanted), np.isin(x, wanted, invert=True))
    same(run(lambda a: tw.isin(a, 1), x), np.isin(x, 1))


# ---- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["f32", "i8", "u16"])
def test_sorting_is_stable(dtype, axis, descending):
    x = numbers((6, 7), dtype)
    # A stable order by value, the other way round by negating ranks.
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-ranks if descending else ranks, axis=axis, kind="stable")
    same(run(lambda a: tw.sort(a, axis=axis, descending=descending), x), np.take_along_axis(x, order, axis))
    same(run(lambda a: tw.argsort(a, axis=axis, descending=descending), x), order)


def test_sort_puts_nan_last():
    x = np.array([2.0, math.nan, 1.0])
    same(run(tw.sort, x), np.sort(x))


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_top_k(k, axis):
    x = numbers((5, 4), "i16")
    order = np.take(np.argsort(-x, axis=axis, kind="stable"), range(k), axis)
    values, indices = run(lambda a: tw.top_k(a, k, axis=axis), x)
    same(indices, order)
    same(values, np.take_along_axis(x, order, axis))
    with pytest.raises(ShapeError):
        run(lambda a: tw.top_k(a, 6), x)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([-2.0, -0.0, 0.5, 1.0, 7.0, math.inf, math.nan]), max_size=9),
    st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0, math.inf, math.nan]), max_size=5),
    st.sampled_from(["left", "right"]),
)
def test_searchsorted(ordered, wanted, side):
    x, y = np.sort(np.array(ordered)), np.array(wanted)
    same(run(lambda a, b: tw.searchsorted(a, b, side=side), x, y), np.searchsorted(x, y, side))


def test_searchsorted_through_a_sorter_and_of_integers():
    x, y = np.array([5, 1, 3]), np.array([[0, 1], [4, 9]])
    sorter = np.argsort(x)
    expected = np.searchsorted(x, y, sorter=sorter)
    same(run(lambda a, b, s: tw.searchsorted(a, b, sorter=s), x, y, sorter), expected)
    with pytest.raises(ShapeError):
        run(tw.searchsorted, y, y)
    with pytest.raises(ArgumentError):
        run(lambda a: tw.searchsorted(a, a, side="middle"), x)


@pytest.mark.parametrize("name", ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"])
def test_functions_whose_size_depends_on_data(name):
    with pytest.raises(DataDependentShapeError):
        run(getattr(tw, name), np.arange(3))


def test_reductions_refuse():
    x = np.zeros((2, 3))
    for call, error in [
        (lambda a: tw.sum(a, axis=2), IndexError_),
        (lambda a: tw.sum(a, axis=(0, 0)), ArgumentError),
        (lambda a: tw.sum(a, axis=1.5), ArgumentError),
        (lambda a: tw.sum(a, dtype="complex256"), DTypeError),
        (lambda a: tw.argmax(a[:0], axis=0), ShapeError),
        (lambda a: tw.sort(a, axis=5), IndexError_),
    ]:
        with pytest.raises(error):
            run(call, x)


@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)
def test_equal_elements_have_no_variance(target: str, dtype: Any) -> None:
    @tw.jit(target=target)
    def spread(x: Any) -> Any:
        return tw.var(x, axis=1), tw.std(x, axis=1, correction=1), tw.nn.layer_norm(x), tw.var(x.mT, axis=0)

    for size in (3, 100, 768, 1000):
        x = np.asarray([[v] * size for v in (1234.5678, 100000.1, 12345678.0, 1e25, 1e-12, 7e-17)], dtype)
        for result in spread(x):
            np.testing.assert_array_equal(result, 0)


def test_variance_of_large_numbers_near_each_other() -> None:
    x = (np.random.default_rng(0).standard_normal((4, 1000)) + 1e6).astype(np.float32)
    np.testing.assert_allclose(tw.jit(lambda x: tw.var(x, axis=1))(x), x.var(1, dtype=np.float64), rtol=1e-6)

"""Convolutions of drawn geometries on CPUs, in each order of dims that the cost model chooses, against NumPy."""

from __future__ import annotations

import itertools
import math

import ml_dtypes  # noqa: F401  NumPy knows its types by name
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.sampling import alternating, count

Dims = tuple[int, ...]


def reference(x: np.ndarray, w: np.ndarray, strides: Dims, pads: Dims, dilation: Dims, groups: int) -> np.ndarray:
    """A sum of products over the window's positions, in f64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((p, p) for p in pads)))
    window, channels = w.shape[2:], w.shape[1]
    counts = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded.shape[2:], window, dilation, strides, strict=True)
    ]
    split = w.astype(np.float64).reshape(groups, w.shape[0] // groups, channels, *window)
    total = np.zeros((x.shape[0], groups, w.shape[0] // groups, *counts))
    for place in itertools.product(*map(range, window)):
        seen = padded[
            (
                slice(None),
                slice(None),
                *(
                    slice(p * d, p * d + (n - 1) * s + 1, s)
                    for p, d, n, s in zip(place, dilation, counts, strides, strict=True)
                ),
            )
        ].reshape(x.shape[0], groups, channels, *counts)
        total += np.einsum("goc,ngc...->ngo...", split[(..., *place)], seen)
    return total.reshape(x.shape[0], w.shape[0], *counts)


def check(
    x: np.ndarray, w: np.ndarray, strides: Dims, pads: Dims, dilation: Dims, groups: int, target: str, known: bool
) -> None:
    def convolved(x: tw.Array, w: tw.Array) -> tw.Array:
        return tw.nn.conv(x, w, stride=strides, padding=pads, dilation=dilation, groups=groups)

    if known:
        found = tw.jit(lambda x: convolved(x, tw.asarray(w))).lower(x).compile(target=target)(x)
    else:
        found = tw.jit(convolved).lower(x, w).compile(target=target)(x, w)
    expected = reference(x, w, strides, pads, dilation, groups)
    # Rounding of each product and of each sum, in the type that they are added up in and in that of the result.
    kept = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-50}[x.dtype.name]
    summed = math.prod(w.shape[1:]) * min(kept, 2.0**-22)
    largest = reference(abs(x), abs(w), strides, pads, dilation, groups)
    assert found.dtype == x.dtype
    np.testing.assert_array_less(abs(found - expected), largest * (summed + kept) + 1e-7)


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Dims, Dims, Dims, Dims, Dims, int]:
    """Shapes of the image and of the weights, strides, padding, dilation and groups."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    each = st.tuples(*[st.integers(1, 3)] * rank)
    strides, dilation = draw(each), draw(each)
    window = draw(st.tuples(*[st.integers(1, 4)] * rank))
    pads = draw(st.tuples(*[st.integers(0, 4)] * rank))
    groups = draw(st.sampled_from([1, 1, 2, 3, 8, 16, 17]))
    channels = draw(st.sampled_from([1, 1, 2, 5, 16]))
    results = draw(st.sampled_from([1, 1, 2, 3, 16]))
    least = [max(1, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(window, dilation, pads, strict=True)]
    most = [8] * rank if rank == 3 else [20] * (rank - 1) + [50]
    image = [n + draw(st.integers(0, m)) for n, m in zip(least, most, strict=True)]
    batch = draw(st.integers(1, 8 if rank < 3 else 2))
    shape = (batch, groups * channels, *image)
    return shape, (groups * results, channels, *window), strides, pads, dilation, groups


@given(
    geometries(),
    st.sampled_from(["f4", "f4", "f8", "f2"]),
    st.sampled_from(["cpu", "cpu:x86-64-v3"]),
    st.booleans(),
)
@settings(max_examples=count(40, 200), deadline=None)
def test_drawn_geometries(
    geometry: tuple[Dims, Dims, Dims, Dims, Dims, int], dtype: str, target: str, known: bool
) -> None:
    shape, weights, strides, pads, dilation, groups = geometry
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(each).astype(dtype) for each in (shape, weights))
    check(x, w, strides, pads, dilation, groups, target, known)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_totals_are_shared_by_the_parts_of_padded_rows(dtype: str) -> None:
    """Rows of zeros, of the image and of zeros again are loops of their own, which add to the same totals."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 16, 2, 10), (1, 16, 1, 1)))
    check(x, w, (1, 1), (1, 3), (1, 1), 1, "cpu:x86-64-v3", False)


def test_padding_of_rows_that_are_stored_in_panels() -> None:
    """Vectors that begin elsewhere than where a panel does would cross its end."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 35)), rng.standard_normal((1, 2, 1))
    for pad in (1, 2, 3, 5):
        check(x, w, (1,), (pad,), (1,), 1, "cpu:x86-64-v3", False)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize(
    ("channels", "results", "window", "stride", "pad", "groups"),
    [
        (64, 96, 3, 1, 1, 1),
        (33, 17, 3, 2, 1, 1),
        (40, 40, 3, 1, 1, 40),
        (40, 40, 3, 2, 1, 40),
        (40, 40, 7, 1, 3, 40),
        (48, 96, 3, 1, 1, 6),
        (65, 31, 1, 1, 0, 1),
    ],
)
def test_layers_of_networks(
    batch: int, channels: int, results: int, window: int, stride: int, pad: int, groups: int
) -> None:
    rng = np.random.default_rng(1)
    for size in ((7, 7), (14, 13), (9, 57)):
        x = rng.standard_normal((batch, channels, *size), dtype=np.float32)
        w = rng.standard_normal((results, channels // groups, window, window), dtype=np.float32)
        check(x, w, (stride,) * 2, (pad,) * 2, (1, 1), groups, "cpu", known=False)


# Image, weights, padding and dilation, of groups that the channels tell.
READ_IN_PLACE: list[tuple[Dims, Dims, int, int]] = [
    ((1, 64, 30, 31), (64, 8, 3, 3), 1, 1),
    ((3, 12, 17, 13), (27, 4, 3, 3), 1, 1),
    ((2, 10, 19, 31), (20, 5, 3, 5), 2, 2),
    ((1, 40, 41, 44), (34, 20, 3, 3), 1, 1),
    ((2, 66, 10, 11), (34, 33, 3, 3), 1, 1),
    ((2, 12, 70), (8, 6, 5), 2, 1),
    ((1, 9, 6, 7, 18), (6, 3, 3, 2, 3), 1, 1),
    ((4, 20, 23, 23), (1, 20, 5, 5), 0, 1),
    ((1, 4000, 5, 60), (5, 4000, 1, 3), 0, 1),
    ((1, 1100, 9, 30), (5, 1100, 3, 3), 1, 1),
    ((1, 18, 15, 60), (2, 9, 1, 7), 0, 1),
]


@pytest.mark.parametrize(
    ("windows", "dtype", "target"),
    alternating(READ_IN_PLACE, ["f4", "f8", "f2", "bfloat16"], ["cpu", "cpu:x86-64-v3"]),
    ids=str,
)
def test_windows_that_are_read_in_place(windows: tuple[Dims, Dims, int, int], dtype: str, target: str) -> None:
    image, weights, pad, dilation = windows
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (image, weights))
    rank, groups = len(image) - 2, image[1] // weights[1]

    def convolved(x: tw.Array, w: tw.Array) -> tw.Array:
        return tw.nn.conv(x, w, padding=pad, dilation=dilation, groups=groups)

    assert "steps = array<i64" in tw.jit(convolved).lower(x, w).compile(target=target).ir("scheduled")
    check(x, w, (1,) * rank, (pad,) * rank, (dilation,) * rank, groups, target, known=False)


@pytest.mark.parametrize("shape", [(1, 8, 20, 40), (2, 4, 7, 7)])
def test_what_follows_a_convolution(shape: Dims) -> None:
    """A bias, a function and a sum with the image, after sums over windows and after a product."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape, dtype=np.float32)
    for groups in (1, shape[1]):
        w = rng.standard_normal((shape[1], shape[1] // groups, 3, 3), dtype=np.float32)
        b = rng.standard_normal(shape[1], dtype=np.float32)

        def layer(x: tw.Array, w: tw.Array, b: tw.Array, groups: int = groups) -> tw.Array:
            y = tw.nn.conv(x, w, padding=1, groups=groups) + b[None, :, None, None]
            return tw.maximum(y, 0) + x

        expected = np.maximum(reference(x, w, (1, 1), (1, 1), (1, 1), groups) + b[None, :, None, None], 0) + x
        np.testing.assert_allclose(tw.jit(layer)(x, w, b), expected, rtol=1e-4, atol=1e-4)

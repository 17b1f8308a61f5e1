"""Reductions over leading dimensions, whose rows are added to totals in memory, in native code: odd sizes, several
types, two results at a time, against NumPy in double precision."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tests.sampling import alternating
from tilewright.cost.vectors.reductions import MANY_ROWS
from tilewright.options import options
from tilewright.targets.cpu.nest_plan import ROWS

SHAPES = [
    (MANY_ROWS, 1024),
    (MANY_ROWS + 1, 1023),
    (MANY_ROWS + ROWS - 1, 1025),
    (4096, 257),
    (3, 333, 515),
    (40, 2047),
]


@pytest.mark.parametrize(
    ("shape", "dtype"), alternating(SHAPES, (np.float32, np.float64, np.float16, np.int32, np.uint8)), ids=str
)
def test_sums_and_maxima_of_columns(shape, dtype):
    flat = (np.random.default_rng(0).standard_normal(int(np.prod(shape)) + 3) * 20).astype(dtype)
    x = flat[3:].reshape(shape)
    axis = len(shape) - 2

    @tw.jit
    def both(x):
        return tw.sum(x, axis=axis), tw.max(x * x, axis=axis)

    found = []
    for threads in (1, 2, 5):
        with options(threads=threads):
            found.append([np.asarray(each) for each in both(x)])
    sums, maxima = found[0]
    assert all(np.array_equal(a, b) for each in found[1:] for a, b in zip(found[0], each, strict=True))
    np.testing.assert_array_equal(maxima, (x * x).max(axis))
    if x.dtype.kind != "f":
        np.testing.assert_array_equal(sums, x.sum(axis, dtype=sums.dtype))
        return
    # Half a unit for the result's rounding; sums of f16 are kept in f32.
    precision = np.finfo(np.float32 if dtype == np.float16 else dtype).eps
    atol = precision * 20 * shape[axis]
    # Of more bits than f64 has: NumPy adds up columns of f64 one by one.
    expected = x.sum(axis, dtype=np.longdouble)
    np.testing.assert_allclose(sums.astype(np.longdouble), expected, rtol=np.finfo(dtype).eps, atol=atol)


def test_special_values_of_columns_reach_their_own_results_only():
    x = np.random.default_rng(0).uniform(1, 2, (100, 700)).astype(np.float32)
    x[3, 5], x[99, 699], x[50, 17], x[0, 128] = np.nan, np.inf, -np.inf, -np.inf
    x[1, 128] = np.inf
    found = np.asarray(tw.jit(lambda x: tw.sum(x, axis=0))(x))
    with np.errstate(invalid="ignore"):
        expected = x.sum(0, dtype=np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    alternating([MANY_ROWS + n for n in range(ROWS)], (np.int8, np.int64, np.uint16, np.uint64, np.bool_)),
    ids=str,
)
def test_exact_results_of_columns(rows, dtype):
    """Three of one pass over rows of all residues: the whole range of a type, factors of rows, kept dimensions."""
    kind = np.dtype(dtype)
    lowest, highest = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    draw = np.random.default_rng(rows).integers
    wide = kind if kind.kind != "b" else np.uint8
    x = draw(lowest, highest, (2, rows, 1031), dtype=wide, endpoint=True).astype(kind)
    factors = draw(0, 2, (rows, 1), dtype=wide).astype(kind)

    @tw.jit
    def several(x, factors):
        return tw.sum(x, axis=1), tw.max(x & factors, axis=1, keepdims=True), tw.any(x, axis=(0, 1)), tw.all(x, axis=1)

    sums, maxima, any_, all_ = several(x, factors)
    np.testing.assert_array_equal(sums, x.sum(1, dtype=np.asarray(sums).dtype))
    np.testing.assert_array_equal(maxima, (x & factors).max(1, keepdims=True))
    np.testing.assert_array_equal(any_, x.any((0, 1)))
    np.testing.assert_array_equal(all_, x.all(1))


@pytest.mark.parametrize("rows", [MANY_ROWS + 1, 130])
def test_extremes_and_moments_of_columns_with_nan(rows):
    x = np.random.default_rng(0).standard_normal((rows, 777)).astype(np.float32)
    x[0, 1] = x[rows - 1, 776] = x[7, 300] = np.nan
    x[rows - 1, 400], x[0, 400], x[3, 20] = np.inf, -np.inf, -np.inf
    weights = np.linspace(1, 2, rows, dtype=np.float32)[:, None]

    @tw.jit
    def several(x, weights):
        y = x * weights
        return tw.max(y, axis=0), tw.min(y, axis=0), tw.mean(y, axis=0), tw.var(y, axis=0)

    wide = (x * weights).astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = wide.max(0), wide.min(0), wide.mean(0), wide.var(0)
    found = several(x, weights)
    for each, wanted in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(each, wanted)
    for each, wanted in zip(found[2:], expected[2:], strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [tw.max, tw.min, tw.sum])
def test_whole_rows_are_added_to_totals_without_masks(function: Callable[..., tw.Array]) -> None:
    """LLVM makes a choice of what was read, stored where that was, a store under a mask."""
    program = tw.jit(lambda x: function(x, axis=0)).lower(tw.ShapeDtype((64, 1024), tw.f32))
    assert "vmaskmov" not in program.compile("cpu:x86-64-v3").asm()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_shorter_part_of_rows_is_a_tile_of_its_own(threads: int) -> None:
    x = np.random.default_rng(0).integers(0, 9, (1000, 512)).astype(np.float32)
    with tw.options(threads=threads):
        program = tw.jit(lambda x: tw.sum(x, axis=0))
        # Its caches decide on the height of the other parts.
        scheduled = program.lower(x).compile("cpu:x86-64-v3").ir("scheduled")
        assert "extents = array<i64: 8, 1>" in scheduled
        np.testing.assert_array_equal(program(x), x.sum(0))


def test_places_of_extremes_of_columns_are_kept_near_without_masks():
    """LLVM makes a choice of what was read, stored where that was, a store under a mask."""
    program = tw.jit(lambda x: tw.argmax(x, axis=0)).lower(tw.ShapeDtype((16, 65536), tw.f32))
    compiled = program.compile("cpu:x86-64-v3")
    assert "vmaskmov" not in compiled.asm()
    (extents,) = re.findall(r"extents = array<i64: (\d+)>", compiled.ir("scheduled"))
    assert int(extents) >= 32

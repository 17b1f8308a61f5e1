"""Scatters along inner dimensions, whose rows threads share, in native code against NumPy's unbuffered updates."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.options import options

# Shapes, axes that an index array chooses from, and how many indices; block sizes that divide and that do not.
CASES = [
    ((37, 1000), (1,), 400),
    ((500, 64), (1,), 300),
    ((3, 41, 30), (2,), 50),
    ((3, 41, 30), (1,), 50),
    ((2, 5, 7, 11), (1, 2), 60),
    ((5000, 3), (1,), 4),
    ((1, 20000), (1,), 100),
    ((4, 0), (1,), 0),
]


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize(("shape", "axes", "count"), CASES, ids=str)
def test_updates_of_one_element_are_combined_in_order(shape, axes, count, donate):
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(-50, 50, shape).astype(np.float32)
    indices = [rng.integers(0, shape[axis], count) for axis in axes]
    leading = shape[: axes[0]]
    updates = rng.integers(-9, 9, (*leading, count, *shape[axes[-1] + 1 :])).astype(np.float32)
    at = (*[slice(None)] * axes[0], *indices)
    for method, expect in (("add", np.add.at), ("max", np.maximum.at), ("set", _set)):

        def program(x, updates, *indices, method=method):
            key = (*[slice(None)] * axes[0], *indices)
            return getattr(x.at[key], method)(updates)

        compiled = tw.jit(program, donate="x" if donate else ())
        wanted = x.copy()
        expect(wanted, at, updates)
        for threads in (1, 3):
            with options(threads=threads):
                got = np.asarray(compiled(x.copy(), updates, *indices))
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16"])
@pytest.mark.parametrize(("rows", "columns", "count"), [(256, 2585, 500), (7, 33, 40), (5, 95, 9), (4, 1000, 3)])
def test_rows_are_updated_by_threads_that_share_columns(rows, columns, count, dtype):
    """Also where no number of threads divides the columns, and where an index is outside."""
    rng = np.random.default_rng(columns)
    x, updates = rng.integers(0, 5, (rows, columns)).astype(dtype), rng.integers(0, 5, (count, columns)).astype(dtype)
    indices = rng.integers(-rows - 2, rows + 2, count)
    wanted = x.copy()
    for index, update in zip(indices, updates, strict=True):
        if -rows <= index < rows:
            wanted[index] += update
    for threads in (1, 2, 3, 5):
        with options(threads=threads):
            got = tw.jit(lambda x, i, u: (x * 1).at[i].add(u))(x, indices, updates)
        np.testing.assert_array_equal(np.asarray(got), wanted)


def test_an_index_outside_is_a_branch_and_rows_are_updated_without_masks():
    shapes = [tw.ShapeDtype((256, 640), tw.f32), tw.ShapeDtype((64,), tw.i64), tw.ShapeDtype((64, 640), tw.f32)]
    program = tw.jit(lambda x, i, u: (x * 2).at[i].add(u)).lower(*shapes)
    text = program.compile("cpu:x86-64-v4").ir("llvm")
    assert "masked" not in text


def _set(array: np.ndarray, at: tuple, updates: np.ndarray) -> None:
    """One update after the other."""
    array[at] = updates

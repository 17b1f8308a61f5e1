"""Without AVX-512, LLVM 22 loads what a constant mask keeps out where a vector is wider than a register: the end of
rows of 64-bit indices was read beyond the array."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.guarded_memory import guarded_copy


@pytest.mark.parametrize("rows", [129, 130, 132, 7, 1])
def test_indices_that_end_in_a_vector_are_not_read_beyond_their_array(rows: int) -> None:
    taken = tw.jit(lambda x, i, j: x[j, i], target="cpu:x86-64-v3")
    generator = np.random.default_rng(rows)
    x = generator.random((rows, 2)).astype(np.float32)
    i, j = generator.integers(0, 2, (rows, 2)), generator.integers(0, rows, (rows, 2))
    found = taken(guarded_copy(x, True), guarded_copy(i, True), guarded_copy(j, True))
    np.testing.assert_array_equal(found, x[j, i])


@pytest.mark.parametrize("count", [68, 36, 33])
def test_indices_beside_bools_are_not_read_beyond_their_array(count: int) -> None:
    taken = tw.jit(lambda flags, i: tw.any(tw.take(flags, i, axis=1), axis=1), target="cpu:x86-64-v3")
    flags = np.random.default_rng(1).random((2, 40)) < 0.1
    i = np.random.default_rng(count).integers(0, 40, count)
    found = taken(guarded_copy(flags, True), guarded_copy(i, True))
    np.testing.assert_array_equal(found, flags[:, i].any(axis=1))

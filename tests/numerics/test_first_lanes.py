"""Rows that end in a vector: what is left is loaded and stored as shorter vectors, inside of its array."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.guarded_memory import guarded_copy, guarded_empty
from tests.sampling import sampled

LENGTHS = tuple(range(1, 41))
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint16", "int32", "int64", "bool")


@pytest.mark.parametrize("place", range(len(TYPES)), ids=TYPES.__getitem__)
def test_rows_of_any_length(place: int) -> None:
    """Each type meets every third length."""
    name = TYPES[place]
    dtype = tw.bf16.numpy if name == "bfloat16" else np.dtype(name)
    for length in sampled(LENGTHS, 3, place % 3):
        x = np.random.default_rng(length).integers(0, 2 if name == "bool" else 9, (50, length)).astype(dtype)
        row = x[7].copy()
        expected = np.maximum(x, row)
        compiled = tw.jit(lambda x, row: tw.maximum(x, row), target="cpu").lower(x, row).compile()
        for at_end in (True, False):
            out = guarded_empty(expected.shape, dtype, at_end)
            compiled.executable.program(guarded_copy(x, at_end), guarded_copy(row, at_end), out=out)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("dtype", "length"), [(tw.u8, 21), (tw.u8, 7), (tw.f16, 4), (tw.bf16, 5)])
def test_rows_of_narrow_elements_are_not_loaded_one_by_one(dtype: tw.DType, length: int) -> None:
    types = [tw.ShapeDtype((200, length), dtype), tw.ShapeDtype((length,), dtype)]
    text = tw.jit(lambda x, row: tw.maximum(x, row)).lower(*types).compile("cpu:x86-64-v3").ir("llvm")
    assert "llvm.masked" not in text


def test_an_argument_reduction_of_fewer_lanes_than_are_left() -> None:
    """Vectors are as long as those of the positions that are kept."""
    x = np.random.default_rng(0).integers(0, 200, (6, 11)).astype(np.uint8)
    np.testing.assert_array_equal(tw.jit(lambda x: tw.argmax(x, axis=0))(x), x.argmax(axis=0))

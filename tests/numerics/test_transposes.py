"""Reads along one dimension and writes along another: blocks are transposed in registers, edges and all."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

SHAPES = ((16, 16), (17, 33), (64, 64), (100, 37), (1, 50), (50, 1), (15, 64), (64, 15), (257, 129))


@tw.jit(target="cpu")
def turned(x):
    return x.T + x.T


@tw.jit(target="cpu")
def difference(x, y):
    return x.T - y


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8"])
def test_transposes_with_arithmetic(dtype: str) -> None:
    for shape in SHAPES:
        x = np.arange(np.prod(shape)).reshape(shape).astype(dtype) % 50
        y = (np.arange(np.prod(shape)).reshape(shape[::-1]) % 7).astype(dtype)
        np.testing.assert_array_equal(turned(x), x.T + x.T)
        np.testing.assert_array_equal(difference(x, y), x.T - y)


def test_transposes_within_a_batch() -> None:
    x = np.arange(3 * 65 * 4 * 20, dtype=np.float32).reshape(3, 65, 4, 20)
    moved = tw.jit(lambda x: tw.permute_dims(x, (0, 2, 3, 1)) * 2, target="cpu")
    np.testing.assert_array_equal(moved(x), x.transpose(0, 2, 3, 1) * 2)


def test_lanes_outside_take_their_fill() -> None:
    """A padded array, transposed."""
    x = np.arange(40 * 30, dtype=np.float32).reshape(40, 30)
    padded = tw.jit(lambda x: tw.pad(x, ((3, 5), (2, 20)), constant_values=7).T * 2, target="cpu")
    np.testing.assert_array_equal(padded(x), np.pad(x, ((3, 5), (2, 20)), constant_values=7).T * 2)


def test_whole_blocks_are_not_gathered() -> None:
    text = tw.jit(lambda x: x.T * 2, target="cpu:x86-64-v4").lower(np.zeros((64, 64), np.float32)).compile().asm()
    assert "vunpcklps" in text
    assert "gather" not in text

"""Kernels over arrays larger than the caches, which ask for memory ahead of what they read and write."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

SHAPES = ((1024, 1024), (777, 1031), (3, 400_001), (300_007, 5), (1, 1_200_000))
TOLERANCE = {"float32": 4e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}


def softmax(x):
    return tw.nn.softmax(x, axis=-1)


def normalised(x):
    return tw.nn.layer_norm(x)


def activated(x):
    return tw.nn.gelu(x) + tw.tanh(x)


def softmax_reference(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def normalised_reference(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def activated_reference(x):
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return x * 0.5 * (1 + erf(x * math.sqrt(0.5))) + np.tanh(x)


CASES = ((softmax, softmax_reference), (normalised, normalised_reference), (activated, activated_reference))


def unaligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal numbers that start one element after a boundary of lines."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    memory = np.empty(math.prod(shape) + 65, kind)
    first = 1 + (-memory.ctypes.data % 64) // kind.itemsize
    x = memory[first : first + math.prod(shape)].reshape(shape)
    x[...] = np.random.default_rng(3).normal(0, 2, shape)
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_large_arrays(case, shape: tuple[int, ...]) -> None:
    function, reference = case
    x = unaligned(shape, "float32")
    expected = reference(x.astype(np.float64))
    got = np.asarray(tw.jit(function, target="cpu")(x))
    assert abs(got - expected).max() <= TOLERANCE["float32"] * abs(expected).max()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_large_arrays_of_other_types(case, dtype: str) -> None:
    function, reference = case
    x = unaligned((777, 3001), dtype)
    expected = reference(x.astype(np.float64))
    got = np.asarray(tw.jit(function, target="cpu")(x)).astype(np.float64)
    assert abs(got - expected).max() <= TOLERANCE[dtype] * abs(expected).max()


def test_extreme_rows_of_a_softmax() -> None:
    x = np.zeros((5, 1000), np.float32)
    x[0, 1:] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.nan
    x[3, ::2] = -90
    x[4, 0] = 3e38
    with np.errstate(invalid="ignore"):
        expected = softmax_reference(x.astype(np.float64))
    np.testing.assert_allclose(tw.jit(softmax, target="cpu")(x), expected, rtol=1e-5, atol=1e-43)


def code(function, shape: tuple[int, ...]) -> str:
    return tw.jit(function, target="cpu:x86-64-v4").lower(np.zeros(shape, np.float32)).compile().asm()


@pytest.mark.parametrize("function", [softmax, normalised, activated], ids=lambda f: f.__name__)
def test_only_large_arrays_are_asked_for(function) -> None:
    large, small = code(function, (1024, 1024)), code(function, (64, 256))
    for asks in ("prefetchw", "prefetcht0"):
        assert asks in large
        assert asks not in small


def test_what_is_only_moved_or_added_is_not_asked_for() -> None:
    """The processor is far enough ahead by itself; functions such as exp keep it from that."""
    assert "prefetch" not in code(lambda x: (x + 1) * x - 2, (1024, 1024))
    assert "prefetcht0" in code(lambda x: tw.exp(x + 1) * x, (1024, 1024))

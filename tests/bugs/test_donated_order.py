"""A donated array whose memory an output takes was read after that output had been stored, within one loop nest, or
after what the output is written over had been copied there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw


def momentum(p, m):
    m = 0.9 * m + 3.0
    return m, p - 0.1 * m


def chain(a, b):
    y = tw.tanh(b)
    return y, tw.tanh(a) * y


def product(a, b):
    y = b @ b
    return y, a * y


def normalised(a, b):
    y = tw.nn.softmax(a @ b, axis=-1)
    return y, y + a


def update(a, b):
    """All of the product is written over, wherever the update is said to begin."""
    return tw.dynamic_update_slice(a @ a, b, (tw.argmax(a[0]), 0)), a + 1


@pytest.mark.parametrize("function", [momentum, chain, product, normalised, update])
@pytest.mark.parametrize("donate", [(0,), (1,), (0, 1)])
def test_donation_changes_no_result(function: Callable, donate: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal((40, 40)).astype(np.float32) for _ in range(2)]
    names = tuple(function.__code__.co_varnames[n] for n in donate)
    expected = tw.jit(function, target="interp")(*inputs)
    found = tw.jit(function, target="cpu", donate=names)(*(x.copy() for x in inputs))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)

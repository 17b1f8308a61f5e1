"""What looks like an attention was taken for one though its values are its scores, or it is in two regions."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

TARGETS = ("cpu", "grid:wormhole")


def weights_of(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("target", TARGETS)
def test_scores_that_are_the_values(target):
    def function(y):
        scores = (y @ y) * 0.1
        return tw.nn.softmax(scores, axis=-1) @ scores

    y = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    scores = y.astype(np.float64) @ y * 0.1
    found = tw.jit(function, target=target)(y)
    wanted = weights_of(scores) @ scores
    assert np.linalg.norm(found - wanted) < 3e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_in_a_region(target):
    def function(x, w):
        weights = tw.nn.softmax(x @ w, axis=-1)
        return tw.cond(weights[0, 0] > 0, lambda v: v @ w, lambda v: v * 2, weights)

    x, w = (np.random.default_rng(n).standard_normal((64, 64)).astype(np.float32) * 0.3 for n in range(2))
    wanted = weights_of(x.astype(np.float64) @ w) @ w
    found = tw.jit(function, target=target)(x, w)
    assert np.linalg.norm(found - wanted) < 3e-3 * np.linalg.norm(wanted)

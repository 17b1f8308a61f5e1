"""Attention without its matrix of scores: blocks of keys are visited in order, the softmax is corrected as they come.

The grid runs over batches, heads and blocks of queries. `causal=True` lets a query see only keys up to its own place.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

NEVER = -1e30  # a score of a key that must not be seen; finite, so that a fully hidden block gives no NaN


@tw.kernel
def flash_attention(
    q: tw.In["B H S D"],
    k: tw.In["B H T D"],
    v: tw.In["B H T D"],
    o: tw.Out["B H S D"],
    *,
    queries: int = 64,
    keys: int = 64,
    causal: bool = False,
):
    d = q.shape[3]
    for b, h, i in tw.grid(q, (None, None, queries)):
        query = q[b, h, i] * d**-0.5
        largest = tw.full((queries, 1), NEVER, tw.f32)
        total = tw.zeros((queries, 1), tw.f32)
        acc = tw.zeros((queries, d), tw.f32)
        for j in tw.steps(k, axis=2, size=keys):
            scores = tw.dot(query, k[b, h, j].T)
            if causal:
                row = i.start + tw.arange(queries)
                column = j.start + tw.arange(keys)
                scores = tw.where(row[:, None] >= column[None, :], scores, NEVER)
            new = tw.maximum(largest, tw.max(scores, axis=1, keepdims=True))
            weights = tw.exp(scores - new)
            correction = tw.exp(largest - new)
            total = total * correction + tw.sum(weights, axis=1, keepdims=True)
            # In the type of the values, by whose instructions both products are made.
            acc = tw.dot(tw.cast(weights, v.dtype), v[b, h, j], acc * correction)
            largest = new
        o[b, h, i] = acc / total


_ARRAY = tw.ShapeDtype((2, 4, 256, 64), tw.f32)
EXAMPLE_ARGUMENTS = {"flash_attention": (_ARRAY, _ARRAY, _ARRAY, _ARRAY)}


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def main() -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, 4, 200, 64)).astype(np.float32) for _ in range(3))
    o = np.empty_like(q)
    for causal in (False, True):
        flash_attention(q, k, v, o, causal=causal)
        difference = np.abs(o - reference(q, k, v, causal)).max()
        print(f"flash_attention, causal={causal}: largest difference from NumPy {difference:.2e}")


if __name__ == "__main__":
    main()

"""Programs that are longer than Python's stack is deep compile, and give what NumPy gives. The sizes that users may
bring are those of `python -m tests.program_size`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.program_size import SHAPES, compiled, error_of
from tilewright.dialects.walks import producers_first


@pytest.mark.parametrize(
    ("shape", "size", "target"),
    [("chain", 1100, "interp"), ("concat", 530, "cpu"), ("concat", 300, "grid:wormhole"), ("writes", 1100, "interp")],
)
def test_long_programs(shape: str, size: int, target: str) -> None:
    program = SHAPES[shape](size)
    found, _ = compiled(program, target)
    assert error_of(found, program) < 1e-5


@tw.kernel
def products(x: tw.In["N M"], y: tw.Out["N"], *, n: int) -> None:
    for i in tw.grid(y, 16):
        total = tw.zeros((16,), tw.f32)
        for _ in range(n):
            for b in range(n):
                total = total + x[i, b] * x[i, b]
        y[i] = total


def test_long_chains_in_a_tile_kernel() -> None:
    x, y = np.full((16, 20), 0.5, np.float32), np.empty(16, np.float32)
    products.lower(x, y, n=20).compile("cpu")(x, y)
    np.testing.assert_array_equal(y, 100)


def test_walks_are_deeper_than_the_stack() -> None:
    depth = 2 * sys.getrecursionlimit()
    order = list(producers_first([depth], lambda n: [n - 1, n // 2] if n else []))
    assert order == list(range(depth + 1))


def test_walks_find_results_of_what_a_node_needs() -> None:
    results = {0: 0, 1: 1}
    for n in producers_first([90], lambda n: [n - 1, n - 2], results):
        results[n] = results[n - 1] + results[n - 2]
    assert results[90] == 2880067194370816120


def test_windows_of_a_region_are_combined_by_halves() -> None:
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).standard_normal((2, 90), np.float32)
    lowered = tw.from_jax(lambda x: jax.lax.cumlogsumexp(x, 1), x).lower(x)
    assert lowered.ir().count("log1p") < 20
    np.testing.assert_allclose(lowered.compile("cpu")(x), np.logaddexp.accumulate(x.astype(np.float64), 1), 1e-5, 1e-5)


def test_kernels_read_through_a_limited_chain_of_views() -> None:
    def turned(x: Any) -> Any:
        for n in range(500):
            x = x.T if n % 2 else x[::-1, :]
        return x + 1

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    program = tw.jit(turned).lower(x).compile("cpu")
    np.testing.assert_array_equal(program(x), turned(x))
    assert program.ir("tile").count("array.call(") == 8


@pytest.mark.parametrize(("on_scores", "on_masks"), [(400, 0), (0, 500)])
def test_attention_after_long_chains(on_scores: int, on_masks: int) -> None:
    """On scores, each of which reads the one before twice, and on a mask."""

    def run(library: Any, softmax: Any, q: Any, mask: Any) -> Any:
        scores = q @ q.T / 4
        for _ in range(on_scores):
            scores = library.minimum(scores + 0.1, scores * 0.99)
        for n in range(on_masks):
            mask = abs(mask) if n % 2 else mask * -0.999
        return softmax(scores + mask) @ q

    def exact(x: Any) -> Any:
        weights = np.exp(x - x.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    generator = np.random.default_rng(0)
    q, mask = (generator.standard_normal((16, 16), np.float32) for _ in range(2))
    found = tw.jit(lambda q, mask: run(tw, tw.nn.softmax, q, mask), target="cpu")(q, mask)
    expected = run(np, exact, q.astype(np.float64), mask.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)

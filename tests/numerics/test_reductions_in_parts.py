"""Long reductions to few results, which are cut into parts: they fuse with what makes their elements, whatever that is
and whether the parts are equal or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

Tensor = np.ndarray[Any, Any]

N = 1 << 17
PRODUCERS: dict[str, Callable[[Any], Any]] = {
    "sum(exp)": lambda x: tw.sum(tw.exp(x)),
    "mean square difference": lambda x: tw.mean((x - 0.5) ** 2),
    "max(abs)": lambda x: tw.max(tw.abs(x)),
    "any(isnan)": lambda x: tw.any(tw.isnan(x)),
    "count": lambda x: tw.count_nonzero(x > 0.5),
    "total variation": lambda x: tw.sum(tw.abs(x[1:] - x[:-1])),
    "reversed": lambda x: tw.sum(x * tw.flip(x)),
    "by position": lambda x: tw.sum(x * tw.arange(x.shape[0], dtype=tw.f32)),
    "two": lambda x: (tw.sum(x), tw.sum(x * x)),
}


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("size", [N, N + 3371])
def test_elements_are_not_stored(name: str, size: int) -> None:
    x = np.random.default_rng(0).random(size, dtype=np.float32)
    compiled = tw.jit(PRODUCERS[name], target="cpu").lower(x).compile()
    assert compiled.cost()["arena_bytes"] < 1024
    found, expected = compiled(x), tw.jit(PRODUCERS[name], target="interp")(x)
    for left, right in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.uint8, np.float16], ids=lambda dtype: dtype.__name__)
def test_casts_are_not_stored(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2, N + 1).astype(dtype)
    compiled = tw.jit(lambda x: tw.sum(tw.astype(x, tw.f32)), target="cpu").lower(x).compile()
    assert compiled.cost()["arena_bytes"] < 1024
    assert float(compiled(x)) == x.sum(dtype=np.float64)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "grid:wormhole"])
def test_elements_are_not_stored_on_other_targets(target: str) -> None:
    x = np.zeros(N, np.float32)
    text = tw.jit(PRODUCERS["sum(exp)"]).lower(x).compile(target).explain()
    assert any(": fused (" in line for line in text.splitlines() if "exp into add" in line)


SHAPES = [(200_003,), (400, 401), (3, 70_001), (70_001, 3), (2, 300, 301), (300, 301, 2), (8, 17 * 1024)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_axes_agree_with_numpy(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wide = x.astype(np.float64)
    choices = [None, 0, len(shape) - 1, tuple(range(len(shape) - 1)), (0, len(shape) - 1)]
    for axis in dict.fromkeys(choices):
        if axis == () or (isinstance(axis, tuple) and len(set(axis)) != len(axis)):
            continue
        sums, highest, mean = tw.jit(
            lambda x, axis=axis: (tw.sum(x * x, axis=axis), tw.max(x, axis=axis), tw.mean(tw.abs(x), axis=axis)),
            target="cpu",
        )(x)
        np.testing.assert_allclose(sums, (wide * wide).sum(axis), rtol=1e-6)
        np.testing.assert_array_equal(highest, x.max(axis))
        np.testing.assert_allclose(mean, np.abs(wide).mean(axis), rtol=1e-6)


def test_nans_and_infinities_reach_the_result() -> None:
    x = np.ones(N + 77, np.float32)
    x[-1] = np.nan
    assert np.isnan(tw.jit(lambda x: tw.max(x), target="cpu")(x))
    x[-1] = -np.inf
    assert tw.jit(lambda x: tw.min(x), target="cpu")(x) == -np.inf
    assert tw.jit(lambda x: tw.sum(x), target="cpu")(x) == -np.inf
    x[:] = -3.0
    assert tw.jit(lambda x: tw.max(x), target="cpu")(x) == -3.0  # what pads the last part counts for nothing


def test_every_decision_has_a_reason() -> None:
    def decisions(function: Callable[[Any], Any], x: Tensor) -> str:
        text = tw.jit(function).lower(x).compile("cpu").explain()
        return "\n".join(line for line in text.splitlines() if line.startswith("array-"))

    assert "16 parts (long sums with few results)" in decisions(lambda x: tw.sum(x), np.zeros(N, np.float32))
    rows = decisions(lambda x: tw.sum(x, axis=1), np.zeros((16, N), np.float32))
    assert "as a whole (16 results are work for many threads)" in rows
    both = decisions(lambda x: (x + 1.0, tw.sum(x + 1.0)), np.zeros(N, np.float32))
    assert "not fused (a reduction in parts stores nothing but its parts)" in both

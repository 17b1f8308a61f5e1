"""Attention of 16-bit arrays in one kernel: on an emulator against float64, and what the assembler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import Tensor, built, emulated
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import compiled, executed, said
from tilewright import dtypes


def attention(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v, causal=True)


def by_parts(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def expected(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v


CASES = [
    (attention, "bf16", (1, 2, 128, 64), 2, "sm_80"),
    (attention, "f16", (2, 1, 128, 64), 1, "sm_90a"),
    (attention, "bf16", (1, 1, 100, 40), 1, "sm_90a"),
    (attention, "f16", (1, 1, 1, 64), 1, "sm_90a"),
    (by_parts, "bf16", (1, 1, 64, 64), 1, "sm_90a"),
    (attention, "bf16", (1, 1, 64, 128), 1, "sm_120a"),
    (causal, "bf16", (1, 1, 200, 64), 1, "sm_90a"),
    (causal, "f16", (1, 1, 128, 32), 1, "sm_100a"),
    (causal, "bf16", (1, 4, 64, 64), 2, "sm_90a"),
]


@pytest.mark.parametrize(("function", "dtype", "shape", "shared_heads", "chip"), CASES)
def test_agrees_with_float64(
    function: Callable[..., Any], dtype: str, shape: tuple[int, ...], shared_heads: int, chip: str
) -> None:
    rng = np.random.default_rng(7)
    type = dtypes.by_name(dtype)
    keys = max(shape[2], 96)
    other = (shape[0], shared_heads, shape[2] if function is causal else keys, shape[3])
    q, k, v = (rng.standard_normal(each).astype(type.numpy) for each in (shape, other, other))
    program = compiled(function, chip, q, k, v)
    assert len(program.kernels) == 1
    got, _ = executed(program, [q, k, v])
    # Scores, weights and results are rounded once each: scores are below 8, weights at most 1.
    bound = (8 + 2) * type.epsilon * np.abs(v.astype(np.float64)).max()
    np.testing.assert_allclose(got.astype(np.float64), expected(q, k, v, function is causal), rtol=0, atol=bound)


@pytest.mark.parametrize("chip", ["sm_80", "sm_120a"])
@pytest.mark.parametrize("width", [64, 128])
def test_both_products_are_of_tensor_cores(chip: str, width: int) -> None:
    heads = tw.ShapeDtype((2, 8, 1024, width), tw.bf16)
    program = compiled(causal, chip, heads, heads, heads)
    assert any("2 windows copied ahead" in line for line in said(program))
    counts = check_clean(program)
    assert counts["HMMA"] == 2 * (64 // 8) * (width // 16)  # a warp's 16 rows of both products, a step of 64 keys


@pytest.mark.parametrize(("chip", "width"), [("sm_80", 128), ("sm_90a", 64), ("sm_90a", 128), ("sm_120a", 128)])
def test_scores_stay_in_registers(chip: str, width: int) -> None:
    """Keys, values and the result on its way to whole lines are all that is in shared memory; queries, too, where
    warpgroups multiply."""
    heads = tw.ShapeDtype((2, 8, 1024, width), tw.bf16)
    module = str(compiled(causal, chip, heads, heads, heads).unit.module)
    assert module.count("scheduled.alloc") == (4 if chip == "sm_90a" else 3)


# ---- weights in base 2 ----------------------------------------------------------------------------------------------

Q, K, V = (np.random.default_rng(seed).standard_normal((1, 160, 32)).astype(tw.bf16.numpy) for seed in range(3))
BIAS = np.random.default_rng(3).standard_normal((1, 160, 160)).astype(np.float32)
SEEN = BIAS > -0.5
SCORES = Q.astype(np.float64) @ K.astype(np.float64).swapaxes(-1, -2)

SCORINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "scaled": (lambda s: s * 0.125, (), SCORES * 0.125),
    "as they are": (lambda s: s, (), SCORES),
    "negative": (lambda s: s * -0.25, (), SCORES * -0.25),
    "times 0": (lambda s: s * 0.0, (), SCORES * 0),
    "scaled twice": (lambda s: s * 0.125 * 2.0, (), SCORES * 0.25),
    "large": (lambda s: s * 30.0, (), SCORES * 30),
    "biased": (lambda s, b: s * 0.125 + b, (BIAS,), SCORES * 0.125 + BIAS),
    "masked": (lambda s, m: tw.where(m, s * 0.125, -np.inf), (SEEN,), np.where(SEEN, SCORES * 0.125, -np.inf)),
    "masked by a number": (lambda s, m: tw.where(m, s * 0.5, -3.0), (SEEN,), np.where(SEEN, SCORES * 0.5, -3.0)),
    "capped": (lambda s: tw.tanh(s * 0.02) * 5.0, (), np.tanh(SCORES * 0.02) * 5),
}


@pytest.mark.parametrize("name", SCORINGS)
def test_scores_of_any_form(name: str) -> None:
    """The number that scores are multiplied by becomes part of that of the exponents, where they are just that."""
    scored, more, scores = SCORINGS[name]

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        weights = tw.nn.softmax(scored(tw.matmul(q, k.mT, dtype=tw.f32), *rest), axis=-1)
        return tw.matmul(tw.cast(weights, tw.bf16), v)

    program = built(tw.jit(attend).lower(Q, K, V, *more), "cuda:sm_90a")
    (code,) = program.ptx.values()
    assert "ex2.approx.ftz.f32" in code
    found = emulated(program, [Q, K, V, *more])[0].astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ V.astype(np.float64)
    assert np.abs(found - exact).max() <= 2.0**-7 * np.abs(exact).max()

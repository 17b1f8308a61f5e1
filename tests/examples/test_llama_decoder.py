"""The decoder against a float64 evaluation of the same weights in plain NumPy, which reads whole sequences."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "02_llama_decoder.py"))
CONFIG = EXAMPLE["Config"](
    vocabulary=90, hidden=48, layers=2, query_heads=6, key_heads=2, head_size=8, inner=56, capacity=24
)
WEIGHTS = EXAMPLE["random_weights"](CONFIG)
TOKENS = np.random.default_rng(2).integers(0, CONFIG.vocabulary, (1, CONFIG.capacity))
LENGTHS = (1, 19, CONFIG.capacity)


def reference(tokens: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Logits of every position (length, vocabulary), and each layer's keys and values (key heads, length, size)."""
    w = {name: value.astype(np.float64) for name, value in WEIGHTS.items()}
    length, size = tokens.shape[1], CONFIG.head_size
    turns = np.exp(1j * np.outer(np.arange(length), [CONFIG.rotary_base ** (-2 * n / size) for n in range(size // 2)]))

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.epsilon) * w[name]

    def split(x: Any) -> Any:
        return x.reshape(length, -1, size).swapaxes(0, 1)

    def rotate(x: Any) -> Any:
        """A head as complex numbers whose parts are its halves; a position is an angle to turn them by."""
        turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turns
        return np.concatenate([turned.real, turned.imag], -1)

    x, caches = w["embedding"][tokens[0]], []
    for i in range(CONFIG.layers):
        name = f"layers.{i}"
        normed = norm(x, f"{name}.attention.norm")
        q, k, v = (split(normed @ w[f"{name}.attention.{part}"].T) for part in ("query", "key", "value"))
        q, k = rotate(q), rotate(k)
        caches.append((k, v))
        mixed = np.empty_like(q)
        for head in range(CONFIG.query_heads):
            shared = head // (CONFIG.query_heads // CONFIG.key_heads)
            scores = np.exp(q[head] @ k[shared].T / math.sqrt(size)) * np.tri(length)
            mixed[head] = scores / scores.sum(-1, keepdims=True) @ v[shared]
        x = x + mixed.swapaxes(0, 1).reshape(length, -1) @ w[f"{name}.attention.output"].T
        normed = norm(x, f"{name}.feed_forward.norm")
        gate = normed @ w[f"{name}.feed_forward.gate"].T
        inner = gate / (1 + np.exp(-gate)) * (normed @ w[f"{name}.feed_forward.up"].T)
        x = x + inner @ w[f"{name}.feed_forward.down"].T
    return norm(x, "norm") @ w["output"].T, caches


EXPECTED, EXPECTED_CACHES = reference(TOKENS)


@pytest.fixture(scope="module")
def decoder() -> Any:
    return EXAMPLE["make_decoder"](CONFIG, WEIGHTS)


def addresses(caches: Any) -> list[int]:
    return [array.ctypes.data for layer in caches for array in layer]


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("length", LENGTHS)
def test_prefill_agrees_with_float64(decoder: Any, length: int, target: str) -> None:
    with tw.options(target=target):
        logits, caches = decoder.prefill(TOKENS[:, :length])
    np.testing.assert_allclose(logits[0], EXPECTED[length - 1], rtol=1e-4, atol=1e-5)
    for found, expected in zip(caches, EXPECTED_CACHES, strict=True):
        for array, full in zip(found, expected, strict=True):
            np.testing.assert_allclose(array[0, :, :length], full[:, :length], rtol=1e-4, atol=1e-5)
            assert not array[0, :, length:].any()


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_decoding_agrees_with_reading_the_whole_sequence(decoder: Any, target: str) -> None:
    with tw.options(target=target):
        _, caches = decoder.prefill(TOKENS[:, :19])
        for position in range(19, CONFIG.capacity):
            logits, caches = decoder.decode(TOKENS[:, position : position + 1], position, caches)
            np.testing.assert_allclose(logits[0], EXPECTED[position], rtol=1e-4, atol=1e-5)
    for found, expected in zip(caches, EXPECTED_CACHES, strict=True):
        for array, full in zip(found, expected, strict=True):
            np.testing.assert_allclose(array[0], full, rtol=1e-4, atol=1e-5)


def test_a_step_writes_one_row_of_the_memory_it_is_given(decoder: Any) -> None:
    _, given = decoder.prefill(TOKENS[:, :19])
    before = [array.copy() for layer in given for array in layer]
    _, returned = decoder.decode(TOKENS[:, 19:20], 19, given)
    assert addresses(returned) == addresses(given)
    for old, layer_array in zip(before, (array for layer in given for array in layer), strict=True):
        changed = (layer_array != old).any(axis=(0, 1, 3))
        assert np.flatnonzero(changed).tolist() == [19]


def test_sampling_takes_likely_tokens_and_follows_the_temperature(decoder: Any) -> None:
    logits = EXPECTED[-1:].astype(np.float32)
    likely = np.argsort(logits[0])[::-1][: EXAMPLE["TOP_K"]]
    key = tw.random.key(3)
    drawn = {}
    for temperature in (1e-3, 1.0, 1e3):
        tokens = []
        for _ in range(400):
            token, key = decoder.sample(logits, key, temperature)
            tokens.append(int(token[0, 0]))
        drawn[temperature] = np.bincount(tokens, minlength=CONFIG.vocabulary)
        assert set(tokens) <= set(likely.tolist())
    assert np.flatnonzero(drawn[1e-3]).tolist() == [likely[0]]
    chances = np.exp(logits[0, likely] - logits[0, likely].max())
    expected = 400 * chances / chances.sum()
    assert chi_squared(drawn[1.0][likely], expected) < 80  # 39 degrees of freedom: exceeded once in 10,000
    assert chi_squared(drawn[1e3][likely], np.full(len(likely), 400 / len(likely))) < 80


def chi_squared(found: Any, expected: Any) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def test_generated_tokens_are_the_most_likely_ones_when_it_is_cold(decoder: Any) -> None:
    prompt = TOKENS[:, :6]
    tokens = EXAMPLE["generate"](decoder, prompt, 18, temperature=1e-4)
    sequence = np.concatenate([prompt, np.array([tokens])], axis=1)
    logits, _ = reference(sequence)
    assert tokens == logits[5:-1].argmax(-1).tolist()


def test_caches_without_room_are_refused(decoder: Any) -> None:
    with pytest.raises(ValueError, match="6 \\+ 19 tokens do not fit caches of 24"):
        EXAMPLE["generate"](decoder, TOKENS[:, :6], 19)


def test_main_prints_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (EXAMPLE["main"](["8"], CONFIG) for _ in range(2))
    assert first == second
    assert len(first) == 8
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "tokens: " + " ".join(map(str, first))
    assert "tokens/s" in printed[2]

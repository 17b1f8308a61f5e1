"""The sentence encoder against a float64 evaluation of the same weights in plain NumPy."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_sentence_embeddings.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def reference(weights: dict[str, Any], ids: Any, mask: Any, heads: int, layers: int) -> Any:
    """BERT's forward pass, mean pooling and normalisation in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    erf = np.vectorize(math.erf)

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def split(x: Any) -> Any:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(layers):
        name = f"encoder.layer.{i}"
        q, k, v = (split(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        scores = np.where(mask[:, None, None, :] > 0, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        hidden = linear(x, f"{name}.intermediate.dense")
        hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
        x = norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)


def test_vectors_agree_with_float64(example: dict[str, Any]) -> None:
    folder = example["model_files"]()
    weights = example["load_weights"](folder)
    ids, mask = example["tokenize"](folder, example["SENTENCES"])
    vectors = example["make_encoder"](weights)(ids, mask)
    expected = reference(weights, ids, mask, example["HEADS"], example["LAYERS"])
    assert np.abs(vectors - expected).max() < 1e-4
    assert ((vectors * expected).sum(-1) / np.linalg.norm(vectors, axis=-1)).min() > 0.99999


def test_the_program_fuses_as_intended(example: dict[str, Any]) -> None:
    """A layer is seven products in four kernels, one attention and two normalisations."""
    folder = example["model_files"]()
    encode = example["make_encoder"](example["load_weights"](folder))
    ids, mask = example["tokenize"](folder, example["SENTENCES"], length=16)
    text = encode.lower(ids, mask).compile().ir("tile")
    calls = [line for line in text.splitlines() if "array.call" in line]
    per_layer = [sum(f'callee = "{kind}_' in line for line in calls) / 6 for kind in ("contract", "attention")]
    assert per_layer == [6, 1]


def test_main_prints_similarities(example: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sentences.txt"
    file.write_text("A cat sleeps.\n\nA kitten is asleep.\nThe rocket launched.\n")
    vectors = example["main"]([str(file)])
    printed = capsys.readouterr().out
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
    assert "sentences/s" in printed
    assert "cache" in printed

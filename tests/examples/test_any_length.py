"""The encoder for any length against a float64 evaluation of the same weights in plain NumPy."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from tests.examples.test_sentence_embeddings import reference

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_lengths_share_programs_and_agree_with_float64() -> None:
    example = runpy.run_path(str(EXAMPLES / "04_any_length.py"))
    first = example["first_example"]()
    weights = first.load_weights(first.model_files())
    encode = example["any_length"](first.make_encoder(weights))
    generator = np.random.default_rng(0)
    for length in (100, 98, 112, 7, 8):
        ids, mask = generator.integers(0, example["VOCABULARY"], (2, length)), np.ones((2, length), np.int64)
        mask[1, length // 2 :] = 0
        expected = reference(weights, ids, mask, first.HEADS, first.LAYERS)
        np.testing.assert_allclose(encode(ids, mask), expected, atol=1e-6)
    assert [program.sizes["tokens"] for program in encode.programs] == [(97, 112), (7, 8)]

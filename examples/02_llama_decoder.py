"""Generate tokens with a Llama-style decoder: grouped-query attention, rotary positions, SwiGLU, caches in place.

    tilewright run examples/02_llama_decoder.py
    tilewright run examples/02_llama_decoder.py 64

The argument is how many tokens to generate. The weights are random, so the tokens mean nothing; shapes and work are
those of a real model of 111 million parameters.

The model is two programs: one reads a prompt and fills the caches of keys and values, the other adds one token. The
position is data, so that one program serves every step; the caches are donated, so that a step writes its row into
them and returns the same memory; sampling is part of the program.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw

PROMPT_LENGTH = 16
TOP_K = 40

# Keys and values of each layer, both of shape (1, key heads, capacity, head size).
Caches = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Config:
    """Sizes of the model. `capacity` is the largest number of tokens that the caches hold."""

    vocabulary: int = 32000
    hidden: int = 1024
    layers: int = 4
    query_heads: int = 16
    key_heads: int = 4
    head_size: int = 64
    inner: int = 2816
    capacity: int = 512
    rotary_base: float = 10000.0
    epsilon: float = 1e-5


class Decoder(NamedTuple):
    """The programs of one model; `make_decoder` says what each takes and gives."""

    prefill: Any
    decode: Any
    sample: Any
    step: Any


def random_weights(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """f32 weights by name; those of products are of shape (outputs, inputs)."""
    generator = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32)

    queries, keys = config.query_heads * config.head_size, config.key_heads * config.head_size
    weights = {"embedding": draw(config.vocabulary, config.hidden)}
    linears = {"output": (config.vocabulary, config.hidden)}
    norms = ["norm"]
    for i in range(config.layers):
        name = f"layers.{i}"
        norms += [f"{name}.attention.norm", f"{name}.feed_forward.norm"]
        linears[f"{name}.attention.query"] = (queries, config.hidden)
        linears[f"{name}.attention.key"] = (keys, config.hidden)
        linears[f"{name}.attention.value"] = (keys, config.hidden)
        linears[f"{name}.attention.output"] = (config.hidden, queries)
        linears[f"{name}.feed_forward.gate"] = (config.inner, config.hidden)
        linears[f"{name}.feed_forward.up"] = (config.inner, config.hidden)
        linears[f"{name}.feed_forward.down"] = (config.hidden, config.inner)
    for name, shape in linears.items():
        weights[name] = draw(*shape) * np.float32(shape[1] ** -0.5)
    return weights | {name: 1 + draw(config.hidden) * np.float32(0.1) for name in norms}


def rotary_table(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, f32 of shape (capacity, head size / 2)."""
    exponents = np.arange(0, config.head_size, 2) / config.head_size
    angles = np.outer(np.arange(config.capacity), config.rotary_base**-exponents)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def make_forward(config: Config, weights: dict[str, np.ndarray]):
    """The model without its caches: `forward(tokens, rotation, attends)` gives the logits of the last token.

    `rotation` is cosines and sines of the tokens' positions; `attends` has a function for each layer, of query, key and
    value, all of shape (1, heads, length, size). What those give beside their result comes with the logits.
    """

    def linear(x, name):
        return x @ weights[name].T

    def norm(x, name):
        return tw.nn.rms_norm(x, weights[name], eps=config.epsilon)

    def heads(x):
        return tw.permute_dims(x.reshape(1, x.shape[1], -1, config.head_size), (0, 2, 1, 3))

    def rotate(x, cosine, sine):
        low, high = x[..., : config.head_size // 2], x[..., config.head_size // 2 :]
        return tw.concat([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    def attention(x, name, rotation, attend):
        query, key, value = (heads(linear(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        mixed, cache = attend(rotate(query, *rotation), rotate(key, *rotation), value)
        mixed = tw.permute_dims(mixed, (0, 2, 1, 3)).reshape(1, x.shape[1], -1)
        return linear(mixed, f"{name}.output"), cache

    def feed_forward(x, name):
        gated = tw.nn.silu(linear(x, f"{name}.gate")) * linear(x, f"{name}.up")
        return linear(gated, f"{name}.down")

    def forward(tokens, rotation, attends):
        x = tw.nn.embedding(weights["embedding"], tokens)
        caches = []
        for i, attend in enumerate(attends):
            name = f"layers.{i}"
            normed = norm(x, f"{name}.attention.norm")
            mixed, cache = attention(normed, f"{name}.attention", rotation, attend)
            x = x + mixed
            x = x + feed_forward(norm(x, f"{name}.feed_forward.norm"), f"{name}.feed_forward")
            caches.append(cache)
        return linear(norm(x[:, -1], "norm"), "output"), tuple(caches)

    return forward


def make_decoder(config: Config, weights: dict[str, np.ndarray]) -> Decoder:
    """The model as programs over one sequence; logits are of shape (1, vocabulary).

    `prefill(tokens)` reads tokens (1, length) and gives the logits of the last one and the caches.
    `decode(token, position, caches)` adds one token (1, 1) and gives its logits and the caches, in the same memory.
    `sample(logits, key, temperature)` draws a token (1, 1) from the `TOP_K` most likely ones and gives a new key, too.
    `step(token, position, caches, key, temperature)` is both: the next token, a new key, the caches.
    """
    forward = make_forward(config, weights)
    cosines, sines = rotary_table(config)

    @tw.jit
    def prefill(tokens):
        length = tokens.shape[1]
        free = ((0, 0), (0, 0), (0, config.capacity - length), (0, 0))

        def attend(query, key, value):
            return tw.nn.attention(query, key, value, causal=True), (tw.pad(key, free), tw.pad(value, free))

        return forward(tokens, (cosines[:length], sines[:length]), [attend] * config.layers)

    @tw.jit(donate="caches")
    def decode(token, position, caches):
        rotation = [tw.take(table, position, axis=0) for table in (cosines, sines)]
        visible = tw.arange(config.capacity) <= position

        def attend_to(cache):
            def attend(query, *new):
                place = (0, 0, position, 0)
                keys, values = (tw.dynamic_update_slice(old, row, place) for old, row in zip(cache, new, strict=True))
                return tw.nn.attention(query, keys, values, mask=visible), (keys, values)

            return attend

        return forward(token, rotation, [attend_to(cache) for cache in caches])

    @tw.jit
    def sample(logits, key, temperature):
        now, later = tw.random.split(key)
        highest, tokens = tw.top_k(logits[0], min(TOP_K, config.vocabulary))
        return tokens[tw.random.categorical(now, highest / temperature)].reshape(1, 1), later

    @tw.jit(donate="caches")
    def step(token, position, caches, key, temperature):
        logits, caches = decode(token, position, caches)
        return (*sample(logits, key, temperature), caches)

    return Decoder(prefill, decode, sample, step)


def generate(decoder: Decoder, prompt: np.ndarray, count: int, temperature: float = 0.8, seed: int = 0) -> list[int]:
    """`count` tokens that follow a prompt (1, length).

    Raises:
        ValueError: the caches have no room for them.
    """
    length = prompt.shape[1]
    logits, caches = decoder.prefill(prompt)
    capacity = caches[0][0].shape[2]
    if length + count > capacity:
        raise ValueError(f"{length} + {count} tokens do not fit caches of {capacity}")
    token, key = decoder.sample(logits, tw.random.key(seed), temperature)
    tokens = [int(token[0, 0])]
    for position in range(length, length + count - 1):
        token, key, caches = decoder.step(token, position, caches, key, temperature)
        tokens.append(int(token[0, 0]))
    return tokens


def main(arguments: list[str] | None = None, config: Config | None = None) -> list[int]:
    arguments = sys.argv[1:] if arguments is None else arguments
    count = int(arguments[0]) if arguments else 32
    config = config or Config()
    decoder = make_decoder(config, random_weights(config))
    prompt = np.random.default_rng(1).integers(0, config.vocabulary, (1, PROMPT_LENGTH))
    start = time.perf_counter()
    generate(decoder, prompt, 2)  # compiles the programs
    ready_s = time.perf_counter() - start
    start = time.perf_counter()
    tokens = generate(decoder, prompt, count)
    rate = count / (time.perf_counter() - start)
    print("prompt:", *prompt[0])
    print("tokens:", *tokens)
    print(f"{rate:.0f} tokens/s with a prompt of {PROMPT_LENGTH} tokens, ready after {ready_s:.1f} s")
    return tokens


if __name__ == "__main__":
    main()

"""Programs of JAX that a user would bring: training steps and networks, small enough to compile in a test."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Tree = Any


# ---- a transformer --------------------------------------------------------------------------------------------------


def transformer(vocabulary: int, width: int, heads: int, layers: int, seed: int = 0) -> Tree:
    """Parameters of a decoder with tied embeddings."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def block() -> Tree:
        return {
            "ln1": {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)},
            "ln2": {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)},
            "qkv": matrix(width, 3 * width),
            "out": matrix(width, width),
            "up": matrix(width, 4 * width),
            "down": matrix(4 * width, width),
        }

    return {"embedding": matrix(vocabulary, width), "blocks": [block() for _ in range(layers)]}


def _layer_norm(p: Tree, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def _rotated(x: Any) -> Any:
    """Rotary embedding of (batch, heads, time, size)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[-2])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)


def _attention(p: Tree, x: Any, heads: int) -> Any:
    batch, time, width = x.shape
    q, k, v = (
        part.reshape(batch, time, heads, width // heads).transpose(0, 2, 1, 3)
        for part in jnp.split(x @ p["qkv"], 3, -1)
    )
    scores = _rotated(q) @ _rotated(k).swapaxes(-1, -2) / np.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((time, time), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(batch, time, width) @ p["out"]


def logits(params: Tree, tokens: Any, heads: int) -> Any:
    """The forward pass."""
    x = params["embedding"][tokens]
    for p in params["blocks"]:
        x = x + _attention(p, _layer_norm(p["ln1"], x), heads)
        x = x + jax.nn.gelu(_layer_norm(p["ln2"], x) @ p["up"]) @ p["down"]
    return x @ params["embedding"].T


def _loss(params: Tree, tokens: Any, heads: int) -> Any:
    predicted = jax.nn.log_softmax(logits(params, tokens[:, :-1], heads))
    return -jnp.take_along_axis(predicted, tokens[:, 1:, None], axis=-1).mean()


def adam_state(params: Tree) -> Tree:
    """First and second moments, and the number of steps."""
    zeros = jax.tree.map(lambda p: np.zeros_like(p), params)
    return {"m": zeros, "v": jax.tree.map(np.copy, zeros), "t": np.int32(0)}


def _adam(params: Tree, grads: Tree, state: Tree, rate: float = 1e-2) -> tuple[Tree, Tree]:
    t = state["t"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)

    def step(p: Any, m: Any, v: Any) -> Any:
        return p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

    return jax.tree.map(step, params, m, v), {"m": m, "v": v, "t": t}


def train_step(params: Tree, state: Tree, tokens: Any, heads: int) -> tuple[Tree, Tree, Any]:
    """Forward, backward and the update of Adam."""
    loss, grads = jax.value_and_grad(_loss)(params, tokens, heads)
    params, state = _adam(params, grads, state)
    return params, state, loss


# ---- recurrent networks ---------------------------------------------------------------------------------------------


def lstm_params(inputs: int, width: int, seed: int = 0) -> Tree:
    """Weights of one cell."""
    random = np.random.default_rng(seed)
    shape = (inputs + width, 4 * width)
    return {"w": (random.standard_normal(shape) * 0.3).astype(np.float32), "b": np.zeros(4 * width, np.float32)}


def lstm(params: Tree, xs: Any) -> Any:
    """All hidden states over (time, batch, inputs)."""
    width = params["b"].shape[0] // 4

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        gates = jnp.concatenate([x, h], -1) @ params["w"] + params["b"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((xs.shape[1], width))
    return lax.scan(step, (start, start), xs)[1]


def lstm_gradient(params: Tree, xs: Any) -> Any:
    """The loss and its gradient through time."""
    return jax.value_and_grad(lambda p: jnp.square(lstm(p, xs)).mean())(params)


def gru(params: Tree, xs: Any) -> Any:
    """The last hidden state of a gated recurrent unit."""

    def step(h: Any, x: Any) -> Any:
        gates = jax.nn.sigmoid(x @ params["wx"] + h @ params["wh"])
        z, r = jnp.split(gates, 2, -1)
        candidate = jnp.tanh(x @ params["cx"] + (r * h) @ params["ch"])
        return (1 - z) * h + z * candidate, None

    return lax.scan(step, jnp.zeros((xs.shape[1], params["ch"].shape[0])), xs)[0]


# ---- convolutional networks -----------------------------------------------------------------------------------------


def convnet_params(seed: int = 0) -> Tree:
    """Two convolutions with batch normalisation, and a classifier."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    return {
        "c1": normal(3, 3, 3, 8),
        "c2": normal(3, 3, 8, 16),
        "scale": np.ones(8, np.float32),
        "offset": np.zeros(8, np.float32),
        "w": normal(16 * 16, 10),
    }


def convnet(params: Tree, x: Any) -> Any:
    """Logits of images (batch, height, width, channels)."""
    conv = functools.partial(lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = conv(x, params["c1"], (1, 1))
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["offset"])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(conv(x, params["c2"], (2, 2)))
    return x.reshape(x.shape[0], -1) @ params["w"]


def convnet_gradient(params: Tree, x: Any, labels: Any) -> Any:
    """The loss and its gradient."""

    def loss(p: Tree) -> Any:
        predicted = jax.nn.log_softmax(convnet(p, x))
        return -(predicted * jax.nn.one_hot(labels, 10)).sum(-1).mean()

    return jax.value_and_grad(loss)(params)


# ---- random numbers -------------------------------------------------------------------------------------------------


def dropout(key: Any, x: Any) -> Any:
    """Half of the elements, doubled, with noise."""
    first, second = jax.random.split(key)
    kept = jax.random.bernoulli(first, 0.5, x.shape)
    return jnp.where(kept, x * 2, 0) + 0.1 * jax.random.normal(second, x.shape)

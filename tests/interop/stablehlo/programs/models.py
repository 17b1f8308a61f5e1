"""Networks beyond those of `networks`: U-Nets, graphs, experts, autoencoders, decoding."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.programs import networks
from tests.interop.stablehlo.programs.registry import f32, program


def _transformer(r: np.random.Generator) -> tuple[Any, ...]:
    params = networks.transformer(vocabulary=31, width=16, heads=2, layers=2)
    return params, networks.adam_state(params), r.integers(0, 31, (2, 9)).astype(np.int32)


@program(_transformer, bound=2e-3, why="Adam divides by roots of squares of gradients, which amplifies those near 0")
def transformer_step(params: Any, state: Any, tokens: Any) -> Any:
    """A step of training a decoder with rotary embeddings."""
    return networks.train_step(params, state, tokens, heads=2)


@program(lambda r: (networks.lstm_params(5, 8), f32(r.standard_normal((7, 3, 5)))))
def lstm_gradient(params: Any, xs: Any) -> Any:
    """The gradient through a recurrent network."""
    return networks.lstm_gradient(params, xs)


@program(
    lambda r: (networks.convnet_params(), f32(r.standard_normal((2, 16, 16, 3))), np.array([1, 7], np.int32)),
    bound=1e-4,
)
def convnet_gradient(params: Any, x: Any, labels: Any) -> Any:
    """The gradient through convolutions, batch normalisation and pooling."""
    return networks.convnet_gradient(params, x, labels)


def _unet(r: np.random.Generator) -> tuple[Any, ...]:
    def normal(*shape: int) -> Any:
        return f32(r.standard_normal(shape) * 0.2)

    params = {"in": normal(3, 3, 3, 8), "down": normal(3, 3, 8, 16), "middle": normal(3, 3, 16, 16)}
    params |= {"up": normal(2, 2, 8, 16), "out": normal(3, 3, 16, 3), "time": normal(4, 16)}
    return params, normal(2, 8, 8, 3), f32([0.1, 0.7])


@program(_unet, bound=1e-4, why="normalisation divides by small deviations")
def u_net(params: Any, image: Any, time: Any) -> Any:
    """A denoising U-Net with group normalisation, time embeddings and transposed convolutions; loss and gradient."""
    conv = functools.partial(lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def normalised(x: Any) -> Any:
        groups = x.reshape(*x.shape[:3], 4, -1)
        mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
        return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)

    def network(p: Any) -> Any:
        first = jax.nn.silu(normalised(conv(image, p["in"], (1, 1))))
        low = conv(first, p["down"], (2, 2))
        angles = time[:, None] * jnp.array([1.0, 4.0])
        low = low + (jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1) @ p["time"])[:, None, None]
        low = jax.nn.silu(normalised(conv(jax.nn.silu(normalised(low)), p["middle"], (1, 1))))
        high = lax.conv_transpose(low, p["up"].transpose(0, 1, 3, 2), (2, 2), "SAME")
        return conv(jnp.concatenate([first, high], -1), p["out"], (1, 1))

    return jax.value_and_grad(lambda p: jnp.mean((network(p) - image) ** 2))(params)


@program(
    lambda r: (
        r.integers(0, 10, (2, 24)).astype(np.int32),
        f32(r.standard_normal((10, 6))),
        f32(r.standard_normal((2, 6, 6)) * 0.4),
    )
)
def graph_network(edges: Any, nodes: Any, weights: Any) -> Any:
    """Message passing with attention over the edges of each node, and its gradient."""
    source, target = edges

    def network(weights: Any) -> Any:
        x = nodes
        for w in weights:
            messages = jnp.tanh(x[source] @ w)
            scores = jax.nn.leaky_relu((messages * x[target]).sum(-1))
            top = jax.ops.segment_max(scores, target, 10)
            shares = jnp.exp(scores - top[target])
            shares = shares / jax.ops.segment_sum(shares, target, 10)[target]
            x = x + jax.ops.segment_sum(messages * shares[:, None], target, 10)
        return x

    return network(weights), jax.grad(lambda w: jnp.sum(network(w) ** 2))(weights)


@program(
    lambda r: (f32(r.standard_normal((12, 8))), f32(r.standard_normal((8, 4))), f32(r.standard_normal((4, 8, 8)) * 0.3))
)
def experts(x: Any, router: Any, weights: Any) -> Any:
    """A mixture of experts: each token goes to two of four, within a capacity."""
    gates = jax.nn.softmax(x @ router)
    shares, chosen = lax.top_k(gates, 2)
    sent = jax.nn.one_hot(chosen, 4).sum(1)
    place = jnp.cumsum(sent, 0) * sent - 1
    slots = jax.nn.one_hot(place, 5) * (sent * (place < 5))[..., None]
    inside = jnp.einsum("tes,td->esd", slots, x)
    outside = jnp.einsum("esd,edf->esf", inside, weights)
    combined = slots * (jax.nn.one_hot(chosen, 4) * shares[..., None]).sum(1)[..., None]
    return jnp.einsum("tes,esf->tf", combined, jax.nn.relu(outside)), gates.mean(0) @ sent.mean(0)


@program(
    lambda r: (
        jax.random.key(0),
        f32(r.uniform(size=(4, 10))),
        f32(r.standard_normal((2, 10, 6)) * 0.3),
        f32(r.standard_normal((6, 10)) * 0.3),
    )
)
def autoencoder(key: Any, x: Any, encoder: Any, decoder: Any) -> Any:
    """A variational autoencoder: the bound with reparametrised noise, and its gradients."""

    def bound(encoder: Any, decoder: Any) -> Any:
        mean, log_scale = x @ encoder[0], x @ encoder[1]
        z = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
        logits = z @ decoder
        likelihood = jnp.sum(x * logits - jax.nn.softplus(logits))
        return 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_scale) - 2 * log_scale - 1) - likelihood

    return jax.value_and_grad(bound, argnums=(0, 1))(encoder, decoder)


@program(
    lambda r: (networks.transformer(31, 16, 2, 1), np.array([[3, 7, 1, 9]], np.int32), jax.random.key(8)), bound=0.0
)
def decoding(params: Any, prompt: Any, key: Any) -> Any:
    """Sampling from a decoder, token by token, into a buffer of fixed size."""
    buffer = jnp.zeros((1, 10), jnp.int32).at[:, :4].set(prompt)

    def advance(n: Any, state: Any) -> Any:
        buffer, key = state
        key, own = jax.random.split(key)
        scores = networks.logits(params, buffer, 2)
        row = lax.dynamic_slice_in_dim(scores, n - 1, 1, axis=1)[:, 0]
        best, places = lax.top_k(row, 5)
        drawn = jax.random.categorical(own, best / 0.8, axis=-1)
        token = jnp.take_along_axis(places, drawn[:, None], 1)
        return lax.dynamic_update_slice(buffer, token.astype(jnp.int32), (0, n)), key

    return lax.fori_loop(4, 10, advance, (buffer, key))[0]


@program(lambda r: (f32(r.uniform(size=(2, 9, 11))), f32(r.uniform(0, 8, (2, 20)))))
def images(batch: Any, places: Any) -> Any:
    """Blurs, edges, interpolation at fractional places, resizing and morphology."""
    kernel = jnp.exp(-0.5 * jnp.arange(-2.0, 3.0) ** 2)
    kernel = kernel / kernel.sum()

    def blurred(x: Any) -> Any:
        rows = jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"))(x)
        return jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"))(rows.T).T

    smooth = jax.vmap(blurred)(batch)
    dx, dy = jnp.gradient(smooth, axis=(1, 2))
    sampled = jax.scipy.ndimage.map_coordinates(batch[0], list(places), order=1, mode="nearest")
    resized = jax.image.resize(batch, (2, 18, 7), "bilinear")
    dilated = lax.reduce_window(batch, -jnp.inf, lax.max, (1, 3, 3), (1, 1, 1), "SAME")
    return smooth, jnp.hypot(dx, dy), sampled, resized, dilated, jnp.clip(batch * 2 - 0.5, 0, 1)

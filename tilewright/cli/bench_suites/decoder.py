"""The Llama-style decoder of the examples with random weights: reading a prompt, and one more token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.cached import cached_property
from tilewright.cli.bench_suites.case import Array, Case, onnx_model
from tilewright.cli.bench_suites.model_support import OnnxGraph, Weights, load_example
from tilewright.records import dataclass

EXAMPLE = "02_llama_decoder"

_QUICK_SIZES = {
    "vocabulary": 64, "hidden": 32, "layers": 2, "query_heads": 4, "key_heads": 2, "head_size": 16, "inner": 48,
    "capacity": 16,
}  # fmt: skip

# Rows of keys or values, and the token's place, to the cache with them written: in place where a library can.
Write = Callable[[Any, Any, Any], Any]


def cases(quick: bool) -> tuple[Case, ...]:
    model = _Model(load_example(EXAMPLE), _QUICK_SIZES if quick else {})
    return _prefill_case(model), _decode_case(model)


class _Model:
    """The example's model; weights are drawn when a case first needs them."""

    def __init__(self, example: Any, sizes: dict[str, int]) -> None:
        self.example = example
        self.config = example.Config(**sizes)

    @cached_property
    def weights(self) -> Weights:
        return self.example.random_weights(self.config)

    @cached_property
    def decoder(self) -> Any:
        return self.example.make_decoder(self.config, self.weights)

    @cached_property
    def rotary_table(self) -> tuple[Array, Array]:
        return self.example.rotary_table(self.config)

    @property
    def layer_parameters(self) -> int:
        """Number of weights that the matmuls of all layers read."""
        c = self.config
        attention = 2 * c.hidden * c.head_size * (c.query_heads + c.key_heads)
        return c.layers * (attention + 3 * c.hidden * c.inner)

    @property
    def output_parameters(self) -> int:
        return self.config.vocabulary * self.config.hidden

    @property
    def cache_shape(self) -> tuple[int, ...]:
        return (1, self.config.key_heads, self.config.capacity, self.config.head_size)


@dataclass(frozen=True)
class _Feed:
    """The inputs of one call: tokens (1, length), the position of the first, and the caches of all layers, keys and
    values in turn, or none for a prompt."""

    tokens: Any
    position: Any
    caches: Sequence[Any]

    def cache(self, layer: int) -> tuple[Any, Any] | None:
        return (self.caches[2 * layer], self.caches[2 * layer + 1]) if self.caches else None


def _prefill_case(model: _Model) -> Case:
    length = model.config.capacity

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return (generator.integers(0, model.config.vocabulary, (1, length)),)

    def ours(tokens: Array) -> Any:
        return model.decoder.prefill(tokens)[0]

    pairs = length * (length + 1) // 2
    return _case(f"decoder prefill 1x{length}", model, inputs, ours, length, pairs)


def _decode_case(model: _Model) -> Case:
    """The last place of the caches, which every call writes again, so that all calls do the same."""
    capacity = model.config.capacity

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        token = generator.integers(0, model.config.vocabulary, (1, 1))
        draw = generator.standard_normal
        caches = (draw(model.cache_shape, dtype=np.float32) for _ in range(2 * model.config.layers))
        return token, np.array(capacity - 1), *caches

    def ours(token: Array, position: Array, *caches: Array) -> Any:
        pairs = tuple(zip(caches[::2], caches[1::2], strict=True))
        return model.decoder.decode(token, position, pairs)[0]

    return _case(f"decoder decode 1x1 cache {capacity}", model, inputs, ours, 1, capacity)


def _case(name: str, model: _Model, inputs: Any, ours: Callable[..., Any], length: int, pairs: int) -> Case:
    """`pairs` of a query and a key that it sees, for each head."""

    def of_library(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(library: ModuleType, tokens: Any, position: Any = 0, *caches: Any) -> Any:
            return function(library, model, _Feed(tokens, position, caches))

        return call

    config = model.config
    attention = 4 * config.layers * config.query_heads * config.head_size * pairs
    caches = 2 * config.layers * config.key_heads * config.capacity * config.head_size
    return Case(
        name=name,
        make_inputs=inputs,
        ours=ours,
        peers={
            "numpy": of_library(_numpy_logits),
            "torch": of_library(_torch_logits),
            "jax": of_library(_jax_logits),
            "onnxruntime": of_library(_onnx_decoder),
        },
        flops=2.0 * (length * model.layer_parameters + model.output_parameters) + attention,
        bytes=4.0 * (model.layer_parameters + model.output_parameters + caches),
        tolerance=1e-5,
        reference=of_library(_exact_logits),
    )


# ---- one formula for NumPy and JAX -----------------------------------------------------------------------------------


def _logits(library: ModuleType, model: _Model, weights: Any, feed: _Feed, write: Write) -> Any:
    config, length = model.config, feed.tokens.shape[1]
    half, group = config.head_size // 2, config.query_heads // config.key_heads
    rows = feed.position + library.arange(length)
    cosines, sines = (library.asarray(table)[rows] for table in model.rotary_table)

    def linear(x: Any, name: str) -> Any:
        return x @ weights[name].T

    def norm(x: Any, name: str) -> Any:
        return x / library.sqrt((x * x).mean(-1, keepdims=True) + np.float32(config.epsilon)) * weights[name]

    def heads(x: Any) -> Any:
        return x.reshape(1, length, -1, config.head_size).transpose(0, 2, 1, 3)

    def rotate(x: Any) -> Any:
        low, high = x[..., :half], x[..., half:]
        return library.concatenate([low * cosines - high * sines, high * cosines + low * sines], axis=-1)

    def attention(x: Any, name: str, cache: tuple[Any, Any] | None) -> Any:
        q, k, v = (heads(linear(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        q, k = rotate(q), rotate(k)
        if cache is not None:
            k, v = write(cache[0], k, feed.position), write(cache[1], v, feed.position)
        # Query heads that share keys are further rows: (1, key heads, group * length, size).
        q = q.reshape(1, config.key_heads, group * length, config.head_size)
        scores = q @ k.swapaxes(-1, -2) * np.float32(config.head_size**-0.5)
        visible = library.arange(k.shape[2]) <= library.tile(rows, group)[:, None]
        scores = library.where(visible, scores, np.float32(-np.inf))
        shares = library.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True) @ v).reshape(1, config.query_heads, length, config.head_size)
        return linear(mixed.transpose(0, 2, 1, 3).reshape(1, length, -1), f"{name}.output")

    x = weights["embedding"][feed.tokens]
    for i in range(config.layers):
        name = f"layers.{i}"
        x = x + attention(norm(x, f"{name}.attention.norm"), f"{name}.attention", feed.cache(i))
        normed = norm(x, f"{name}.feed_forward.norm")
        gate = linear(normed, f"{name}.feed_forward.gate")
        inner = gate / (1 + library.exp(-gate)) * linear(normed, f"{name}.feed_forward.up")
        x = x + linear(inner, f"{name}.feed_forward.down")
    return linear(norm(x[:, -1], "norm"), "output")


def _exact_logits(numpy: ModuleType, model: _Model, feed: _Feed) -> Any:
    """In float64, as the tokens and caches that it is given."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    return _numpy_logits(numpy, model, feed, weights)


def _numpy_logits(numpy: ModuleType, model: _Model, feed: _Feed, weights: Weights | None = None) -> Any:
    def write(cache: Any, rows: Any, position: Any) -> Any:
        cache[:, :, position : position + rows.shape[2]] = rows
        return cache

    return _logits(numpy, model, weights or model.weights, feed, write)


def _jax_logits(jax: ModuleType, model: _Model, feed: _Feed) -> Any:
    def write(cache: Any, rows: Any, position: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, rows, (0, 0, position, 0))

    weights = {name: jax.numpy.asarray(value) for name, value in model.weights.items()}
    return _logits(jax.numpy, model, weights, feed, write)


# ---- torch -----------------------------------------------------------------------------------------------------------


def _torch_logits(torch: ModuleType, model: _Model, feed: _Feed) -> Any:
    with torch.inference_mode():
        return _torch_forward(torch, model, feed)


def _torch_forward(torch: ModuleType, model: _Model, feed: _Feed) -> Any:
    config, functional, length = model.config, torch.nn.functional, feed.tokens.shape[1]
    # Views of the same memory, which cost microseconds.
    weights = {name: torch.from_numpy(value) for name, value in model.weights.items()}
    first = int(feed.position)
    cosines, sines = (torch.from_numpy(table[first : first + length]) for table in model.rotary_table)

    def norm(x: Any, name: str) -> Any:
        return functional.rms_norm(x, (config.hidden,), weights[name], config.epsilon)

    def heads(x: Any) -> Any:
        return x.view(1, length, -1, config.head_size).transpose(1, 2)

    def rotate(x: Any) -> Any:
        low, high = x.chunk(2, -1)
        return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)

    def attention(x: Any, name: str, cache: tuple[Any, Any] | None) -> Any:
        parts = ("query", "key", "value")
        q, k, v = (heads(functional.linear(x, weights[f"{name}.{part}"])) for part in parts)
        q, k = rotate(q), rotate(k)
        if cache is not None:
            for kept, rows in zip(cache, (k, v), strict=True):
                kept[:, :, first : first + length] = rows
            k, v = (kept[:, :, : first + length] for kept in cache)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        return functional.linear(mixed.transpose(1, 2).reshape(1, length, -1), weights[f"{name}.output"])

    x = functional.embedding(feed.tokens, weights["embedding"])
    for i in range(config.layers):
        name = f"layers.{i}"
        x = x + attention(norm(x, f"{name}.attention.norm"), f"{name}.attention", feed.cache(i))
        normed = norm(x, f"{name}.feed_forward.norm")
        gate = functional.silu(functional.linear(normed, weights[f"{name}.feed_forward.gate"]))
        inner = gate * functional.linear(normed, weights[f"{name}.feed_forward.up"])
        x = x + functional.linear(inner, weights[f"{name}.feed_forward.down"])
    return functional.linear(norm(x[:, -1], "norm"), weights["output"])


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def _onnx_decoder(onnx: ModuleType, model: _Model, feed: _Feed) -> bytes:
    """The model in the form that exporters for ONNX Runtime write: rotary positions, caches and attention in one node,
    whose query, key and value are results of one matmul."""
    config, weights, graph = model.config, model.weights, OnnxGraph(onnx)
    cosines, sines = (graph.constant(name, t) for name, t in zip(("cosines", "sines"), model.rotary_table, strict=True))

    def linear(x: str, *names: str) -> str:
        joined = np.concatenate([weights[name] for name in names])
        return graph.add("MatMul", x, graph.constant(f"{names[0]}.transposed", joined.T))

    def norm(x: str, name: str) -> str:
        scale = graph.constant(name, weights[name])
        return graph.add("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=config.epsilon)

    def attention(x: str, name: str, layer: int) -> str:
        joined = linear(x, *(f"{name}.{part}" for part in ("query", "key", "value")))
        # Inputs are x0 (tokens), x1 (position), and the caches from x2.
        caches = [f"x{2 + 2 * layer}", f"x{3 + 2 * layer}"] if feed.caches else ["", ""]
        mixed = graph.add(
            "GroupQueryAttention", joined, "", "", *caches, last, total, cosines, sines,
            results=3, domain="com.microsoft", num_heads=config.query_heads, kv_num_heads=config.key_heads, do_rotary=1,
        )  # fmt: skip
        return linear(mixed, f"{name}.output")

    if feed.caches:
        position = graph.add("Cast", "x1", to=onnx.TensorProto.INT32)
        last = graph.add("Reshape", position, graph.constant("one_axis", np.array([1])))
        total = graph.add("Add", position, graph.constant("one", np.array(1, np.int32)))
    else:
        length = feed.tokens.shape[1]
        last = graph.constant("last", np.array([length - 1], np.int32))
        total = graph.constant("total", np.array(length, np.int32))
    x = graph.add("Gather", graph.constant("embedding", weights["embedding"]), "x0")
    for i in range(config.layers):
        name = f"layers.{i}"
        x = graph.add("Add", x, attention(norm(x, f"{name}.attention.norm"), f"{name}.attention", i))
        normed = norm(x, f"{name}.feed_forward.norm")
        gate = linear(normed, f"{name}.feed_forward.gate")
        gate = graph.add("QuickGelu", gate, domain="com.microsoft", alpha=1.0)
        inner = graph.add("Mul", gate, linear(normed, f"{name}.feed_forward.up"))
        x = graph.add("Add", x, linear(inner, f"{name}.feed_forward.down"))
    x = graph.add("Gather", x, graph.constant("last_row", np.array(-1)), axis=1)
    scale = graph.constant("norm", weights["norm"])
    x = graph.add("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=config.epsilon)
    graph.add("MatMul", x, graph.constant("output.transposed", weights["output"].T), output="y")
    inputs = (feed.tokens, feed.position, *feed.caches) if feed.caches else (feed.tokens,)
    return onnx_model(onnx, inputs, graph.nodes, graph.constants)

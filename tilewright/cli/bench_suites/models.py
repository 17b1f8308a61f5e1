"""Whole models: the sentence encoder of the examples, all-MiniLM-L6-v2 with its own weights, and their decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.cli.bench_suites import decoder, imported
from tilewright.cli.bench_suites.case import Array, Case, onnx_model
from tilewright.cli.bench_suites.model_support import OnnxGraph, Weights, load_example
from tilewright.cli.bench_suites.ops import numpy_gelu

EXAMPLE = "01_sentence_embeddings"

_HEADS, _WIDTH, _INNER, _LAYERS, _POSITIONS = 12, 384, 1536, 6, 512
_EPSILON = 1e-12
_MASKED = np.float32(-1e9)
_SHAPES = [(1, 16), (1, 128), (8, 128)]
_QUICK_VOCABULARY = 64


def cases(quick: bool) -> tuple[Case, ...]:
    example = load_example(EXAMPLE)
    weights = _random_weights() if quick else example.load_weights(example.model_files())
    encode = example.make_encoder(weights)
    shapes = [(1, 16)] if quick else _SHAPES
    ours = (*(_case(encode, weights, batch, length) for batch, length in shapes), *decoder.cases(quick))
    # Those of others are fetched, or exported: nothing for a quick look.
    return ours if quick else (*ours, *imported.cases(), *(_exported(weights, *shape) for shape in shapes))


def _random_weights() -> Weights:
    """Weights of the model's shapes but for a small vocabulary, so that nothing is fetched."""
    generator = np.random.default_rng(1)

    def draw(*shape: int) -> Array:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)

    weights = {
        "embeddings.word_embeddings.weight": draw(_QUICK_VOCABULARY, _WIDTH),
        "embeddings.position_embeddings.weight": draw(_POSITIONS, _WIDTH),
        "embeddings.token_type_embeddings.weight": draw(2, _WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(_LAYERS):
        name = f"encoder.layer.{i}"
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
        linears = {f"attention.self.{part}": (_WIDTH, _WIDTH) for part in ("query", "key", "value")}
        linears |= {"attention.output.dense": (_WIDTH, _WIDTH)}
        linears |= {"intermediate.dense": (_INNER, _WIDTH), "output.dense": (_WIDTH, _INNER)}
        for linear, (rows, columns) in linears.items():
            weights[f"{name}.{linear}.weight"] = draw(rows, columns)
            weights[f"{name}.{linear}.bias"] = draw(rows)
    for norm in norms:
        weights[f"{norm}.weight"], weights[f"{norm}.bias"] = 1 + draw(_WIDTH), draw(_WIDTH)
    return weights


def _exported(weights: Weights, batch: int, length: int) -> Case:
    """The model as a module of torch, exported by torch."""
    case = _case(lambda *inputs: None, weights, batch, length)
    inputs = case.make_inputs(np.random.default_rng(0))

    def path() -> Path:
        return imported.exported_encoder(_torch_encoder(weights), inputs)

    return imported.onnx_case(f"MiniLM exported from torch {batch}x{length}", path, case.make_inputs, case.flops)


def _case(encode: Callable[..., Any], weights: Weights, batch: int, length: int) -> Case:
    vocabulary = weights["embeddings.word_embeddings.weight"].shape[0]

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        ids = generator.integers(0, vocabulary, (batch, length))
        lengths = generator.integers(length // 2, length + 1, batch)
        lengths[0] = length
        return ids, (np.arange(length) < lengths[:, None]).astype(np.int64)

    def onnx_encoder(onnx: ModuleType, ids: Any, mask: Any) -> bytes:
        return _onnx_encoder(onnx, weights, ids, mask)

    tokens = batch * length
    products = _LAYERS * (4 * _WIDTH * _WIDTH + 2 * _WIDTH * _INNER)
    attention = _LAYERS * 2 * length * _WIDTH
    layers_bytes = 4.0 * sum(w.size for name, w in weights.items() if name.startswith("encoder."))
    return Case(
        name=f"MiniLM {batch}x{length}",
        make_inputs=inputs,
        ours=encode,
        peers={
            "numpy": _numpy_encoder(weights),
            "torch": _torch_encoder(weights),
            "jax": _jax_encoder(weights),
            "onnxruntime": onnx_encoder,
        },
        flops=2.0 * tokens * (products + attention),
        bytes=layers_bytes + 8.0 * tokens * _WIDTH,
        tolerance=1e-4,
    )


# ---- one formula for NumPy and JAX -----------------------------------------------------------------------------------


def _encode(library: ModuleType, weights: Any, ids: Any, mask: Any, gelu: Callable[[Any], Any]) -> Any:
    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / library.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(_EPSILON))
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], _HEADS, -1).transpose(0, 2, 1, 3)

    length = ids.shape[1]
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:length]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    bias = library.where(mask > 0, np.float32(0), _MASKED)[:, None, None, :]
    for i in range(_LAYERS):
        name = f"encoder.layer.{i}"
        q, k, v = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        logits = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5) + bias
        shares = library.exp(logits - logits.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        hidden = gelu(linear(x, f"{name}.intermediate.dense"))
        x = norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    keep = mask.astype(np.float32)
    pooled = (x * keep[:, :, None]).sum(1) / keep.sum(1)[:, None]
    return pooled / library.sqrt((pooled * pooled).sum(1, keepdims=True))


def _numpy_encoder(weights: Weights) -> Callable[..., Any]:
    def encode(numpy: ModuleType, ids: Any, mask: Any) -> Any:
        return _encode(numpy, weights, ids, mask, lambda x: numpy_gelu(numpy, x))

    return encode


def _jax_encoder(weights: Weights) -> Callable[..., Any]:
    def encode(jax: ModuleType, ids: object, mask: object) -> Any:
        constants = {name: jax.numpy.asarray(value) for name, value in weights.items()}
        return _encode(jax.numpy, constants, ids, mask, lambda x: jax.nn.gelu(x, approximate=False))

    return encode


def _torch_encoder(weights: Weights) -> Callable[..., Any]:
    @cache
    def tensors(torch: ModuleType) -> dict[str, Any]:
        return {name: torch.from_numpy(value) for name, value in weights.items()}

    def encode(torch: ModuleType, ids: Any, mask: Any) -> Any:
        w, functional = tensors(torch), torch.nn.functional

        def linear(x: object, name: str) -> Any:
            return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(x: Any, name: str) -> Any:
            return functional.layer_norm(x, (_WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], _EPSILON)

        def heads(x: Any) -> Any:
            return x.view(*x.shape[:2], _HEADS, -1).transpose(1, 2)

        x = functional.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        bias = torch.where(mask > 0, 0.0, float(_MASKED))[:, None, None, :]
        for i in range(_LAYERS):
            name = f"encoder.layer.{i}"
            q, k, v = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(x.shape)
            x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
            hidden = functional.gelu(linear(x, f"{name}.intermediate.dense"))
            x = norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        keep = mask.to(torch.float32)
        pooled = (x * keep[:, :, None]).sum(1) / keep.sum(1)[:, None]
        return pooled / torch.linalg.vector_norm(pooled, dim=1, keepdim=True)

    return encode


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def _onnx_encoder(onnx: ModuleType, weights: Weights, ids: Array, mask: Array) -> bytes:
    """The model in the fused form that ONNX Runtime's own optimiser for transformers writes: one node an attention."""
    graph = OnnxGraph(onnx)

    def linear(x: str, name: str) -> str:
        weight = graph.constant(f"{name}.weight", weights[f"{name}.weight"].T)
        product = graph.add("MatMul", x, weight)
        return graph.add("Add", product, graph.constant(f"{name}.bias", weights[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale = graph.constant(f"{name}.weight", weights[f"{name}.weight"])
        shift = graph.constant(f"{name}.bias", weights[f"{name}.bias"])
        return graph.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=_EPSILON)

    def attention(x: str, name: str) -> str:
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        joined = np.concatenate([weights[f"{part}.weight"].T for part in parts], axis=1)
        shift = np.concatenate([weights[f"{part}.bias"] for part in parts])
        inputs = (x, graph.constant(f"{name}.qkv.weight", joined), graph.constant(f"{name}.qkv.bias", shift), mask_32)
        return graph.add("Attention", *inputs, domain="com.microsoft", num_heads=_HEADS)

    mask_32 = graph.add("Cast", "x1", to=onnx.TensorProto.INT32)
    words = graph.constant("words", weights["embeddings.word_embeddings.weight"])
    places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    offsets = graph.constant("offsets", places + weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(graph.add("Add", graph.add("Gather", words, "x0"), offsets), "embeddings.LayerNorm")
    for i in range(_LAYERS):
        name = f"encoder.layer.{i}"
        mixed = linear(attention(x, name), f"{name}.attention.output.dense")
        x = norm(graph.add("Add", x, mixed), f"{name}.attention.output.LayerNorm")
        hidden = linear(graph.add("Gelu", linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = norm(graph.add("Add", x, hidden), f"{name}.output.LayerNorm")
    axis = graph.constant("axis_1", np.array([1], np.int64))
    keep = graph.add("Cast", "x1", to=onnx.TensorProto.FLOAT)
    column = graph.add("Unsqueeze", keep, graph.constant("axis_2", np.array([2], np.int64)))
    total = graph.add("ReduceSum", graph.add("Mul", x, column), axis, keepdims=0)
    pooled = graph.add("Div", total, graph.add("ReduceSum", keep, axis, keepdims=1))
    graph.add("LpNormalization", pooled, output="y", axis=1, p=2)
    return onnx_model(onnx, (ids, mask), graph.nodes, graph.constants)

"""The example kernels, a layer of MiniLM's encoder and one of a decoder like Llama's, on a grid of cores."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores.comparing import bounds_of, check
from tilewright import dtypes

EXAMPLES = Path(__file__).parents[2] / "examples"
KERNELS = ["vector_add", "layer_norm", "softmax", "softmax_in_blocks", "matmul", "matmul_bias_gelu", "flash_attention"]
FILES = {"softmax_in_blocks": "softmax", "matmul_bias_gelu": "matmul"}
# How many products of f32 there are one behind another.
PRODUCTS = {"matmul": 1, "matmul_bias_gelu": 1, "flash_attention": 2}
# Sizes that do not divide tiles, small enough that elements that are moved one by one do not take long.
SIZES: dict[str, list[tuple[int, ...]]] = {
    "vector_add": [(1500,), (1500,), (1500,)],
    "layer_norm": [(6, 75), (75,), (75,), (6, 75)],
    "softmax": [(5, 300), (5, 300)],
    "softmax_in_blocks": [(5, 300), (5, 300)],
    "matmul": [(150, 100), (100, 170), (150, 170)],
    "matmul_bias_gelu": [(70, 100), (100, 150), (150,), (70, 150)],
    "flash_attention": [(1, 2, 100, 64)] * 4,
}


def load(path: Path) -> ModuleType:
    name = f"grid_example_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", KERNELS)
def test_example_kernels(name: str) -> None:
    kernel = getattr(load(EXAMPLES / "kernels" / f"{FILES.get(name, name)}.py"), name)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in SIZES[name]]
    results: list[Any] = []
    for target in ("interp", "grid:wormhole", "grid:blackhole"):
        given = [array.copy() for array in arrays[:-1]] + [np.zeros_like(arrays[-1])]
        kernel.lower(*given).compile(target=target)(*given)
        results.append(given[-1])
    for got in results[1:]:
        check(got, results[0], dtypes.f32, bounds_of(dtypes.f32, 8, PRODUCTS.get(name, 0)))


def test_a_layer_of_an_encoder() -> None:
    """MiniLM's sizes, one layer, random weights."""
    example = load(EXAMPLES / "01_sentence_embeddings.py")
    example.LAYERS = 1
    random = np.random.default_rng(1)
    width, inner, words = 384, 1536, 200

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": weight(words, width),
        "embeddings.position_embeddings.weight": weight(64, width),
        "embeddings.token_type_embeddings.weight": weight(2, width),
    }
    sizes = {"attention.self.query": (width, width), "attention.self.key": (width, width)}
    sizes |= {"attention.self.value": (width, width), "attention.output.dense": (width, width)}
    sizes |= {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
    for name, shape in sizes.items():
        weights[f"encoder.layer.0.{name}.weight"] = weight(*shape)
        weights[f"encoder.layer.0.{name}.bias"] = weight(shape[0])
    for name in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        weights[f"{name}.LayerNorm.weight"] = 1 + weight(width)
        weights[f"{name}.LayerNorm.bias"] = weight(width)
    ids = random.integers(0, words, (2, 20))
    mask = (np.arange(20)[None, :] < np.array([[20], [13]])).astype(np.int64)
    encode = example.make_encoder(weights)
    expected = encode.lower(ids, mask).compile(target="cpu")(ids, mask)
    got = encode.lower(ids, mask).compile(target="grid:wormhole")(ids, mask)
    check(np.asarray(got), np.asarray(expected), dtypes.f32, bounds_of(dtypes.f32, 8, 6))


def test_a_layer_of_a_decoder() -> None:
    """Rotary positions, grouped heads, a causal mask, RMS norms and a gated feed-forward block."""
    example = load(EXAMPLES / "02_llama_decoder.py")
    config = example.Config(
        vocabulary=160, hidden=128, layers=1, query_heads=4, key_heads=2, head_size=32, inner=192, capacity=64
    )
    weights = example.random_weights(config)
    forward = example.make_forward(config, weights)
    length = 40

    def attend(query: Any, key: Any, value: Any) -> tuple[Any, None]:
        return tw.nn.attention(query, key, value, causal=True), None

    @tw.jit
    def logits(tokens: Any, cosine: Any, sine: Any) -> Any:
        return forward(tokens, (cosine, sine), [attend])[0]

    tokens = np.random.default_rng(2).integers(0, config.vocabulary, (1, length))
    rotation = [table[:length] for table in example.rotary_table(config)]
    expected = logits.lower(tokens, *rotation).compile(target="cpu")(tokens, *rotation)
    got = logits.lower(tokens, *rotation).compile(target="grid:blackhole")(tokens, *rotation)
    check(np.asarray(got), np.asarray(expected), dtypes.f32, bounds_of(dtypes.f32, 8, 7))


def test_attention_of_narrow_floats_is_one_kernel() -> None:
    """Weights are rounded within the tile, as the array program says."""
    q, k, v = (np.random.default_rng(n).standard_normal((2, 70, 32)).astype(ml_dtypes.bfloat16) for n in range(3))
    function = tw.jit(lambda q, k, v: tw.nn.softmax(q @ k.mT * 0.125, axis=-1) @ v)
    compiled = function.lower(q, k, v).compile(target="grid:blackhole")
    got = np.asarray(compiled(q, k, v))
    executable: Any = compiled.executable
    assert len(executable.runs) == 1
    wide = [each.astype(np.float64) for each in (q, k, v)]
    scores = wide[0] @ wide[1].transpose(0, 2, 1) * 0.125
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    check(got, weights / weights.sum(-1, keepdims=True) @ wide[2], dtypes.bf16, bounds_of(dtypes.bf16, 3))


@pytest.mark.parametrize("width", [128, 512])
def test_wide_heads_are_two_products_and_a_softmax(width: int) -> None:
    """Of 128 columns a core has room for tiles of everything, of 512 not."""
    x = np.random.default_rng(0).standard_normal((300, width)).astype(np.float32) / 8
    compiled = tw.jit(lambda x: tw.nn.softmax(x @ x.mT, axis=-1) @ x).lower(x).compile(target="grid:wormhole")
    scores = x.astype(np.float64) @ x.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ x
    assert np.linalg.norm(compiled(x) - wanted) < 5e-3 * np.linalg.norm(wanted)
    assert len(compiled.executable.timing) == (1 if width == 128 else 3)

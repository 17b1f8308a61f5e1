"""Scaled dot-product attention of f32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilewright as tw
from tilewright.cli.bench_suites.case import Array, Case, normal, onnx_model

# Batch, heads, length, size, and whether queries see only earlier keys.
_SHAPES = [
    (1, 12, 512, 64, False),
    (8, 12, 128, 32, False),
    (1, 8, 1024, 64, True),
    (1, 12, 16, 32, False),
]


def cases(quick: bool) -> tuple[Case, ...]:
    shapes = [(1, 2, 24, 16, False), (1, 2, 24, 16, True)] if quick else _SHAPES
    return tuple(_case(*shape) for shape in shapes)


def _case(batch: int, heads: int, length: int, size: int, causal: bool) -> Case:
    shape = (batch, heads, length, size)
    pairs = length * (length + 1) // 2 if causal else length * length
    peers: dict[str, Callable[..., Any]] = {
        "numpy": partial(_by_parts, causal=causal),
        "torch": partial(_torch, causal=causal),
        "jax": partial(_jax, causal=causal),
        "onnxruntime": partial(_onnx, causal=causal),
    }
    return Case(
        name=f"{'causal ' if causal else ''}{batch}x{heads}x{length}x{size}",
        make_inputs=normal(shape, shape, shape),
        ours=_causal if causal else _full,
        peers=peers,
        flops=4.0 * batch * heads * pairs * size,
        bytes=16.0 * batch * heads * length * size,
        tolerance=1e-5,
    )


@tw.jit
def _full(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v)


@tw.jit
def _causal(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v, causal=True)


def _by_parts(numpy: Any, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    logits = q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    if causal:
        visible = numpy.tri(q.shape[-2], k.shape[-2], dtype=bool)
        logits = numpy.where(visible, logits, q.dtype.type(-numpy.inf))
    weights = numpy.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def _torch(torch: Any, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _jax(jax: Any, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    # JAX wants (batch, length, heads, size).
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2)


def _onnx(onnx: Any, *inputs: Array, causal: bool) -> bytes:
    node = onnx.helper.make_node("Attention", ["x0", "x1", "x2"], ["y"], is_causal=int(causal))
    return onnx_model(onnx, inputs, [node], {}, opset=23)

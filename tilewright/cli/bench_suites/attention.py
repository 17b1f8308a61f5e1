"""Scaled dot-product attention of f32; sizes are heads x length x size, or heads x queries x keys x size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import Array, Case, Ways, error_bound, normal, onnx_model
from tilewright.records import dataclass


@dataclass(frozen=True)
class _Form:
    """Sizes of a case of batch 1; `shared` heads of keys and values, as many as of queries unless given."""

    heads: int
    queries: int
    keys: int
    size: int
    shared: int | None = None
    causal: bool = False
    masked: bool = False
    label: str = ""

    @property
    def name(self) -> str:
        heads = f"{self.heads}/{self.shared}" if self.shared else f"{self.heads}"
        lengths = f"{self.queries}" if self.queries == self.keys else f"{self.queries}x{self.keys}"
        return f"{self.label} {heads}x{lengths}x{self.size}".strip()


_FORMS = (
    _Form(8, 1024, 1024, 64),
    _Form(8, 1024, 1024, 64, causal=True, label="causal"),
    _Form(32, 128, 128, 32, masked=True, label="masked"),
    _Form(32, 512, 512, 128, shared=8, causal=True, label="grouped causal"),
    _Form(32, 1, 4096, 128, label="decode"),
    _Form(12, 16, 16, 32),
)
_QUICK_FORMS = (
    _Form(2, 24, 24, 16),
    _Form(2, 24, 24, 16, causal=True, label="causal"),
    _Form(2, 24, 24, 16, masked=True, label="masked"),
    _Form(4, 24, 24, 16, shared=2, causal=True, label="grouped causal"),
    _Form(2, 1, 40, 16, label="decode"),
)


def cases(quick: bool) -> tuple[Case, ...]:
    return tuple(_case(form) for form in (_QUICK_FORMS if quick else _FORMS))


def _case(form: _Form) -> Case:
    heads, queries, keys, size = form.heads, form.queries, form.keys, form.size
    read, kept = (1, heads, queries, size), (1, form.shared or heads, keys, size)

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        arrays = normal(read, kept, kept)(generator)
        # As of a padded batch: the last fifth of the keys takes no part.
        mask = (np.arange(keys) < keys * 4 // 5).reshape(1, 1, 1, keys)
        return (*arrays, mask) if form.masked else arrays

    pairs = queries * (queries + 1) // 2 if form.causal else queries * keys
    forms: dict[str, Callable[..., Any]] = {"numpy": _by_parts, "torch": _torch, "onnxruntime": _onnx}
    peers: dict[str, Ways] = {name: partial(function, causal=form.causal) for name, function in forms.items()}
    peers["jax"] = {
        "with dot_product_attention": partial(_jax, causal=form.causal),
        "by parts": partial(_jax_by_parts, causal=form.causal),
    }
    return Case(
        name=form.name,
        make_inputs=inputs,
        ours=_causal if form.causal else _full,
        peers=peers,
        flops=4.0 * heads * pairs * size,
        bytes=8.0 * (math.prod(read) + math.prod(kept)),
        tolerance=error_bound(12, size + keys),
    )


@tw.jit
def _full(q: tw.Array, k: tw.Array, v: tw.Array, mask: tw.Array | None = None) -> tw.Array:
    return tw.nn.attention(q, k, v, mask)


@tw.jit
def _causal(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
    return tw.nn.attention(q, k, v, causal=True)


def _by_parts(numpy: ModuleType, q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool) -> Any:
    # Query heads that share a key head are an axis of their own.
    grouped = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    logits = grouped @ k[:, :, None].swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    if mask is not None:
        logits = numpy.where(mask[:, :, None], logits, q.dtype.type(-numpy.inf))
    if causal:
        visible = numpy.tri(q.shape[-2], k.shape[-2], dtype=bool)
        logits = numpy.where(visible, logits, q.dtype.type(-numpy.inf))
    weights = numpy.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v[:, :, None]).reshape(q.shape)


def _torch(torch: ModuleType, q: Any, k: Any, v: object, mask: object = None, *, causal: bool) -> Any:
    grouped = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped
    )


def _jax(jax: ModuleType, q: Any, k: Any, v: Any, mask: object = None, *, causal: bool) -> Any:
    # JAX wants (batch, length, heads, size).
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal).swapaxes(1, 2)


def _jax_by_parts(jax: ModuleType, *inputs: object, causal: bool) -> Any:
    return _by_parts(jax.numpy, *inputs, causal=causal)


def _onnx(onnx: ModuleType, *inputs: Array, causal: bool) -> bytes:
    make, names = onnx.helper.make_node, [f"x{n}" for n in range(len(inputs))]
    nodes: list[Any] = []
    constants: dict[str, Array] = {}
    if len(inputs) == 4:
        # The operator's mask has a row for each query.
        queries, keys = inputs[0].shape[-2], inputs[1].shape[-2]
        constants["shape"] = np.array([1, 1, queries, keys])
        nodes.append(make("Expand", ["x3", "shape"], ["mask"]))
        names[3] = "mask"
    nodes.append(make("Attention", names, ["y"], is_causal=int(causal)))
    return onnx_model(onnx, inputs, nodes, constants, opset=23)

"""Attention that stays one operator, and its gradient."""

from __future__ import annotations

import math

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise UnsupportedOperatorError("attention with dropout", help="leave dropout out, or use `is_causal` alone")


def _folded(x: Array, heads: int) -> Array:
    """(batch, query heads, queries, n) with the query heads that share one of `heads` key heads as more queries."""
    return tw.reshape(x, (x.shape[0], heads, -1, x.shape[-1]))


def attention_product(q: Array, k: Array) -> Array:
    """`q @ k.mT`, (batch, query heads, queries, keys), in f32 or wider."""
    product = tw.matmul(_folded(q, k.shape[1]), tw.matrix_transpose(k), dtype=q.dtype.compute)
    return tw.reshape(product, (*q.shape[:-1], k.shape[-2]))


def attention_weighted(weights: Array, v: Array) -> Array:
    """`weights @ v`, (batch, query heads, queries, size), for weights of (batch, query heads, queries, keys)."""
    return tw.reshape(tw.matmul(_folded(weights, v.shape[1]), v), (*weights.shape[:-1], v.shape[-1]))


def _logits(q: Array, k: Array, causal: bool, mask: Array | None, scale: float) -> Array:
    """Logits before the softmax, (batch, query heads, queries, keys)."""
    logits = attention_product(q, k) * scale
    if mask is not None:
        logits = tw.where(mask, logits, -math.inf) if mask.dtype.is_bool else logits + widened(mask)
    if causal:
        logits = tw.where(_causal_mask(q, k), logits, -math.inf)
    return logits


def _log_sums(logits: Array) -> Array:
    """Logarithms of the sums of exponentials; 0 for rows that see no key, so that their weights come out as 0."""
    sums = tw.logsumexp(logits, axis=-1)
    return tw.where(tw.equal(sums, -math.inf), 0.0, sums)


def _without_blind_rows(result: Array, mask: Array) -> Array:
    """A result of attention with zeros in the rows that a mask lets see no key, where a softmax gives NaN."""
    allows = mask if mask.dtype.is_bool else tw.not_equal(mask, -math.inf)
    return tw.where(tw.any(allows, -1, keepdims=True), result, 0.0)


def _causal_mask(q: Array, k: Array) -> Array:
    """Which keys a query sees: query 0 sees key 0, also where there are more keys than queries."""
    return tw.iota((1, k.shape[-2]), 1) <= tw.iota((q.shape[-2], 1))


@operator("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """`softmax(q @ k.mT * scale + mask) @ v` over (batch, heads, length, size), and the logarithms of the sums of
    exponentials, (batch, heads, queries), in f32 or wider. Of queries that see no key both are 0."""
    _refuse_dropout(dropout_p)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    square = query.shape[-2] == key.shape[-2]
    mask = _causal_mask(query, key) if is_causal and not square else attn_mask
    result = tw.nn.attention(query, key, value, mask, causal=is_causal and square, scale=factor)
    if attn_mask is not None:
        result = _without_blind_rows(result, attn_mask)
    return result, _log_sums(_logits(query, key, is_causal, attn_mask, factor))


@operator("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of the query, key and value, from the sums that the forward pass kept."""
    _refuse_dropout(dropout_p)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    wide, kind = query.dtype.compute, query.dtype
    logits = _logits(query, key, is_causal, attn_mask, factor)
    sums = tw.reshape(tw.astype(logsumexp, wide), (*logits.shape[:-1], 1))
    weights = tw.exp(logits - sums)
    heads = key.shape[1]
    grad_value = tw.matmul(tw.matrix_transpose(_folded(tw.astype(weights, kind), heads)), _folded(grad_out, heads))
    grad_weights = tw.matmul(_folded(grad_out, heads), tw.matrix_transpose(value), dtype=wide)
    grad_weights = tw.reshape(grad_weights, weights.shape)
    inner = tw.sum(widened(grad_out) * widened(out), -1, keepdims=True)
    grad_logits = _folded(tw.astype(weights * (grad_weights - inner) * factor, kind), heads)
    grad_query = tw.reshape(tw.matmul(grad_logits, key), query.shape)
    return grad_query, tw.matmul(tw.matrix_transpose(grad_logits), _folded(query, heads)), grad_value

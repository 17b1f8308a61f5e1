"""Operators of `ai.onnx.ml` that are arithmetic. Their results are f32 for any numbers."""

from __future__ import annotations

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.onnx.registry import Node, lifted, operator

_DOMAIN = "ai.onnx.ml"


def _floats(node: Node, name: str) -> Array:
    return lifted(np.asarray(node.required(name), np.float32))


@operator("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(node: Node, x: Array, places: Array) -> Array:
    """Elements along the last axis; of a vector, as a matrix of one row."""
    rows = x if x.ndim > 1 else tw.reshape(x, (1, *x.shape))
    return tw.take(rows, tw.reshape(places, (places.size,)), axis=-1)


@operator("Binarizer", domain=_DOMAIN)
def binarizer(node: Node, x: Array) -> Array:
    """One where an element is above the threshold."""
    return tw.astype(x > node.get("threshold", 0.0), x.dtype)


@operator("LinearRegressor", domain=_DOMAIN)
def linear_regressor(node: Node, x: Array) -> Array:
    """Sums of features, weighted for each target."""
    targets = node.get("targets", 1)
    if node.get("post_transform", "NONE") != "NONE":
        raise node.unsupported(f"`LinearRegressor` with {node.get('post_transform')!r} after it")
    weights = tw.reshape(_floats(node, "coefficients"), (targets, -1))
    rows = tw.astype(x if x.ndim > 1 else tw.reshape(x, (1, *x.shape)), tw.f32)
    sums = tw.matmul(rows, weights.mT)
    return sums if not node.get("intercepts", ()) else sums + _floats(node, "intercepts")


@operator("Normalizer", domain=_DOMAIN)
def normalizer(node: Node, x: Array) -> Array:
    """Rows divided by their largest element, or by their norm; zeros stay."""
    rows, norm = tw.astype(x, tw.f32), node.get("norm", "MAX")
    if norm == "MAX":
        size = tw.max(rows, -1, keepdims=True)
    elif norm == "L1":
        size = tw.sum(tw.abs(rows), -1, keepdims=True)
    elif norm == "L2":
        size = tw.sqrt(tw.sum(rows * rows, -1, keepdims=True))
    else:
        raise node.unsupported(f"`Normalizer` by {norm!r}")
    return rows / tw.where(tw.equal(size, 0.0), 1.0, size)


@operator("Scaler", domain=_DOMAIN)
def scaler(node: Node, x: Array) -> Array:
    """Elements less an offset, times a scale."""
    return (tw.astype(x, tw.f32) - _floats(node, "offset")) * _floats(node, "scale")

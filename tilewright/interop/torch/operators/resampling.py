"""Interpolation of images with antialiasing: each row and column of the result is a weighted sum of the image's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import constant
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.sampling import PADDINGS, sampled
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened

_Weights = np.ndarray[Any, np.dtype[np.float64]]


def _linear(x: _Weights) -> _Weights:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: _Weights) -> _Weights:
    """Keys' kernel of a = -0.5 (Keys, 1981)."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _matrix(
    size: int, target: int, aligned: bool, factor: float | None, kernel: Callable[[_Weights], _Weights], radius: int
) -> _Weights:
    """The weight of each of `size` elements in each of `target` results."""
    scale = 1 / factor if factor and not aligned else size / target
    if aligned:
        scale = (size - 1) / max(target - 1, 1)
    width = max(scale, 1.0)
    centers = scale * (np.arange(target) + 0.5)[:, None]
    places = np.arange(size)[None]
    first = np.maximum((centers - radius * width + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + radius * width + 0.5).astype(np.int64), size)
    weights = np.where((places >= first) & (places < last), kernel((places - centers + 0.5) / width), 0)
    return weights / weights.sum(1, keepdims=True)


def _matrices(
    name: str, sizes: Sequence[int], targets: Sequence[int], aligned: bool, factors: Sequence[float | None]
) -> list[_Weights]:
    kernel, radius = {"bilinear": (_linear, 1), "bicubic": (_cubic, 2)}[name]
    triples = zip(sizes, targets, factors, strict=True)
    return [_matrix(size, target, aligned, factor, kernel, radius) for size, target, factor in triples]


def _applied(x: Array, rows: _Weights, columns: _Weights) -> Array:
    if not x.dtype.is_float:
        raise UnsupportedOperatorError("antialiasing of integers", help="convert the image to floats")
    wide = widened(x)
    kind = wide.dtype.numpy
    left, right = constant(rows.astype(kind)), constant(np.ascontiguousarray(columns.T.astype(kind)))
    return tw.astype(tw.matmul(tw.matmul(left, wide), right), x.dtype)


def _resampled(name: str) -> None:
    @operator(f"_upsample_{name}2d_aa")
    def forward(
        x: Array,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Array:
        """An image of another size."""
        matrices = _matrices(name, x.shape[2:], output_size, align_corners, (scales_h, scales_w))
        return _applied(x, *matrices)

    @operator(f"_upsample_{name}2d_aa_backward")
    def backward(
        grad: Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Array:
        """The gradient of the image."""
        matrices = _matrices(name, input_size[2:], output_size, align_corners, (scales_h, scales_w))
        return _applied(grad, *(matrix.T for matrix in matrices))


for _name in ("bilinear", "bicubic"):
    _resampled(_name)


@operator("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    mode, padding = ("linear", "nearest", "cubic")[interpolation_mode], PADDINGS[padding_mode]
    return tw.astype(sampled(widened(x), widened(grid), mode, padding, align_corners), x.dtype)

"""What the programs of `bench cuda-static` give by NumPy in float64, and how far from it each element may be: as far as
rounding of sums in f32, of what is between two products, and of results explains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import DType

Tensor = np.ndarray[Any, Any]

# Of the sum of magnitudes of what is added up: some roundings in f32.
_SUM = 2.0**-20
# The same with functions such as `exp` and `sqrt` before or after it.
_FUNCTIONS = 2.0**-19
# bf16 has 7 bits behind the point.
_BF16 = 2.0**-8
# The error of a rounding is 0.4 of the largest one, by the root of its mean square: so that none of millions of sums is
# beyond.
_DEVIATIONS = 3
# tf32 has 10 bits behind the point, so each of two factors is rounded by as much as half of the last.
_TF32 = 2.0**-10


def inputs_of(types: Sequence[Any], seed: int = 0) -> list[Tensor]:
    """Numbers of both signs, integers of the whole range."""
    generator = np.random.default_rng(seed)
    return [_random(generator, type.shape, type.dtype) for type in types]


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Tensor:
    if dtype.is_float:
        return generator.standard_normal(shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return generator.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def expected_of(name: str, arrays: Sequence[Tensor], result: DType) -> tuple[Tensor, Tensor]:
    """The result of a program, and the bounds of its error. The name says of a product which operands lie transposed,
    and whether a bias and a GELU follow."""
    wide = [each.astype(np.float64) for each in arrays]
    exact, bound = _product(name, *wide) if name.startswith("gemm") else _OTHERS[name](*wide)
    if not result.is_float:
        return exact, np.zeros_like(exact)
    rounded = result.epsilon / 2 if result.compute != result else 0.0
    return exact, bound + rounded * abs(exact)


def error_of(found: Tensor, expected: tuple[Tensor, Tensor]) -> float:
    """The largest error, by its bound: up to 1 is right. Infinite where a result has to be exact and is not."""
    exact, bound = expected
    if found.shape != exact.shape:
        return math.inf
    error = abs(found.astype(np.float64) - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return math.inf if np.isnan(ratio).any() else float(ratio.max(initial=0.0))


def _product(name: str, a: Tensor, b: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    left, right = a.T if "a.T" in name else a, b.T if "b.T" in name else b
    exact, magnitude = left @ right, abs(left) @ abs(right)
    if bias is None:
        return exact, magnitude * (_TF32 if "tf32" in name else _SUM)
    # The product and the sum with the bias are of bf16, and the slope of GELU is below 1.2.
    shifted = exact + bias
    rounded = _BF16 * (abs(exact) + abs(shifted))
    return _gelu(shifted), 1.2 * (rounded + _FUNCTIONS * (magnitude + abs(bias)))


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and weights are rounded to bf16, and so each weight by as much as its score is: of a sum of terms that
    are rounded up and down the error is a few times the root of the sum of squares, and so is that of the sum that
    weights are divided by."""
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    weights, _ = _softmax(scores)
    exact, squares = weights @ v, weights * weights
    deviation = np.sqrt(squares @ (v * v)) + abs(exact) * np.sqrt(squares.sum(axis=-1, keepdims=True))
    return exact, _DEVIATIONS * _BF16 * (1 + abs(scores).max(axis=-1, keepdims=True)) * deviation


def _softmax(x: Tensor) -> tuple[Tensor, Tensor]:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    exact = weights / weights.sum(axis=-1, keepdims=True)
    return exact, _FUNCTIONS * exact


def _layer_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    centred = x - x.mean(axis=-1, keepdims=True)
    exact = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
    return exact, _FUNCTIONS * (abs(exact) + 1)


def _sum(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return x.sum(axis), _SUM * abs(x).sum(axis)


def _transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.T, np.zeros_like(x.T)


def _convolution(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return _windows(x, w), _SUM * _windows(abs(x), abs(w))


def _windows(x: Tensor, w: Tensor) -> Tensor:
    """The sum over the places of a window of 3 x 3 of what each sees of an image that is padded by 1."""
    height, width = x.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    total = np.zeros((x.shape[0], w.shape[0], height, width))
    for i, j in itertools.product(range(3), range(3)):
        total += np.einsum("oc,bchw->bohw", w[:, :, i, j], padded[:, :, i : i + height, j : j + width], optimize=True)
    return total


_OTHERS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "attention": _attention,
    "softmax": _softmax,
    "layer norm": _layer_norm,
    "row sum": partial(_sum, axis=1),
    "column sum": partial(_sum, axis=0),
    "transpose": _transposed,
    "conv 3x3": _convolution,
}

"""Elements added around arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import constant, emit, full
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import widened


def padded(
    x: Array, low: Sequence[int], high: Sequence[int], value: float = 0, interior: Sequence[int] | None = None
) -> Array:
    """`x` with a number around each axis and between neighbours; a negative amount cuts elements off."""
    inner = tuple(interior or (0,) * x.ndim)
    grown = x
    if any((*inner, *(max(n, 0) for n in (*low, *high)))):
        around = [tuple(max(n, 0) for n in side) for side in (low, high)]
        grown = emit("pad", x, full((), value, x.dtype), low=around[0], high=around[1], interior=inner)
    cuts = [slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(low, high, grown.shape, strict=True)]
    return grown[tuple(cuts)] if any(n < 0 for n in (*low, *high)) else grown


def _sides(x: Array, padding: Sequence[int]) -> tuple[list[int], list[int]]:
    """Amounts before and after each axis; torch lists pairs from the last axis on."""
    low, high = [0] * x.ndim, [0] * x.ndim
    for n in range(len(padding) // 2):
        low[-1 - n], high[-1 - n] = padding[2 * n], padding[2 * n + 1]
    return low, high


@operator("constant_pad_nd")
def constant_pad(x: Array, pad: Sequence[int], value: float = 0) -> Array:
    """A number around the last axes."""
    return padded(x, *_sides(x, pad), value if x.dtype.is_float or x.dtype.is_bool else int(value))


@operator("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Array, padding: Sequence[int]) -> Array:
    """Mirror images without the edge."""
    return _looked_up(x, padding, "reflect")


@operator("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Array, padding: Sequence[int]) -> Array:
    """The nearest element."""
    return _looked_up(x, padding, "edge")


@operator("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(grad: Array, x: Array, padding: Sequence[int]) -> Array:
    """The gradients of all positions that showed an element, added up."""
    total = widened(grad)
    for axis, (before, after) in enumerate(zip(*_sides(x, padding), strict=True)):
        if before or after:
            shape = (*total.shape[:axis], x.shape[axis], *total.shape[axis + 1 :])
            at = (*(slice(None),) * axis, constant(_map(x.shape[axis], before, after, "edge")))
            total = tw.zeros(shape, dtype=total.dtype).at[at].add(total)
    return tw.astype(total, x.dtype)


def _looked_up(x: Array, padding: Sequence[int], mode: str) -> Array:
    for axis, (before, after) in enumerate(zip(*_sides(x, padding), strict=True)):
        if before or after:
            x = tw.take(x, constant(_map(x.shape[axis], before, after, mode)), axis=axis)
    return x


def _map(size: int, before: int, after: int, mode: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which element each position of a padded axis shows. Negative amounts cut places off."""
    around = [(max(0, before), max(0, after))]
    places = np.arange(size)
    shown = np.pad(places, around, mode="reflect") if mode == "reflect" else np.pad(places, around, mode="edge")
    return shown[max(0, -before) : len(shown) - max(0, -after)]

"""Rules of primitives that move elements to places that are known: what was moved goes back, what was repeated is added
up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import constant, emit, full, reshape, transpose
from tilewright.interop.onnx.gradient.rules import Cotangents, Step, rule, zeros_like


@rule("reshape")
def _reshape(step: Step) -> Cotangents:
    return [reshape(step.cotangent, step.node.operands[0].shape)]


@rule("transpose")
def _transpose(step: Step) -> Cotangents:
    return [transpose(step.cotangent, np.argsort(step.attribute("permutation")).tolist())]


@rule("reverse")
def _reverse(step: Step) -> Cotangents:
    return [emit("reverse", step.cotangent, axes=step.attribute("axes"))]


@rule("broadcast")
def _broadcast(step: Step) -> Cotangents:
    shape, axes = step.node.operands[0].shape, step.attribute("axes")
    own = {axis for size, axis in zip(shape, axes, strict=True) if size != 1}
    added = tuple(axis for axis in range(step.cotangent.ndim) if axis not in own)
    return [reshape(tw.sum(step.cotangent, added, dtype=step.cotangent.dtype), shape)]


def apart(x: Array, shape: Sequence[int], starts: Sequence[int], strides: Sequence[int]) -> Array:
    """Zeros of `shape` with the elements of `x` from `starts` on, `strides` apart: where a slice took them from."""
    if 0 in x.shape:
        return full(tuple(shape), 0, x.dtype)
    ends = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, x.shape, strides, strict=True)]
    high = tuple(size - end for size, end in zip(shape, ends, strict=True))
    interior = tuple(stride - 1 for stride in strides)
    return emit("pad", x, full((), 0, x.dtype), low=tuple(starts), high=high, interior=interior)


@rule("slice")
def _slice(step: Step) -> Cotangents:
    return [apart(step.cotangent, step.node.operands[0].shape, step.attribute("starts"), step.attribute("strides"))]


@rule("pad")
def _pad(step: Step) -> Cotangents:
    g, shape = step.cotangent, step.node.operands[0].shape
    starts, strides = step.attribute("low"), tuple(inner + 1 for inner in step.attribute("interior"))
    limits = tuple(
        start + (n - 1) * stride + 1 if n else start for start, n, stride in zip(starts, shape, strides, strict=True)
    )
    inner = emit("slice", g, starts=starts, limits=limits, strides=strides)
    return [inner, tw.sum(g, dtype=g.dtype) - tw.sum(inner, dtype=g.dtype)]


@rule("concat")
def _concat(step: Step) -> Cotangents:
    axis: int = step.attribute("axis")
    ends = [0, *itertools.accumulate(operand.shape[axis] for operand in step.node.operands)]
    before = (slice(None),) * axis
    return [step.cotangent[(*before, slice(start, end))] for start, end in itertools.pairwise(ends)]


@rule("unfold")
def _unfold(step: Step) -> Cotangents:
    axis: int = step.attribute("axis")
    sizes: tuple[int, ...] = step.attribute("sizes")
    along = [np.arange(n, dtype=np.int64) * each for n, each in zip(sizes, step.attribute("steps"), strict=True)]
    places = sum(np.ix_(*along), np.zeros(sizes, np.int64))
    rank = step.cotangent.ndim
    split = range(axis, axis + len(sizes))
    rest = [d for d in range(rank) if d not in split]
    updates = transpose(step.cotangent, [*split, *rest])
    (x,) = step.operands
    return [emit("scatter", zeros_like(x), updates, constant(places), fn="add", axes=(axis,))]


@rule("dynamic_slice")
def _dynamic_slice(step: Step) -> Cotangents:
    x, *starts = step.operands
    return [emit("dynamic_update_slice", zeros_like(x), step.cotangent, *starts), *[None] * len(starts)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(step: Step) -> Cotangents:
    _, update, *starts = step.operands
    kept = emit("dynamic_update_slice", step.cotangent, zeros_like(update), *starts)
    written = emit("dynamic_slice", step.cotangent, *starts, sizes=update.shape)
    return [kept, written, *[None] * len(starts)]

"""Rules of primitives that move elements to places that depend on data."""

from __future__ import annotations

import math

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import emit, emit_all, full, reshape
from tilewright.interop.onnx.gradient.rules import Cotangents, Step, rule, zeros_like


@rule("gather")
def _gather(step: Step) -> Cotangents:
    x, *indices = step.operands
    axes: tuple[int, ...] = step.attribute("axes")
    # A gather clamps its indices, a scatter drops those that are outside.
    inside = [tw.clip(i, 0, max(x.shape[axis] - 1, 0)) for i, axis in zip(indices, axes, strict=True)]
    return [emit("scatter", zeros_like(x), step.cotangent, *inside, fn="add", axes=axes), *[None] * len(indices)]


@rule("scatter")
def _scatter(step: Step) -> Cotangents:
    x, updates, *indices = step.operands
    fn, axes, g = step.attribute("fn"), step.attribute("axes"), step.cotangent
    nothing = [None] * len(indices)
    seen = emit("gather", g, *indices, axes=axes)
    if fn == "add":
        return [g, tw.where(_are_inside(x, updates, indices, axes), seen, zeros_like(seen)), *nothing]
    if fn != "set":
        raise step.unsupported(f"the primitive `scatter` that combines by `{fn}`")
    # Of updates at one place the last one stays.
    numbers = reshape(tw.iota((updates.size,)), updates.shape)
    written = emit("scatter", full(x.shape, -1, tw.i64), numbers, *indices, fn="set", axes=axes)
    stays = tw.equal(emit("gather", written, *indices, axes=axes), numbers)
    return [tw.where(written < 0, g, zeros_like(g)), tw.where(stays, seen, zeros_like(seen)), *nothing]


def _are_inside(x: Array, updates: Array, indices: list[Array], axes: tuple[int, ...]) -> Array:
    """Which updates of a scatter have a position, in the shape of the updates."""
    inside = full(indices[0].shape, True, tw.bool)
    for index, axis in zip(indices, axes, strict=True):
        inside = tw.logical_and(inside, tw.logical_and(index >= 0, index < x.shape[axis]))
    aligned = reshape(inside, (*inside.shape, *(1,) * (updates.ndim - inside.ndim)))
    return tw.broadcast_to(aligned, updates.shape)


@rule("sort")
def _sort(step: Step) -> Cotangents:
    keys = step.operands[0]
    axis = step.attribute("axis")
    places = emit("iota", shape=keys.shape, dtype="i64", axis=axis)
    order = emit_all("sort", keys, places, **step.node.attributes)[1]
    back = tw.argsort(order, axis=axis)
    return [None if g is None else tw.take_along_axis(g, back, axis=axis) for g in step.cotangents]


@rule("top_k")
def _top_k(step: Step) -> Cotangents:
    (x,) = step.operands
    g, places = step.cotangent, step.results[1]
    rows, count = math.prod(x.shape[:-1]), g.shape[-1]
    if not rows or not count:
        return [zeros_like(x)]
    flat = full((rows, x.shape[-1]), 0, x.dtype)
    row = emit("iota", shape=(rows, count), dtype="i64", axis=0)
    updates, columns = reshape(g, (rows, count)), reshape(places, (rows, count))
    return [reshape(emit("scatter", flat, updates, row, columns, fn="add", axes=(0, 1)), x.shape)]

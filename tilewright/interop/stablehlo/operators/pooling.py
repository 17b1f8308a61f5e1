"""The gradient of pooling: values go back to the elements that were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, emit, full
from tilewright.interop.stablehlo.operators.elementwise import like, mapped
from tilewright.interop.stablehlo.operators.manipulation import padded, sliced
from tilewright.interop.stablehlo.operators.reduction import with_start
from tilewright.interop.stablehlo.operators.windows import Geometry, geometry_of, inside_of, places_of, under
from tilewright.interop.stablehlo.regions import combiner
from tilewright.interop.stablehlo.registry import Node, operation
from tilewright.primitives import Shape

# Places of a window that are written out, which is faster to run; more of them are looped over, which is faster to
# compile.
_MAX_UNROLLED = 16


@operation("stablehlo.select_and_scatter")
def select_and_scatter(node: Node, x: Array, source: Array, start: Array) -> Array:
    """For each position of a window, the element of `source` is added at the element of `x` that a region selects."""
    scatter = node.regions[1]
    if combiner(scatter, x.dtype) != "add":
        raise node.unsupported("`select_and_scatter` that combines by something else than addition")
    geometry = geometry_of(node, x.ndim)
    if source.size == 0 or x.size == 0:
        return broadcast(start, x.shape)
    low, high = geometry.low, geometry.high
    none = (0,) * x.ndim
    values = padded(x, full((), 0, x.dtype), low, high, none)
    inside = inside_of(x.shape, low, high, none)
    is_padded = any((*low, *high))
    if math.prod(geometry.window) <= _MAX_UNROLLED:
        total = full(values.shape, 0, x.dtype)
        for place, mark in _chosen(node, values, inside if is_padded else None, geometry, source.shape):
            share = tw.where(mark, source, full(source.shape, 0, source.dtype))
            total = total + _spread(share, place, geometry, values.shape)
    else:
        total = _by_loops(node, values, inside, geometry, source)
    back = padded(total, full((), 0, x.dtype), [-n for n in low], [-n for n in high], none)
    return with_start("add", back, start)


def _chosen(
    node: Node, values: Array, inside: Array | None, geometry: Geometry, sizes: Shape
) -> list[tuple[Shape, Array]]:
    """For each position in a window, where it holds the element that is chosen."""
    select = node.regions[0]
    places = places_of(node, geometry.window)
    best = under(values, places[0], geometry, sizes)
    chosen = full(sizes, 0, dtypes.i32)
    valid = None if inside is None else under(inside, places[0], geometry, sizes)
    for number, place in enumerate(places[1:], 1):
        candidate = under(values, place, geometry, sizes)
        (keeps,) = node.lift(select, best, candidate)
        takes = tw.logical_not(broadcast(keeps, sizes))
        if inside is not None and valid is not None:
            known = under(inside, place, geometry, sizes)
            takes = tw.logical_and(known, tw.logical_or(takes, tw.logical_not(valid)))
            valid = tw.logical_or(valid, known)
        best = tw.where(takes, candidate, best)
        chosen = tw.where(takes, full(sizes, number, dtypes.i32), chosen)
    marks: list[tuple[Shape, Array]] = []
    for number, place in enumerate(places):
        mark = tw.equal(chosen, full(sizes, number, dtypes.i32))
        marks.append((place, mark if valid is None else tw.logical_and(mark, valid)))
    return marks


def _spread(share: Array, place: Shape, geometry: Geometry, shape: Shape) -> Array:
    """Elements of the result of a window put back to where one position of it sees them."""
    starts = tuple(p * d for p, d in zip(place, geometry.dilation, strict=True))
    interior = tuple(s - 1 for s in geometry.strides)
    spans = tuple((n - 1) * s + 1 for n, s in zip(share.shape, geometry.strides, strict=True))
    high = tuple(n - start - span for n, start, span in zip(shape, starts, spans, strict=True))
    return padded(share, full((), 0, share.dtype), starts, high, interior)


# ---- large windows --------------------------------------------------------------------------------------------------


def _by_loops(node: Node, values: Array, inside: Array, geometry: Geometry, source: Array) -> Array:
    """Select and scatter by two loops over the positions of a window: one finds the positions that are chosen, one
    adds."""
    count = math.prod(geometry.window)
    select = node.regions[0]
    sizes = source.shape

    def choose(number: Array, state: Sequence[Array]) -> tuple[Array, ...]:
        best, chosen, valid = state
        candidate, known = (_seen(x, number, geometry, sizes) for x in (values, inside))
        (keeps,) = node.lift(select, best, candidate)
        better = tw.logical_or(tw.logical_not(broadcast(keeps, sizes)), tw.logical_not(valid))
        takes = tw.logical_and(known, better)
        here = broadcast(number, sizes)
        return tw.where(takes, candidate, best), tw.where(takes, here, chosen), tw.logical_or(valid, known)

    nothing = full(sizes, 0, values.dtype), full(sizes, 0, dtypes.i64), full(sizes, False, dtypes.bool_)
    _, chosen, valid = tw.fori_loop(0, count, choose, nothing)

    def add(number: Array, total: Array) -> Array:
        mark = tw.logical_and(valid, tw.equal(chosen, broadcast(number, sizes)))
        share = tw.where(mark, source, full(sizes, 0, source.dtype))
        interior = tuple(stride - 1 for stride in geometry.strides)
        none = (0,) * share.ndim
        apart = padded(share, full((), 0, share.dtype), none, none, interior)
        starts = _starts(number, geometry)
        there = emit("dynamic_slice", total, *starts, sizes=apart.shape)
        return emit("dynamic_update_slice", total, there + apart, *starts)

    return tw.fori_loop(0, count, add, full(values.shape, 0, values.dtype))


def _starts(number: Array, geometry: Geometry) -> list[Array]:
    """The offset of a window's position along each axis, from its index."""
    found: list[Array] = []
    for size, dilation in zip(reversed(geometry.window), reversed(geometry.dilation), strict=True):
        place = mapped("remainder", number, like(number, size))
        found.insert(0, place * like(number, dilation))
        number = mapped("floor_divide", number, like(number, size))
    return found


def _seen(x: Array, number: Array, geometry: Geometry, sizes: Shape) -> Array:
    """The elements that a position of the window, by its number, sees."""
    spans = tuple((n - 1) * stride + 1 for n, stride in zip(sizes, geometry.strides, strict=True))
    window = emit("dynamic_slice", x, *_starts(number, geometry), sizes=spans)
    return sliced(window, (0,) * x.ndim, spans, geometry.strides)

"""Samples of images at points between their elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tilewright import api as tw
from tilewright.api.array import Array

MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def sampled(image: Array, points: Array, mode: str, padding: str, aligned: bool) -> Array:
    """Samples of an image (N, C, *spatial) at points (N, *places, axes), whose coordinates are -1 and 1 at the ends of
    an axis, last axis first: (N, C, *places). `mode`: one of `MODES`, the cubic one by Keys' kernel of a = -0.75;
    `padding`: one of `PADDINGS`, how positions outside are read; `aligned`: the ends are the middles of the first and
    last element, not their outer edges."""
    rank = image.ndim - 2
    taps: list[list[tuple[Array, Array]]] = []
    for axis in range(rank):
        size = image.shape[2 + axis]
        at = points[..., rank - 1 - axis]
        place = (at + 1.0) * (0.5 * (size - 1)) if aligned else ((at + 1.0) * size - 1.0) * 0.5
        if mode != "cubic" and padding != "zeros":
            place, _ = _inside(place, size, padding, aligned)
        taps.append(_taps(mode, place))
    parts: list[Array] = []
    for chosen in itertools.product(*taps):
        seen = _read(image, [index for index, _ in chosen], padding, aligned)
        share = chosen[0][1]
        for _, factor in chosen[1:]:
            share = share * factor
        parts.append(seen * tw.expand_dims(share, 1))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _taps(mode: str, place: Array) -> list[tuple[Array, Array]]:
    """The positions that are read around a point along an axis, as floats, and the share of each."""
    if mode == "nearest":
        return [(tw.round(place), tw.ones_like(place))]
    base = tw.floor(place)
    part = place - base
    if mode == "linear":
        return [(base, 1.0 - part), (base + 1.0, part)]
    return [(base + float(offset), _cubic_share(tw.abs(part - float(offset)))) for offset in range(-1, 3)]


def _cubic_share(distance: Array) -> Array:
    a = -0.75
    near = ((distance * (a + 2)) - (a + 3)) * distance * distance + 1.0
    far = (((distance - 5.0) * distance + 8.0) * distance - 4.0) * a
    return tw.where(distance <= 1.0, near, far)


def _inside(place: Array, size: int, padding: str, aligned: bool) -> tuple[Array, Array | None]:
    """Places moved into an axis as `padding` states; for zeros, whether they were in it."""
    last = float(size - 1)
    if padding == "border":
        return tw.clip(place, 0.0, last), None
    if padding == "zeros":
        return tw.clip(place, 0.0, last), tw.logical_and(place >= 0.0, place <= last)
    low, high = (0.0, last) if aligned else (-0.5, size - 0.5)
    length = high - low
    if length == 0:
        return tw.zeros_like(place), None
    turned = tw.remainder(place - low, 2 * length)
    return tw.clip(tw.where(turned > length, 2 * length - turned, turned) + low, 0.0, last), None


def _read(image: Array, places: Sequence[Array], padding: str, aligned: bool) -> Array:
    """Elements at whole places given as floats: shape (N, C, *places)."""
    moved = [_inside(place, image.shape[2 + axis], padding, aligned) for axis, place in enumerate(places)]
    lead = tw.iota(moved[0][0].shape, 0)
    key = [tw.astype(place, tw.i64) for place, _ in moved]
    seen = tw.moveaxis(tw.moveaxis(image, 1, -1)[(lead, *key)], -1, 1)
    for _, inside in moved:
        if inside is not None:
            seen = tw.where(tw.expand_dims(inside, 1), seen, 0.0)
    return seen

"""Moves between the lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.targets.cpu.loops import I32
from tilewright.targets.llvm.values import Builder, Value, intrinsic, lanes_of, shuffle


def picked(builder: Builder, vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
    """A vector whose lanes are those that are numbered in each of some vectors, by a shuffle for each but the first."""
    lanes = lanes_of(vectors[0].type)
    found = vectors[0]
    if len(vectors) == 1:
        return shuffle(builder, found, None, [lane for _, lane in places])
    so_far = [lane if number == 0 else 0 for number, lane in places]
    for owner in range(1, len(vectors)):
        taken = [lanes + lane if number == owner else kept for kept, (number, lane) in zip(so_far, places, strict=True)]
        found, so_far = shuffle(builder, found, vectors[owner], taken), list(range(lanes))
    return found


def shifted(builder: Builder, value: Value, fill: Value, distance: int) -> Value:
    """Each lane takes that `distance` before it; lanes that have none take `fill`."""
    lanes = lanes_of(value.type)
    places = [lane - distance for lane in range(lanes)]
    chosen = [place if 0 <= place < lanes else lanes + lane for lane, place in enumerate(places)]
    return shuffle(builder, value, fill, chosen)


def repeated(builder: Builder, value: Value, lane: int) -> Value:
    """One lane in all."""
    lanes = lanes_of(value.type)
    return value if lanes == 1 else shuffle(builder, value, None, [lane] * lanes)


def halves(builder: Builder, value: Value) -> tuple[Value, Value]:
    """The lower and the upper half of a vector; scalars of a vector of two."""
    lanes = lanes_of(value.type)
    if lanes == 2:
        first, second = (builder.extract_element(value, ir.Constant(I32, n)) for n in range(2))
        return first, second
    half = lanes // 2
    return shuffle(builder, value, None, range(half)), shuffle(builder, value, None, range(half, lanes))


def smallest_lane(builder: Builder, value: Value) -> Value:
    """The smallest lane of a vector of signed integers, as a scalar."""
    while lanes_of(value.type) > 1:
        value = intrinsic(builder, "smin", list(halves(builder, value)))
    return value


def exchanged(builder: Builder, value: Value, distance: int) -> Value:
    """Each lane takes that whose number differs by the bits of `distance`."""
    return shuffle(builder, value, None, [lane ^ distance for lane in range(lanes_of(value.type))])

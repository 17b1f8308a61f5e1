"""Loads and stores of elements with a small stride, and loads backwards: whole vectors, whose lanes are shuffled.

A gather takes a load for each lane; contiguous vectors take a load and a shuffle each.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.layout.relayout_planner import NARROW_BYTES, SHUFFLED_NARROW_STRIDES, SHUFFLED_STRIDES
from tilewright.targets.cpu.first_lanes import load_first, store_first
from tilewright.targets.cpu.loops import i64, offset_pointer
from tilewright.targets.cpu.masked_memory import masked_load
from tilewright.targets.cpu.shuffles import picked
from tilewright.targets.llvm.values import Builder, Value, lanes_of, shuffle

# Elements that all machines load under a mask.
LEAST_MASKED_BYTES = 4


def has_strided_access(stride: int | None) -> bool:
    """Whether elements so far apart are loaded and stored as whole vectors."""
    return stride is not None and abs(stride) in SHUFFLED_STRIDES


def has_strided_load(stride: int | None, itemsize: int, lanes: int, count: int | None) -> bool:
    """Whether the first `count` of elements so far apart are loaded as whole vectors, or, where their number is not
    known, under masks."""
    if stride is None:
        return False
    if abs(stride) not in (SHUFFLED_NARROW_STRIDES if itemsize <= NARROW_BYTES else SHUFFLED_STRIDES):
        return False
    return fills_vector(stride, lanes, count) or (stride > 0 and itemsize >= LEAST_MASKED_BYTES)


def fills_vector(stride: int, lanes: int, count: int | None) -> bool:
    """Whether a known number of elements so far apart reach over a vector at least."""
    return count is not None and (count - 1) * abs(stride) + 1 >= lanes


def load_strided(builder: Builder, first: Value, stride: int, shape: ir.Type, itemsize: int, count: int) -> Value:
    """A vector of the first `count` of the elements `first`, `first + stride`, ..., which reach over a vector at least;
    other lanes repeat the last of them, and nothing beyond it is read."""
    lanes, step = lanes_of(shape), abs(stride)
    last = (count - 1) * step
    # The last vector ends with the last element, so it may begin within the one before.
    starts = [*range(0, last + 1 - lanes, lanes), last + 1 - lanes]
    lowest = 0 if stride > 0 else -last
    vectors = [
        builder.load(offset_pointer(builder, first, i64(lowest + start), itemsize), align=itemsize, typ=shape)
        for start in starts
    ]
    offsets = [min(n * step, last) if stride > 0 else max(last - n * step, 0) for n in range(lanes)]
    owners = [len(starts) - 1 if offset >= starts[-1] else offset // lanes for offset in offsets]
    places = [(owner, offset - starts[owner]) for offset, owner in zip(offsets, owners, strict=True)]
    return picked(builder, vectors, places)


def load_strided_masked(
    builder: Builder, first: Value, stride: int, mask: Value, shape: ir.Type, itemsize: int
) -> Value:
    """A vector of the elements `first`, `first + stride`, ... in the lanes that a mask lets through, 0 in the others;
    nothing else is read."""
    lanes, zeros = lanes_of(shape), ir.Constant(mask.type, None)
    vectors: list[Value] = []
    for number in range(stride):
        offsets = range(number * lanes, (number + 1) * lanes)
        read = shuffle(builder, mask, zeros, [o // stride if o % stride == 0 else lanes for o in offsets])
        pointer = offset_pointer(builder, first, i64(number * lanes), itemsize)
        vectors.append(masked_load(builder, pointer, read, shape, itemsize))
    return picked(builder, vectors, [(n * stride // lanes, n * stride % lanes) for n in range(lanes)])


def load_reversed(
    builder: Builder, first: Value, mask: Value | None, count: int | None, shape: ir.Type, itemsize: int
) -> Value:
    """A vector of the elements `first`, `first - 1`, ... in the lanes that a mask lets through, 0 in the others.
    `count`: how many first ones these are, if that is known."""
    lanes = lanes_of(shape)
    if mask is not None and count is not None and 0 < count < lanes:
        lowest = offset_pointer(builder, first, i64(1 - count), itemsize)
        found = load_first(builder, lowest, mask, count, shape, itemsize)
        return shuffle(builder, found, None, [count - 1 - n if n < count else count for n in range(lanes)])
    backwards = range(lanes - 1, -1, -1)
    pointer = offset_pointer(builder, first, i64(1 - lanes), itemsize)
    if mask is None:
        found = builder.load(pointer, align=itemsize, typ=shape)
    else:
        found = masked_load(builder, pointer, shuffle(builder, mask, mask, backwards), shape, itemsize)
    return shuffle(builder, found, found, backwards)


def store_interleaved(
    builder: Builder, values: Sequence[Value], first: Value, itemsize: int, mask: Value | None, count: int
) -> None:
    """Store the first lanes of some vectors side by side, then the second ones, up to `count` of each, which `mask`
    lets through where that is not all of them."""
    lanes, width = lanes_of(values[0].type), len(values)
    total = count * width

    def joined(start: int) -> Value:
        """The vector of the elements from one of them on."""
        ends = [min(n, total - 1) for n in range(start, start + lanes)]
        return picked(builder, values, [(n % width, n // width) for n in ends])

    if total < lanes and mask is not None:
        sides = shuffle(builder, mask, ir.Constant(mask.type, None), [min(n // width, lanes - 1) for n in range(lanes)])
        store_first(builder, joined(0), first, sides, total, itemsize)
        return
    # The last vector ends with the last element, so it may begin within the one before.
    for start in (*range(0, total - lanes, lanes), total - lanes):
        builder.store(joined(start), offset_pointer(builder, first, i64(start), itemsize), align=itemsize)

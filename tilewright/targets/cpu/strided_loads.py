"""Loads of elements with a small or a negative stride: whole vectors, whose lanes are shuffled together.

A gather takes a load for each lane; contiguous vectors take a load and a shuffle each.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.cpu.loops import i64, offset_pointer
from tilewright.targets.cpu.masked_memory import masked_load
from tilewright.targets.cpu.shuffles import shuffled
from tilewright.targets.llvm.values import Builder, Value, lanes_of

# Beyond, most of what is loaded is not used.
MOST_STRIDE = 4
# Elements that all machines load under a mask.
LEAST_MASKED_BYTES = 4


def has_strided_load(stride: int | None, itemsize: int, masked: bool) -> bool:
    """Whether elements so far apart are loaded as vectors."""
    if stride is None or not 1 < abs(stride) <= MOST_STRIDE:
        return False
    return not masked or (stride > 0 and itemsize >= LEAST_MASKED_BYTES)


def load_strided(builder: Builder, first: Value, stride: int, shape: ir.Type, itemsize: int) -> Value:
    """A vector of the elements `first`, `first + stride`, ...; nothing beyond the last of them is read."""
    lanes, step = lanes_of(shape), abs(stride)
    # The last vector ends with the last element, so it may begin within the one before.
    starts = [n * lanes for n in range(step - 1)] + [(step - 1) * (lanes - 1)]
    lowest = 0 if stride > 0 else (lanes - 1) * stride
    vectors = [
        builder.load(offset_pointer(builder, first, i64(lowest + start), itemsize), align=itemsize, typ=shape)
        for start in starts
    ]
    offsets = [n * step for n in range(lanes)] if stride > 0 else [(lanes - 1 - n) * step for n in range(lanes)]
    owners = [min(offset // lanes, step - 1) for offset in offsets]
    found = vectors[0]
    places = [offset if owner == 0 else 0 for offset, owner in zip(offsets, owners, strict=True)]
    for number in range(1, step):
        lanes_of_both = [
            lanes + offset - starts[number] if owner == number else place
            for offset, owner, place in zip(offsets, owners, places, strict=True)
        ]
        found, places = shuffled(builder, found, vectors[number], lanes_of_both), list(range(lanes))
    return found


def load_strided_masked(
    builder: Builder, first: Value, stride: int, mask: Value, shape: ir.Type, itemsize: int
) -> Value:
    """A vector of the elements `first`, `first + stride`, ... in the lanes that a mask lets through, 0 in the others;
    nothing else is read."""
    lanes, zeros = lanes_of(shape), ir.Constant(mask.type, None)
    vectors: list[Value] = []
    for number in range(stride):
        offsets = range(number * lanes, (number + 1) * lanes)
        read = shuffled(builder, mask, zeros, [o // stride if o % stride == 0 else lanes for o in offsets])
        pointer = offset_pointer(builder, first, i64(number * lanes), itemsize)
        vectors.append(masked_load(builder, pointer, read, shape, itemsize))
    found = vectors[0]
    places = [min(n * stride, lanes - 1) for n in range(lanes)]
    for number in range(1, stride):
        lanes_of_both = [
            lanes + n * stride % lanes if n * stride // lanes == number else place for n, place in enumerate(places)
        ]
        found, places = shuffled(builder, found, vectors[number], lanes_of_both), list(range(lanes))
    return found


def load_reversed(builder: Builder, first: Value, mask: Value | None, shape: ir.Type, itemsize: int) -> Value:
    """A vector of the elements `first`, `first - 1`, ... in the lanes that a mask lets through, 0 in the others."""
    lanes = lanes_of(shape)
    backwards = range(lanes - 1, -1, -1)
    pointer = offset_pointer(builder, first, i64(1 - lanes), itemsize)
    if mask is None:
        found = builder.load(pointer, align=itemsize, typ=shape)
    else:
        found = masked_load(builder, pointer, shuffled(builder, mask, mask, backwards), shape, itemsize)
    return shuffled(builder, found, found, backwards)

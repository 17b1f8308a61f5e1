"""A brute-force definition of layouts in NumPy, which enumerates every index, and random layouts to try it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from tilewright.layout import Iter, Layout, Partial, Replica, XorTerm

Place: TypeAlias = frozenset[tuple[str, int]]
Index: TypeAlias = tuple[int, ...]

SMALL = settings(max_examples=50, deadline=None, derandomize=True)
MOST_ELEMENTS = 150
AXES = ("mem", "lane", "warp")


def coordinate_arrays(layout: Layout) -> dict[str, np.ndarray]:
    """Per axis, an array of shape `padded_shape + (copies,)` with the coordinate of every copy of every element."""
    copies = (*layout.replica, *layout.partial)
    every = (*layout.shard, copies)
    counts = [int(np.prod([digit.extent for digit in digits], dtype=int)) for digits in every]
    arrays: dict[str, np.ndarray] = {}
    for axis in {part.axis for digits in every for part in digits} | {axis for axis, _ in layout.offset}:
        total = np.zeros(counts, dtype=np.int64)
        for dim, digits in enumerate(every):
            along = np.zeros([digit.extent for digit in digits], dtype=np.int64)
            for position, digit in enumerate(digits):
                if digit.axis == axis:
                    along += np.indices(along.shape)[position] * digit.stride
            total += along.reshape([counts[dim] if k == dim else 1 for k in range(len(counts))])
        total += dict(layout.offset).get(axis, 0)
        for term in layout.swizzle:
            total = _xor(total, term) if term.axis == axis else total
        arrays[axis] = total
    return arrays


def _xor(values: np.ndarray, term: XorTerm) -> np.ndarray:
    result = values.copy()
    for bit in range(term.bits):
        is_set = np.floor_divide(values, 2 ** (term.source + bit)) % 2 == 1
        has_bit = np.floor_divide(values, 2 ** (term.target + bit)) % 2 == 1
        result += np.where(is_set, np.where(has_bit, -1, 1), 0) * 2 ** (term.target + bit)
    return result


def places(layout: Layout, *, padded: bool = False) -> dict[Index, frozenset[Place]]:
    """For each logical (or padded) index, all places: a place is the set of its coordinates that are not 0."""
    arrays = coordinate_arrays(layout)
    shape = layout.padded_shape if padded else layout.shape
    table: dict[Index, frozenset[Place]] = {}
    for index in np.ndindex(*shape):
        rows = {axis: values[index] for axis, values in arrays.items()}
        count = len(next(iter(rows.values()))) if rows else 1
        table[index] = frozenset(
            frozenset((axis, int(row[copy])) for axis, row in rows.items() if row[copy]) for copy in range(count)
        )
    return table


def vectors(layout: Layout) -> dict[Index, Place]:
    """For each logical index the place of the first copy."""
    arrays = coordinate_arrays(layout)
    return {
        index: frozenset((axis, int(values[index][0])) for axis, values in arrays.items() if values[index][0])
        for index in np.ndindex(*layout.shape)
    }


def add(left: Place, right: Place, sign: int = 1) -> Place:
    """The sum (or difference) of two places, coordinate by coordinate."""
    total = dict(left)
    for axis, value in right:
        total[axis] = total.get(axis, 0) + sign * value
    return frozenset(pair for pair in total.items() if pair[1])


def is_positional(table: Mapping[Index, Place], shape: Sequence[int]) -> bool:
    """Whether a map is a constant plus, per dim, a sum of digits that each move along one axis."""
    origin = table[(0,) * len(shape)]
    lines = []
    for dim, size in enumerate(shape):
        at = [tuple(i if k == dim else 0 for k in range(len(shape))) for i in range(size)]
        lines.append([add(table[index], origin, -1) for index in at])
    for index in np.ndindex(*shape):
        total = origin
        for dim, at in enumerate(index):
            total = add(total, lines[dim][at])
        if total != table[index]:
            return False
    return all(_is_positional_line(line) for line in lines)


def _is_positional_line(line: list[Place]) -> bool:
    if len(line) == 1:
        return True
    step = dict(line[1])
    if len(step) > 1:
        return False
    run = 1
    while run < len(line) and dict(line[run]) == {axis: value * run for axis, value in step.items()}:
        run += 1
    if run == len(line):
        return True
    blocks = [line[at] for at in range(0, len(line), run)]
    sums = [add(blocks[at // run], line[at % run]) for at in range(len(line))]
    return sums == line and _is_positional_line(blocks)


_BIT_RANGES = [(low, low + bits + gap, bits) for bits in (1, 2) for low in (0, 1, 2) for gap in (0, 1)]
_AXIS = st.sampled_from(AXES)
_MOVING = st.sampled_from([1, 2, 3, 4, 8, -1, -3])
_SMALL_EXTENT = st.integers(1, 3)
XOR_TERMS = st.sampled_from(
    [
        XorTerm("mem", target, source, bits)
        for low, high, bits in _BIT_RANGES
        for target, source in [(low, high), (high, low)]
    ]
)
ITERS = st.builds(Iter, st.integers(1, 4), st.sampled_from([0, 1, 1, 2, 3, 4, 6, 8, 12, -1, -4]), _AXIS)
_SHARDS = [st.lists(st.lists(ITERS, max_size=3), max_size=rank) for rank in range(4)]
_PADDING = st.integers(0, 3)
_REPLICAS = st.lists(st.builds(Replica, _SMALL_EXTENT, _MOVING, _AXIS), max_size=2)
_OPS = st.sampled_from(["add", "maximum"])
_PARTIALS = st.lists(st.builds(Partial, _SMALL_EXTENT, _MOVING, _AXIS, _OPS), max_size=1)
_OFFSETS = st.dictionaries(_AXIS, st.integers(-3, 9), max_size=2)
_SWIZZLES = st.lists(XOR_TERMS, max_size=2)


@st.composite
def layouts(draw: st.DrawFn, max_rank: int = 3, *, swizzled: bool = True, padded: bool = True) -> Layout:
    """Any layout: overlaps, gaps, negative and zero strides, copies, offsets, XOR terms."""
    shard, budget = [], MOST_ELEMENTS
    for digits in draw(_SHARDS[max_rank]):
        kept = []
        for digit in digits:
            if digit.extent <= budget:
                kept.append(digit)
                budget //= digit.extent
        shard.append(tuple(kept))
    counts = [int(np.prod([digit.extent for digit in digits], dtype=int)) for digits in shard]
    shape = tuple(max(1, count - (draw(_PADDING) if padded else 0)) for count in counts)
    offset = draw(_OFFSETS)
    swizzle = draw(_SWIZZLES) if swizzled else []
    replica, partial = draw(_REPLICAS), draw(_PARTIALS)
    return Layout(shape, tuple(shard), tuple(replica), tuple(partial), tuple(offset.items()), tuple(swizzle))


@st.composite
def nested_layouts(
    draw: st.DrawFn,
    max_rank: int = 3,
    *,
    copies: bool = True,
    padded: bool = False,
    gaps: bool = True,
    negative: bool = False,
    own_axes: bool = False,
    exact_rank: bool = False,
) -> Layout:
    """A layout whose places never meet: digits take the axes from the smallest stride up, with gaps between them.

    With `own_axes` each digit has an axis of its own.
    """
    rank = max_rank if exact_rank else draw(st.integers(0, max_rank))
    extents = [draw(st.lists(st.integers(2, 4), max_size=3 if rank < 3 else 2)) for _ in range(rank)]
    while int(np.prod([extent for own in extents for extent in own], dtype=int)) > MOST_ELEMENTS:
        max(extents, key=len).pop()
    slots = [(dim, k) for dim, own in enumerate(extents) for k in range(len(own))]
    copy_extents = draw(st.lists(st.integers(2, 3), max_size=2)) if copies else []
    order = draw(st.permutations([*slots, *((-1, k) for k in range(len(copy_extents)))]))
    reached: dict[str, int] = {}
    made: dict[tuple[int, int], Iter] = {}
    offset: dict[str, int] = {}
    for number, (dim, k) in enumerate(order):
        extent = copy_extents[k] if dim < 0 else extents[dim][k]
        axis = f"axis{number}" if own_axes else draw(_AXIS)
        stride = reached.get(axis, 1) * (draw(st.sampled_from([1, 1, 1, 2, 3])) if gaps else 1)
        reached[axis] = stride * extent
        backwards = negative and dim >= 0 and draw(st.booleans())
        if backwards:
            offset[axis] = offset.get(axis, 0) + stride * (extent - 1)
        made[dim, k] = Iter(extent, -stride if backwards else stride, axis)
    shard = tuple(tuple(made[dim, k] for k in range(len(own))) for dim, own in enumerate(extents))
    shape = tuple(int(np.prod(own, dtype=int)) - (draw(st.integers(0, 1)) if padded and own else 0) for own in extents)
    replica = tuple(Replica(copy.extent, copy.stride, copy.axis) for key, copy in made.items() if key[0] < 0)
    return Layout(shape, shard, replica, offset=tuple(offset.items()))


def boxes(shape: Sequence[int]) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Per dim a (start, size) within the shape."""

    @st.composite
    def one(draw: st.DrawFn, size: int) -> tuple[int, int]:
        length = draw(st.integers(1, size))
        return draw(st.integers(0, size - length)), length

    return st.tuples(*(one(size) for size in shape)).map(list)


def union(parts: Sequence[frozenset[Place]]) -> frozenset[Place]:
    return frozenset().union(*parts)

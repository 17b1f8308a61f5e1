"""Several layouts of one shape, written with the same digits.

Each dim is cut at every weight at which one of the layouts cuts it, and each axis of positions at every stride, until
no digit spans a cut of another layout. Then a layout is a table: which digit of the index, or which copy, each position
of an axis holds; and the difference of two layouts is the difference of two tables. Memory axes are not cut: their
strides may be anything, a pitch or a swizzle included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import ceil_divide, static
from tilewright.layout.iters import NO_AXIS, Iter, fuse_digits, weighted
from tilewright.layout.layout import Layout
from tilewright.layout.operations import canonical, trim


class IndexDigit(NamedTuple):
    """`(index[dim] // weight) % extent`."""

    dim: int
    weight: int
    extent: int


class Copy(NamedTuple):
    """A digit that counts copies: of one element, or of terms still to be combined by `op`."""

    extent: int
    op: str | None


class Slot(NamedTuple):
    """The coordinates `stride * k`, `0 <= k < extent`, of an axis."""

    axis: str
    stride: int
    extent: int


Content = IndexDigit | Copy


class Table(msgspec.Struct, frozen=True):
    """One layout over common digits.

    Attributes:
        slots: what each occupied slot holds.
        still: digits of the index that move along no axis: their elements share a position.
        offset: pairs (axis, offset).
    """

    slots: dict[Slot, Content]
    still: frozenset[IndexDigit]
    offset: tuple[tuple[str, int], ...]

    def slot_of(self, digit: IndexDigit) -> Slot | None:
        """The slot of a digit of the index; None for one that moves along no axis."""
        return next((slot for slot, content in self.slots.items() if content == digit), None)


@lru_cache(maxsize=8192)
def plain_form(layout: Layout) -> Layout:
    """The canonical form with the least padding."""
    return canonical(trim(layout))


@lru_cache(maxsize=4096)
def refine(*layouts: Layout) -> tuple[Table, ...] | None:
    """Tables of static layouts of one shape; None where digits or strides do not nest or positions are swizzled."""
    plain = [plain_form(layout) for layout in layouts]
    if any(not layout.is_static or any(not is_memory(term.axis) for term in layout.swizzle) for layout in plain):
        return None
    if any(part.stride < 0 and not is_memory(part.axis) for layout in plain for part in layout.all_iters):
        return None
    cuts = _Cuts(plain)
    if not cuts.settle(plain):
        return None
    return tuple(cuts.table(layout) for layout in plain)


class _Cuts:
    """The weights at which each dim is cut and the strides at which each axis is, growing until nothing spans a cut."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        shape = layouts[0].static_shape
        self.sizes = shape
        self.dims: list[set[int]] = [{1} for _ in shape]
        self.axes: dict[str, set[int]] = {}
        for layout in layouts:
            for dim, digits in enumerate(layout.shard):
                for weight, digit in weighted(fuse_digits(digits)):
                    self.dims[dim] |= {weight, weight * static(digit.extent)}
                    self._cut_axis(digit)
            for copy in (*layout.replica, *layout.partial):
                self._cut_axis(Iter(copy.extent, copy.stride, copy.axis))
        for dim, size in enumerate(shape):
            # Beyond the size a dim is padding, which needs no cuts.
            self.dims[dim] = {weight for weight in self.dims[dim] if weight < max(2, size)}

    def _cut_axis(self, digit: Iter) -> None:
        if not is_memory(digit.axis) and digit.stride:
            self.axes.setdefault(digit.axis, set()).update({digit.stride, digit.stride * static(digit.extent)})

    def settle(self, layouts: Sequence[Layout]) -> bool:
        """Cut until stable; whether all cuts nest."""
        while True:
            if not all(map(_nest, self.dims)) or not all(map(_nest, self.axes.values())):
                return False
            before = sum(map(len, self.dims)) + sum(map(len, self.axes.values()))
            for layout in layouts:
                for dim, digits in enumerate(layout.shard):
                    for weight, digit in weighted(fuse_digits(digits)):
                        self._exchange(dim, weight, digit)
            if before == sum(map(len, self.dims)) + sum(map(len, self.axes.values())):
                return True

    def _exchange(self, dim: int, weight: int, digit: Iter) -> None:
        """A cut of the dim inside a digit is a cut of its axis, and vice versa."""
        if is_memory(digit.axis) or not digit.stride:
            return
        strides = self.axes[digit.axis]
        end = weight * static(digit.extent)
        for cut in [c for c in self.dims[dim] if weight < c < end and c % weight == 0]:
            strides.add(digit.stride * (cut // weight))
        top = digit.stride * static(digit.extent)
        for cut in [c for c in strides if digit.stride < c < top and c % digit.stride == 0]:
            inner = weight * (cut // digit.stride)
            if inner < self.sizes[dim]:
                self.dims[dim].add(inner)

    def table(self, layout: Layout) -> Table:
        slots: dict[Slot, Content] = {}
        still: set[IndexDigit] = set()
        for dim, digits in enumerate(layout.shard):
            for weight, digit in weighted(fuse_digits(digits)):
                for piece_weight, extent in self._pieces(dim, weight, digit):
                    content = IndexDigit(dim, piece_weight, extent)
                    if digit.axis == NO_AXIS or not digit.stride:
                        still.add(content)
                    else:
                        slots[Slot(digit.axis, digit.stride * (piece_weight // weight), extent)] = content
        for copy in (*layout.replica, *layout.partial):
            op = getattr(copy, "op", None)
            cuts = self.axes.get(copy.axis, ())
            for stride, extent in _split(copy.stride, copy.stride * static(copy.extent), cuts):
                slots[Slot(copy.axis, stride, extent)] = Copy(extent, op)
        offset = tuple((axis, static(value)) for axis, value in layout.offset)
        return Table(slots, frozenset(still), offset)

    def _pieces(self, dim: int, weight: int, digit: Iter) -> Iterable[tuple[int, int]]:
        """The digits of the dim within one digit of a layout, as (weight, extent); none is all padding."""
        end = weight * static(digit.extent)
        for piece, extent in _split(weight, end, self.dims[dim]):
            outermost = piece * extent >= self.sizes[dim]
            yield piece, static(ceil_divide(self.sizes[dim], piece)) if outermost else extent
            if outermost:
                return


def index_digits(table: Table) -> list[IndexDigit]:
    """The digits of the index, wherever they are."""
    return [content for content in table.slots.values() if isinstance(content, IndexDigit)] + list(table.still)


def bitwise(table: Table) -> Table | None:
    """The table with every digit cut into bits; None where one is no power of two."""
    slots: dict[Slot, Content] = {}
    for slot, content in table.slots.items():
        if not all(map(_is_power, (slot.stride, slot.extent, getattr(content, "weight", 1), content.extent))):
            return None
        for b in range(content.extent.bit_length() - 1):
            bit = content._replace(extent=2)
            slots[Slot(slot.axis, slot.stride << b, 2)] = (
                bit if isinstance(bit, Copy) else bit._replace(weight=bit.weight << b)
            )
    still: set[IndexDigit] = set()
    for digit in table.still:
        if not _is_power(digit.weight) or not _is_power(digit.extent):
            return None
        still |= {IndexDigit(digit.dim, digit.weight << b, 2) for b in range(digit.extent.bit_length() - 1)}
    return Table(slots, frozenset(still), table.offset)


def is_bitwise(table: Table) -> bool:
    """Whether every digit is a bit at a power of two."""
    return all(digit.extent == 2 and _is_power(digit.weight) for digit in index_digits(table)) and all(
        slot.extent == 2 and _is_power(slot.stride) for slot in table.slots
    )


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def is_memory(axis: str) -> bool:
    """Whether the axis counts addresses, or nothing at all."""
    return axis == NO_AXIS or kind_of(axis) == Kind.MEMORY


def _nest(cuts: set[int]) -> bool:
    ordered = sorted(cuts)
    return all(large % small == 0 for small, large in pairwise(ordered))


def _split(start: int, end: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """`start..end` cut at the cuts inside, as (start, extent); where the end is that of a dim, the last may reach
    beyond it."""
    edges = [start, *sorted(cut for cut in cuts if start < cut < end), end]
    return [(low, -(-high // low)) for low, high in pairwise(edges)]

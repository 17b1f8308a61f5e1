"""Layouts as functions: composition of two, and the inverse of one on its image."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.dims import Size, ceil_divide, is_at_least, known_multiple, lower_bound, static, upper_bound
from tilewright.layout.iters import (
    NO_AXIS,
    AxisIter,
    Digits,
    Iter,
    Partial,
    Replica,
    fuse_digits,
    weighted,
)
from tilewright.layout.layout import Layout
from tilewright.layout.operations import nested_on


def compose(outer: Layout, inner: Layout, axes: Sequence[str]) -> Layout:
    """`outer` after `inner`: the coordinate of `inner` on `axes[k]` is the index along dim `k` of `outer`.

    Coordinates of `inner` on other axes stay as they are. The padding of `inner` has to fit as well.

    Raises:
        LayoutError: `axes` does not name one axis per dim of `outer`, an axis is swizzled in `inner` or produced by
            both, coordinates leave `outer`, digits of `inner` carry from one digit of `outer` into the next, or terms
            of a partial would share a position.
    """
    _check_axes(outer, inner, axes)
    feeds = {axis: _Feed(outer.shard[dim], axis) for dim, axis in enumerate(axes)}
    shard: list[Digits] = []
    for digits in inner.shard:
        pieces = [_pieces(digit, feeds, may_grow=position == 0) for position, digit in enumerate(fuse_digits(digits))]
        shard.append(tuple(piece for group in pieces for piece in group))
    replica = [piece for copy in inner.replica for piece in _pieces(copy, feeds) if piece.stride]
    partial = [(piece, copy.op) for copy in inner.partial for piece in _pieces(copy, feeds) if piece.extent != 1]
    result = Layout(
        inner.shape,
        tuple(shard),
        (*(Replica(piece.extent, piece.stride, piece.axis) for piece in replica), *outer.replica),
        (*(Partial(piece.extent, piece.stride, piece.axis, op) for piece, op in partial), *outer.partial),
        tuple((axis, value) for axis, value in inner.offset if axis not in feeds),
        (*(term for term in inner.swizzle if term.axis not in feeds), *outer.swizzle),
    ).with_offset(dict(outer.offset))
    for axis, feed in feeds.items():
        for target, shift in feed.take_offset(inner.offset_on(axis)):
            result = result.with_offset({target: shift})
        feed.check_no_carry()
    return result


def inverse(layout: Layout, axes: Sequence[str] | None = None) -> Layout:
    """From coordinates back to indices: dim `k` counts along `axes[k]`, axis `dim<d>` is the index along dim `d`.

    Coordinates count from the lowest position of the argument, `layout.reach(axis)[0]`. All copies of an element lead
    to its index. Outside the image of the argument the result has no meaning.

    Raises:
        LayoutError: two elements share a position, the layout is swizzled, an axis is left out or strides do not nest.
    """
    order = layout.axes if axes is None else tuple(axes)
    if sorted(order) != sorted(layout.axes):
        raise LayoutError(
            f"the inverse needs each axis of the layout once ({', '.join(layout.axes)}), got ({', '.join(order)})",
            help="name every axis of the layout",
        )
    if layout.swizzle:
        raise LayoutError(
            "a swizzled layout has no inverse of this form", help="use `locate` to find the element at an address"
        )
    offset: dict[str, Size] = {}
    shard = tuple(_inverse_digits(layout, axis, offset) for axis in order)
    return Layout(tuple(layout.span(axis) for axis in order), shard, offset=tuple(offset.items()))


class _Feed:
    """One dim of the outer layout while numbers are written into its digits, each digit's total kept in range."""

    def __init__(self, digits: Digits, axis: str) -> None:
        self.axis = axis
        self.levels = list(weighted(fuse_digits(digits))) or [(1, Iter(1, 0, NO_AXIS))]
        self.low: list[Size] = [0] * len(self.levels)
        self.high: list[Size] = [0] * len(self.levels)

    def add(self, level: int, low: Size, high: Size) -> None:
        self.low[level] = self.low[level] + low
        self.high[level] = self.high[level] + high

    def take(self, part: AxisIter, may_grow: bool) -> list[Iter]:
        """`stride * k` as a sum over digits of the dim, outermost first."""
        extent, size, sign = part.extent, abs(part.stride), 1 if part.stride > 0 else -1
        pieces: list[Iter] = []
        while True:
            level = max(number for number, (weight, _) in enumerate(self.levels) if size % weight == 0)
            weight, digit = self.levels[level]
            limit = None if level == len(self.levels) - 1 else self.levels[level + 1][0]
            whole = limit is None or upper_bound(extent - 1) * size < limit
            if limit is None or whole:
                count, rest = extent, None
            else:
                count = self._room(part, extent, size, limit, may_grow)
                rest = ceil_divide(extent, count)
            step = sign * size // weight
            end = (count - 1) * step
            self.add(level, *((0, end) if sign > 0 else (end, 0)))
            pieces.insert(0, Iter(count, step * digit.stride, digit.axis))
            if limit is None or rest is None:
                return pieces
            extent, size = rest, limit

    def _room(self, part: AxisIter, extent: Size, size: int, limit: int, may_grow: bool) -> int:
        count = limit // size
        if limit % size or (known_multiple(extent) % count and not may_grow):
            raise LayoutError(
                f"`{part.extent}@{part.axis}*{part.stride}` of the inner layout does not fall on whole digits of the "
                "outer one",
                help="choose extents and strides that divide the digits of the outer layout",
            )
        return count

    def take_offset(self, offset: Size) -> list[tuple[str, Size]]:
        """A constant as a sum over digits of the dim: what it adds per axis."""
        shifts: list[tuple[str, Size]] = []
        for level, (weight, digit) in enumerate(self.levels):
            step = offset // weight
            if level < len(self.levels) - 1:
                step = step % static(digit.extent)
            self.add(level, lower_bound(step), upper_bound(step))
            if digit.stride:
                shifts.append((digit.axis, step * digit.stride))
        return shifts

    def check_no_carry(self) -> None:
        for level, (_, digit) in enumerate(self.levels):
            if lower_bound(self.low[level]) < 0 or not is_at_least(digit.extent, self.high[level] + 1):
                raise LayoutError(
                    f"coordinates on `{self.axis}` reach {self.low[level]}..{self.high[level]} in a digit of extent "
                    f"{digit.extent} of the outer layout, so they would carry or leave it",
                    help="keep the inner coordinates within the outer shape and on whole digits",
                )


def _pieces(part: AxisIter, feeds: dict[str, _Feed], *, may_grow: bool = False) -> list[Iter]:
    if part.axis in feeds and part.stride:
        return feeds[part.axis].take(part, may_grow)
    return [Iter(part.extent, part.stride, part.axis)]


def _check_axes(outer: Layout, inner: Layout, axes: Sequence[str]) -> None:
    if len(axes) != outer.rank or len(set(axes)) != len(axes):
        raise LayoutError(
            f"composition needs one axis per dim of the outer layout ({outer.rank}), got ({', '.join(axes)})",
            help="name for each dim of the outer layout the axis of the inner one that indexes it",
        )
    if any(term.axis in axes for term in inner.swizzle):
        raise LayoutError(
            "the inner layout of a composition is swizzled on an axis that the outer one splits again",
            help="swizzle the result instead",
        )
    shared = sorted(set(outer.axes) & (set(inner.axes) - set(axes)))
    if shared:
        raise LayoutError(
            f"axis `{shared[0]}` comes both from the inner layout and from the outer one",
            help="rename it in one of them, or feed it into the outer layout",
        )


def _inverse_digits(layout: Layout, axis: str, offset: dict[str, Size]) -> Digits:
    """The digits of a coordinate on `axis`, outermost first. Strides that run backwards add to `offset`."""
    nested_on(layout, axis)
    steps: list[tuple[int, Iter]] = []
    for dim, digits in enumerate(layout.shard):
        for weight, digit in weighted(digits):
            if digit.stride == 0 and digit.extent != 1:
                raise LayoutError(
                    f"elements along dim {dim} share one address, so the index cannot be computed from the address",
                    help="reduce the dim first",
                )
            if digit.axis != axis or digit.extent == 1:
                continue
            name = f"dim{dim}"
            if digit.stride < 0:
                offset[name] = offset.get(name, 0) + (digit.extent - 1) * weight
            steps.append((abs(digit.stride), Iter(digit.extent, weight if digit.stride > 0 else -weight, name)))
    copies = [copy for copy in (*layout.replica, *layout.partial) if copy.axis == axis and copy.extent != 1]
    steps.extend((abs(copy.stride), Iter(copy.extent, 0, NO_AXIS)) for copy in copies)
    return _chain(axis, sorted(steps, key=lambda step: step[0]))


def _chain(axis: str, steps: Sequence[tuple[int, Iter]]) -> Digits:
    """Digits such that the one for each stride (given in rising order) has that stride as its weight."""
    digits: list[Iter] = []
    previous = 1
    for stride, digit in steps:
        ratio, misfit = divmod(stride, previous)
        if misfit:
            raise LayoutError(
                f"strides {previous} and {stride} on `{axis}` do not nest, so a coordinate has no fixed digits",
                help="use strides that are multiples of the smaller ones",
            )
        if digits:
            digits[0] = replace(digits[0], extent=ratio)
        elif ratio > 1:
            digits.insert(0, Iter(ratio, 0, NO_AXIS))
        digits.insert(0, digit)
        previous = stride
    return tuple(digits)

"""Operations that make one layout from another: normal forms, refinement, tiles, slices and renumbering.

Each documents the result's map in terms of the argument. None enumerates indices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.dims import (
    Size,
    ceil_divide,
    is_at_least,
    is_integer,
    known_multiple,
    lower_bound,
    static,
    upper_bound,
)
from tilewright.layout.iters import (
    AxisIter,
    AxisIterT,
    Digits,
    XorTerm,
    fuse_copies,
    fuse_digits,
    group_digits,
    split_digits,
    trim_digits,
    weighted,
)
from tilewright.layout.layout import Layout, has_effect


def canonical(layout: Layout) -> Layout:
    """An equal map, padding included, in a form that equal maps share wherever it can be seen that they are equal.

    Digits that continue each other merge, extents of 1 go, digits of stride 0 lose their axis, replicas and partials
    get positive strides and a fixed order, XOR terms without effect or that undo each other go.
    """
    forward = forward_copies(layout)
    shard = tuple(fuse_digits(digits) for digits in forward.shard)
    replica, partial, swizzle = fuse_copies(forward.replica), fuse_copies(forward.partial), _useful_terms(forward)
    if (shard, replica, partial, swizzle) == (forward.shard, forward.replica, forward.partial, forward.swizzle):
        return forward
    return replace(forward, shard=shard, replica=replica, partial=partial, swizzle=swizzle)


def forward_copies(layout: Layout) -> Layout:
    """An equal layout with positive strides of replicas and partials: the offset names the lowest copy."""
    shift: dict[str, Size] = {}
    for copy in (*layout.replica, *layout.partial):
        if copy.stride < 0:
            shift[copy.axis] = shift.get(copy.axis, 0) + (copy.extent - 1) * copy.stride
    if not shift:
        return layout
    turned = replace(
        layout,
        replica=tuple(replace(copy, stride=abs(copy.stride)) for copy in layout.replica),
        partial=tuple(replace(copy, stride=abs(copy.stride)) for copy in layout.partial),
    )
    return turned.with_offset(shift)


def trim(layout: Layout) -> Layout:
    """An equal map on logical indices with the least padding: outermost digits shrink to what the shape needs."""
    sizes = zip(layout.shape, layout.shard, strict=True)
    shard = tuple(trim_digits(digits, size) for size, digits in sizes)
    return layout if shard == layout.shard else replace(layout, shard=shard)


def checked_dim(layout: Layout, dim: int) -> int:
    """`dim` counted from 0 (negative ones count from the end); LayoutError when there is no such dim."""
    if not is_integer(dim) or not -layout.rank <= dim < layout.rank:
        raise LayoutError(f"there is no dim {dim} in a layout of rank {layout.rank}", help="count dims from 0")
    return dim % layout.rank


def split(layout: Layout, dim: int, factors: Sequence[Size]) -> Layout:
    """An equal map with the digits of `dim` refined so that each factor (outermost first) is a run of digits.

    Raises:
        LayoutError: the factors do not multiply to the padded size, or a digit straddles a boundary.
    """
    dim = checked_dim(layout, dim)
    groups = group_digits(layout.shard[dim], factors)
    refined = tuple(digit for group in groups for digit in group)
    return replace(layout, shard=(*layout.shard[:dim], refined, *layout.shard[dim + 1 :]))


def product(outer: Layout, inner: Layout) -> Layout:
    """A layout of `inner`-shaped tiles arranged by `outer`; shapes multiply dim by dim.

    Element `t` of tile `o` lives, on each axis, at `span(inner, axis) * outer(o) + inner(t)`.

    Raises:
        LayoutError: the ranks differ, `inner` is padded where there are several tiles, `inner` is not static, or the
            XOR terms of `outer` cannot be scaled.
    """
    if outer.rank != inner.rank:
        raise LayoutError(f"composing layouts of ranks {outer.rank} and {inner.rank}", help="give both the same rank")
    inner = replace(inner, swizzle=_useful_terms(inner))
    spans = {axis: static(inner.span(axis)) for axis in inner.axes}
    tile_shape = inner.static_shape
    for dim, size in enumerate(tile_shape):
        if size != inner.padded_shape[dim] and outer.padded_shape[dim] != 1:
            raise LayoutError(
                f"dim {dim} of the inner layout has size {size} but is padded to {inner.padded_shape[dim]}, so its "
                "tiles do not follow one another",
                help="give the inner layout a shape without padding",
            )

    def spread(part: AxisIterT) -> AxisIterT:
        return replace(part, stride=part.stride * spans.get(part.axis, 1))

    digits = zip(outer.shard, inner.shard, strict=True)
    return Layout(
        tuple(count * size for count, size in zip(outer.shape, tile_shape, strict=True)),
        tuple((*map(spread, many), *one) for many, one in digits),
        (*map(spread, outer.replica), *inner.replica),
        (*map(spread, outer.partial), *inner.partial),
        tuple((axis, value * spans.get(axis, 1)) for axis, value in outer.offset),
        (*inner.swizzle, *(_shifted_term(term, inner, spans.get(term.axis, 1)) for term in outer.swizzle)),
    ).with_offset(dict(inner.offset))


def tile(layout: Layout, tile_shape: Sequence[int]) -> Layout:
    """Divide a layout into tiles: rank `2n`, shape `(ceil(shape / tile_shape)..., tile_shape...)`.

    Index `(o..., t...)` of the result lives where index `o * tile_shape + t` of the argument does. If the tiles reach
    beyond the padding, the outermost digit continues with its stride.

    Raises:
        LayoutError: a digit straddles the border of a tile.
    """
    if len(tile_shape) != layout.rank or any(not is_integer(size) or size < 1 for size in tile_shape):
        raise LayoutError(
            f"tile shape {tuple(tile_shape)} does not fit a layout of rank {layout.rank}",
            help="give one positive size per dim",
        )
    pairs = [split_digits(own, size, may_grow=True) for own, size in zip(layout.shard, tile_shape, strict=True)]
    counts = [ceil_divide(own, size) for own, size in zip(layout.shape, tile_shape, strict=True)]
    return replace(
        layout,
        shape=(*counts, *tile_shape),
        shard=(*(outer for outer, _ in pairs), *(inner for _, inner in pairs)),
    )


def slice_box(layout: Layout, starts: Sequence[Size], sizes: Sequence[Size]) -> Layout:
    """The sub-box of `sizes` from `starts`: index `i` of the result lives where `starts + i` of the argument does.

    A start may be a `Dim` with a known divisor. The box may reach into the padding.

    Raises:
        LayoutError: the box leaves the padded shape, or it crosses the border of a block of digits without being
            aligned to such blocks.
    """
    if len(starts) != layout.rank or len(sizes) != layout.rank:
        raise LayoutError(
            f"a slice of a layout of rank {layout.rank} has {len(starts)} starts and {len(sizes)} sizes",
            help="give one start and one size per dim",
        )
    shard: list[Digits] = []
    moved = layout
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        _check_inside(layout, dim, start, size)
        digits, shifts = _slice_digits(layout.shard[dim], start, size)
        shard.append(digits)
        for axis, shift in shifts:
            moved = moved.with_offset({axis: shift})
    return replace(moved, shape=tuple(sizes), shard=tuple(shard))


def forget_replicas(layout: Layout, axes: Collection[str]) -> Layout:
    """Keep only the first copy along each of `axes`."""
    return replace(layout, replica=tuple(copy for copy in layout.replica if copy.axis not in axes))


def nested_on(layout: Layout, axis: str) -> list[AxisIter]:
    """The digits, replicas and partials that move along `axis`, by size of stride.

    Raises:
        LayoutError: some of them overlap, so that different choices give one coordinate.
    """
    moving = [part for part in layout.all_iters if part.axis == axis and part.stride and part.extent != 1]
    moving.sort(key=lambda part: abs(part.stride))
    reached: Size = 0
    for part in moving:
        if lower_bound(abs(part.stride) - reached) < 1:
            raise LayoutError(
                f"`{part.extent}@{axis}*{part.stride}` overlaps the smaller strides on its axis, which reach {reached}",
                help="use strides that are at least the span of all smaller ones",
            )
        reached = reached + (part.extent - 1) * abs(part.stride)
    return moving


def compact(layout: Layout, axis: str) -> Layout:
    """Number the positions on `axis` from 0 without gaps, in their order.

    Raises:
        LayoutError: a stride on the axis is negative, strides overlap, it is swizzled, or an extent other than the last
            is unknown.
    """
    chain = nested_on(layout, axis)
    if layout.swizzle_on(axis) or any(part.stride < 0 for part in chain):
        raise LayoutError(
            f"axis `{axis}` is swizzled or runs backwards, so its addresses cannot be renumbered digit by digit",
            help="take the swizzle away, or use positive strides",
        )
    dense: dict[int, int] = {}
    count: Size = 1
    for part in chain:
        dense[part.stride] = static(count)
        count = dense[part.stride] * part.extent

    def renumber(part: AxisIterT) -> AxisIterT:
        return replace(part, stride=dense.get(part.stride, part.stride)) if part.axis == axis else part

    return replace(
        layout,
        shard=tuple(tuple(map(renumber, digits)) for digits in layout.shard),
        replica=tuple(map(renumber, layout.replica)),
        partial=tuple(map(renumber, layout.partial)),
        offset=tuple((name, value) for name, value in layout.offset if name != axis),
    )


def _useful_terms(layout: Layout) -> tuple[XorTerm, ...]:
    """The XOR terms that may change a coordinate, by axis; two equal ones in a row undo each other."""
    if not layout.swizzle:
        return ()
    plain = replace(layout, swizzle=())
    kept: list[XorTerm] = []
    for axis in sorted({term.axis for term in layout.swizzle}):
        low, high = plain.reach(axis)
        own: list[XorTerm] = []
        for term in layout.swizzle_on(axis):
            if own and own[-1] == term:
                own.pop()
            elif own or has_effect((term,), low, high):
                own.append(term)
        kept.extend(own)
    return tuple(kept)


def _shifted_term(term: XorTerm, inner: Layout, span: int) -> XorTerm:
    """A XOR term on tile numbers as one on coordinates, where tiles are `span` apart."""
    shift = span.bit_length() - 1
    low, high = inner.reach(term.axis) if term.axis in inner.axes else (0, 0)
    if span != 1 << shift or lower_bound(low) < 0 or upper_bound(high) >= span:
        raise LayoutError(
            f"the outer layout is swizzled on `{term.axis}`, but the inner one covers {low}..{high} there",
            help="swizzle the composed layout instead, or let the inner layout cover 0..2**n-1",
        )
    return replace(term, target=term.target + shift, source=term.source + shift)


def _check_inside(layout: Layout, dim: int, start: Size, size: Size) -> None:
    is_whole = start == 0 and size == layout.shape[dim]
    stays = is_whole or is_at_least(layout.padded_shape[dim], start + size)
    if lower_bound(start) < 0 or lower_bound(size) < 0 or not stays:
        raise LayoutError(
            f"the slice of {size} from {start} leaves dim {dim}, which counts {layout.padded_shape[dim]} indices",
            help="keep within the padded shape, or tile the layout first: tiles may hang over the edge",
        )


def _slice_digits(digits: Digits, start: Size, size: Size) -> tuple[Digits, list[tuple[str, Size]]]:
    """The digits of `size` indices from `start`, and what the start adds per axis."""
    levels = list(weighted(fuse_digits(digits)))
    top = 0
    while top < len(levels) - 1 and levels[top][0] * static(levels[top][1].extent) < upper_bound(size):
        top += 1
    kept = [digit for _, digit in levels[:top]]
    shifts: list[tuple[str, Size]] = []
    for number, (weight, digit) in enumerate(levels[top:], top):
        is_last = number == len(levels) - 1
        position = start // weight if is_last else start // weight % static(digit.extent)
        if digit.stride:
            shifts.append((digit.axis, position * digit.stride))
        if number == top:
            count = ceil_divide(size, weight)
            if known_multiple(start) % weight or not (is_last or _stays_inside(start, weight, position, count, digit)):
                raise _crosses(digits, start, size)
            kept.extend([replace(digit, extent=count)] if upper_bound(count) > 1 else [])
    return tuple(reversed(kept)), shifts


def _stays_inside(start: Size, weight: int, position: Size, count: Size, digit: AxisIter) -> bool:
    """Whether `count` steps of a digit from `position` never carry into the digit outside it."""
    extent, most = static(digit.extent), upper_bound(count)
    if upper_bound(position) + most <= extent:
        return True
    return most > 0 and extent % most == 0 and known_multiple(start) % (weight * most) == 0


def _crosses(digits: Digits, start: Size, size: Size) -> LayoutError:
    text = " ".join(f"{digit.extent}@{digit.axis}*{digit.stride}" for digit in digits)
    known = "" if isinstance(start, int) else f" (known to be a multiple of {known_multiple(start)})"
    return LayoutError(
        f"the slice of {size} from {start}{known} crosses a border between blocks of the digits [{text}] unaligned",
        help="start at a multiple of the size, and use a size that the inner digits multiply to or that divides them",
    )


def rename_axis(layout: Layout, old: str, new: str) -> Layout:
    """The layout with the axis `old` renamed to `new`.

    Raises:
        LayoutError: the layout has an axis `new` already.
    """
    if new in layout.axes:
        raise LayoutError(f"the layout has an axis `{new}` already", help="rename to an axis that it does not use")

    def renamed(part: AxisIterT) -> AxisIterT:
        return replace(part, axis=new) if part.axis == old else part

    return replace(
        layout,
        shard=tuple(tuple(map(renamed, digits)) for digits in layout.shard),
        replica=tuple(map(renamed, layout.replica)),
        partial=tuple(map(renamed, layout.partial)),
        offset=tuple((new if axis == old else axis, value) for axis, value in layout.offset),
        swizzle=tuple(replace(term, axis=new) if term.axis == old else term for term in layout.swizzle),
    )

"""`Layout`: where each element of a logical shape lives on named hardware axes, and how to evaluate it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tilewright.cached import cached_property
from tilewright.errors import IndexError_, LayoutError
from tilewright.layout.dims import (
    Dim,
    Size,
    is_at_least,
    is_size,
    lower_bound,
    normal,
    static,
    substitute,
    symbols,
    upper_bound,
)
from tilewright.layout.iters import (
    NO_AXIS,
    AxisIter,
    Digits,
    Iter,
    Partial,
    Replica,
    XorTerm,
    check_axis,
    digit_product,
    fuse_digits,
    weighted,
)


class LinearTerm(NamedTuple):
    """`stride * ((index[dim] // divisor) % modulus)`; no remainder is taken when `modulus` is None."""

    dim: int
    divisor: int
    modulus: int | None
    stride: int

    def value(self, index: Sequence[int]) -> int:
        """The term's contribution to the coordinate of the element at `index`."""
        quotient = index[self.dim] // self.divisor
        return self.stride * (quotient if self.modulus is None else quotient % self.modulus)


class Layout(msgspec.Struct, frozen=True, dict=True):
    """A map from the indices of `shape` to sets of positions, a position being one coordinate per named axis.

    The coordinate of an element on an axis is the axis's `offset`, plus `stride * digit` over the digits on that axis,
    plus `stride * k` for one `k` of each replica and partial on it, then changed by the XOR terms in order.

    Attributes:
        shape: the logical sizes; one may be a `Dim`, or arithmetic on one.
        shard: for each dim its digits, outermost first. A dim is padded on its own to the size of its digits; an index
            within the padding has a position too. Only the outermost digit of a dim may have an unknown extent.
        replica: the iters over which each element is repeated.
        partial: the iters over which copies hold terms that are still to be combined.
        offset: pairs (axis, offset), kept sorted and without zeros.
        swizzle: XOR terms, applied in order to the finished coordinates.

    Raises:
        LayoutError: the parts do not fit together.
    """

    shape: tuple[Size, ...]
    shard: tuple[Digits, ...]
    replica: tuple[Replica, ...] = ()
    partial: tuple[Partial, ...] = ()
    offset: tuple[tuple[str, Size], ...] = ()
    swizzle: tuple[XorTerm, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "shape", tuple(_checked_sizes(self.shape)))
        msgspec.structs.force_setattr(self, "shard", tuple(_of_type(digits, Iter, "shard") for digits in self.shard))
        msgspec.structs.force_setattr(self, "replica", _of_type(self.replica, Replica, "replica"))
        msgspec.structs.force_setattr(self, "partial", _of_type(self.partial, Partial, "partial"))
        msgspec.structs.force_setattr(self, "swizzle", _of_type(self.swizzle, XorTerm, "swizzle"))
        msgspec.structs.force_setattr(self, "offset", _checked_offset(self.offset))
        if len(self.shard) != len(self.shape):
            raise LayoutError(
                f"a layout of {len(self.shape)} dims has digits for {len(self.shard)}",
                help="give one tuple of digits per dim; `()` for a dim of size 1",
            )
        for dim, (size, digits) in enumerate(zip(self.shape, self.shard, strict=True)):
            _check_covers(dim, size, digits)
        if not _has_only_numbers(self):
            _check_names(self.symbols)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.shard, self.replica, self.partial, self.offset, self.swizzle))

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        # Hashes of strings differ between processes, so a cached one must not travel.
        return Layout, (self.shape, self.shard, self.replica, self.partial, self.offset, self.swizzle)

    def __str__(self) -> str:
        from tilewright.layout.text import format_layout

        return format_layout(self)

    def __repr__(self) -> str:
        return f"Layout.parse({str(self)!r})"

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that `str(layout)` gave; the grammar is in `tilewright.layout.text`.

        Raises:
            LayoutError: the text is not a layout.
        """
        from tilewright.layout.text import parse_layout

        return parse_layout(text)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def iters(self) -> Digits:
        """The digits of all dims in one list, outermost first."""
        return tuple(digit for digits in self.shard for digit in digits)

    @cached_property
    def all_iters(self) -> tuple[AxisIter, ...]:
        """Digits, replicas and partials."""
        return (*self.iters, *self.replica, *self.partial)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The named axes, in order of first use in digits, replicas, partials and offsets."""
        names = dict.fromkeys(part.axis for part in self.all_iters if part.axis != NO_AXIS)
        return tuple(names | dict.fromkeys(axis for axis, _ in self.offset))

    @cached_property
    def symbols(self) -> tuple[Dim, ...]:
        """The `Dim`s that the layout mentions, in order of first use."""
        sizes = [*self.shape, *(part.extent for part in self.all_iters), *(value for _, value in self.offset)]
        return symbols(sizes)

    @property
    def is_static(self) -> bool:
        """Whether all sizes and offsets are known."""
        return not self.symbols

    @cached_property
    def padded_shape(self) -> tuple[Size, ...]:
        """Per dim, the number of indices that its digits count."""
        return tuple(digit_product(digits) for digits in self.shard)

    @property
    def size(self) -> int:
        """The number of logical elements.

        Raises:
            LayoutError: a size is unknown.
        """
        return prod(self.static_shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """`shape`, when all of it is known.

        Raises:
            LayoutError: a size is unknown.
        """
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        if len(sizes) != len(self.shape):
            raise needs_values(self)
        return sizes

    def bind(self, values: Mapping[Dim, int]) -> Layout:
        """The layout with the given `Dim`s replaced by numbers.

        Raises:
            LayoutError: a value is outside its `Dim`.
        """

        def bound(extent: Size) -> Size:
            result = substitute(extent, values)
            return max(1, result) if isinstance(result, int) else result

        return Layout(
            tuple(substitute(size, values) for size in self.shape),
            tuple(tuple(replace(digit, extent=bound(digit.extent)) for digit in digits) for digits in self.shard),
            tuple(replace(copy, extent=bound(copy.extent)) for copy in self.replica),
            tuple(replace(copy, extent=bound(copy.extent)) for copy in self.partial),
            tuple((axis, substitute(value, values)) for axis, value in self.offset),
            self.swizzle,
        )

    def offset_on(self, axis: str) -> Size:
        """The offset on `axis`; 0 when there is none."""
        return dict(self.offset).get(axis, 0)

    def with_offset(self, offset: Mapping[str, Size]) -> Layout:
        """The layout moved by `offset` further along each axis named in it."""
        total = dict(self.offset)
        for axis, amount in offset.items():
            total[axis] = total.get(axis, 0) + amount
        return replace(self, offset=tuple(total.items()))

    def with_swizzle(self, *terms: XorTerm) -> Layout:
        """The layout with more XOR terms after those that it has."""
        return replace(self, swizzle=(*self.swizzle, *terms))

    def swizzle_on(self, axis: str) -> tuple[XorTerm, ...]:
        """The XOR terms on `axis`, in order."""
        return tuple(term for term in self.swizzle if term.axis == axis)

    def linear_terms(self, axis: str) -> list[LinearTerm]:
        """The terms whose sum, plus the offset, is the coordinate on `axis` before swizzling; as few as possible."""
        return list(self._terms.get(axis, ()))

    @cached_property
    def _terms(self) -> dict[str, list[LinearTerm]]:
        found: dict[str, list[LinearTerm]] = {}
        for dim, digits in enumerate(self.shard):
            fused = fuse_digits(digits)
            terms = [_term(dim, weight, digit, digit is fused[0]) for weight, digit in weighted(fused)]
            for digit, term in zip(fused, reversed(terms), strict=True):
                if digit.stride:
                    found.setdefault(digit.axis, []).append(term)
        return found

    def coordinates(self, index: Sequence[int]) -> dict[str, int]:
        """The coordinate on each axis of the first copy of the element at `index`, which may be padding.

        Raises:
            IndexError_: the index is outside the padded shape.
            LayoutError: an offset is unknown.
        """
        return {axis: self._swizzled(axis, value) for axis, value in self._linear(index).items()}

    def places(self, index: Sequence[int]) -> frozenset[tuple[int, ...]]:
        """Every position that holds the element at `index` or a term of it: coordinates in the order of `axes`.

        Raises:
            IndexError_: the index is outside the padded shape.
            LayoutError: an offset or the extent of a replica or partial is unknown.
        """
        base = self._linear(index)
        found: set[tuple[int, ...]] = set()
        for shift in self._shifts:
            found.add(tuple(self._swizzled(axis, base[axis] + shift.get(axis, 0)) for axis in self.axes))
        return frozenset(found)

    @cached_property
    def _shifts(self) -> list[dict[str, int]]:
        """The offsets of each combination of replicas and partials, per axis."""
        shifts: list[dict[str, int]] = []
        copies = (*self.replica, *self.partial)
        for steps in product(*(range(static(copy.extent)) for copy in copies)):
            shift: dict[str, int] = {}
            for copy, step in zip(copies, steps, strict=True):
                shift[copy.axis] = shift.get(copy.axis, 0) + copy.stride * step
            shifts.append(shift)
        return shifts

    def _linear(self, index: Sequence[int]) -> dict[str, int]:
        self._check_index(index)
        base: dict[str, int] = {}
        for axis in self.axes:
            offset = self.offset_on(axis)
            if not isinstance(offset, int):
                raise needs_values(self)
            base[axis] = offset + sum(term.value(index) for term in self._terms.get(axis, ()))
        return base

    def _swizzled(self, axis: str, coordinate: int) -> int:
        for term in self.swizzle_on(axis):
            coordinate = term.apply(coordinate)
        return coordinate

    def _check_index(self, index: Sequence[int]) -> None:
        inside = len(index) == self.rank and all(
            0 <= at < upper_bound(size) for at, size in zip(index, self.padded_shape, strict=True)
        )
        if not inside:
            sizes = ", ".join(map(str, self.padded_shape))
            raise IndexError_(
                f"index {tuple(index)} is outside the padded shape ({sizes})",
                help="use one index per dim, from 0 up to the padded size",
            )

    def indices(self) -> Iterator[tuple[int, ...]]:
        """All logical indices, last dim fastest.

        Raises:
            LayoutError: a size is unknown.
        """
        return product(*(range(size) for size in self.static_shape))

    def reach(self, axis: str) -> tuple[Size, Size]:
        """The lowest and the highest coordinate on `axis`, padding and copies included.

        With XOR terms the range is rounded out to whole blocks that the terms permute.
        """
        low = high = self.offset_on(axis)
        for part in self.all_iters:
            if part.axis == axis and part.stride:
                end = (part.extent - 1) * part.stride
                low, high = (low, high + end) if part.stride > 0 else (low + end, high)
        terms = self.swizzle_on(axis)
        if not has_effect(terms, low, high):
            return low, high
        block = 1 << max(term.top for term in terms)
        return low // block * block, high // block * block + (block - 1)

    def span(self, axis: str) -> Size:
        """The number of coordinates on `axis` from the lowest to the highest, padding and copies included."""
        low, high = self.reach(axis)
        return high - low + 1

    def axis_extents(self) -> dict[str, Size]:
        """The span of every axis."""
        return {axis: self.span(axis) for axis in self.axes}


def has_effect(terms: Sequence[XorTerm], low: Size, high: Size) -> bool:
    """Whether the XOR terms may change a coordinate within `low..high`."""
    return bool(terms) and not (lower_bound(low) >= 0 and upper_bound(high) < 1 << min(term.source for term in terms))


def _term(dim: int, weight: int, digit: Iter, is_outermost: bool) -> LinearTerm:
    modulus = digit.extent if isinstance(digit.extent, int) and not is_outermost else None
    return LinearTerm(dim, weight, modulus, digit.stride)


def needs_values(layout: Layout) -> LayoutError:
    """The error of an operation that needs numbers for the layout's `Dim`s."""
    names = ", ".join(str(symbol) for symbol in layout.symbols)
    return LayoutError(
        f"this needs numbers, but the layout has unknown sizes ({names})",
        help="bind them first: layout.bind({M: 1000})",
    )


def _has_only_numbers(layout: Layout) -> bool:
    outermost = [digits[0].extent for digits in layout.shard if digits]
    copies = [copy.extent for copy in (*layout.replica, *layout.partial)]
    return all([type(size) is int for size in (*layout.shape, *outermost, *copies)]) and not layout.offset


def _checked_sizes(shape: Iterable[object]) -> Iterator[Size]:
    for size in shape:
        if type(size) is int and size >= 0:
            yield size
            continue
        if not is_size(size):
            raise LayoutError(f"a size of a shape is an int or a Dim, not {size!r}", help="use a size such as 128")
        if lower_bound(size) < 0:
            raise LayoutError(f"the size {size} may be negative", help="use sizes of at least 0")
        yield normal(size)


def _of_type(parts: Iterable[object], kind: type[object], name: str) -> tuple[object, ...]:
    try:
        result = tuple(parts)
    except TypeError:
        raise LayoutError(f"`{name}` of a layout is a tuple, not {parts!r}", help=f"write {name}=(...,)") from None
    for part in result:
        if type(part) is not kind and not isinstance(part, kind):
            raise LayoutError(
                f"`{name}` of a layout holds {kind.__name__} values, not {part!r}", help=f"make a {kind.__name__} of it"
            )
    return result


def _checked_offset(offset: Iterable[tuple[str, Size]]) -> tuple[tuple[str, Size], ...]:
    if offset == ():
        return ()
    total: dict[str, Size] = {}
    for axis, value in offset:
        check_axis(axis)
        if not is_size(value) or axis in total:
            raise LayoutError(
                f"the offset on `{axis}` is given twice or is not an int or a Dim: {value!r}",
                help="give one offset per axis",
            )
        total[axis] = normal(value)
    return tuple((axis, value) for axis, value in sorted(total.items()) if value != 0)


def _check_covers(dim: int, size: Size, digits: Digits) -> None:
    padded = digit_product(digits)
    if not is_at_least(padded, size):
        raise LayoutError(
            f"the digits of dim {dim} count {padded} indices, but its size is {size}",
            help="enlarge the outermost digit to ceil_divide(size, product of the extents inside it)",
        )


def _check_names(dims: Sequence[Dim]) -> None:
    named: dict[str, Dim] = {}
    for dim in dims:
        if dim.name and named.setdefault(dim.name, dim) != dim:
            raise LayoutError(
                f"two Dims of one layout are called `{dim.name}` but have different facts",
                help="use one Dim value for one unknown",
            )

"""The pieces of a layout: digits, replicas, partials and XOR terms, and what is done to one dim's list of digits.

A dim's digits are written outermost first. The weight of a digit is the product of the extents inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.dims import (
    Size,
    ceil_divide,
    is_integer,
    is_size,
    known_multiple,
    lower_bound,
    normal,
    static,
    upper_bound,
)

NO_AXIS = "_"
"""The axis of a digit of stride 0 in canonical form: such a digit moves along no axis."""


class Iter(msgspec.Struct, frozen=True):
    """One digit of a dim: digit `k` (`0 <= k < extent`) adds `stride * k` to the coordinate on `axis`."""

    extent: Size
    stride: int
    axis: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "extent", _checked_extent(self.extent))
        _check_stride(self.stride)
        if not (self.axis == NO_AXIS and self.stride == 0):
            check_axis(self.axis)


class Replica(msgspec.Struct, frozen=True):
    """An element is repeated at `stride * k` further along `axis`, for `0 <= k < extent`."""

    extent: Size
    stride: int
    axis: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "extent", _checked_extent(self.extent))
        _check_moving_stride(self.stride, "a replica")
        check_axis(self.axis)


class Partial(msgspec.Struct, frozen=True):
    """The position at `stride * k` along `axis` holds one of `extent` terms; the element is `op` over all of them."""

    extent: Size
    stride: int
    axis: str
    op: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "extent", _checked_extent(self.extent))
        _check_moving_stride(self.stride, "a partial")
        check_axis(self.axis)
        if not _is_operation_name(self.op):
            raise LayoutError(f"{self.op!r} is not the name of a combining operation", help="use a name such as 'add'")


def _is_operation_name(op: object) -> bool:
    return isinstance(op, str) and op.isidentifier()


class XorTerm(msgspec.Struct, frozen=True):
    """`bits` bits of the coordinate on `axis` from bit `target` up are XORed with those from bit `source` up.

    Bits count from the least significant one of a coordinate in elements. The two ranges must not overlap, so that
    applying a term twice changes nothing.
    """

    axis: str
    target: int
    source: int
    bits: int

    def __post_init__(self) -> None:
        check_axis(self.axis)
        if not all(is_integer(value) for value in (self.target, self.source, self.bits)):
            raise LayoutError(
                "the bit positions of a XOR term are integers", help="write XorTerm('mem', target=3, source=6, bits=3)"
            )
        if self.bits < 1 or self.target < 0 or self.source < 0:
            raise LayoutError(
                f"a XOR term takes at least one bit from bit 0 up, got bits={self.bits}, target={self.target}, "
                f"source={self.source}",
                help="drop the term, or use positive bit positions",
            )
        if abs(self.target - self.source) < self.bits:
            raise LayoutError(
                f"bits {self.target}..{self.target + self.bits - 1} and {self.source}..{self.source + self.bits - 1} "
                "of a XOR term overlap, which has no simple inverse",
                help="split it into terms of fewer bits",
            )

    @property
    def top(self) -> int:
        """The first bit above all that the term reads or writes."""
        return max(self.target, self.source) + self.bits

    def apply(self, coordinate: int) -> int:
        """The coordinate after the XOR."""
        return coordinate ^ (((coordinate >> self.source) & ((1 << self.bits) - 1)) << self.target)


AxisIter: TypeAlias = Iter | Replica | Partial
Digits: TypeAlias = tuple[Iter, ...]
AxisIterT = TypeVar("AxisIterT", Iter, Replica, Partial)


def check_axis(axis: object) -> None:
    """Raise LayoutError unless `axis` is a name such as `mem` or `core.x`."""
    if not isinstance(axis, str) or not _is_axis_name(axis):
        raise LayoutError(
            f"{axis!r} is not the name of an axis", help="use a lower-case name such as 'mem' or 'core.x'"
        )


@lru_cache(maxsize=256)
def _is_axis_name(text: str) -> bool:
    is_plain = text.isascii() and text == text.lower() and text[:1].isalpha() and not text.endswith(".")
    return is_plain and ".." not in text and text.replace(".", "_").isidentifier()


def digit_product(digits: Sequence[Iter]) -> Size:
    """The number of indices that the digits count: the padded size of their dim."""
    if not digits:
        return 1
    return digits[0].extent * prod(inner_extents(digits))


def inner_extents(digits: Sequence[Iter]) -> tuple[int, ...]:
    """The extents of all digits but the outermost, which are static.

    Raises:
        LayoutError: one of them is a `Dim`.
    """
    extents: list[int] = []
    for digit in digits[1:]:
        if not isinstance(digit.extent, int):
            raise LayoutError(
                f"the digit `{digit.extent}@{digit.axis}` has an unknown extent but is not the outermost of its dim",
                help="only the outermost digit of a dim may be a Dim: reorder the digits or make this one static",
            )
        extents.append(digit.extent)
    return tuple(extents)


def weighted(digits: Sequence[Iter]) -> Iterator[tuple[int, Iter]]:
    """The digits with their weights, innermost first."""
    weight = 1
    for position in range(len(digits) - 1, -1, -1):
        yield weight, digits[position]
        if position:
            weight *= inner_extents(digits[position - 1 : position + 1])[0]


def fuse_digits(digits: Sequence[Iter]) -> Digits:
    """An equal map with as few digits as possible: extents of 1 go, neighbours that continue each other merge."""
    result: list[Iter] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        if digit.stride == 0 and digit.axis != NO_AXIS:
            digit = Iter(digit.extent, 0, NO_AXIS)
        if result and _continues(result[-1], digit):
            digit = replace(digit, extent=result.pop().extent * static(digit.extent))
        result.append(digit)
    return tuple(result)


def trim_digits(digits: Sequence[Iter], size: Size) -> Digits:
    """Fused digits with no more outermost padding than a dim of `size` needs."""
    left = fuse_digits(digits)
    while left:
        needed = ceil_divide(size, prod(inner_extents(left)))
        if upper_bound(needed) > 1:
            return (replace(left[0], extent=needed), *left[1:])
        left = left[1:]
    return left


def split_digits(digits: Sequence[Iter], inner: int, *, may_grow: bool) -> tuple[Digits, Digits]:
    """Cut digits so that the inner part counts exactly `inner` indices.

    With `may_grow` the outermost digit may be extended to a multiple, which adds padding and moves nothing.

    Raises:
        LayoutError: a digit straddles the cut and does not divide.
    """
    outer, taken, wanted = list(fuse_digits(digits)), list[Iter](), inner
    while wanted > 1:
        if not outer:
            if not may_grow:
                raise _straddles(digits, inner)
            return (), (Iter(wanted, 0, NO_AXIS), *taken)
        digit = outer.pop()
        grows = may_grow and not outer
        if not grows and isinstance(digit.extent, int) and wanted % digit.extent == 0:
            taken.insert(0, digit)
            wanted //= digit.extent
            continue
        if not grows and known_multiple(digit.extent) % wanted:
            raise _straddles(digits, inner)
        count = ceil_divide(digit.extent, wanted)
        taken.insert(0, replace(digit, extent=wanted))
        if upper_bound(count) > 1:
            outer.append(replace(digit, extent=count, stride=digit.stride * wanted))
        break
    return tuple(outer), tuple(taken)


def group_digits(digits: Sequence[Iter], factors: Sequence[Size]) -> tuple[Digits, ...]:
    """Cut digits into one group per factor (outermost first), each counting exactly its factor.

    Raises:
        LayoutError: the product of the factors is not the padded size, or a digit straddles a boundary.
    """
    inner = [factor for factor in factors[1:] if is_integer(factor) and factor > 0]
    if not factors or len(inner) != len(factors) - 1 or digit_product(digits) != factors[0] * prod(inner):
        raise LayoutError(
            f"factors ({', '.join(map(str, factors))}) do not multiply to the padded size {digit_product(digits)}",
            help="give positive static factors, outermost first, that multiply to the padded size of the dim",
        )
    groups: list[Digits] = []
    left = fuse_digits(digits)
    for factor in reversed(inner):
        left, group = split_digits(left, factor, may_grow=False)
        groups.insert(0, group)
    return (left, *groups)


def fuse_copies(copies: Sequence[AxisIterT]) -> tuple[AxisIterT, ...]:
    """Sort replicas (or partials) of positive stride and merge those that continue each other."""
    result: list[AxisIterT] = []
    for copy in sorted(copies, key=_copy_key):
        if copy.extent == 1:
            continue
        if result and _same_kind(result[-1], copy) and _continues(copy, result[-1]):
            copy = replace(result[-1], extent=static(result.pop().extent) * copy.extent)
        result.append(copy)
    return tuple(result)


def _copy_key(copy: AxisIter) -> tuple[str, str, int, int]:
    return (copy.axis, copy.op if isinstance(copy, Partial) else "", copy.stride, upper_bound(copy.extent))


def _same_kind(left: AxisIter, right: AxisIter) -> bool:
    return not isinstance(left, Partial) or (isinstance(right, Partial) and left.op == right.op)


def _continues(outer: AxisIter, inner: AxisIter) -> bool:
    if outer.axis != inner.axis or not isinstance(inner.extent, int):
        return False
    return outer.stride == inner.stride * inner.extent


def _straddles(digits: Sequence[Iter], inner: int) -> LayoutError:
    text = " ".join(f"{digit.extent}@{digit.axis}*{digit.stride}" for digit in digits) or "1"
    return LayoutError(
        f"the digits [{text}] cannot be cut into blocks of {inner} indices: a digit straddles the boundary",
        help="use a block size that the inner digits multiply to, or that divides the digit it falls in",
    )


def _checked_extent(extent: object) -> Size:
    if type(extent) is int and extent > 0:
        return extent
    if not is_size(extent):
        raise LayoutError(f"the extent of a digit is an int or a Dim, not {extent!r}", help="use a size such as 8")
    result = normal(extent)
    if lower_bound(result) < (1 if isinstance(result, int) else 0):
        raise LayoutError(f"the extent {result} is not positive", help="use an extent of at least 1")
    return result


def _check_stride(stride: object) -> None:
    if type(stride) is not int and not is_integer(stride):
        raise LayoutError(f"the stride of a digit is an int, not {stride!r}", help="strides are static")


def _check_moving_stride(stride: object, kind: str) -> None:
    _check_stride(stride)
    if stride == 0:
        raise LayoutError(f"{kind} of stride 0 repeats one address", help="drop it, or give it a stride")

"""Windows of arrays that are whole pages of device tiles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.paging import ABSENT, Paging


class Sum(msgspec.Struct, frozen=True):
    """`constant + sum(dims) + sum(symbols)`, each by its coefficient."""

    constant: int = 0
    dims: tuple[tuple[int, int], ...] = ()
    symbols: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        return Sum(
            self.constant + factor * other.constant,
            _added(self.dims, other.dims, factor),
            _added(self.symbols, other.symbols, factor),
        )


def _added(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]], factor: int
) -> tuple[tuple[int, int], ...]:
    sums = dict(first)
    for position, coefficient in second:
        sums[position] = sums.get(position, 0) + factor * coefficient
    return tuple((position, c) for position, c in sorted(sums.items()) if c)


def linear(expression: AffineExpr) -> Sum | None:
    """An expression as a sum, or None where it divides or takes remainders."""
    match expression:
        case AffineConstantExpr():
            return Sum(expression.value)
        case AffineDimExpr():
            return Sum(0, ((expression.position, 1),))
        case AffineSymExpr():
            return Sum(0, (), ((expression.position, 1),))
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add):
            left, right = linear(expression.lhs), linear(expression.rhs)
            return None if left is None or right is None else left.plus(right)
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul):
            left, right = linear(expression.lhs), linear(expression.rhs)
            if left is None or right is None or (right.dims or right.symbols):
                return None
            return Sum().plus(left, right.constant)
        case _:
            return None


class Window(msgspec.Struct, frozen=True):
    """A tile's window of an array, made of whole pages: its paging, and the coordinates of its pages: for each
    coordinate of a page of the array, the dim of the tile that runs along it (`ABSENT`: none), and the offset, which is
    a sum of symbols in pages."""

    paging: Paging
    dims: tuple[int, ...]
    starts: tuple[Sum, ...]


def natural_paging(map: AffineMap, shape: Sequence[int]) -> Paging:
    """The paging of a tile whose pages are those of the array that it is loaded from: dims of the tile along the
    array's last two dims run along rows and columns; of several, such as a window's positions and the positions within
    it, the first one does."""
    ends = [ABSENT, ABSENT]
    for place, expression in zip((1, 0), reversed(map.results), strict=False):
        found = linear(expression)
        own = [d for d, _ in found.dims if shape[d] > 1] if found is not None else []
        ends[place] = own[0] if own else ABSENT
    if ends[0] == ends[1] != ABSENT:
        ends[0] = ABSENT
    return Paging(ends[0], ends[1]).of(shape)


def window_of(map: AffineMap, shape: Sequence[int], array_shape: Sequence[int], symbols: int) -> Window | None:
    """The window in pages, or None where elements have to be moved one by one: a dim goes along the array's last two
    dims from the beginning of a page on, by steps of one, and ends with a page or with the array."""
    if map.num_symbols > symbols:
        return None
    paging = natural_paging(map, shape)
    results = [linear(e) for e in map.results]
    padded = [*[Sum()] * (2 - len(results)), *results]
    sizes = (*(1,) * (2 - len(array_shape)), *array_shape)
    dims: list[int] = []
    starts: list[Sum] = []
    for place, (found, size) in enumerate(zip(padded, sizes, strict=True)):
        if found is None:
            return None
        own = [(d, c) for d, c in found.dims if shape[d] > 1]
        if len(own) > 1 or any(c != 1 for _, c in own):
            return None
        dim = own[0][0] if own else ABSENT
        if dim in dims and dim != ABSENT:
            return None
        start = replace(found, dims=())
        if place >= len(padded) - 2:
            paged = _in_pages(start)
            if paged is None or not _ends_well(dim, shape, paged, size, is_row=place == len(padded) - 2):
                return None
            start = paged
        dims.append(dim)
        starts.append(start)
    if any(shape[d] > 1 and d not in dims for d in range(len(shape))):
        return None
    if paging != Paging(dims[-2], dims[-1]).of(shape):
        return None
    return Window(paging, tuple(dims), tuple(starts))


def _in_pages(start: Sum) -> Sum | None:
    """The constant of a coordinate, in pages; None if a window begins within a page."""
    if start.constant % TILE or any(c % TILE for _, c in start.symbols):
        return None
    return Sum(start.constant // TILE, (), tuple((s, c // TILE) for s, c in start.symbols))


def _ends_well(dim: int, shape: Sequence[int], start: Sum, size: int, is_row: bool) -> bool:
    """Whether the last page of a window holds nothing of the array that is not of the tile."""
    extent = 1 if dim == ABSENT else shape[dim]
    at_end = not start.symbols and start.constant * TILE + extent == size
    return extent % TILE == 0 or at_end

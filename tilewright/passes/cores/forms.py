"""Layouts of tiles in pages of 32 x 32 elements on a grid of cores, and windows of arrays that are whole pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.dialects import tile
from tilewright.layout.catalogue.device_tiles import TILE

ABSENT = -1


@dataclass(frozen=True)
class Form:
    """Which dims of a tile run along the rows and the columns of pages; `ABSENT` where none does, and the tile is in
    the first row, or column, of its pages. The other dims count pages, before rows and columns of pages do. With
    `turned` the pages of a matrix are in the order of columns."""

    rows: int
    columns: int
    turned: bool = False

    def outer(self, rank: int) -> list[int]:
        """The dims that count pages."""
        return [d for d in range(rank) if d not in (self.rows, self.columns)]

    def of(self, shape: Sequence[int]) -> Form:
        """The form for a tile of a shape: a dim of one element along rows or columns is as good as none."""
        rows = ABSENT if self.rows != ABSENT and shape[self.rows] == 1 else self.rows
        columns = ABSENT if self.columns != ABSENT and shape[self.columns] == 1 else self.columns
        return Form(rows, columns, self.turned and ABSENT not in (rows, columns))

    def renamed(self, names: Mapping[int, int]) -> Form:
        """The form with dims renumbered; dims without a number are absent."""
        return Form(names.get(self.rows, ABSENT), names.get(self.columns, ABSENT), self.turned)

    @property
    def swapped(self) -> Form:
        return Form(self.columns, self.rows, self.turned)


def pages_along(shape: Sequence[int], dim: int) -> int:
    """Pages that a dim along rows or columns takes."""
    return 1 if dim == ABSENT else -(-shape[dim] // TILE)


def page_counts(shape: Sequence[int], form: Form) -> tuple[int, int, int]:
    """Pages that the outer dims, the rows and the columns of a tile take."""
    outer = prod(shape[d] for d in form.outer(len(shape)))
    return outer, pages_along(shape, form.rows), pages_along(shape, form.columns)


def pages_of(shape: Sequence[int], form: Form) -> int:
    return prod(page_counts(shape, form))


def default_form(shape: Sequence[int]) -> Form:
    """The last two dims along rows and columns."""
    rank = len(shape)
    return Form(rank - 2 if rank > 1 else ABSENT, rank - 1 if rank else ABSENT).of(shape)


def completed(rows: int, columns: int, shape: Sequence[int]) -> Form:
    """A form with these dims, and where one is absent, the last dim of more than one element that is left."""
    left = [d for d, size in enumerate(shape) if size > 1 and d not in (rows, columns)]
    if columns == ABSENT and left and (rows == ABSENT or len(shape) > 1):
        columns = left.pop()
    if rows == ABSENT and left:
        rows = left.pop()
    return Form(rows, columns).of(shape)


def stored_corner(form: Form) -> tuple[int, int]:
    """Rows and columns of each page that hold elements of a tile: one along what no dim runs along."""
    rows, columns = (1 if dim == ABSENT else TILE for dim in (form.rows, form.columns))
    return rows, columns


# ---- windows of arrays ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
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


@dataclass(frozen=True)
class Window:
    """A tile's window of an array, made of whole pages: its form, and the coordinates of its pages: for each coordinate
    of a page of the array, the dim of the tile that goes along it (`ABSENT`: none), and what is added, which is a sum
    of symbols in pages."""

    form: Form
    dims: tuple[int, ...]
    starts: tuple[Sum, ...]


def natural_form(map: AffineMap, shape: Sequence[int], array_shape: Sequence[int]) -> Form:
    """The form in which pages of an array are when they are read for a tile: dims of the tile that go along the array's
    last two dims run along rows and columns; of several, such as a window's places and its position, the first one
    does."""
    ends = [ABSENT, ABSENT]
    for place, expression in zip((1, 0), reversed(map.results), strict=False):
        found = linear(expression)
        own = [d for d, _ in found.dims if shape[d] > 1] if found is not None else []
        ends[place] = own[0] if own else ABSENT
    if ends[0] == ends[1] != ABSENT:
        ends[0] = ABSENT
    return Form(ends[0], ends[1]).of(shape)


def window_of(map: AffineMap, shape: Sequence[int], array_shape: Sequence[int], symbols: int) -> Window | None:
    """The window in pages, or None where elements have to be moved one by one: a dim goes along the array's last two
    dims from the beginning of a page on, by steps of one, and ends with a page or with the array."""
    if map.num_symbols > symbols:
        return None
    form = natural_form(map, shape, array_shape)
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
    if form != Form(dims[-2], dims[-1]).of(shape):
        return None
    return Window(form, tuple(dims), tuple(starts))


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


def symbols_of(op: tile.LoadOp | tile.StoreOp) -> tuple[list[SSAValue], list[SSAValue]]:
    """The symbols of an access that are indices, and those that are tiles of integers."""
    from xdsl.dialects.builtin import IndexType

    indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
    lanes = [s for s in op.symbols if not isinstance(s.type, IndexType)]
    return indices, lanes

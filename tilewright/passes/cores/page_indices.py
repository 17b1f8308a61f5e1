"""Indices of the pages of a tile as affine expressions: the page axis of a paging's layout, and its inverse.

A position is a page by its row, which counts the rows of pages of all outer dims, and its column. Coordinates of a page
are in pages along the dims of rows and columns, and in elements along the outer dims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.ir.affine import AffineExpr

from tilewright.layout.catalogue.paging import Paging
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times


def page_index(
    paging: Paging, shape: Sequence[int], outer: Callable[[int], AffineExpr], row: AffineExpr, column: AffineExpr
) -> AffineExpr:
    """The index of the page at a coordinate of each outer dim, and along rows and columns."""
    _, rows, columns = paging.counts(shape)
    before = ZERO
    for dim in paging.outer(len(shape)):
        before = plus(times(before, shape[dim]), outer(dim))
    return _index(paging, (rows, columns), before, row, column)


def page_at(paging: Paging, shape: Sequence[int]) -> Callable[[AffineExpr, AffineExpr], AffineExpr]:
    """The index of the page at a position."""
    _, rows, columns = paging.counts(shape)
    if not paging.is_column_major:
        return lambda row, column: plus(times(row, columns), column)
    return lambda row, column: _index(paging, (rows, columns), divided(row, rows), remainder(row, rows), column)


def _index(
    paging: Paging, counts: tuple[int, int], before: AffineExpr, row: AffineExpr, column: AffineExpr
) -> AffineExpr:
    rows, columns = counts
    if paging.is_column_major:
        return plus(times(plus(times(before, columns), column), rows), row)
    return plus(times(plus(times(before, rows), row), columns), column)


def position_of(paging: Paging, shape: Sequence[int], page: AffineExpr) -> tuple[AffineExpr, AffineExpr]:
    """The position of a page."""
    _, rows, columns = paging.counts(shape)
    if not paging.is_column_major:
        return divided(page, columns), remainder(page, columns)
    outer = divided(page, rows * columns)
    return plus(times(outer, rows), remainder(page, rows)), remainder(divided(page, rows), columns)


def coordinates(paging: Paging, shape: Sequence[int]) -> Callable[[int, AffineExpr, AffineExpr], AffineExpr]:
    """The coordinate along a dim of the page at a position."""
    _, rows, _ = paging.counts(shape)
    outer = paging.outer(len(shape))

    def coordinate(dim: int, row: AffineExpr, column: AffineExpr) -> AffineExpr:
        if dim == paging.columns:
            return column
        if dim == paging.rows:
            return remainder(row, rows)
        below = prod(shape[d] for d in outer if d > dim) * rows
        found = divided(row, below)
        is_first = all(shape[d] == 1 for d in outer if d < dim)
        return found if is_first else remainder(found, shape[dim])

    return coordinate

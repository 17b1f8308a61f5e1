"""Tiles in pages: the layout of a paging, the indices that the lowering computes, and what the executor reads agree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.layout.catalogue import paged_tile, tilized
from tilewright.layout.catalogue.paging import ABSENT, Paging
from tilewright.layout.layout import Layout
from tilewright.passes.cores.page_indices import coordinates, page_at, page_index, position_of
from tilewright.semantics.cores.element_steps import lanes_in_pages

SHAPES = [(), (1,), (40,), (32, 64), (33, 70), (1, 70), (70, 1), (3, 40, 33), (2, 33, 3), (2, 3, 33, 34), (2, 1, 33, 1)]


def pagings(shape: tuple[int, ...]) -> Iterator[Paging]:
    """All pagings of a shape, as they are stored: a dim of one element runs along nothing."""
    found: set[Paging] = set()
    dims = [ABSENT, *range(len(shape))]
    for rows, columns, is_column_major in itertools.product(dims, dims, (False, True)):
        if rows == ABSENT or rows != columns:
            found.add(Paging(rows, columns, is_column_major).of(shape))
    yield from sorted(found, key=str)


CASES = [(shape, paging) for shape in SHAPES for paging in pagings(shape)]


def pages_of(shape: tuple[int, ...], paging: Paging) -> np.ndarray:
    """An array that is cut into pages by reshapes: (pages, 32, 32), of element numbers; -1 is beyond the tile."""
    along = [paging.rows, paging.columns]
    numbered = np.arange(prod(shape)).reshape(shape)
    # What no dim runs along is a dim of one element at the end.
    for side, dim in enumerate(along):
        if dim == ABSENT:
            along[side] = numbered.ndim
            numbered = numbered[..., np.newaxis]
    outer = [dim for dim in range(numbered.ndim) if dim not in along]
    matrices = numbered.transpose([*outer, *along]).reshape(-1, *(numbered.shape[dim] for dim in along))
    padded = np.pad(matrices, [(0, 0), *((0, -size % 32) for size in matrices.shape[1:])], constant_values=-1)
    count, height, width = padded.shape
    cut = padded.reshape(count, height // 32, 32, width // 32, 32).transpose(0, 1, 3, 2, 4)
    return (cut.swapaxes(1, 2) if paging.is_column_major else cut).reshape(-1, 32, 32)


def positions(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """Page and element of each element of a tile, in the order of its elements."""
    found = [layout.coordinates(index) for index in np.ndindex(*shape)]
    return np.array([(at.get("page", 0), at.get("mem", 0)) for at in found])


def by_pages(shape: tuple[int, ...], paging: Paging) -> np.ndarray:
    found = np.zeros((prod(shape), 2), int)
    for (page, row, column), number in np.ndenumerate(pages_of(shape, paging)):
        if number >= 0:
            face = row // 16 * 2 + column // 16
            found[number] = page, face * 256 + row % 16 * 16 + column % 16
    return found


@pytest.mark.parametrize(("shape", "paging"), CASES, ids=str)
def test_the_layout_of_a_paging_is_that_of_its_pages(shape: tuple[int, ...], paging: Paging) -> None:
    layout = paging.layout(shape)
    np.testing.assert_array_equal(positions(layout, shape), by_pages(shape, paging))
    assert Layout.parse(str(layout)) == layout
    assert layout.axes in ((), ("mem",), ("page",), ("page", "mem"), ("mem", "page"))


@pytest.mark.parametrize(("shape", "paging"), CASES, ids=str)
def test_page_counts_are_those_of_the_pages(shape: tuple[int, ...], paging: Paging) -> None:
    pages = pages_of(shape, paging)
    assert paging.pages(shape) == len(pages) == prod(paging.counts(shape))
    sides = pages.reshape(-1, 32, 32).max(0) >= 0
    stored = np.zeros((32, 32), bool)
    stored[: paging.corner[0], : paging.corner[1]] = True
    assert not np.any(sides & ~stored)


@pytest.mark.parametrize(("shape", "paging"), [case for case in CASES if not case[1].is_column_major], ids=str)
def test_the_executor_reads_elements_where_the_layout_has_them(shape: tuple[int, ...], paging: Paging) -> None:
    lanes = np.indices(shape).reshape(len(shape), prod(shape))
    places = lanes_in_pages(lanes, shape, *paging.dims)
    expected = positions(paging.layout(shape), shape)
    np.testing.assert_array_equal(np.stack([places.pages, places.elements], axis=1), expected)
    assert places.count == paging.pages(shape)


def value(expression: AffineExpr, *numbers: int) -> int:
    """An expression at values of its dims."""
    (found,) = AffineMap(len(numbers), 0, (expression,)).eval(list(numbers), [])
    return found


@pytest.mark.parametrize(("shape", "paging"), CASES, ids=str)
def test_indices_of_the_lowering_are_the_page_axis_of_the_layout(shape: tuple[int, ...], paging: Paging) -> None:
    """Each element: its page from its coordinates and from its position, and both back."""
    layout, (_, rows, _) = paging.layout(shape), paging.counts(shape)
    symbols = [AffineExpr.dimension(dim) for dim in range(len(shape) + 1)]
    row_of, column_of = (AffineExpr.constant(0) if dim == ABSENT else symbols[dim] for dim in paging.dims)
    index = page_index(paging, shape, symbols.__getitem__, row_of, column_of)
    row, column, page = (AffineExpr.dimension(dim) for dim in range(3))
    at, coordinate = page_at(paging, shape)(row, column), coordinates(paging, shape)
    back = position_of(paging, shape, page)
    outer = paging.outer(len(shape))
    for element in np.ndindex(*shape):
        expected = layout.coordinates(element).get("page", 0)
        cut = [size // 32 if dim in paging.dims else size for dim, size in enumerate(element)]
        assert value(index, *cut, 0) == expected
        before = 0
        for dim in outer:
            before = before * shape[dim] + element[dim]
        position = [before * rows + (0 if paging.rows == ABSENT else cut[paging.rows])]
        position.append(0 if paging.columns == ABSENT else cut[paging.columns])
        assert value(at, *position, 0) == expected
        assert [value(each, 0, 0, expected) for each in back] == position
        assert [value(coordinate(dim, row, column), *position, 0) for dim in range(len(shape))] == cut


@given(st.lists(st.integers(1, 70), min_size=2, max_size=2), st.integers(1, 3))
def test_the_default_paging_is_that_of_tilized_arrays(matrix: list[int], batch: int) -> None:
    """Matrices with two dims longer than one are contiguous device tiles."""
    shape = (batch, *(max(2, size) for size in matrix))
    paged, stored = Paging.default(shape).layout(shape), tilized(shape)
    for element in itertools.product(*({0, size // 2, size - 1} for size in shape)):
        at = paged.coordinates(element)
        assert at.get("page", 0) * 1024 + at.get("mem", 0) == stored.coordinates(element).get("mem", 0)


def test_pagings_of_what_is_derived_from_a_tile() -> None:
    assert Paging.default((3, 40, 33)) == Paging(1, 2)
    assert Paging.default((3, 40, 1)) == Paging(1, ABSENT)
    assert Paging.default(()) == Paging(ABSENT, ABSENT)
    assert Paging(1, 0, True).of((40, 1)) == Paging(ABSENT, 0)
    assert Paging(1, ABSENT).completed((3, 40, 1)) == Paging(1, 0)
    assert Paging(ABSENT, ABSENT).completed((40,)) == Paging(ABSENT, 0)
    assert Paging(1, 0, True).completed((40, 33)) == Paging(1, 0)
    assert Paging(0, 1, True).renamed({0: 2}) == Paging(2, ABSENT, True)
    assert Paging(0, 1, True).transposed == Paging(1, 0, True)


def test_a_paged_tile_as_text() -> None:
    assert (
        str(paged_tile((2, 64, 32), 1, 2)) == "(2, 64, 32) : [2@page*2 | 2@page 2@mem*512 16@mem*16 | 2@mem*256 16@mem]"
    )
    transposed = paged_tile((64, 64), 1, 0, column_major=True)
    assert str(transposed) == "(64, 64) : [2@page*2 2@mem*256 16@mem | 2@page 2@mem*512 16@mem*16]"
    assert str(paged_tile((40,), None, 0)) == "(40) : [2@page 2@mem*256 16@mem]"

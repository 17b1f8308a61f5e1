"""Linear views: the index of an element in one array as a linear function of its index in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import tile
from tilewright.passes.cores.affine_expressions import plus, times
from tilewright.passes.cores.core_space import array_of, tile_shape
from tilewright.passes.cores.page_windows import Sum, linear
from tilewright.passes.cores.tile_facts import index_range


@dataclass(frozen=True)
class LinearView:
    """The elements of an array of `shape` in a storage of `stored` shape: `rows` has for each dim of the storage the
    coefficients of the array's dims."""

    shape: tuple[int, ...]
    stored: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    def after(self, inner: LinearView) -> LinearView:
        """The view of an array whose own storage is viewed so."""
        rows = np.array(self.rows, int).reshape(len(self.stored), len(self.shape))
        inner_rows = np.array(inner.rows, int).reshape(len(inner.stored), len(inner.shape))
        product = rows @ inner_rows
        return LinearView(inner.shape, self.stored, tuple(tuple(int(n) for n in row) for row in product))

    def map(self, access: AffineMap) -> AffineMap:
        """An access to the array as one to its storage."""
        results: list[AffineExpr] = []
        for row in self.rows:
            result: AffineExpr = AffineExpr.constant(0)
            for expression, coefficient in zip(access.results, row, strict=True):
                result = plus(result, times(expression, coefficient))
            results.append(result)
        return AffineMap(access.num_dims, access.num_symbols, tuple(results))

    def is_merged(self, dim: int) -> bool:
        """Whether a dim of the array is not a dim of the storage by itself, of the same extent."""
        own = [(row, size) for row, size in zip(self.rows, self.stored, strict=True) if row[dim]]
        return not any(size == self.shape[dim] and row[dim] == 1 and sum(map(bool, row)) == 1 for row, size in own)


def merging_view(shape: Sequence[int], stored: Sequence[int]) -> LinearView | None:
    """The view of a reshape that only merges dims; None of one that splits some."""
    rows: list[tuple[int, ...]] = []
    dim = 0
    for size in stored:
        taken: list[int] = []
        while dim < len(shape) and prod(shape[d] for d in taken) < size:
            taken.append(dim)
            dim += 1
        if prod(shape[d] for d in taken) != size:
            return None
        row = [0] * len(shape)
        for place, d in enumerate(taken):
            row[d] = prod(shape[e] for e in taken[place + 1 :]) if shape[d] > 1 else 0
        rows.append(tuple(row))
    if any(size != 1 for size in shape[dim:]):
        return None
    return LinearView(tuple(shape), tuple(stored), tuple(rows))


def view_between(
    viewed: tile.LoadOp | tile.StoreOp, storage: tile.LoadOp | tile.StoreOp, permutation: Sequence[int]
) -> LinearView | None:
    """The view by which a tile that is moved from one array to another is at one index in both; None where that is not
    linear. `permutation`: for each dim of the storage's tile, that of the viewed one's."""
    shape, stored = (tile.ref_type(array_of(op)).shape for op in (viewed, storage))
    first, second = _sums(viewed), _sums(storage)
    if first is None or second is None or list(viewed.symbols) != list(storage.symbols):
        return None
    if any(total.constant for total in (*first, *second)):
        return None
    extents = tile_shape(viewed)
    ranges = [index_range(symbol) for symbol in viewed.symbols]
    if any(count is None for count in ranges):
        return None
    columns = len(extents) + len(ranges)
    varies = np.array([*(n > 1 for n in extents), *(count != 1 for count in ranges)], bool)
    before = _matrix(first, columns, len(extents), range(len(extents)))[:, varies]
    after = _matrix(second, columns, len(extents), permutation)[:, varies]
    solved = np.linalg.lstsq(before.T, after.T, rcond=None)[0].T if before.size else np.zeros((len(stored), len(shape)))
    rows = np.rint(solved).astype(int)
    if (rows < 0).any() or (rows @ before != after).any():
        return None
    return LinearView(shape, stored, tuple(tuple(int(n) for n in row) for row in rows))


def is_within(view: LinearView, map: AffineMap, op: tile.LoadOp | tile.StoreOp) -> bool:
    """Whether an access to an array stays inside of it along the dims that its storage has merged with others: beyond
    them the storage has other elements."""
    shape = tile_shape(op)
    for dim, expression in enumerate(map.results):
        if not view.is_merged(dim):
            continue
        total = linear(expression)
        if total is None:
            return False
        least = most = total.constant
        for terms, counts in ((total.dims, shape), (total.symbols, [index_range(symbol) for symbol in op.symbols])):
            for position, coefficient in terms:
                count = counts[position]
                if count is None:
                    return False
                least, most = least + min(0, coefficient * (count - 1)), most + max(0, coefficient * (count - 1))
        if least < 0 or most >= view.shape[dim]:
            return False
    return True


def _sums(op: tile.LoadOp | tile.StoreOp) -> list[Sum] | None:
    found = [linear(expression) for expression in op.map.results]
    known = [total for total in found if total is not None]
    return known if len(known) == len(found) else None


def _matrix(sums: Sequence[Sum], columns: int, rank: int, dims: Sequence[int]) -> np.ndarray[Any, Any]:
    """The coefficients of dims of the tile, renumbered, and of symbols after them."""
    matrix = np.zeros((len(sums), columns), int)
    for row, total in enumerate(sums):
        for d, coefficient in total.dims:
            matrix[row, dims[d]] = coefficient
        for s, coefficient in total.symbols:
            matrix[row, rank + s] = coefficient
    return matrix

"""Reductions on a grid of cores: by the matrix unit, or without a loss by the vector unit, which the reader helps where
it has no way to reduce a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, i32
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.dialects import cores
from tilewright.dtypes import DType
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.paging import ABSENT
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times
from tilewright.passes.cores.page_indices import page_index
from tilewright.passes.cores.sections import Held, carrier_of, step
from tilewright.passes.cores.threads import Threads
from tilewright.primitives import ArrayType


@dataclass(frozen=True)
class Reduction:
    """Pages of a tile that are reduced over some dims: along the `rows` dim, down each column, the `columns` dim, along
    each row, and others. With a `scaler` the matrix unit does it."""

    held: Held
    dims: tuple[int, ...]
    fn: str
    rows: bool
    columns: bool
    scaler: Held | None

    @property
    def kept(self) -> list[int]:
        """Dims that the results have, in pages: others, then rows, then columns."""
        return [d for d in self._order if d not in self.dims]

    @property
    def _order(self) -> list[int]:
        paging, rank = self.held.paging, self.held.type.rank
        return [*paging.outer(rank), *(d for d in paging.dims if d != ABSENT)]

    def extent(self, dim: int) -> int:
        return self.held.paging.extent(self.held.type.shape, dim)

    def page(self, result: AffineExpr, term: AffineExpr) -> AffineExpr:
        """The index of a page, from the indices of the result's page and of the term."""
        paging = self.held.paging
        places: dict[int, AffineExpr] = {ABSENT: ZERO}
        for dims, number in ((self.kept, result), ([d for d in self._order if d in self.dims], term)):
            below = 1
            for dim in reversed(dims):
                found = divided(number, below)
                places[dim] = found if dim == dims[0] else remainder(found, self.extent(dim))
                below *= self.extent(dim)
        row, column = places[paging.rows], places[paging.columns]
        return plus(page_index(paging, self.held.type.shape, places.__getitem__, row, column), self.held.first)


def lines_left(reduction: Reduction, dtype: DType) -> ArrayType:
    """The type of a tile after its pages are combined: the reduced dims have the extent of one page."""
    paging, type = reduction.held.paging, reduction.held.type
    along = paging.dims
    shape = tuple(
        (min(size, TILE) if dim in along else 1) if dim in reduction.dims else size
        for dim, size in enumerate(type.shape)
    )
    return ArrayType(shape, dtype)


def emit_lines(threads: Threads, left: Held, dims: Sequence[int], fn: str, queue: SSAValue) -> None:
    """The reader combines what is in lines along dims, from their ends on, so that the results are in front."""
    add, format = threads.add, left.format
    for dim in dims:
        shape = tuple(1 if d == dim else size for d, size in enumerate(left.type.shape))
        paging = left.paging.of(shape)
        found = Held(queue, paging, ArrayType(shape, left.type.dtype), left.scope)
        if dim != dims[-1]:
            found.queue = threads.queue(format, paging, shape, hint="lines")
        add(cores.READER, cores.WaitOp, [left.queue], {"pages": left.pages})
        add(cores.READER, cores.ReserveOp, [found.queue], {"pages": found.pages})
        attributes = {
            "fn": fn,
            "axis": dim,
            "reverse": True,
            "shape": left.type.shape,
            "rows": left.paging.rows,
            "columns": left.paging.columns,
            "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, 1, 0]),
        }
        add(cores.READER, cores.ScanOp, [left.queue, found.queue], attributes)
        add(cores.READER, cores.PushOp, [found.queue], {"pages": found.pages})
        add(cores.READER, cores.PopOp, [left.queue], {"pages": left.pages})
        left = found


def emit_reduction(threads: Threads, reduction: Reduction, queue: SSAValue, registers: int) -> None:
    """Reduce, some results at a time, and pack them one after another."""
    results = prod(reduction.extent(d) for d in reduction.kept)
    terms = prod(reduction.extent(d) for d in reduction.dims)
    at_once = 1 if reduction.scaler is None else max(n for n in range(1, registers + 1) if results % n == 0)
    counter = threads.open_loop(results // at_once, roles=[cores.COMPUTE]) if results > at_once else ZERO
    step(threads, cores.ACQUIRE)
    for slot in range(at_once):
        result = plus(times(counter, at_once), slot)
        if reduction.scaler is None:
            _fold_pages(threads, reduction, result, terms)
        else:
            _reduce_pages(threads, reduction, reduction.scaler, result, terms, slot)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    page = plus(times(counter, at_once), AffineExpr.dimension(0))
    threads.add(cores.COMPUTE, cores.PackOp, [queue], {"slot": 0, "count": at_once}, {"at": (1, [page])})
    step(threads, cores.RELEASE)
    if results > at_once:
        threads.close()


def _reduce_pages(
    threads: Threads, reduction: Reduction, scaler: Held, result: AffineExpr, terms: int, slot: int
) -> None:
    """By the matrix unit: all pages to one register."""
    along = {(True, True): cores.SCALAR, (True, False): cores.COLUMN, (False, True): cores.ROW}
    attributes = {
        "fn": reduction.fn,
        "along": along[reduction.rows, reduction.columns],
        "pages": terms,
        "slot": slot,
        "count": 1,
    }
    maps = {"at": (1, [reduction.page(result, AffineExpr.dimension(0))])}
    threads.add(cores.COMPUTE, cores.ReduceOp, [reduction.held.queue, scaler.queue], attributes, maps)


def _fold_pages(threads: Threads, reduction: Reduction, result: AffineExpr, terms: int) -> None:
    """By the vector unit, without a loss: pages are combined place by place, and what is left within one."""
    dtype = carrier_of(reduction.held.type.dtype).name

    def copy(term: AffineExpr, slot: int) -> None:
        attributes = {"slot": slot, "count": 1, "broadcast": cores.NONE}
        maps = {"at": (1, [reduction.page(result, term)])}
        threads.add(cores.COMPUTE, cores.CopyOp, [reduction.held.queue], attributes, maps)

    copy(ZERO, 0)
    if terms > 1:
        counter = threads.open_loop(terms - 1, roles=[cores.COMPUTE])
        copy(plus(counter, 1), 1)
        combine = {"fn": reduction.fn, "dtype": dtype, "arguments": (0, 1), "numbers": ArrayAttr([])}
        threads.add(cores.COMPUTE, cores.MapOp, [], {"slot": 0, "count": 1, **combine})
        threads.close()
    # Sums of rows are in the first column, which is then summed as all columns are.
    for is_along, along in ((reduction.columns, cores.ROW), (reduction.rows, cores.COLUMN)):
        if is_along:
            attributes = {"fn": reduction.fn, "along": along, "dtype": dtype, "slot": 0, "count": 1}
            threads.add(cores.COMPUTE, cores.FoldOp, [], attributes)

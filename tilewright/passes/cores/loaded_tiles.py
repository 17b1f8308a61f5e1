"""Tiles that movers load into a core's queues: pages of arrays, gathered elements, and generated values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IndexType, f64
from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import block_of
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.paging import ABSENT, Paging
from tilewright.passes.cores.affine_expressions import ZERO, plus, times, with_dims, with_symbols
from tilewright.passes.cores.page_indices import coordinates, page_index, position_of
from tilewright.passes.cores.page_windows import Sum, Window, window_of
from tilewright.passes.cores.rows import emit_tilize
from tilewright.passes.cores.sections import Held, Padding, number_of_carrier
from tilewright.passes.cores.threads import Scope, Threads
from tilewright.passes.cores.tile_facts import refuse, storage_format, stored_format
from tilewright.primitives import ArrayType

# The paging of tiles whose two dims are whole pages.
_WHOLE = Paging(0, 1)


class LoadedTiles(ABC):
    """`refs`: the program's arrays, by those of the kernel. `written`: those of the kernel that it stores to. `unread`:
    dims of loads along which nothing reads what is beyond the array. `buffers`: how many tiles a queue to or from a
    mover has room for, in a loop. `index`: coordinates of points and counters of loops. `scopes`:
    where each block of the kernel is written to."""

    def __init__(
        self,
        threads: Threads,
        refs: Mapping[SSAValue, SSAValue],
        written: set[SSAValue],
        unread: Mapping[tile.LoadOp, set[int]],
        buffers: int,
    ) -> None:
        self.threads = threads
        self.refs = refs
        self.index: dict[SSAValue, AffineExpr] = {}
        self.scopes: dict[Block, Scope] = {}
        self._written = written
        self._unread = unread
        self._buffers = buffers
        self._top = threads.scopes[0]
        self._masks: dict[tuple[int, int], Held] = {}
        self._ones: Held | None = None

    @abstractmethod
    def held(
        self,
        value: SSAValue,
        paging: Paging,
        need: tuple[Padding, Padding] = (None, None),
        consumer: str = cores.COMPUTE,
    ) -> Held:
        """A tile in a queue with a paging, whose padding along rows and columns is as needed."""

    @abstractmethod
    def waited(self, tile_held: Held, consumer: str, at_end: bool = True) -> Held:
        """The thread that takes it has waited for it, and gives it back at the end of the scope, if it is to."""

    @abstractmethod
    def scope_of(self, value: SSAValue) -> Scope:
        """The scope in which a tile is produced."""

    def copies(self, scope: Scope, buffers: int) -> int:
        """The tiles that a queue has room for, of those that are produced in a scope."""
        return 1 if scope is self._top else buffers

    def window(self, op: tile.LoadOp) -> Window | None:
        array = tile.ref_type(op.source)
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        if len(indices) < len(op.symbols):
            return None
        return window_of(op.map, array_type(op.result).shape, array.shape, len(indices))

    def loaded(
        self,
        op: tile.LoadOp,
        paging: Paging,
        fill: Padding,
        consumer: str,
        window: Window | None,
        sides: tuple[bool, bool] = (True, True),
        whole_pages: bool = False,
    ) -> Held:
        """A tile of an array. `fill`: what is beyond the array, along rows and columns of pages, or where pages are
        fetched along one of them alone, if no more is needed; with `whole_pages` also along the other dims."""
        if cores.is_by_rows(op.source):
            return self._tilized(op, paging, window)
        type, scope = array_type(op.result), self.scope_of(op.result)
        if window is None and paging.is_column_major:
            raise CompilerBug("elements are gathered to pages in the order of rows")
        format = stored_format(op.source)
        if window is None and format == "bfp8":
            raise refuse(op, "elements of an array of block floats are not read one by one", help="store it as it is")
        queue = self.threads.queue(format, paging, type.shape, copies=self.copies(scope, self._buffers))
        number = float(fill) if isinstance(fill, int | float) else None
        if number is None and op.fill is not None:
            number = number_of_carrier(float(op.fill), type.dtype)
        if op.fill is not None:
            sides, whole_pages = (True, True), True
        unread = self._unread.get(op, ())
        sides = sides[0] and paging.rows not in unread, sides[1] and paging.columns not in unread
        pads = (number if sides[0] or window is None else None, number if sides[1] or window is None else None)
        held = Held(queue, paging, type, scope, pads)
        before, self.threads.location = self.threads.location, op.location
        # What is stored to the same array before has arrived, where one mover does both in turn.
        role = cores.WRITER if op.source in self._written else cores.READER
        with self.threads.inside(role, scope):
            if window is None:
                self._gather(op, held, number, role)
            else:
                self._fetch(op, held, number, sides, whole_pages, window, role)
        self.threads.location = before
        return held

    def _tilized(self, op: tile.LoadOp, paging: Paging, window: Window | None) -> Held:
        """A tile of an array that is stored by rows: pages side by side, whose padding is undefined."""
        type, scope = array_type(op.result), self.scope_of(op.result)
        if window is None or op.fill is not None:
            raise CompilerBug("rows are made tiles by kernels that do no more")
        pages, copies = {"pages": paging.pages(type.shape)}, self.copies(scope, self._buffers)
        rows, tiles = (
            Held(self.threads.queue(format, paging, type.shape, copies=copies), paging, type, scope)
            for format in (stored_format(op.source), storage_format(type.dtype))
        )
        extents, maps = self.page_maps(window, type.shape, paging, op.symbols)
        add = self.threads.add
        with self.threads.inside(cores.READER, scope):
            add(cores.READER, cores.ReserveOp, [rows.queue], pages)
            add(cores.READER, cores.FetchRowsOp, [self.refs[op.source], rows.queue], {"extents": extents}, maps)
            add(cores.READER, cores.BarrierOp, [], {"of": cores.READ})
            add(cores.READER, cores.PushOp, [rows.queue], pages)
        self.waited(rows, cores.COMPUTE)
        with self.threads.inside(cores.COMPUTE, scope):
            emit_tilize(self.threads, rows.queue, tiles.queue, pages["pages"])
        return tiles

    def _fetch(
        self,
        op: tile.LoadOp,
        held: Held,
        fill: float | None,
        sides: tuple[bool, bool],
        whole_pages: bool,
        window: Window,
        role: str,
    ) -> None:
        add, queue, array = self.threads.add, held.queue, self.refs[op.source]
        pages = {"pages": held.pages}
        add(role, cores.ReserveOp, [queue], pages)
        extents, maps = self.page_maps(window, held.type.shape, held.paging, op.symbols)
        add(role, cores.FetchOp, [array, queue], {"extents": extents}, maps)
        add(role, cores.BarrierOp, [], {"of": cores.READ})
        within, outside = _reaches_beyond(window, held.type.shape, tile.ref_type(op.source).shape)
        if fill is not None and ((any(sides) and within) or (whole_pages and outside)):
            value = fill if held.type.dtype.is_float or held.type.dtype.is_bool else int(fill)
            attributes: dict[str, Any] = {"extents": extents, "fill": value}
            if not all(sides):
                attributes["only"] = "rows" if sides[0] else "columns" if sides[1] else "pages"
            add(role, cores.PadOp, [array, queue], attributes, maps)
        add(role, cores.PushOp, [queue], pages)

    def page_maps(
        self, window: Window, shape: Sequence[int], paging: Paging, symbols: Sequence[SSAValue]
    ) -> tuple[tuple[int, ...], dict[str, tuple[int, list[AffineExpr]]]]:
        """Pages of a window, and where they are in a queue."""
        outer = [d for d in paging.outer(len(shape)) if shape[d] > 1]
        _, rows, columns = paging.counts(shape)
        places = {d: AffineExpr.dimension(i) for i, d in enumerate(outer)}
        row, column = AffineExpr.dimension(len(outer)), AffineExpr.dimension(len(outer) + 1)
        extents = (*(shape[d] for d in outer), rows, columns)
        results: list[AffineExpr] = []
        for dim, start in zip(window.dims, window.starts, strict=True):
            own = (
                row
                if dim == paging.rows != ABSENT
                else column
                if dim == paging.columns != ABSENT
                else places.get(dim, ZERO)
            )
            results.append(plus(self._sum(start, symbols), own))
        at = page_index(paging, shape, lambda dim: places.get(dim, ZERO), row, column)
        return extents, {"map": (len(extents), results), "at": (len(extents), [at])}

    def _sum(self, start: Sum, symbols: Sequence[SSAValue]) -> AffineExpr:
        result = AffineExpr.constant(start.constant)
        for position, coefficient in start.symbols:
            result = plus(result, times(self.index[symbols[position]], coefficient))
        return result

    def _gather(self, op: tile.LoadOp, held: Held, fill: float | None, role: str) -> None:
        add, queue = self.threads.add, held.queue
        lanes = self.lanes(op, held.paging, role)
        pages = {"pages": held.pages}
        add(role, cores.ReserveOp, [queue], pages)
        attributes = self._lane_attributes(held)
        if fill is not None:
            attributes["fill"] = fill if held.type.dtype.is_float or held.type.dtype.is_bool else int(fill)
        maps = self.lane_maps(op.map, op.symbols, held.type.rank)
        add(role, cores.GatherOp, [self.refs[op.source], queue], attributes, maps, [h.queue for h in lanes])
        add(role, cores.PushOp, [queue], pages)

    def lanes(self, op: tile.LoadOp | tile.StoreOp, paging: Paging, consumer: str) -> list[Held]:
        """Tiles of integers that state, lane by lane, where elements are."""
        tiles = [s for s in op.symbols if not isinstance(s.type, IndexType)]
        return [self.held(s, paging, consumer=consumer) for s in tiles]

    def _lane_attributes(self, held: Held) -> dict[str, Any]:
        return {"shape": held.type.shape, "rows": held.paging.rows, "columns": held.paging.columns}

    def lane_maps(
        self, map: AffineMap, symbols: Sequence[SSAValue], rank: int
    ) -> dict[str, tuple[int, list[AffineExpr]]]:
        lanes = [s for s in symbols if not isinstance(s.type, IndexType)]
        replaced = [self.index[s] if isinstance(s.type, IndexType) else cores_lane(lanes.index(s)) for s in symbols]
        results = [with_symbols(e, lambda p: replaced[p]) for e in map.results]
        return {"map": (rank, results), "at": (0, [ZERO])}

    def _generated(self, op: tile.IotaOp, paging: Paging) -> Held:
        """A tile of positions, which the reader stores number by number; once, where no index is part of them."""
        type, scope = array_type(op.result), self.scope_of(op.result) if op.symbols else self._top
        pages = paging.pages(type.shape)
        queue = self.threads.queue(dtypes.i32.name, paging, type.shape, copies=self.copies(scope, self._buffers))
        row, column, page = (AffineExpr.dimension(d) for d in range(3))
        place_of = coordinates(paging, type.shape)
        tile_row, tile_column = position_of(paging, type.shape, page)

        def at(dim: int) -> AffineExpr:
            own = place_of(dim, tile_row, tile_column)
            if dim == paging.rows:
                return plus(times(own, TILE), row)
            return plus(times(own, TILE), column) if dim == paging.columns else own

        (expression,) = op.map.results
        number = with_dims(with_symbols(expression, lambda p: self.index[op.symbols[p]]), at)
        held = Held(queue, paging, ArrayType(type.shape, type.dtype), scope)
        with self.threads.inside(cores.READER, scope):
            corner = paging.corner
            is_whole = corner == (TILE, TILE) or isinstance(number, AffineConstantExpr)
            self._generate(queue, pages, number, {} if is_whole else {"corner": corner})
        return held

    def _generate(self, queue: SSAValue, pages: int, number: AffineExpr, attributes: dict[str, Any]) -> None:
        add = self.threads.add
        add(cores.READER, cores.ReserveOp, [queue], {"pages": pages})
        maps = {"map": (3, [number])}
        add(cores.READER, cores.GenerateOp, [queue], {"count": pages, **attributes}, maps)
        add(cores.READER, cores.PushOp, [queue], {"pages": pages})

    def _mask(self, limit: int, side: int) -> Held:
        """A page with 1 in the first rows or columns, and 0 after them."""
        if (limit, side) not in self._masks:
            queue = self.threads.queue(dtypes.bf16.name, _WHOLE, (TILE, TILE), hint="mask")
            choice = ArrayAttr([FloatAttr(float(n), f64) for n in (limit, 1, 0)])
            with self.threads.inside(cores.READER, self._top):
                self._generate(queue, 1, AffineExpr.dimension(side), {"choice": choice})
            type = ArrayType((TILE, TILE), dtypes.bool_)
            self._masks[limit, side] = Held(queue, _WHOLE, type, self._top)
        return self.waited(self._masks[limit, side], cores.COMPUTE)

    def columns_inside(self, op: tile.StoreOp, window: Window, paging: Paging) -> Held:
        """Pages, one for each column of a window's pages, with 1 in columns that the array has, and 0 beyond it."""
        type, array = array_type(op.value), tile.ref_type(op.destination)
        scope = self.scopes[block_of(op)]
        count = paging.counts(type.shape)[2]
        limit = array.shape[-1] if array.shape else 1
        inside = ArrayType((TILE, count * TILE), dtypes.bool_)
        queue = self.threads.queue(dtypes.bf16.name, _WHOLE, inside.shape, hint="mask")
        choice = ArrayAttr([FloatAttr(float(n), f64) for n in (limit, 1, 0)])
        page = plus(self._sum(window.starts[-1], op.symbols), AffineExpr.dimension(2))
        with self.threads.inside(cores.READER, scope):
            self._generate(queue, count, plus(times(page, TILE), AffineExpr.dimension(1)), {"choice": choice})
        held = Held(queue, _WHOLE, inside, scope)
        return self.waited(held, cores.COMPUTE)

    def ones(self) -> Held:
        """The page of ones that sums of pages are multiplied by."""
        if self._ones is None:
            queue = self.threads.queue(dtypes.bf16.name, _WHOLE, (TILE, TILE), hint="scaler")
            with self.threads.inside(cores.READER, self._top):
                self._generate(queue, 1, AffineExpr.constant(1), {"face_rows": True})
            self._ones = Held(queue, _WHOLE, ArrayType((TILE, TILE), dtypes.bf16), self._top)
        return self.waited(self._ones, cores.COMPUTE)


def cores_lane(number: int) -> AffineExpr:
    """The symbol of a tile of integers among those of a map, before roots have places."""
    return AffineExpr.symbol(-1 - number)


def _reaches_beyond(window: Window, shape: Sequence[int], array: Sequence[int]) -> tuple[bool, bool]:
    """Whether pages of a window may have elements that are not in the array along rows or columns, and whether whole
    pages may be outside of it along its other dims."""
    sizes = (*(1,) * (2 - len(array)), *array)
    extents = [1 if dim == ABSENT else shape[dim] for dim in window.dims]
    places = [*zip(window.starts, extents, sizes, strict=True)]
    within = any(_may_leave(s, -(-e // TILE) * TILE, size, TILE) for s, e, size in places[-2:])
    return within, any(_may_leave(s, e, size, 1) for s, e, size in places[:-2])


def _may_leave(start: Sum, extent: int, size: int, unit: int) -> bool:
    """Whether a window of some extent may reach beyond an array of some size; `unit`: the elements that a start counts.
    Windows that are indexed, and begin and end with the array, are adjacent."""
    if not start.symbols:
        return start.constant < 0 or start.constant * unit + extent > size
    steps = [step * unit for _, step in start.symbols]
    return start.constant != 0 or size % extent != 0 or any(step < 0 or size % step for step in steps if step)

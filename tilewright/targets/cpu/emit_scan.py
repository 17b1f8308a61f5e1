"""Print running totals: within vectors along the last axis, over vectors side by side along another."""

from __future__ import annotations

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.cpu.elements import Elements, Mask, first_lanes, lanes_for, vector_loop
from tilewright.targets.cpu.loops import (
    add,
    broadcast,
    entry_alloca,
    i64,
    loop,
    offset_pointer,
    prefetch,
    static,
    vector,
)
from tilewright.targets.cpu.nest_prefetches import READ_AHEAD_BYTES
from tilewright.targets.cpu.ordered_nest import Index, OrderedNest, element_at
from tilewright.targets.cpu.shuffles import repeated, shifted
from tilewright.targets.llvm.conversions import register_form, round_to
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.values import Builder, Value, splat

# Columns up to this many vectors keep their totals in registers.
REGISTERS = 8
# Rows that are asked for before they are needed. Measured: two are better than one or four.
ROWS_AHEAD = 2
# Lines whose totals, each waiting for the one before it, are computed at a time.
INTERLEAVED = 4


def emit_scan(nest: OrderedNest, op: tile.ScanOp) -> None:
    """Append the loops of a scan."""
    source, target = nest.sources[0], nest.targets[0]
    if source is None or target is None:
        raise CompilerBug("a scan reads and writes memory")
    scan = _Scan(nest, op, source, target)
    if not nest.is_along_vectors:
        nest.for_each(nest.beside[:-1], scan.columns)
    elif scan.keeps_order:
        scan.interleaved_lines()
    else:
        nest.for_each(nest.beside, scan.line)


class _Scan:
    """Totals are in register form of the compute type, and rounded to the element type where they are stored."""

    def __init__(self, nest: OrderedNest, op: tile.ScanOp, source: Elements, target: Elements) -> None:
        self.nest = nest
        self.builder: Builder = nest.builder
        self.fn = op.fn
        self.reverse = bool(op.reverse)
        self.source, self.target = source, target
        self.initial = nest.sources[1] if len(nest.sources) > 1 else None
        self.dtype = nest.dtype.compute
        self.identity = _neutral(self.fn, array_type(op.operands[0]).dtype.compute)
        self.count = nest.extents[nest.axis]

    @property
    def keeps_order(self) -> bool:
        """Whether factors must be combined in order. A cumulative product of floats must not combine later factors
        first: they may overflow although the total is small, and infinity times an earlier zero is NaN."""
        return self.fn == "multiply" and self.dtype.is_float

    def combine(self, total: Value, value: Value) -> Value:
        return emit_function(self.builder, self.fn, self.dtype, [total, value])

    def rounded(self, total: Value) -> Value:
        return round_to(self.builder, total, self.target.dtype)

    def place(self, index: Value, span: int) -> Value:
        """The offset of the `index`-th group of elements in scan order, `span` of which are in memory."""
        return self.builder.sub(self.builder.sub(self.count, i64(span)), index) if self.reverse else index

    # ---- along the last axis ------------------------------------------------------------------------------------

    def line(self, index: Index) -> None:
        """One line: totals within a vector by steps of doubling distance, then the total of all before it."""
        builder, axis = self.builder, self.nest.axis
        source, target = element_at(self.source, index), element_at(self.target, index)
        lanes = lanes_for(self.nest.context, self.dtype.itemsize, self.nest.shape[axis])
        before = entry_alloca(builder, register_form(self.dtype, lanes))
        builder.store(broadcast(builder, self.start(index), lanes), before)

        def body(at: Value, mask: Mask | None) -> None:
            place = self.place(at, lanes) if mask is None else i64(0) if self.reverse else at
            value = source.at(axis, place).load_vector(lanes, mask)
            if mask is not None and self.reverse:
                value = builder.select(mask.lanes, value, splat(value.type, self.identity))
            within = self.within(value, lanes)
            carried = builder.load(before, typ=value.type)
            target.at(axis, place).store_vector(self.rounded(self.combine(carried, within)), mask)
            # The next vector waits for one operation, not for the steps within this one.
            whole = repeated(builder, within, 0 if self.reverse else lanes - 1)
            builder.store(self.combine(carried, whole), before)
            if self.nest.streams:
                ahead = i64(-READ_AHEAD_BYTES if self.reverse else READ_AHEAD_BYTES)
                prefetch(builder, offset_pointer(builder, source.at(axis, place).pointer, ahead, 1), 1)

        vector_loop(builder, self.count, lanes, body, "scan")

    def start(self, index: Index) -> Value:
        """The initial value that the first element of a row is combined with."""
        if self.initial is not None:
            return element_at(self.initial, index).load()
        return splat(register_form(self.dtype), self.identity)

    def within(self, value: Value, lanes: int) -> Value:
        """Totals of the lanes up to each one, in order."""
        nothing = splat(value.type, self.identity)
        distance = 1
        while distance < lanes:
            earlier = shifted(self.builder, value, nothing, -distance if self.reverse else distance)
            value = self.combine(earlier, value)
            distance *= 2
        return value

    def interleaved_lines(self) -> None:
        """Element by element, several lines at a time."""
        nest = self.nest
        if not nest.beside:
            self.together({}, None, 1)
            return
        last = nest.beside[-1]

        def lines(index: Index) -> None:
            extent = nest.extents[last]
            known = static(extent)
            whole = self.builder.and_(extent, i64(-INTERLEAVED)) if known is None else i64(known & -INTERLEAVED)
            if known is None or known >= INTERLEAVED:
                with loop(self.builder, i64(0), whole, INTERLEAVED, "lines") as first:
                    self.together(index | {last: first}, last, INTERLEAVED)
            if known is None or known % INTERLEAVED:
                with loop(self.builder, whole, extent, 1, "line") as position:
                    self.together(index | {last: position}, last, 1)

        nest.for_each(nest.beside[:-1], lines)

    def together(self, index: Index, dim: int | None, lines: int) -> None:
        """`lines` neighbours along a dim."""
        builder, axis = self.builder, self.nest.axis
        each = [index if dim is None else index | {dim: add(builder, index[dim], i64(n))} for n in range(lines)]
        totals = [entry_alloca(builder, register_form(self.dtype)) for _ in each]
        for position, total in zip(each, totals, strict=True):
            builder.store(self.start(position), total)
        with loop(builder, i64(0), self.count, 1, "scan") as at:
            place = self.place(at, 1)
            for position, total in zip(each, totals, strict=True):
                value = element_at(self.source, position).at(axis, place).load()
                value = self.combine(builder.load(total, typ=value.type), value)
                builder.store(value, total)
                element_at(self.target, position).at(axis, place).store(self.rounded(value))

    # ---- along another axis -------------------------------------------------------------------------------------

    def columns(self, index: Index) -> None:
        """Lines side by side, a vector of them at a time."""
        last = self.nest.beside[-1]
        width = self.nest.shape[last]
        lanes = lanes_for(self.nest.context, self.dtype.itemsize, width)
        if width <= REGISTERS * lanes:
            self.columns_in_registers(index, last, lanes)
        else:
            self.columns_in_memory(index, last, lanes)

    def columns_in_registers(self, index: Index, last: int, lanes: int) -> None:
        builder, width = self.builder, self.nest.shape[last]
        starts = range(0, width, lanes)
        whole = static(self.nest.extents[last]) == width
        masks = [None if whole and s + lanes <= width else self.mask_from(s, last, lanes) for s in starts]
        totals = [entry_alloca(builder, register_form(self.dtype, lanes)) for _ in starts]
        for start, mask, total in zip(starts, masks, totals, strict=True):
            builder.store(self.start_vector(index | {last: i64(start)}, lanes, mask), total)
        with loop(builder, i64(0), self.count, 1, "scan") as at:
            row = index | {self.nest.axis: self.place(at, 1)}
            for start, mask, total in zip(starts, masks, totals, strict=True):
                self.step(row | {last: i64(start)}, lanes, mask, total)

    def mask_from(self, start: int, last: int, lanes: int) -> Mask:
        return first_lanes(self.builder, add(self.builder, self.nest.extents[last], i64(-start)), lanes)

    def columns_in_memory(self, index: Index, last: int, lanes: int) -> None:
        """Row by row, from the totals that the row before left: in the result, or next to it where the result is of a
        narrower type."""
        builder, axis, extent = self.builder, self.nest.axis, self.nest.extents[last]
        narrow = self.target.dtype != self.dtype
        totals = Elements.temporary(self.nest.context, self.dtype, last, self.nest.shape[last]) if narrow else None

        def row_loop(at: Value, is_first: bool) -> None:
            row = index | {axis: self.place(at, 1)}

            def body(column: Value, mask: Mask | None) -> None:
                here = row | {last: column}
                target = element_at(self.target, here)
                value = element_at(self.source, here).load_vector(lanes, mask)
                if is_first:
                    total = self.start_vector(index | {last: column}, lanes, mask)
                elif totals is not None:
                    total = totals.at(last, column).load_vector(lanes)
                else:
                    total = target.at(axis, i64(1 if self.reverse else -1)).load_vector(lanes, mask)
                total = self.combine(total, value)
                if totals is not None:
                    totals.at(last, column).store_vector(total)
                target.store_vector(self.rounded(total), mask)
                self.fetch_ahead(here)

            vector_loop(builder, extent, lanes, body, "columns")

        row_loop(i64(0), True)
        if self.nest.shape[axis] > 1:
            with loop(builder, i64(1), self.count, 1, "scan") as at:
                row_loop(at, False)

    def fetch_ahead(self, here: Index) -> None:
        """Ask for the elements of a later row: what is between rows keeps the processor from seeing the pattern."""
        axis, ahead = self.nest.axis, i64(-ROWS_AHEAD if self.reverse else ROWS_AHEAD)
        for elements in (self.source, self.target):
            if elements.strides[axis] != self.nest.shape[-1]:
                prefetch(self.builder, element_at(elements, here).at(axis, ahead).pointer, level=1)

    def start_vector(self, index: Index, lanes: int, mask: Mask | None) -> Value:
        if self.initial is not None:
            return element_at(self.initial, index).load_vector(lanes, mask)
        return splat(register_form(self.dtype, lanes), self.identity)

    def step(self, index: Index, lanes: int, mask: Mask | None, total: Value) -> None:
        """Combine the elements at a position with the totals so far."""
        value = element_at(self.source, index).load_vector(lanes, mask)
        before = self.builder.load(total, typ=vector(register_form(self.dtype), lanes))
        value = self.combine(before, value)
        self.builder.store(value, total)
        element_at(self.target, index).store_vector(self.rounded(value), mask)
        self.fetch_ahead(index)


def _neutral(fn: str, dtype: DType) -> float | int:
    """The identity element; for sums of floats it is the negative zero."""
    identity = ops.FUNCTIONS[fn].identity
    if identity is None:
        raise CompilerBug(f"`{fn}` does not scan")
    if fn == "add" and dtype.is_float:
        return -0.0
    return identity(dtype) if dtype.is_float else int(identity(dtype))

"""Print argument reductions: vectors of the best elements so far and of where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.dialects import tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.cpu.elements import Elements, Mask, first_lanes, lanes_for, vector_loop
from tilewright.targets.cpu.loops import (
    I64,
    add,
    broadcast,
    entry_alloca,
    i64,
    lane_numbers,
    loop,
    offset_pointer,
    overwritten,
    static,
    vector,
)
from tilewright.targets.cpu.ordered_keys import LAST, rank, rank_bits, record, record_index
from tilewright.targets.cpu.ordered_nest import Index, OrderedNest, element_at
from tilewright.targets.cpu.shuffles import halves, smallest_lane
from tilewright.targets.llvm.conversions import register_form
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.values import Builder, Value, intrinsic, lanes_of, splat

# Vectors of one line that are compared at a time, to hide how long a comparison takes.
UNROLL = 4
# Columns up to this many vectors keep their best elements in registers.
REGISTERS = 4


def precedes(builder: Builder, fn: str, dtype: DType, value: Value, other: Value) -> Value:
    """`fn(value, other)`, where a NaN precedes everything but a NaN."""
    if not dtype.is_float:
        return emit_function(builder, fn, dtype, [value, other])
    unordered = builder.fcmp_unordered(">" if fn == "greater" else "<", value, other)
    return builder.and_(unordered, builder.fcmp_ordered("ord", other, other))


def emit_arg_reduce(nest: OrderedNest, op: tile.ArgReduceOp) -> None:
    """Append the loops of an argument reduction."""
    source, target = nest.sources[0], nest.targets[0]
    if source is None or target is None:
        raise CompilerBug("an argument reduction reads and writes memory")
    reduction = _ArgReduce(nest, op, source, target)
    if nest.is_along_vectors:
        nest.for_each(nest.beside, reduction.line)
    else:
        nest.for_each(nest.beside[:-1], reduction.columns)


@dataclass(frozen=True)
class _Best:
    """Storage of the best elements of some rows and their indices, in memory that may become registers."""

    value: Value
    index: Value


class _ArgReduce:
    def __init__(self, nest: OrderedNest, op: tile.ArgReduceOp, source: Elements, target: Elements) -> None:
        self.nest = nest
        self.builder: Builder = nest.builder
        self.fn = "greater" if op.fn == "maximum" else "less"
        self.source, self.target = source, target
        self.dtype = nest.dtype.compute
        self.count = nest.extents[nest.axis]
        self.counter = ir.IntType(64 if nest.shape[nest.axis] >= 2**31 else rank_bits(self.dtype))
        # Elements and their indices share masks: as many lanes as the wider of the two has.
        self.lane_bytes = max(self.dtype.itemsize, self.counter.width // 8)

    def started(self, value: Value) -> _Best:
        lanes = lanes_of(value.type)
        best = _Best(entry_alloca(self.builder, value.type), entry_alloca(self.builder, vector(self.counter, lanes)))
        self.builder.store(value, best.value)
        self.builder.store(splat(vector(self.counter, lanes), 0), best.index)
        return best

    def take(self, best: _Best, value: Value, index: Value, mask: Mask | None) -> None:
        """Keep the elements that precede the best so far, which came earlier."""
        builder, align = self.builder, self.dtype.itemsize
        kept = builder.load(best.value, typ=value.type, align=align)
        kept_index = builder.load(best.index, typ=index.type, align=align)
        kept, kept_index = overwritten(builder, kept), overwritten(builder, kept_index)
        better = precedes(builder, self.fn, self.dtype, value, kept)
        if mask is not None:
            better = builder.and_(better, mask.lanes)
        builder.store(builder.select(better, value, kept), best.value, align=align)
        builder.store(builder.select(better, index, kept_index), best.index, align=align)

    def everywhere(self, index: Value, lanes: int) -> Value:
        """An i64 as a counter in every lane."""
        narrow = index if self.counter == I64 else self.builder.trunc(index, self.counter)
        return broadcast(self.builder, narrow, lanes)

    # ---- along the last axis ------------------------------------------------------------------------------------

    def line(self, index: Index) -> None:
        """One line: every lane keeps the first of its best elements, then lanes are compared."""
        source = element_at(self.source, index)
        lanes = lanes_for(self.nest.context, self.lane_bytes, self.nest.shape[self.nest.axis])
        known = static(self.count)
        if known is not None and known <= lanes and self.has_records:
            result = self.in_one_vector(source, lanes, known)
        else:
            result = self.in_many_vectors(source, lanes)
        element_at(self.target, index).store(result)

    @property
    def has_records(self) -> bool:
        return self.counter.width == 32

    def in_one_vector(self, source: Elements, lanes: int, count: int) -> Value:
        builder = self.builder
        mask = None if count == lanes else first_lanes(builder, i64(count), lanes)
        value = source.load_vector(lanes, mask)
        numbers = lane_numbers(self.counter, lanes) if lanes > 1 else splat(self.counter, 0)
        records = self.records(value, numbers)
        if mask is not None:
            records = builder.select(mask.lanes, records, splat(records.type, LAST))
        return record_index(builder, smallest_lane(builder, records))

    def in_many_vectors(self, source: Elements, lanes: int) -> Value:
        """The kept index is that of a vector's start: the lane's own number is added at the end. Lanes that no element
        entered hold the first one, at indices that are not its own; the first lane has it at 0."""
        builder, axis = self.builder, self.nest.axis
        known = static(self.count)
        unroll = UNROLL if known is None or known >= UNROLL * lanes else 1
        first = broadcast(builder, source.load(), lanes)
        bests = [self.started(first) for _ in range(unroll)]
        done: Value = i64(0)
        if unroll > 1:
            step = unroll * lanes
            done = i64(known // step * step) if known is not None else builder.and_(self.count, i64(-step))
            with loop(builder, i64(0), done, step, "arg") as at:
                start = self.everywhere(at, lanes)
                for number, best in enumerate(bests):
                    value = source.at(axis, add(builder, at, i64(number * lanes))).load_vector(lanes)
                    self.take(best, value, start, None)

        def rest(at: Value, mask: Mask | None) -> None:
            value = source.at(axis, at).load_vector(lanes, mask)
            self.take(bests[0], value, self.everywhere(at, lanes), mask)

        if known is None or known > (static(done) or 0):
            vector_loop(builder, self.count, lanes, rest, "rest", done)
        return self.best_of(bests, lanes)

    def best_of(self, bests: Sequence[_Best], lanes: int) -> Value:
        """The index of the best of all lanes, as i64."""
        builder = self.builder
        values: list[Value] = []
        places: list[Value] = []
        for number, best in enumerate(bests):
            values.append(builder.load(best.value, typ=vector(register_form(self.dtype), lanes)))
            index = builder.load(best.index, typ=vector(self.counter, lanes))
            if lanes > 1:
                own = builder.add(lane_numbers(self.counter, lanes), splat(index.type, number * lanes))
                index = builder.add(index, own)
            places.append(index)
        if self.has_records:
            records = [self.records(v, p) for v, p in zip(values, places, strict=True)]
            while len(records) > 1:
                records = [intrinsic(builder, "smin", records[n : n + 2]) for n in range(0, len(records), 2)]
            return record_index(builder, smallest_lane(builder, records[0]))
        chosen = (values[0], places[0])
        for other in zip(values[1:], places[1:], strict=True):
            chosen = self.better(chosen, other)
        while lanes_of(chosen[0].type) > 1:
            (low, high), (low_index, high_index) = (halves(builder, part) for part in chosen)
            chosen = self.better((low, low_index), (high, high_index))
        return chosen[1]

    def records(self, value: Value, index: Value) -> Value:
        order = rank(self.builder, value, self.dtype, descending=self.fn == "greater", nan_first=True)
        return record(self.builder, order, index)

    def better(self, one: tuple[Value, Value], other: tuple[Value, Value]) -> tuple[Value, Value]:
        """The better lanes of two, the earlier ones of equals."""
        builder = self.builder
        wins = precedes(builder, self.fn, self.dtype, other[0], one[0])
        loses = precedes(builder, self.fn, self.dtype, one[0], other[0])
        earlier = builder.icmp_signed("<", other[1], one[1])
        chosen = builder.or_(wins, builder.and_(builder.not_(loses), earlier))
        return builder.select(chosen, other[0], one[0]), builder.select(chosen, other[1], one[1])

    # ---- along another axis -------------------------------------------------------------------------------------

    def columns(self, index: Index) -> None:
        """Lines side by side, a vector of them at a time."""
        last = self.nest.beside[-1]
        width = self.nest.shape[last]
        lanes = lanes_for(self.nest.context, self.lane_bytes, width)
        if width <= REGISTERS * lanes:
            self.columns_in_registers(index, last, lanes)
        else:
            self.columns_in_memory(index, last, lanes)

    def columns_in_registers(self, index: Index, last: int, lanes: int) -> None:
        builder, width = self.builder, self.nest.shape[last]
        extent = self.nest.extents[last]
        starts = range(0, width, lanes)
        whole = static(extent) == width
        masks: list[Mask | None] = [
            None if whole and s + lanes <= width else first_lanes(builder, add(builder, extent, i64(-s)), lanes)
            for s in starts
        ]
        columns = [element_at(self.source, index | {last: i64(s)}) for s in starts]
        bests = [self.started(c.load_vector(lanes, m)) for c, m in zip(columns, masks, strict=True)]
        with loop(builder, i64(0), self.count, 1, "arg") as at:
            row = self.everywhere(at, lanes)
            for column, mask, best in zip(columns, masks, bests, strict=True):
                self.take(best, column.at(self.nest.axis, at).load_vector(lanes, mask), row, None)
        for start, mask, best in zip(starts, masks, bests, strict=True):
            self.finish(index | {last: i64(start)}, best, lanes, mask)

    def columns_in_memory(self, index: Index, last: int, lanes: int) -> None:
        builder, width = self.builder, self.nest.shape[last]
        context, extent = self.nest.context, self.nest.extents[last]
        size = self.counter.width // 8
        values = Elements.temporary(context, self.dtype, last, width)
        places = context.temporary(width * size)

        def best_at(column: Value) -> _Best:
            return _Best(values.at(last, column).pointer, offset_pointer(builder, places, column, size))

        def prepare(column: Value, mask: Mask | None) -> None:
            best = best_at(column)
            first = element_at(self.source, index | {last: column}).load_vector(lanes, mask)
            builder.store(first, best.value, align=self.dtype.itemsize)
            builder.store(splat(vector(self.counter, lanes), 0), best.index, align=size)

        vector_loop(builder, extent, lanes, prepare, "start")
        with loop(builder, i64(0), self.count, 1, "arg") as at:
            row = self.everywhere(at, lanes)

            def body(column: Value, mask: Mask | None) -> None:
                value = element_at(self.source, index | {last: column, self.nest.axis: at}).load_vector(lanes, mask)
                self.take(best_at(column), value, row, None)

            vector_loop(builder, extent, lanes, body, "columns")

        def finish(column: Value, mask: Mask | None) -> None:
            self.finish(index | {last: column}, best_at(column), lanes, mask)

        vector_loop(builder, extent, lanes, finish, "end")

    def finish(self, index: Index, best: _Best, lanes: int, mask: Mask | None) -> None:
        """Write the indices of a vector of lines."""
        place = self.builder.load(best.index, typ=vector(self.counter, lanes), align=self.counter.width // 8)
        wide = place if self.counter == I64 else self.builder.zext(place, vector(I64, lanes))
        element_at(self.target, index).store_vector(wide, mask)

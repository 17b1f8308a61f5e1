"""Print sorts: of elements alone by their ranks, of elements with others or their indices by records."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from tilewright.dialects import tile
from tilewright.errors import CompilerBug
from tilewright.targets.cpu.context import round_up
from tilewright.targets.cpu.elements import Elements, Mask, first_lanes, vector_loop
from tilewright.targets.cpu.loops import (
    I64,
    POINTER,
    add,
    broadcast,
    entry_alloca,
    i64,
    lane_numbers,
    loop,
    minimum,
    offset_pointer,
)
from tilewright.targets.cpu.merged_runs import merge_runs
from tilewright.targets.cpu.ordered_keys import LAST, element_of_rank, rank, rank_bits
from tilewright.targets.cpu.ordered_nest import Index, OrderedNest, element_at
from tilewright.targets.cpu.quick_sort import has_quick_sort, quick_sort
from tilewright.targets.cpu.radix_sort import Digits, radix_sort
from tilewright.targets.cpu.records import Records
from tilewright.targets.cpu.sorted_already import is_sorted
from tilewright.targets.cpu.sorting_network import MOST_IN_COLUMNS, MemorySort, Record, side_by_side
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat, with_element


def emit_sort(nest: OrderedNest, op: tile.SortOp) -> None:
    """Append the loops of a sort."""
    source = nest.sources[0]
    if source is None:
        raise CompilerBug("a sort reads its keys from memory")
    descending = bool(op.descending)
    if any(target is not None for target in nest.targets[1:]):
        sort = RecordSort(nest, source, descending)

        def line(index: Index) -> None:
            write_results(nest, index, sort.sorted(index), nest.sources, nest.shape[nest.axis])

        nest.for_each(nest.beside, line)
    elif nest.targets[0] is not None:
        sort = _RankSort(nest, source, nest.targets[0], descending, op.runs)
        if sort.takes_columns:
            nest.for_each(nest.beside[:-1], sort.columns)
        else:
            nest.for_each(nest.beside, sort.line)


def write_results(
    nest: OrderedNest, index: Index, records: Records, sources: Sequence[Elements | None], count: int
) -> None:
    """Write the elements, or the indices where there is no source, that the first records stand for."""
    builder, axis = nest.builder, nest.axis
    wanted = [(None if s is None else element_at(s, index), t) for s, t in zip(sources, nest.targets, strict=True)]
    pairs = [(source, element_at(target, index)) for source, target in wanted if target is not None]
    adjacent = all(target.is_adjacent(axis) for _, target in pairs)
    lanes = min(nest.context.machine.vector.bytes // 8, count) if adjacent else 1
    lanes = 1 << (lanes.bit_length() - 1)

    def body(at: Value, mask: Mask | None) -> None:
        place = records.at(at).index(lanes)
        if mask is not None:
            place = intrinsic(builder, "smin", [place, splat(place.type, nest.shape[axis] - 1)])
        for source, target in pairs:
            value = place if source is None else source.gather(axis, place)
            target.at(axis, at).store_vector(value, mask)

    vector_loop(builder, i64(count), lanes, body, "result")


def line_vector(builder: Builder, line: Elements, axis: int, at: Value, lanes: int, mask: Mask | None) -> Value:
    """The elements of a row from an index on, in register form."""
    if line.is_adjacent(axis) or lanes == 1:
        return line.at(axis, at).load_vector(lanes, mask)
    numbers = builder.add(broadcast(builder, at, lanes), lane_numbers(I64, lanes))
    if mask is not None:
        first = splat(numbers.type, 0)
        numbers = builder.select(mask.lanes, numbers, first)
    return line.gather(axis, numbers)


def size_for(count: int, lanes: int) -> int:
    """How many places a network needs for a number of records."""
    return max(lanes, 1 << (count - 1).bit_length())


class RecordSort:
    """Sorts the records of lines."""

    def __init__(self, nest: OrderedNest, source: Elements, descending: bool) -> None:
        self.nest = nest
        self.builder: Builder = nest.builder
        self.source = source
        self.descending = descending
        self.dtype = nest.dtype
        self.count = nest.shape[nest.axis]
        self.lanes = nest.context.machine.vector.bytes // 8
        self.size = size_for(self.count, self.lanes)
        self.digits = Digits.of_ranks(self.dtype).of_records
        self.records = Records.temporary(nest.context, self.dtype, self.count, self.size)
        self.spare: Records | None = None
        if len(self.records.planes) == 1 and self.digits.worth(self.count, nest.context.machine):
            self.spare = Records.temporary(nest.context, self.dtype, self.count, self.count)

    def sorted(self, index: Index) -> Records:
        """The records of a line in order, in memory that the next line overwrites."""
        line = element_at(self.source, index)
        sorting = self.records.sorting(self.nest.context.machine)
        if self.size <= sorting.block:
            vectors = [self.vector_at(line, start) for start in range(0, self.size, self.lanes)]
            for number, one in enumerate(sorting.network(self.builder).sorted(vectors)):
                sorting.store(self.builder, self.records.planes, i64(number * self.lanes), one)
            return self.records

        def body(at: Value, mask: Mask | None) -> None:
            sorting.store(self.builder, self.records.planes, at, self.vector(line, at, mask))

        vector_loop(self.builder, i64(self.count), self.lanes, body, "records")
        # Indices ascend: records are in order where their ranks are.
        ranks, machine = self.records.planes[0], self.nest.context.machine
        result = entry_alloca(self.builder, POINTER)
        self.builder.store(ranks, result)
        with self.builder.if_then(self.builder.not_(is_sorted(self.builder, machine, 64, ranks, i64(self.count)))):
            self.builder.store(self.in_order(sorting), result)
        return Records(self.builder, (self.builder.load(result, typ=POINTER), *self.records.planes[1:]))

    def in_order(self, sorting: MemorySort) -> Value:
        """The first plane of the records that have been written, sorted."""
        ranks = self.records.planes[0]
        if self.spare is not None:
            return radix_sort(self.builder, self.digits, ranks, self.spare.planes[0], i64(self.count))
        written = round_up(self.count, self.lanes)
        if written < self.size:
            self.records.at(i64(written)).clear(i64(0), i64(self.size - written), self.lanes)
        sorting.sort(self.builder, self.records.planes, i64(self.size))
        return ranks

    def vector_at(self, line: Elements, start: int) -> Record:
        """A vector of records from a known place on; beyond the end, of those after all others."""
        left = self.count - start
        if left <= 0:
            return (splat(ir.VectorType(I64, self.lanes), LAST),) * len(self.records.planes)
        mask = first_lanes(self.builder, i64(left), self.lanes) if left < self.lanes else None
        return self.vector(line, i64(start), mask)

    def vector(self, line: Elements, at: Value, mask: Mask | None) -> Record:
        builder = self.builder
        value = line_vector(builder, line, self.nest.axis, at, self.lanes, mask)
        order = rank(builder, value, self.dtype.compute, self.descending, nan_first=self.descending)
        index = broadcast(builder, at, self.lanes)
        index = builder.add(index, lane_numbers(I64, self.lanes))
        result = self.records.values(order, index)
        if mask is None:
            return result
        return tuple(builder.select(mask.lanes, v, splat(v.type, LAST)) for v in result)


class _RankSort:
    """Sorts lines of which nothing but the elements is wanted, which their ranks indicate. Zeros of both signs have one
    rank: where there are negative ones, zeros are written again in the order that they had. NaN are all alike."""

    def __init__(self, nest: OrderedNest, source: Elements, target: Elements, descending: bool, runs: int) -> None:
        self.nest = nest
        self.builder: Builder = nest.builder
        self.source, self.target = source, target
        self.merges = runs == 2 and nest.shape[nest.axis] % 2 == 0
        self.descending = descending
        self.dtype = nest.dtype
        self.count = nest.shape[nest.axis]
        self.bits = rank_bits(self.dtype)
        self.sorting = MemorySort(nest.context.machine, 1, self.bits)
        self.lanes = self.sorting.lanes
        self.size = size_for(self.count, self.lanes)
        self.digits = Digits.of_ranks(self.dtype)
        self.is_partitioned = has_quick_sort(self.builder) and not self.merges
        is_moved = self.is_partitioned or self.merges or self.digits.worth(self.count, nest.context.machine)
        self.fits = self.size <= self.sorting.block and target.is_adjacent(nest.axis)
        self.run_places = round_up(self.count // 2, self.lanes) + self.lanes
        places = round_up(self.count, self.lanes) if is_moved else max(self.size, self.sorting.block)
        if self.merges:
            places = 2 * self.run_places
        room = places * self.bits // 8
        self.memory = nest.context.temporary(room) if not self.fits else None
        # A vector that comes last follows each run; results are written in whole vectors.
        beyond = self.lanes * self.bits // 8
        self.spare = nest.context.temporary(room + beyond) if is_moved and not self.fits else None
        self.signs = entry_alloca(self.builder, ir.IntType(self.lanes)) if self.dtype.is_float else None

    def line(self, index: Index) -> None:
        """One line."""
        builder = self.builder
        source, target = element_at(self.source, index), element_at(self.target, index)
        if self.signs is not None:
            builder.store(ir.Constant(ir.IntType(self.lanes), 0), self.signs)
        if self.memory is None:
            self.in_registers(source, target)
        else:
            self.in_memory(source, target, self.memory)
        if self.signs is not None:
            with self.where_signs():
                self.write_zeros(source, target)

    @contextmanager
    def where_signs(self) -> Generator[None]:
        """Code that runs if an element was a negative zero."""
        signs = self.builder.load(self.signs, typ=ir.IntType(self.lanes))
        with self.builder.if_then(self.builder.icmp_unsigned("!=", signs, signs.type(0)), likely=False):
            yield

    @property
    def takes_columns(self) -> bool:
        """Whether lines side by side are sorted as lanes of vectors."""
        last = len(self.nest.shape) - 1
        return (
            self.nest.axis != last
            and self.count <= MOST_IN_COLUMNS
            and self.source.is_adjacent(last)
            and self.target.is_adjacent(last)
        )

    def columns(self, index: Index) -> None:
        """The lines along the last dim, a vector of them at a time."""
        last = len(self.nest.shape) - 1
        extent = self.nest.extents[last]

        def body(at: Value, mask: Mask | None) -> None:
            here = index | {last: at}
            source, target = element_at(self.source, here), element_at(self.target, here)
            self.vector_of_lines(source, target, mask)
            if self.signs is not None:
                left = minimum(self.builder, i64(self.lanes), self.builder.sub(extent, at))
                self.write_zeros_of_lines(source, target, left)

        vector_loop(self.builder, extent, self.lanes, body, "columns")

    def vector_of_lines(self, source: Elements, target: Elements, mask: Mask | None) -> None:
        """A vector of each position in the lines, compared as a whole."""
        builder, axis = self.builder, self.nest.axis
        if self.signs is not None:
            builder.store(ir.Constant(ir.IntType(self.lanes), 0), self.signs)
        loaded = [source.at(axis, i64(n)).load_vector(self.lanes, mask) for n in range(self.count)]
        ranks = [(self.rank_of(value),) for value in loaded]
        for n, (order,) in enumerate(side_by_side(self.sorting.network(builder), ranks)):
            value = element_of_rank(builder, order, self.dtype.compute, self.descending)
            target.at(axis, i64(n)).store_vector(value, mask)

    def write_zeros_of_lines(self, source: Elements, target: Elements, lines: Value) -> None:
        """Zeros of both signs in lines side by side, of which some have negative ones."""
        builder, last = self.builder, len(self.nest.shape) - 1
        with self.where_signs(), loop(builder, i64(0), lines, 1, "line") as line:
            self.write_zeros(source.at(last, line), target.at(last, line))

    def in_registers(self, source: Elements, target: Elements) -> None:
        builder, axis = self.builder, self.nest.axis
        starts = range(0, self.size, self.lanes)
        left = [max(0, self.count - start) for start in starts]
        masks = [None if n >= self.lanes else first_lanes(builder, i64(n), self.lanes) for n in left]
        ranks = [(self.ranks(source, i64(start), mask),) for start, mask in zip(starts, masks, strict=True)]
        for start, mask, (order,) in zip(starts, masks, self.sorting.network(builder).sorted(ranks), strict=True):
            if start < self.count:
                value = element_of_rank(builder, order, self.dtype.compute, self.descending)
                target.at(axis, i64(start)).store_vector(value, mask)

    def in_memory(self, source: Elements, target: Elements, memory: Value) -> None:
        builder, axis = self.builder, self.nest.axis

        def read(at: Value, mask: Mask | None) -> None:
            self.sorting.store(builder, [memory], at, (self.ranks(source, at, mask),))

        if self.merges:
            ordered = self.merged(source, memory)
        else:
            vector_loop(builder, i64(self.count), self.lanes, read, "ranks")
            ordered = self.ordered(memory)
        lanes = self.lanes if target.is_adjacent(axis) else 1

        def write(at: Value, mask: Mask | None) -> None:
            shape = with_element(ir.VectorType(I64, lanes) if lanes > 1 else I64, ir.IntType(self.bits))
            order = builder.load(offset_pointer(builder, ordered, at, self.bits // 8), typ=shape, align=self.bits // 8)
            value = element_of_rank(builder, order, self.dtype.compute, self.descending)
            target.at(axis, at).store_vector(value, mask)

        vector_loop(builder, i64(self.count), lanes, write, "result")

    def merged(self, source: Elements, memory: Value) -> Value:
        """The memory that holds the ranks of two sorted runs in order."""
        builder, half = self.builder, self.count // 2
        if self.spare is None:
            raise CompilerBug("two runs are merged into other memory")
        runs = [memory, offset_pointer(builder, memory, i64(self.run_places), self.bits // 8)]
        for run, start in zip(runs, (0, half), strict=True):

            def read(at: Value, mask: Mask | None, run: Value = run, start: int = start) -> None:
                place = add(builder, at, i64(start))
                self.sorting.store(builder, [run], at, (self.ranks(source, place, mask),))

            vector_loop(builder, i64(half), self.lanes, read, "ranks")
            self.sorting.store(builder, [run], i64(half), (self.behind_all(),))
        merge_runs(builder, self.nest.context.machine, self.bits, (runs[0], runs[1]), self.spare, i64(half))
        return self.spare

    def ordered(self, memory: Value) -> Value:
        """The memory that holds the ranks that were written to some in order."""
        builder, result = self.builder, entry_alloca(self.builder, POINTER)
        builder.store(memory, result)
        with builder.if_then(
            builder.not_(is_sorted(builder, self.nest.context.machine, self.bits, memory, i64(self.count)))
        ):
            builder.store(self.sorted(memory), result)
        return builder.load(result, typ=POINTER)

    def sorted(self, memory: Value) -> Value:
        """The memory that holds the ranks after they have been sorted."""
        builder = self.builder
        if self.spare is not None and self.is_partitioned:
            quick_sort(builder, self.nest.context.machine, self.bits, memory, self.spare, i64(self.count))
            return memory
        if self.spare is not None:
            return radix_sort(builder, self.digits, memory, self.spare, i64(self.count))
        size, written = max(self.size, self.sorting.block), round_up(self.count, self.lanes)
        if written < size:
            with loop(builder, i64(written), i64(size), self.lanes, "clear") as at:
                self.sorting.store(builder, [memory], at, (self.behind_all(),))
        self.sorting.sort(builder, [memory], i64(size))
        return memory

    def ranks(self, source: Elements, at: Value, mask: Mask | None) -> Value:
        """Ranks of a row from an index on; lanes that are masked out come last."""
        builder = self.builder
        if mask is not None and mask.count == 0:
            return self.behind_all()
        order = self.rank_of(line_vector(builder, source, self.nest.axis, at, self.lanes, mask))
        return order if mask is None else builder.select(mask.lanes, order, self.behind_all())

    def rank_of(self, value: Value) -> Value:
        """The ranks of a vector; remembers whether it has negative zeros."""
        builder = self.builder
        if self.signs is not None:
            pattern = builder.bitcast(value, ir.VectorType(ir.IntType(self.bits), self.lanes))
            negative = builder.icmp_unsigned("==", pattern, splat(pattern.type, 1 << (self.bits - 1)))
            seen = builder.load(self.signs, typ=ir.IntType(self.lanes))
            builder.store(builder.or_(seen, builder.bitcast(negative, seen.type)), self.signs)
        return rank(builder, value, self.dtype.compute, self.descending, nan_first=self.descending)

    def behind_all(self) -> Value:
        return splat(ir.VectorType(ir.IntType(self.bits), self.lanes), 2 ** (self.bits - 1) - 1)

    def write_zeros(self, source: Elements, target: Elements) -> None:
        """Zeros begin after what comes before them."""
        builder, axis = self.builder, self.nest.axis
        place = entry_alloca(builder, I64)
        builder.store(i64(0), place)
        with loop(builder, i64(0), i64(self.count), 1, "before") as at:
            value = source.at(axis, at).load()
            zero = splat(value.type, 0.0)
            before = builder.fcmp_ordered("<", value, zero)
            if self.descending:
                before = builder.fcmp_unordered(">", value, zero)
            builder.store(add(builder, builder.load(place, typ=I64), builder.zext(before, I64)), place)
        with loop(builder, i64(0), i64(self.count), 1, "zeros") as at:
            value = source.at(axis, at).load()
            with builder.if_then(builder.fcmp_ordered("==", value, splat(value.type, 0.0))):
                here = builder.load(place, typ=I64)
                target.at(axis, here).store(value)
                builder.store(add(builder, here, i64(1)), place)

"""Print searches for the k largest: most elements are compared with the k-th found so far and left."""

from __future__ import annotations

from llvmlite import ir

from tilewright.dialects import tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.cpu.elements import Elements, first_lanes
from tilewright.targets.cpu.emit_arg_reduce import precedes
from tilewright.targets.cpu.emit_sort import RecordSort, line_vector, size_for, write_results
from tilewright.targets.cpu.loops import I1, I32, I64, add, broadcast, entry_alloca, i64, loop, minimum
from tilewright.targets.cpu.ordered_keys import element_of_rank, rank, rank_bits
from tilewright.targets.cpu.ordered_nest import Index, OrderedNest, element_at
from tilewright.targets.cpu.records import Records, power_of_two
from tilewright.targets.cpu.sorting_network import BLOCK_VECTORS, Network
from tilewright.targets.llvm.conversions import register_form
from tilewright.targets.llvm.values import Builder, Value, intrinsic, splat

# Elements that are compared before any is looked at: a bit each of an i64.
GROUP = 64
# For up to so many elements the search begins with a guess from so many groups.
ESTIMATED = 16
SAMPLE_GROUPS, MOST_SAMPLE_GROUPS = 4, 64


def emit_top_k(nest: OrderedNest, op: tile.TopKOp) -> None:
    """Append the loops of a search."""
    source = nest.sources[0]
    if source is None:
        raise CompilerBug("the largest elements are read from memory")
    k, block = op.k, BLOCK_VECTORS * nest.context.machine.vector.bytes // 8
    if size_for(nest.shape[nest.axis], block) > 2 * size_for(k, block):
        nest.for_each(nest.beside, _Search(nest, source, k).line)
        return
    sort = RecordSort(nest, source, descending=True)

    def line(index: Index) -> None:
        write_results(nest, index, sort.sorted(index), (source, None), k)

    nest.for_each(nest.beside, line)


class _Search:
    """`best` are the first records so far, in order; `pending` those of elements that came before the k-th of these
    when they were read. Once there is no room for another group of them, they are sorted and taken over."""

    def __init__(self, nest: OrderedNest, source: Elements, k: int) -> None:
        self.nest = nest
        self.builder: Builder = nest.builder
        self.source = source
        self.k = k
        self.count = nest.shape[nest.axis]
        self.dtype = nest.dtype
        context = nest.context
        self.vector = context.machine.vector.bytes // 8
        self.sorting = Records.temporary(context, self.dtype, self.count, 0).sorting(context.machine)
        self.kept = size_for(k, self.sorting.block)
        self.room = max(self.kept, 2 * GROUP)
        self.best = Records.temporary(context, self.dtype, self.count, self.kept)
        self.pending = Records.temporary(context, self.dtype, self.count, self.room)
        self.pending_count = entry_alloca(self.builder, I64)
        self.kth = entry_alloca(self.builder, register_form(self.dtype.compute))
        self.unconditional = entry_alloca(self.builder, I64)

    def line(self, index: Index) -> None:
        """One line."""
        builder = self.builder
        source = element_at(self.source, index)
        self.best.clear(i64(0), i64(self.kept), self.vector)
        builder.store(i64(0), self.pending_count)
        builder.store(source.load(), self.kth)
        builder.store(i64(-1), self.unconditional)
        if self.k <= ESTIMATED and self.count >= SAMPLE_GROUPS * GROUP:
            self.estimate(source)
        whole = self.count // GROUP * GROUP
        if whole:
            with loop(builder, i64(0), i64(whole), GROUP, "group") as at:
                self.group(source, at, GROUP)
        if self.count % GROUP:
            self.group(source, i64(whole), self.count % GROUP)
        with builder.if_then(builder.icmp_signed(">", builder.load(self.pending_count, typ=I64), i64(0))):
            self.take_over(source)
        write_results(self.nest, index, self.best, (self.source, None), self.k)

    # ---- reading ------------------------------------------------------------------------------------------------

    def group(self, source: Elements, at: Value, valid: int) -> None:
        """Compare `valid` elements with the k-th so far; look at those that come before it."""
        builder = self.builder
        hits = builder.or_(self.hits(source, at, valid), builder.load(self.unconditional, typ=I64))
        if valid < GROUP:
            hits = builder.and_(hits, i64((1 << valid) - 1))
        with builder.if_then(builder.icmp_unsigned("!=", hits, i64(0))):
            pending = builder.load(self.pending_count, typ=I64)
            with builder.if_then(builder.icmp_signed(">", pending, i64(self.room - GROUP))):
                self.take_over(source)
            self.append(source, at, hits)

    def hits(self, source: Elements, at: Value, valid: int) -> Value:
        """A bit for each element of a group that comes before the k-th so far."""
        builder, dtype = self.builder, self.dtype.compute
        lanes = min(GROUP, self.nest.context.machine.vector.bytes // dtype.itemsize)
        kth = broadcast(builder, builder.load(self.kth, typ=register_form(dtype)), lanes)
        result: Value = i64(0)
        for start in range(0, valid, lanes):
            mask = None if start + lanes <= valid else first_lanes(builder, i64(valid - start), lanes)
            value = source.at(self.nest.axis, add(builder, at, i64(start))).load_vector(lanes, mask)
            before = builder.bitcast(precedes(builder, "greater", dtype, value, kth), ir.IntType(lanes))
            bits = before if lanes == 64 else builder.zext(before, I64)
            result = builder.or_(result, builder.shl(bits, i64(start)))
        return result

    def append(self, source: Elements, at: Value, hits: Value) -> None:
        """Add the records of the elements whose bits are set."""
        builder = self.builder
        before = builder.block
        body, after = builder.append_basic_block("hit"), builder.append_basic_block("hit.end")
        first = builder.load(self.pending_count, typ=I64)
        builder.branch(body)
        builder.position_at_end(body)
        left, count = builder.phi(I64), builder.phi(I64)
        left.add_incoming(hits, before)
        count.add_incoming(first, before)
        place = builder.add(at, intrinsic(builder, "cttz", [left, ir.Constant(I1, 0)]))
        value = source.at(self.nest.axis, place).load()
        order = rank(builder, value, self.dtype.compute, descending=True, nan_first=True)
        self.pending.at(count).put(order, place)
        rest = builder.and_(left, builder.sub(left, i64(1)))
        following = builder.add(count, i64(1))
        left.add_incoming(rest, body)
        count.add_incoming(following, body)
        builder.cbranch(builder.icmp_unsigned("!=", rest, i64(0)), body, after)
        builder.position_at_end(after)
        builder.store(following, self.pending_count)

    # ---- sorting ------------------------------------------------------------------------------------------------

    def take_over(self, source: Elements) -> None:
        """Sort the pending records and keep the first of both: the best in order and these in reverse order, the
        smaller of each pair taken, are the first of all, falling and rising once."""
        builder = self.builder
        pending = builder.load(self.pending_count, typ=I64)
        size = power_of_two(builder, pending, self.sorting.block)
        self.pending.clear(pending, size, self.vector)
        self.sorting.sort(builder, self.pending.planes, size)
        common = minimum(builder, size, i64(self.kept))
        best, network = self.best.at(builder.sub(i64(self.kept), common)), self.sorting.network(builder)
        with loop(builder, i64(0), common, self.vector, "fold") as at:
            mirrored = builder.sub(builder.sub(common, at), i64(self.vector))
            other = network.turned(self.sorting.load(builder, self.pending.planes, mirrored))
            first, _ = network.in_order(self.sorting.load(builder, best.planes, at), other)
            self.sorting.store(builder, best.planes, at, first)
        self.sorting.merge(builder, self.best.planes, i64(self.kept))
        builder.store(i64(0), self.pending_count)
        self.look_at_kth(source)

    def look_at_kth(self, source: Elements) -> None:
        """Compare with the k-th element from here on, if there are as many."""
        builder, kth = self.builder, self.best.at(i64(self.k - 1))
        with builder.if_then(builder.not_(kth.is_last())):
            builder.store(source.at(self.nest.axis, kth.index()).load(), self.kth)
            builder.store(i64(0), self.unconditional)

    # ---- a first guess ------------------------------------------------------------------------------------------

    def estimate(self, source: Elements) -> None:
        """The first of every `GROUP`-th element of the line's start: k of these are at least as large as the k-th of
        them, and few elements are. The threshold is one rank beyond the next, as the k-th itself must pass, and the
        rank between zero and smaller elements belongs to no element."""
        builder, dtype, bits = self.builder, self.dtype.compute, rank_bits(self.dtype)
        lanes = 8 * self.nest.context.machine.vector.bytes // bits
        shape = ir.VectorType(ir.IntType(bits), lanes)
        slots = [entry_alloca(builder, shape) for _ in range(GROUP // lanes)]
        for slot in slots:
            builder.store(splat(shape, 2 ** (bits - 1) - 1), slot)
        sample = min(self.count // GROUP, MOST_SAMPLE_GROUPS) * GROUP
        with loop(builder, i64(0), i64(sample), GROUP, "sample") as at:
            for number, slot in enumerate(slots):
                place = add(builder, at, i64(number * lanes))
                value = line_vector(builder, source, self.nest.axis, place, lanes, None)
                order = rank(builder, value, dtype, descending=True, nan_first=True)
                builder.store(intrinsic(builder, "smin", [builder.load(slot, typ=shape), order]), slot)
        firsts = [(builder.load(slot, typ=shape),) for slot in slots]
        vector, lane = divmod(self.k - 1, lanes)
        (found,) = Network(builder, lanes, 1, bits // 8).sorted(firsts)[vector]
        kth = builder.extract_element(found, ir.Constant(I32, lane))
        limit = builder.add(kth, kth.type(2))
        is_open = builder.icmp_signed(">", kth, splat(kth.type, _rank_of(dtype, dtype.lowest) - 2))
        if dtype.is_float:
            limit = intrinsic(builder, "smax", [limit, splat(kth.type, _rank_of(dtype, dtype.highest))])
        builder.store(element_of_rank(builder, limit, dtype, descending=True), self.kth)
        builder.store(builder.select(is_open, i64(-1), i64(0)), self.unconditional)


def _rank_of(dtype: DType, value: float | int) -> int:
    """The rank of an infinity or of an integer in descending order."""
    if not dtype.is_float:
        return -1 - (int(value) - (2 ** (dtype.bits - 1) if dtype.kind == "u" and dtype.bits >= 32 else 0))
    infinity = 0x7F800000 if dtype.bits == 32 else 0x7FF0000000000000
    return infinity if value < 0 else -1 - infinity

"""Print one loop nest: loops in the planned order, the vector dimension in steps of the vector width with a masked
tail, every value computed at the outermost loop that it varies along."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from llvmlite import ir
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Indices
from tilewright.targets.cpu.context import FunctionContext, round_up
from tilewright.targets.cpu.elements import first_lanes
from tilewright.targets.cpu.index_sets import Cut, split_index_sets
from tilewright.targets.cpu.loops import (
    add,
    aligned,
    broadcast,
    entry_alloca,
    i64,
    loop,
    maximum,
    minimum,
    offset_pointer,
    overwritten,
    static,
    subtract,
    vector,
)
from tilewright.targets.cpu.nest_accumulators import Accumulator, identity_of
from tilewright.targets.cpu.nest_memory import NestMemory
from tilewright.targets.cpu.nest_plan import (
    ROWS,
    UNROLL,
    Item,
    NestPlan,
    operand_items,
    plan_nest,
    root_indices,
)
from tilewright.targets.cpu.nest_position import Position
from tilewright.targets.cpu.past_caches import begin_with_lines, stores_past_caches
from tilewright.targets.cpu.transposed_loads import can_transpose
from tilewright.targets.cpu.vector_runs import open_vectors, runs_of_vectors
from tilewright.targets.llvm.conversions import emit_cast, load_form, narrow, register_form, round_to, widen
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.values import Builder, Value, has_features, lanes_of, splat


def emit_nest(context: FunctionContext, nest: scheduled.NestOp) -> None:
    """Append the code of a nest at the builder's position."""
    plan = plan_nest(nest, context.machine, context.bound)
    if 0 in plan.space:
        return
    past = stores_past_caches(plan, context.machine)
    if not past:
        NestEmitter(context, plan).run()
        return
    with context.builder.if_else(begin_with_lines(context, past)) as (lines, otherwise):
        with lines:
            NestEmitter(context, plan, past).run()
        with otherwise:
            NestEmitter(context, plan).run()


class NestEmitter:
    def __init__(self, context: FunctionContext, plan: NestPlan, past: frozenset[tile.StoreOp] = frozenset()) -> None:
        self.context = context
        self.builder: Builder = context.builder
        self.plan = plan
        self.position = Position()
        self.sets = split_index_sets(plan, has_features(self.builder, "avx512bw"))
        self.memory = NestMemory(context, plan, self.sets, self.position, self.value, past)
        self._scopes: list[dict[Item, Value]] = [{}]
        self._unrolled = 0
        self._turned: dict[Item, Value] = {}
        self._waits: dict[Item, bool] = {}
        self._needed: dict[tuple[tuple[int, int], ...], Collection[Item]] = {}
        self._accumulators: dict[tile.ReduceOp, Accumulator] = {}
        self._extents = self._clipped_extents()

    # ---- loops --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Print the nest, once for each side of the conditions that do not vary within it."""
        condition = self.sets.undecided(self.position.parts)
        if condition is None:
            self._inside()
            return
        key = self.sets.conditions[condition]
        with self.builder.if_else(self.value(*condition)) as sides:
            for holds, side in zip((1, 0), sides, strict=True):
                with side, self._scope():
                    # Memory of running values is addressed within a side.
                    self._accumulators = {}
                    self.position.parts[key] = holds
                    self.run()
                    del self.position.parts[key]

    def _inside(self) -> None:
        """Print the loops, under a branch where what they store may be outside of its arrays as a whole."""
        guards = self.memory.common_guards()
        if not guards:
            self._level(0)
            return
        with self.builder.if_then(self.memory.holds(guards)), self._scope(), self.memory.known(guards):
            self._level(0)

    def _clipped_extents(self) -> dict[int, Value]:
        extents: dict[int, Value] = {d: i64(n) for d, n in enumerate(self.plan.space)}
        for clip in self.plan.clips:
            extents[clip.dim] = self.context.cut(extents[clip.dim], clip.limit, clip.start, clip.symbols)
        return extents

    def _level(self, level: int) -> None:
        """Open the loop at `level` of the order, or print the body."""
        plan = self.plan
        if level == plan.parallel_levels and plan.reduced:
            self._start_accumulators()
        self._compute_ready(level)
        if level == len(plan.order):
            self._body()
            return
        dim = plan.order[level]
        if dim in plan.interleaved_dims[:1] and self._stores_inside():
            self._interleave()
        elif self.sets.cuts_along(dim, self.position.parts):
            self._parts(level, dim, self.sets.cuts[dim])
        elif dim == plan.vector_dim:
            self._vector_loop(level, dim)
        elif dim == plan.turned_dim:
            self._block_loop(level, dim, plan.lanes)
        elif plan.adds_blocks_of_rows(dim):
            self._block_loop(level, dim, ROWS)
        elif static(self._extents[dim]) != 0:
            with self._adding_loop(level, (i64(0), self._extents[dim]), 1, f"d{dim}") as index, self._scope():
                self.position.index[dim] = index
                self._level(level + 1)
        if level == plan.parallel_levels and plan.reduced:
            self._each_total(self._store_totals)

    def _parts(self, level: int, dim: int, cut: Cut) -> None:
        """The loops that the loop along a dim is cut into; each computes the sides of selects that it takes."""
        extent, base = self._extents[dim], self.memory.linear(cut.base)
        start: Value = i64(0)
        for number in range(len(cut.offsets) + 1):
            end = extent
            if number < len(cut.offsets):
                at = add(self.builder, base, i64(cut.offsets[number]))
                # By itself, not from the end before: LLVM's analysis of induction variables would follow a long chain.
                end = minimum(self.builder, maximum(self.builder, at, i64(0)), extent)
            if static(end) is None or static(start) is None or static(start) != static(end):
                self.position.parts[dim] = number
                self._part(level, dim, start, end)
                del self.position.parts[dim]
            start = end

    def _stores_inside(self) -> bool:
        are_whole = all(static(self._extents[dim]) == self.plan.space[dim] for dim in self.plan.interleaved_dims)
        stores = [root for root in self.plan.roots if isinstance(root, tile.StoreOp)]
        return are_whole and all(self.memory.is_inside(store, root_indices(self.plan, store)) for store in stores)

    def _interleave(self) -> None:
        """Compute a vector for each position of the innermost loops, and store the lanes of all side by side."""
        stores, dims = [root for root in self.plan.roots if isinstance(root, tile.StoreOp)], self.plan.interleaved_dims
        rows: list[list[Value]] = []
        for places in itertools.product(*(range(self.plan.space[dim]) for dim in dims)):
            with self._scope(), self.position.at(dict(zip(dims, places, strict=True))):
                rows.append([self.value(store.value, root_indices(self.plan, store)) for store in stores])
        self.position.index.update(dict.fromkeys(dims, i64(0)))
        for store, values in zip(stores, zip(*rows, strict=True), strict=True):
            self.memory.store_interleaved(store, root_indices(self.plan, store), values)

    def _part(self, level: int, dim: int, start: Value, end: Value) -> None:
        if dim == self.plan.vector_dim:
            self._vectors(dim, start, lambda: self._level(level + 1), end)
            return
        with loop(self.builder, start, end, 1, f"d{dim}", hidden=True) as index, self._scope():
            self.position.index[dim] = index
            self._level(level + 1)

    def _block_loop(self, level: int, dim: int, size: int) -> None:
        """Blocks of `size` positions, whose loads are transposed together or whose rows are added together; then a
        shorter block of what is transposed, if its length is known, or one position by one, which may be outside."""
        extent = self._extents[dim]
        known = static(extent)
        whole = i64(known // size * size) if known is not None else self.builder.and_(extent, i64(-size))
        whole, guards = self.memory.blocks_inside(dim, whole, size)
        if static(whole) != 0:
            blocks = self._adding_loop(level, (i64(0), whole), size, f"b{dim}")
            with blocks as index, self._scope(), self.memory.known(guards):
                self.position.index[dim] = index
                self.position.block = index
                self._level(level + 1)
                self.position.block = None
        if not guards and known is not None and known % size and self._transposes_shorter(dim, known):
            with self._scope():
                self.position.index[dim] = self.position.block = whole
                self.position.block_length = known % size
                self._level(level + 1)
                self.position.block = self.position.block_length = None
        elif guards or known is None or known % size:
            with loop(self.builder, whole, extent, 1, f"d{dim}", hidden=True) as index, self._scope():
                self.position.index[dim] = index
                self._level(level + 1)

    def _transposes_shorter(self, dim: int, extent: int) -> bool:
        """Whether what follows on whole blocks of what is transposed is a block, too: rows hold as much as is loaded at
        a time, with what is before it."""
        if dim != self.plan.turned_dim:
            return False
        sizes = [array_type(value).dtype.itemsize for value, _ in self.plan.turned]
        return all(can_transpose(self.plan.lanes, size, extent) for size in sizes)

    def _vector_loop(self, level: int, dim: int) -> None:
        start = self._unrolled_loop(level, dim) if dim in self.plan.reduced else i64(0)
        self._vectors(dim, start, lambda: self._level(level + 1))

    def _whole_vectors(self, dim: int) -> Value:
        """The end of the whole vectors."""
        return self._whole(self._extents[dim])

    def _whole(self, extent: Value) -> Value:
        lanes, known = self.plan.lanes, static(extent)
        return i64(known // lanes * lanes) if known is not None else self.builder.and_(extent, i64(-lanes))

    def _each_total(self, body: Callable[[], None]) -> None:
        """Print a body for each vector of totals of columns, which load nothing; once for other totals."""
        if self.plan.row_by_row and self.plan.vector_dim is not None:
            self._vectors(self.plan.vector_dim, i64(0), body, in_runs=False)
        else:
            body()

    def _vectors(
        self, dim: int, start: Value, body: Callable[[], None], end: Value | None = None, in_runs: bool = True
    ) -> None:
        """Print a body for each vector from `start` on, the last one masked where it is not whole. Without an `end`,
        vectors begin at multiples of the lanes, up to the extent of the dim."""
        lanes, begin = self.plan.lanes, i64(0) if end is None else start
        end = self._extents[dim] if end is None else end
        extent = subtract(self.builder, end, begin)
        known, whole = static(extent), add(self.builder, begin, self._whole(extent))
        if static(whole) != static(start) or static(whole) is None:
            for run in runs_of_vectors(self.memory, dim, start, whole) if in_runs else [(start, whole)]:
                with open_vectors(self.memory, dim, *run), self._scope():
                    body()
        if known is not None and known % lanes == 0:
            return
        remaining = self.builder.sub(end, whole) if known is None else i64(known % lanes)
        with self._when_positive(remaining), self._scope():
            self.position.index[dim] = whole
            self.position.mask = first_lanes(self.builder, remaining, lanes).lanes
            self.position.tail = known % lanes if known is not None else None
            self.position.count = remaining
            if known is not None and (first := static(whole)) is not None:
                self.position.spans[dim] = first, first + known % lanes - 1
            body()
            self.position.spans.pop(dim, None)
            self.position.mask = self.position.tail = self.position.count = None

    def _unrolled_loop(self, level: int, dim: int) -> Value:
        """A reduction along the vector dimension keeps several running vectors, to hide the latency of combining."""
        whole = self._whole_vectors(dim)
        known = static(whole)
        step = self.plan.lanes * UNROLL
        if not self.plan.unrolls(dim) or (known is not None and known < 2 * step):
            return i64(0)
        end = self.builder.and_(whole, i64(-step)) if known is None else i64(known // step * step)
        with self._adding_loop(level, (i64(0), end), step, f"u{dim}") as index:
            for position in range(UNROLL):
                with self._scope():
                    self._unrolled = position
                    self.position.index[dim] = add(self.builder, index, i64(position * self.plan.lanes))
                    self._level(level + 1)
        self._unrolled = 0
        return end

    @contextmanager
    def _adding_loop(self, level: int, bounds: tuple[Value, Value], step: int, name: str) -> Generator[Value]:
        """The loop at a level of the order; where it would add too many floats to one running sum, a nest of loops over
        blocks, each of which has running sums of its own."""
        dim, plan = self.plan.order[level], self.plan
        with ExitStack() as open_loops:
            start, end = bounds
            first = i64(0)
            for trips in plan.sum_blocks(dim):
                index = open_loops.enter_context(
                    loop(self.builder, start, end, trips * step, f"{name}.sums", hidden=True)
                )
                open_loops.enter_context(self._partial_sums())
                # Where all blocks are whole, loops over them have a known number of trips.
                known, size = static(end), i64(trips * step)
                if known is not None and static(start) == 0 and known % (trips * step) == 0:
                    first, start, end = add(self.builder, first, index), i64(0), size
                else:
                    start, end = index, minimum(self.builder, add(self.builder, index, size), end)
            index = open_loops.enter_context(loop(self.builder, start, end, step, name, hidden=True))
            if dim in plan.reduced and plan.closes(plan.chain(level + 1), dim):
                open_loops.enter_context(self._partial_sums())
            yield add(self.builder, first, index)

    @contextmanager
    def _partial_sums(self) -> Generator[None]:
        """Reduce what is inside by itself, then add it to the running values outside."""
        outer = self._accumulators
        self._accumulators = {}
        self._start_accumulators()
        yield
        inner, self._accumulators = self._accumulators, outer

        def join() -> None:
            for reduce, accumulator in inner.items():
                self._add_to_total(outer[reduce], self._joined_slots(accumulator))

        self._each_total(join)

    @contextmanager
    def _when_positive(self, count: Value) -> Generator[None]:
        if static(count) is not None:
            yield
            return
        with self.builder.if_then(self.builder.icmp_signed(">", count, i64(0))):
            yield

    @contextmanager
    def _scope(self) -> Generator[None]:
        self._scopes.append({})
        yield
        self._scopes.pop()

    def _compute_ready(self, level: int) -> None:
        """Compute what varies along the open loops only; the body does the rest."""
        if level == len(self.plan.order):
            return
        for item in self._needed_items():
            owner = item[0].owner
            if isinstance(owner, tile.ReduceOp) or self._below_reduce(item) or self._moves_in_block(item):
                continue
            is_cheap = isinstance(owner, tile.FullOp | tile.BroadcastOp)
            if self.plan.level(item) == level and self._find(item) is None and not is_cheap:
                self.value(*item)

    def _needed_items(self) -> Collection[Item]:
        """The items that the open parts of loops need."""
        if not self.position.parts:
            return self.plan.dependences
        key = tuple(self.position.parts.items())
        if key not in self._needed:
            found = self.sets.needed(self.position.parts)
            self._needed[key] = [item for item in self.plan.dependences if item in found]
        return self._needed[key]

    def _moves_in_block(self, item: Item) -> bool:
        """Whether an item has a value for each position of the open block."""
        dim = max(self.plan.reduced) if self.plan.adds_blocks else self.plan.turned_dim
        return self.position.block is not None and dim in self.plan.dependences[item]

    def _below_reduce(self, item: Item) -> bool:
        """Items computed from a reduction's result have to wait for it."""
        for needed in producers_first([item], self._operands_of, self._waits):
            is_reduced = isinstance(needed[0].owner, tile.ReduceOp)
            self._waits[needed] = is_reduced or any(self._waits[inner] for inner in self._operands_of(needed))
        return self._waits[item]

    def _operands_of(self, item: Item) -> Sequence[Item]:
        """The items that an item is computed from."""
        value, at = item
        op = value.owner
        if not isinstance(op, Operation) or isinstance(op, tile.ReduceOp):
            return ()
        return operand_items(op, at, self.plan)

    # ---- roots and reductions -----------------------------------------------------------------------------------

    def _body(self) -> None:
        if self.plan.adds_blocks or self.plan.row_by_row:
            self._add_rows(max(self.plan.reduced))
            return
        if self.position.block is not None and self.plan.turned_dim is not None:
            length = self.position.block_length or self.plan.lanes
            self._block(self.position.block, self.plan.turned_dim, length)
            return
        self._row()

    def _add_rows(self, dim: int) -> None:
        """Add a vector of each row of the open block, or of the one row, to the totals."""
        start, accumulators = self.position.index[dim], list(self._accumulators.values())
        rows: list[list[Value]] = []
        for n in range(1 if self.position.block is None else ROWS):
            with self._scope():
                self.position.index[dim] = add(self.builder, start, i64(n))
                rows.append([self._next(a) for a in accumulators])
        self.position.index[dim] = start
        for accumulator, values in zip(accumulators, zip(*rows, strict=True), strict=True):
            total = self.builder.load(
                self._total_at(accumulator), align=accumulator.dtype.itemsize, typ=accumulator.shape
            )
            total = accumulator.combine(
                self.builder, overwritten(self.builder, total), accumulator.pairwise(self.builder, values)
            )
            self.builder.store(total, self._total_at(accumulator), align=accumulator.dtype.itemsize)

    def _add_to_total(self, accumulator: Accumulator, part: Value) -> None:
        place, bytes = self._total_at(accumulator), accumulator.dtype.itemsize
        total = overwritten(self.builder, self.builder.load(place, align=bytes, typ=accumulator.shape))
        self.builder.store(accumulator.combine(self.builder, total, part), place, align=bytes)

    def _total_at(self, accumulator: Accumulator) -> Value:
        """The address of the totals of the current columns, or of the first running value."""
        if not self.plan.row_by_row:
            return accumulator.slots[0]
        column = i64(0) if self.plan.vector_dim is None else self.position.index[self.plan.vector_dim]
        return offset_pointer(self.builder, accumulator.slots[0], column, accumulator.dtype.compute.itemsize)

    def _block(self, start: Value, dim: int, length: int) -> None:
        """The rows of a block that is loaded as a whole."""
        loads = {item: item[0].owner for item in self.plan.turned}
        needed = self._needed_items()
        found = {
            i: self.memory.load_turned(op, i[1], length)
            for i, op in loads.items()
            if isinstance(op, tile.LoadOp) and i in needed
        }
        for n in range(length):
            with self._scope():
                self.position.index[dim] = add(self.builder, start, i64(n))
                self._turned = {item: rows[n] for item, rows in found.items() if rows is not None}
                self._row()
        self._turned = {}
        self.position.index[dim] = start

    def _row(self) -> None:
        for accumulator in self._accumulators.values():
            self._accumulate(accumulator)
        for root in self.plan.roots:
            if not isinstance(root.operands[0].owner, tile.ReduceOp):
                self._root(root)

    def _root(self, root: Operation) -> None:
        at = root_indices(self.plan, root)
        if isinstance(root, tile.StoreOp):
            self.memory.store(root, at, self.value(root.value, at))
            return
        self.context.effect(root, self.value(root.operands[0], at), self.position.mask)

    def _start_accumulators(self) -> None:
        plan = self.plan
        for root in plan.roots:
            reduce = root.operands[0].owner
            if not isinstance(reduce, tile.ReduceOp):
                continue
            dtype = array_type(reduce.operands[0]).dtype
            shape = vector(register_form(dtype), plan.lanes if self._is_vector_reduce(reduce) else 1)
            known = self._accumulators.get(reduce)
            if plan.row_by_row and plan.vector_dim is not None:
                self._accumulators[reduce] = known or Accumulator(reduce, [self._row_of_totals(dtype)], shape, dtype)
                continue
            unrolled = plan.vector_dim is not None and plan.vector_dim in plan.reduced and plan.unrolls(plan.vector_dim)
            count = UNROLL if unrolled else 1
            slots = known.slots if known else [entry_alloca(self.builder, shape) for _ in range(count)]
            for slot in slots:
                self.builder.store(identity_of(reduce, shape), slot)
            self._accumulators[reduce] = Accumulator(reduce, slots, shape, dtype)
        if plan.row_by_row and plan.vector_dim is not None:
            self._each_total(self._clear_totals)

    def _row_of_totals(self, dtype: DType) -> Value:
        """Memory for totals side by side, whole vectors of them."""
        columns = 0 if self.plan.vector_dim is None else self.plan.space[self.plan.vector_dim]
        return self.context.temporary(round_up(columns, self.plan.lanes) * dtype.compute.itemsize)

    def _clear_totals(self) -> None:
        for accumulator in self._accumulators.values():
            identity = identity_of(accumulator.reduce, accumulator.shape)
            self.builder.store(identity, self._total_at(accumulator), align=accumulator.dtype.itemsize)

    def _is_vector_reduce(self, reduce: tile.ReduceOp) -> bool:
        (item,) = operand_items(reduce, (), self.plan)
        return self.plan.vector_dim is not None and (
            self.plan.vector_dim in self.plan.dependences[item] or self.plan.vector_dim in self.plan.reduced
        )

    def _accumulate(self, accumulator: Accumulator) -> None:
        slot = accumulator.slots[self._unrolled if len(accumulator.slots) > 1 else 0]
        combined = accumulator.combine(
            self.builder, self.builder.load(slot, typ=accumulator.shape), self._next(accumulator)
        )
        self.builder.store(combined, slot)

    def _next(self, accumulator: Accumulator) -> Value:
        """The value at the current position; the identity in lanes beyond the end."""
        reduce = accumulator.reduce
        ((operand, at),) = operand_items(reduce, (), self.plan)
        value = self._widened(self.value(operand, at), accumulator.shape)
        if self.position.mask is not None and self.plan.vector_dim in self.plan.reduced:
            value = self.builder.select(self.position.mask, value, identity_of(reduce, accumulator.shape))
        return value

    def _widened(self, value: Value, shape: ir.Type) -> Value:
        if isinstance(shape, ir.VectorType) and not isinstance(value.type, ir.VectorType):
            return broadcast(self.builder, value, lanes_of(shape))
        return value

    def _store_totals(self) -> None:
        for root in self.plan.roots:
            reduce = root.operands[0].owner
            if not isinstance(reduce, tile.ReduceOp) or not isinstance(root, tile.StoreOp):
                continue
            accumulator = self._accumulators[reduce]
            total = self._joined_slots(accumulator)
            if self.plan.vector_dim in self.plan.reduced and isinstance(total.type, ir.VectorType):
                total = accumulator.across_lanes(self.builder, total)
            self.memory.store(root, root_indices(self.plan, root), round_to(self.builder, total, accumulator.dtype))

    def _joined_slots(self, accumulator: Accumulator) -> Value:
        slots = [self._total_at(accumulator)] if self.plan.row_by_row else accumulator.slots
        parts = [self.builder.load(s, align=accumulator.dtype.itemsize, typ=accumulator.shape) for s in slots]
        return accumulator.pairwise(self.builder, parts)

    # ---- values -------------------------------------------------------------------------------------------------

    def _find(self, item: Item) -> Value | None:
        for scope in reversed(self._scopes):
            if item in scope:
                return scope[item]
        return None

    def value(self, value: SSAValue, at: Indices) -> Value:
        """The register form of a tile value at nest indices: a vector along the vector dimension, or a scalar that all
        lanes share."""
        item = (value, at)
        found = self._find(item)
        if found is not None:
            return found
        for needed in producers_first([item], self._uncomputed_operands):
            if self._find(needed) is None:
                self._scopes[-1][needed] = self._compute(*needed)
        return self._scopes[-1][item]

    def _uncomputed_operands(self, item: Item) -> Sequence[Item]:
        """The items that are computed before an item; none where a register holds it."""
        if item in self._turned or self._find(item) is not None or self.memory.comparison(item) is not None:
            return ()
        return () if isinstance(item[0].owner, tile.ReduceOp) else self.sets.taken(item, self.position.parts)

    def _compute(self, value: SSAValue, at: Indices) -> Value:
        op = value.owner
        dtype = array_type(value).dtype
        if isinstance(op, tile.FullOp):
            # Rounded as NumPy stores it: a register holds a 16-bit float in more bits than it has.
            return splat(register_form(dtype), np.full((), op.value, dtype.numpy).item())
        if isinstance(op, tile.LoadOp):
            raw = self._turned.get((value, at))
            return self.memory.load(op, at) if raw is None else self.memory.filled(op, at, raw)
        chosen = self.sets.chosen((value, at), self.position.parts)
        if chosen is not None:
            return self.value(*chosen)
        if (comparison := self.memory.comparison((value, at))) is not None:
            return self.memory.compared(comparison)
        if isinstance(op, tile.IotaOp):
            return self.memory.expression(op.map.results[0], at, list(op.symbols))
        if isinstance(op, tile.FillPaddingOp):
            return self._fill_padding(op, at, dtype)
        if not isinstance(op, Operation):
            raise CompilerBug("a nest value without an operation")
        operands = [self.value(o, inner) for o, inner in operand_items(op, at, self.plan)]
        if isinstance(op, tile.MapOp):
            operand_type = array_type(op.operands[-1]).dtype
            operands = aligned(self.builder, operands, self.plan.lanes)
            return emit_function(self.builder, op.fn, operand_type, operands)
        if isinstance(op, tile.CastOp):
            return emit_cast(self.builder, operands[0], array_type(op.operands[0]).dtype, dtype)
        if isinstance(op, tile.BitcastOp):
            return self._bitcast(operands[0], array_type(op.operands[0]).dtype, dtype)
        if isinstance(op, tile.BroadcastOp | tile.TransposeOp | tile.SliceOp | tile.ReshapeOp):
            return operands[0]
        raise CompilerBug(f"{op.name} cannot be computed inside a nest")

    def _bitcast(self, value: Value, source: DType, destination: DType) -> Value:
        form = load_form(destination, lanes_of(value.type))
        bits = self.builder.bitcast(narrow(self.builder, value, source), form)
        return widen(self.builder, bits, destination)

    def _fill_padding(self, op: tile.FillPaddingOp, at: Indices, dtype: DType) -> Value:
        value = self.value(op.source, at)
        if self.memory.is_cut_before(op, at):
            return value
        beyond = self.memory.beyond(op, at)
        fill = splat(value.type, op.value)
        beyond, value, fill = aligned(self.builder, [beyond, value, fill], self.plan.lanes)
        return self.builder.select(beyond, fill, value)

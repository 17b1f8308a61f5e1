"""Print the memory accesses of a loop nest: coordinates, addresses, bounds, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llvmlite import ir
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.passes.affine_access import Access, Form, Indices, access_of, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.index_sets import IndexSets, Linear
from tilewright.targets.cpu.lane_loads import load_lanes
from tilewright.targets.cpu.loops import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    add,
    aligned,
    broadcast,
    i64,
    lane_numbers,
    minimum,
    multiply,
    offset_pointer,
    prefetch,
    static,
)
from tilewright.targets.cpu.masked_memory import masked_load, masked_store, scatter, store_first_lane
from tilewright.targets.cpu.nest_plan import NestPlan, access, is_place, lanes_vary
from tilewright.targets.cpu.past_caches import outgrows_cache, store_past_caches
from tilewright.targets.cpu.strided_access import (
    has_strided_load,
    load_reversed,
    load_strided,
    load_strided_masked,
    store_interleaved,
)
from tilewright.targets.cpu.transposed_loads import load_transposed
from tilewright.targets.llvm.conversions import emit_cast, load_form, narrow, widen
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.integer_division import divide_unsigned, remainder_unsigned
from tilewright.targets.llvm.values import Builder, Value, splat

# Bound on positions that are compared as 32-bit integers, far from overflowing together with a limit.
SMALL = 2**30


# Runs of memory that the hardware does not find by itself: it looks ahead within a page of 4 KiB.
JUMP_BYTES = 1024
RUN_BYTES = 2048
TRIPS_AHEAD = 8
# How far ahead of a stream of stores the lines are asked for, which a store otherwise waits for when it is done.
STORED_AHEAD_BYTES = 1024
READ_AHEAD_BYTES = 2048
WINDOWS_AHEAD = 2


@dataclass(eq=False)
class Position:
    """The position of emission: the index of every open loop, which part of a cut loop it is, the active lanes."""

    index: dict[int, Value] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict[int, int])
    mask: Value | None = None  # None when all lanes are on
    tail: int | None = None  # how many lanes `mask` lets through, where that is known
    count: Value | None = None  # how many lanes `mask` lets through
    block: Value | None = None  # where the block starts that is loaded as a whole


class NestMemory:
    """Loads, stores and affine expressions at a position; `value_of` gives the registers of index tiles. Whole vectors
    of the stores in `past` go past the caches."""

    def __init__(
        self,
        context: FunctionContext,
        plan: NestPlan,
        sets: IndexSets,
        position: Position,
        value_of: Callable[[SSAValue, Indices], Value],
        past: frozenset[tile.StoreOp],
    ) -> None:
        self.context = context
        self.builder: Builder = context.builder
        self.plan = plan
        self.sets = sets
        self.position = position
        self.value_of = value_of
        self.past = past

    # ---- expressions --------------------------------------------------------------------------------------------

    def expression(self, expression: AffineExpr, at: Indices, symbols: Sequence[SSAValue]) -> Value:
        """An affine expression as i64, scalar or vector."""
        if isinstance(expression, AffineConstantExpr):
            return i64(expression.value)
        if isinstance(expression, AffineDimExpr):
            index = at[expression.position]
            if index.dim is None:
                return i64(index.offset)
            return self._plus(self._times(self._dim_value(index.dim), index.stride), i64(index.offset))
        if isinstance(expression, AffineBinaryOpExpr):
            left = self.expression(expression.lhs, at, symbols)
            right = self.expression(expression.rhs, at, symbols)
            if expression.kind is AffineBinaryOpKind.Add:
                return self._plus(left, right)
            left, right = aligned(self.builder, [left, right], self.plan.lanes)
            if expression.kind is AffineBinaryOpKind.Mul:
                return self.builder.mul(left, right)
            fn = "floor_divide" if expression.kind is AffineBinaryOpKind.FloorDiv else "remainder"
            return emit_function(self.builder, fn, dtypes.i64, [left, right])
        return self._symbol(symbols[expression.position], at)  # type: ignore[attr-defined]  the only kind left

    def _symbol(self, symbol: SSAValue, at: Indices) -> Value:
        if is_place(symbol):
            return self.context.scalars[symbol]
        value = self.value_of(symbol, at)
        return emit_cast(self.builder, value, array_type(symbol).dtype, dtypes.i64)

    def _plus(self, left: Value, right: Value) -> Value:
        if isinstance(left.type, ir.VectorType) or isinstance(right.type, ir.VectorType):
            if static(right) == 0:
                return left
            left, right = aligned(self.builder, [left, right], self.plan.lanes)
            return self.builder.add(left, right)
        return add(self.builder, left, right)

    def _times(self, value: Value, factor: int) -> Value:
        if isinstance(value.type, ir.VectorType):
            return value if factor == 1 else self.builder.mul(value, splat(value.type, factor))
        return multiply(self.builder, value, factor)

    def _dim_value(self, dim: int) -> Value:
        """The index along a nest dimension, a vector for the vector dimension."""
        if dim != self.plan.vector_dim:
            return self.position.index[dim]
        base = broadcast(self.builder, self.position.index[dim], self.plan.lanes)
        return self.builder.add(base, lane_numbers(I64, self.plan.lanes))

    def linear(self, linear: Linear) -> Value:
        """The value of a linear expression of index scalars, scalar tiles and loops that do not move along vectors."""
        total: Value = i64(linear.constant)
        for term, coefficient in linear.terms:
            value = self.position.index[term] if isinstance(term, int) else self._symbol(*term)
            total = add(self.builder, total, multiply(self.builder, value, coefficient))
        return total

    def form_value(self, form: Form, symbols: Sequence[SSAValue]) -> Value:
        """A form's value for the first lane."""
        total: Value = i64(form.constant)
        for position, coefficient in form.symbols:
            scalar = self.context.scalars[symbols[position]]
            total = add(self.builder, total, multiply(self.builder, scalar, coefficient))
        for dim, coefficient in form.dims:
            total = add(self.builder, total, multiply(self.builder, self.position.index[dim], coefficient))
        return total

    def beyond(self, op: tile.FillPaddingOp, at: Indices) -> Value:
        """Whether a padding's position is at its limit or after it: of each lane if that makes a difference."""
        limit, symbols = op.limit, list(op.symbols)
        found = access_of(op.source, op.map, symbols, at, {s: not is_place(s) for s in symbols})
        form, dim = found.forms[0], self.plan.vector_dim
        if form is None or found.lanes or dim is None or form.coefficient(dim) != 1 or not self._is_small(form, found):
            position = self.expression(op.map.results[0], at, symbols)
            return self.builder.icmp_signed(">=", position, splat(position.type, limit))
        # Positions in 32 bits: as many lanes as a vector of the values has.
        room = self.builder.trunc(self.builder.sub(i64(limit), self.form_value(form, symbols)), I32)
        return self.builder.icmp_signed(
            ">=", lane_numbers(I32, self.plan.lanes), broadcast(self.builder, room, self.plan.lanes)
        )

    def _is_small(self, form: Form, found: Access) -> bool:
        low, high = self._form_range(form, found)
        return low > -SMALL and high < SMALL

    # ---- addresses ----------------------------------------------------------------------------------------------

    def _coordinate(self, found: Access, position: int) -> Value:
        form = found.forms[position]
        if form is None or found.varying_lanes(position):
            return self.expression(found.map.results[position], found.at, found.symbols)
        if self.plan.vector_dim is not None and form.coefficient(self.plan.vector_dim):
            return self.expression(found.map.results[position], found.at, found.symbols)
        return self.form_value(form, found.symbols)

    def _first_lane(self, found: Access, position: int) -> Value:
        """A coordinate for the first lane of the vector."""
        form = found.forms[position]
        if form is not None and not found.varying_lanes(position):
            return self.form_value(form, found.symbols)
        coordinate = self._coordinate(found, position)
        if isinstance(coordinate.type, ir.VectorType):
            return self.builder.extract_element(coordinate, ir.Constant(I32, 0))
        return coordinate

    def _offset(self, found: Access, coordinates: Sequence[Value]) -> Value:
        """Element offset of coordinates in the ref's layout."""
        total: Value = i64(0)
        for term in address_terms(found.type):
            if term.stride == 0:
                continue
            part = coordinates[term.dim]
            if term.divisor != 1:
                part = self._divide(part, term.divisor)
            if term.modulus is not None:
                part = self._modulo(part, term.modulus)
            total = self._plus(self._times(part, term.stride), total)
        return total

    def _divide(self, value: Value, divisor: int) -> Value:
        known = static(value)
        return i64(known // divisor) if known is not None else divide_unsigned(self.builder, value, divisor)

    def _modulo(self, value: Value, modulus: int) -> Value:
        known = static(value)
        return i64(known % modulus) if known is not None else remainder_unsigned(self.builder, value, modulus)

    def _pointer(self, found: Access, coordinates: Sequence[Value]) -> Value:
        offset = self._offset(found, coordinates)
        return offset_pointer(self.builder, self.context.pointers[found.ref], offset, found.type.dtype.itemsize)

    def _lane_pointers(self, found: Access) -> Value:
        offset = self._offset(found, [self._coordinate(found, i) for i in range(len(found.type.shape))])
        offset = broadcast(self.builder, offset, self.plan.lanes)
        scaled = self._times(offset, found.type.dtype.itemsize)
        base = self.context.pointers[found.ref]
        gep = self.builder.gep(base, [scaled], source_etype=I8)
        gep.type = ir.VectorType(POINTER, self.plan.lanes)
        return gep

    # ---- bounds -------------------------------------------------------------------------------------------------

    def _guard(self, found: Access) -> Value | None:
        """Whether lanes are inside the ref, for coordinates that are not known to be; None when all are."""
        inside: Value | None = None
        for position in self._unsure(found):
            coordinate = self._coordinate(found, position)
            # One unsigned comparison covers both ends.
            check = self.builder.icmp_unsigned("<", coordinate, splat(coordinate.type, found.type.shape[position]))
            inside = self._both(inside, check)
        return inside

    def _unsure(self, found: Access) -> list[int]:
        """The dimensions of a ref along which lanes may be outside."""
        clipped: set[tuple[object, ...]] = {(c.dim, c.limit, c.start, c.symbols) for c in self.plan.clips}
        result: list[int] = []
        for position, size in enumerate(found.type.shape):
            form = found.forms[position]
            low, high = self._range(found, position)
            least, greatest = self.sets.limits(found, position, self.position.parts)
            low = low if least is None else max(low, least)
            high = high if greatest is None else min(high, greatest)
            surely = low >= 0 and (high < size or (form is not None and self._is_clipped(form, found, size, clipped)))
            if not surely:
                result.append(position)
        return result

    def _is_clipped(self, form: Form, found: Access, size: int, clipped: set[tuple[object, ...]]) -> bool:
        if len(form.dims) != 1 or form.dims[0][1] != 1:
            return False
        used = tuple(found.symbols[s] for s, _ in form.symbols)
        start = Form(form.constant, (), tuple((i, c) for i, (_, c) in enumerate(form.symbols)))
        return (form.dims[0][0], size, start, used) in clipped

    def _range(self, found: Access, position: int) -> tuple[int, int]:
        """Smallest and largest value of a coordinate; unbounded for index tiles."""
        form = found.forms[position]
        if form is None:
            return self._nonlinear_range(found, position)
        if found.varying_lanes(position):
            return (-1, found.type.shape[position])
        return self._form_range(form, found)

    def _form_range(self, form: Form, found: Access) -> tuple[int, int]:
        low = high = form.constant
        spans = [(c, self.plan.space[d] - 1) for d, c in form.dims]
        spans += [(c, self.context.bound(found.symbols[s]) - 1) for s, c in form.symbols]
        for coefficient, last in spans:
            low += min(0, coefficient * last)
            high += max(0, coefficient * last)
        return low, high

    def _nonlinear_range(self, found: Access, position: int) -> tuple[int, int]:
        expression = found.map.results[position]
        if isinstance(expression, AffineBinaryOpExpr) and isinstance(expression.rhs, AffineConstantExpr):
            divisor = expression.rhs.value
            if expression.kind is AffineBinaryOpKind.Mod:
                return (0, divisor - 1)
            form = linear_form(expression.lhs, found.at)
            lanes = form is None or any(s in found.lanes for s, _ in form.symbols)
            if form is not None and not lanes and expression.kind is AffineBinaryOpKind.FloorDiv:
                low, high = self._form_range(form, found)
                return (low // divisor, high // divisor)
        return (-1, found.type.shape[position])

    def _both(self, first: Value | None, second: Value | None) -> Value | None:
        """Lanes that two masks let through; None lets all through."""
        if first is None or second is None:
            return first if second is None else second
        return self.builder.and_(*aligned(self.builder, [first, second], self.plan.lanes))

    # ---- accesses -----------------------------------------------------------------------------------------------

    def load(self, op: tile.LoadOp, at: Indices) -> Value:
        """The registers of a loaded tile at nest indices."""
        found = access(op, at)
        dtype = array_type(op.result).dtype
        dims = self.plan.dependences[(op.result, at)]
        guard = self._guard(found)
        fill = op.fill if op.fill is not None else 0
        if self.plan.vector_dim is None or self.plan.vector_dim not in dims:
            return self._load_scalar(found, dtype, guard, fill)
        vary = lanes_vary(self.plan, found)
        if found.is_contiguous(self.plan.vector_dim, self.plan.lanes, vary):
            self._ask_for_next_window(op, found)
            self._ask_for_stream(op, found)
            return self._load_vector(found, dtype, guard, fill)
        stride = found.stride_along(self.plan.vector_dim, vary)
        masked = guard is not None or self.position.mask is not None
        if stride == -1 or has_strided_load(stride, dtype.itemsize, masked):
            return self._load_strided(found, stride or 0, dtype, guard, fill)
        return self._gather(found, dtype, guard, fill)

    def load_turned(self, op: tile.LoadOp, at: Indices) -> list[Value] | None:
        """The value that a load reads at each position of the open block, in memory form; None where it has to look at
        each position whether it is inside."""
        found, plan = access(op, at), self.plan
        dim, vector = plan.turned_dim, plan.vector_dim
        unsure = [(found.type.shape[position], found.forms[position]) for position in self._unsure(found)]
        if dim is None or vector is None or any(form is None or form.coefficient(dim) for _, form in unsure):
            return None
        start = self.position.index[vector]
        stride = found.stride_along(vector, False) or 0
        pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
        itemsize = found.type.dtype.itemsize
        along_runs = plan.order[-1] == dim and outgrows_cache(found, self.context.machine)
        rows: list[Value] = []
        for lane in range(plan.lanes):
            number: Value = i64(lane)
            if self.position.count is not None and lane:
                number = minimum(self.builder, number, self.builder.sub(self.position.count, i64(1)))
            self.position.index[vector] = add(self.builder, start, number)
            row = offset_pointer(self.builder, pointer, multiply(self.builder, number, stride), itemsize)
            if along_runs:  # the rows of the next vector, which the hardware does not see coming
                prefetch(self.builder, offset_pointer(self.builder, row, i64(plan.lanes * stride), itemsize))
            # The base of a ref is always readable: lanes outside read it and are then replaced.
            for size, form in unsure:
                if form is None:
                    continue
                inside = self.builder.icmp_unsigned("<", self.form_value(form, found.symbols), i64(size))
                row = self.builder.select(inside, row, self.context.pointers[found.ref])
            rows.append(row)
        self.position.index[vector] = start
        form = load_form(found.type.dtype, plan.lanes)
        return load_transposed(self.builder, rows, form, itemsize, self.context.machine.vector.registers)

    def filled(self, op: tile.LoadOp, at: Indices, raw: Value) -> Value:
        """The registers of what was loaded, with the fill in lanes outside."""
        fill = op.fill if op.fill is not None else 0
        guard = self._guard(access(op, at))
        value = widen(self.builder, raw, array_type(op.result).dtype)
        if guard is None or op.fill is None:
            return value
        guard, value = aligned(self.builder, [guard, value], self.plan.lanes)
        return self.builder.select(guard, value, splat(value.type, fill))

    def _load_scalar(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        form = load_form(dtype)
        if guard is None:
            return widen(self.builder, self.builder.load(self._pointer(found, coordinates), typ=form), dtype)
        # The base of a ref is always readable: lanes outside read it and are then replaced.
        pointer = self.builder.select(guard, self._pointer(found, coordinates), self.context.pointers[found.ref])
        value = widen(self.builder, self.builder.load(pointer, typ=form), dtype)
        return self.builder.select(guard, value, splat(value.type, fill))

    def _load_vector(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
        shape = load_form(dtype, self.plan.lanes)
        self._ask_ahead(found, pointer)
        if guard is not None and not isinstance(guard.type, ir.VectorType):
            # Where nothing is read, a page that is not there would still cost a trap in the processor.
            pointer = self.builder.select(guard, pointer, self.context.pointers[found.ref])
        mask = self._both(guard, self.position.mask)
        if mask is None:
            return widen(self.builder, self.builder.load(pointer, align=dtype.itemsize, typ=shape), dtype)
        mask = broadcast(self.builder, mask, self.plan.lanes)
        raw = masked_load(self.builder, pointer, mask, shape, dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _ask_ahead(self, found: Access, pointer: Value) -> None:
        """Prefetch data that the loop around the vectors reads some trips later, if it jumps farther than the hardware
        prefetcher follows, from one short run of memory to another. An array that fits the second-level cache needs no
        prefetch."""
        plan, item = self.plan, found.type.dtype.itemsize
        if found.type.space.data or plan.vector_dim is None or not outgrows_cache(found, self.context.machine):
            return
        if (next_trip := self._next_trip_bytes(found)) is not None:
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(next_trip), 1))
            return
        place = plan.order.index(plan.vector_dim)
        # What is read between two jumps: all vectors of a row, or a few where the jumps are inside.
        inside = plan.order[place + 1 : place + 2]
        neighbour = inside or plan.order[max(0, place - 1) : place]
        run = 0 if inside else item * plan.space[plan.vector_dim]
        for dim in neighbour:
            step = item * (found.stride_along(dim, lanes_vary(plan, found)) or 0)
            if step >= JUMP_BYTES and run <= min(RUN_BYTES, step) and plan.space[dim] > TRIPS_AHEAD:
                prefetch(self.builder, offset_pointer(self.builder, pointer, i64(TRIPS_AHEAD * step), 1))

    def _ask_for_next_window(self, op: tile.LoadOp, found: Access) -> None:
        """A value that a nest reads for the second time is in cache: it prefetches what the first one will read
        next."""
        step_bytes = found.type.dtype.itemsize * _step_of_windows(found) * WINDOWS_AHEAD
        earlier = [load for load in self.context.loaded if _same_window(load, op)]
        machine = self.context.machine
        if len(earlier) != 1 or not step_bytes or not outgrows_cache(found, machine):
            return
        level = next((n for n in (1, 2) if 4 * step_bytes <= machine.memory(f"l{n}").bytes), None)
        if level is not None:
            pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(step_bytes), 1), level)

    def _next_trip_bytes(self, found: Access) -> int | None:
        """How far it is to what the nest reads or writes in the next trip, while the matmul of which comes first; None
        where there is no matmul, or the array stays in a cache."""
        counter = self.context.turn
        steps = [
            coefficient * term.stride
            for term in address_terms(found.type)
            if (form := found.forms[term.dim]) is not None and term.divisor == 1 and term.modulus is None
            for symbol, coefficient in form.symbols
            if found.symbols[symbol] is counter
        ]
        return sum(steps) * found.type.dtype.itemsize if steps and outgrows_cache(found, self.context.machine) else None

    def _ask_for_stream(self, op: tile.LoadOp, found: Access) -> None:
        """Ask for the lines that a stream of loads comes to, which the hardware loads no nearer than the second-level
        cache: too far for arithmetic to continue meanwhile."""
        again = any(_same_window(load, op) for load in self.context.loaded)
        if not self.plan.reduced and not again and not found.lanes and self._streams(found, READ_AHEAD_BYTES):
            pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
            prefetch(self.builder, offset_pointer(self.builder, pointer, i64(READ_AHEAD_BYTES), 1), 1)

    def _claim_ahead(self, op: tile.StoreOp, at: Indices, found: Access, pointer: Value) -> None:
        """Prefetch the cache lines of a stream of stores. The destination of a later nest is prefetched here, by the
        nest that fills the buffer it is computed from, while that one computes."""
        context = self.context
        if self.position.block is not None and self.plan.turned_dim is not None:
            self._claim_next_block(found, pointer, self.plan.turned_dim)
            return
        if not found.type.space.data:
            next_trip = self._next_trip_bytes(found)
            if next_trip is not None:
                prefetch(self.builder, offset_pointer(self.builder, pointer, i64(next_trip), 1), 1, to_write=True)
            elif op not in context.claimed and self._streams(found, STORED_AHEAD_BYTES):
                self._claim(pointer)
            return
        later = next((s for s in context.upcoming if array_type(s.value).shape == self.plan.space), None)
        if later is None or context.claimed.get(later, op) is not op or len(at) != len(self.plan.space):
            return
        target = access(later, at)
        if not target.lanes and self._streams(target, STORED_AHEAD_BYTES):
            context.claimed[later] = op
            self._claim(self._pointer(target, [self._first_lane(target, i) for i in range(len(target.type.shape))]))

    def _claim_next_block(self, found: Access, pointer: Value, dim: int) -> None:
        """Ask for the line that the same row of the next block writes."""
        step = found.stride_along(dim, False)
        if step is not None and outgrows_cache(found, self.context.machine):
            ahead = i64(self.plan.lanes * step * found.type.dtype.itemsize)
            prefetch(self.builder, offset_pointer(self.builder, pointer, ahead, 1), 1, to_write=True)

    def _streams(self, found: Access, ahead_bytes: int) -> bool:
        """Whether vectors fill lines one after the other, in an array that does not stay in the second-level cache: in
        runs that are long next to what is ahead, or continue where they end."""
        plan = self.plan
        if plan.vector_dim is None or not found.is_contiguous(plan.vector_dim, plan.lanes, False):
            return False
        extent = plan.space[plan.vector_dim]
        run_bytes = found.type.dtype.itemsize * extent
        long = run_bytes >= 2 * ahead_bytes or extent >= found.type.shape[-1]
        return long and outgrows_cache(found, self.context.machine)

    def _claim(self, pointer: Value) -> None:
        prefetch(self.builder, offset_pointer(self.builder, pointer, i64(STORED_AHEAD_BYTES), 1), 1, to_write=True)

    def _load_strided(self, found: Access, stride: int, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
        shape = load_form(dtype, self.plan.lanes)
        mask = self._both(guard, self.position.mask)
        if mask is not None:
            mask = broadcast(self.builder, mask, self.plan.lanes)
        if stride == -1:
            raw = load_reversed(self.builder, pointer, mask, shape, dtype.itemsize)
        elif mask is None:
            raw = load_strided(self.builder, pointer, stride, shape, dtype.itemsize)
        else:
            raw = load_strided_masked(self.builder, pointer, stride, mask, shape, dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _gather(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        base, offsets = self._base_and_offsets(found, guard)
        mask = self._both(guard, self.position.mask)
        if mask is not None:
            mask = broadcast(self.builder, mask, self.plan.lanes)
            offsets = self.builder.select(mask, offsets, splat(offsets.type, 0))
        count = self.position.tail or self.plan.lanes
        raw = load_lanes(self.builder, base, offsets, load_form(dtype, self.plan.lanes), dtype.itemsize, count)
        value = widen(self.builder, raw, dtype)
        if guard is None:
            return value
        guard = broadcast(self.builder, guard, self.plan.lanes)
        return self.builder.select(guard, value, splat(value.type, fill))

    def _base_and_offsets(self, found: Access, guard: Value | None) -> tuple[Value, Value]:
        """The address that all lanes share, and the offset of each from there in elements. An offset of 0 is an element
        of the ref, for lanes that are not inside as well."""
        lanes, vector_dim = self.plan.lanes, self.plan.vector_dim
        stride = None if vector_dim is None else found.stride_along(vector_dim, lanes_vary(self.plan, found))
        if guard is None and stride is not None:
            first = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
            return first, ir.Constant(ir.VectorType(I64, lanes), [i64(n * stride) for n in range(lanes)])
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        moves = [isinstance(c.type, ir.VectorType) for c in coordinates]
        if not all(moves[position] for position in self._unsure(found)):
            offset = self._offset(found, coordinates)
            return self.context.pointers[found.ref], broadcast(self.builder, offset, lanes)
        fixed = [i64(0) if moves else c for c, moves in zip(coordinates, moves, strict=True)]
        moving = [c if moves else i64(0) for c, moves in zip(coordinates, moves, strict=True)]
        return self._pointer(found, fixed), broadcast(self.builder, self._offset(found, moving), lanes)

    def _filled(self, value: Value, guard: Value | None, fill: float | int) -> Value:
        if guard is None or fill == 0:
            return value
        guard, value = aligned(self.builder, [guard, value], self.plan.lanes)
        return self.builder.select(guard, value, splat(value.type, fill))

    def store(self, op: tile.StoreOp, at: Indices, value: Value) -> None:
        """Write registers at nest indices: one element, a masked vector, or scattered lanes."""
        found = access(op, at)
        dtype = array_type(op.value).dtype
        guard = self._guard(found)
        vector_dim = self.plan.vector_dim
        in_vector = vector_dim is not None and any(i.dim == vector_dim for i in at)
        if not in_vector:
            self._store_scalar(found, value, dtype, guard)
            return
        raw = narrow(self.builder, broadcast(self.builder, value, self.plan.lanes), dtype)
        mask = self._both(guard, self.position.mask)
        vary = lanes_vary(self.plan, found)
        if vector_dim is not None and found.is_contiguous(vector_dim, self.plan.lanes, vary):
            pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
            if mask is None and op in self.past:
                store_past_caches(self.context, raw, pointer)
            elif mask is None:
                self._claim_ahead(op, at, found, pointer)
                self.builder.store(raw, pointer, align=dtype.itemsize)
            elif guard is None and self.position.tail == 1:
                store_first_lane(self.builder, raw, pointer, dtype.itemsize)
            else:
                mask = broadcast(self.builder, mask, self.plan.lanes)
                masked_store(self.builder, raw, pointer, mask, dtype.itemsize)
            return
        mask = broadcast(self.builder, splat(I1, 1) if mask is None else mask, self.plan.lanes)
        scatter(self.builder, raw, self._lane_pointers(found), mask, dtype.itemsize)

    def store_interleaved(self, op: tile.StoreOp, at: Indices, values: Sequence[Value]) -> None:
        """Write whole vectors of what belongs to each position of the innermost loop, which is at its first."""
        found, dtype = access(op, at), array_type(op.value).dtype
        raw = [narrow(self.builder, broadcast(self.builder, value, self.plan.lanes), dtype) for value in values]
        pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
        store_interleaved(self.builder, raw, pointer, dtype.itemsize)

    def is_inside(self, op: tile.StoreOp, at: Indices) -> bool:
        """Whether all lanes of a store are known to be inside its array."""
        return not self._unsure(access(op, at))

    def _store_scalar(self, found: Access, value: Value, dtype: DType, guard: Value | None) -> None:
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        pointer = self._pointer(found, coordinates)
        raw = narrow(self.builder, value, dtype)
        if guard is None:
            self.builder.store(raw, pointer)
            return
        with self.builder.if_then(guard):
            self.builder.store(raw, pointer)


def _same_window(first: tile.LoadOp, second: tile.LoadOp) -> bool:
    """Whether two loads read the same elements."""
    if first.source is not second.source or first.map != second.map:
        return False
    pairs = zip(first.symbols, second.symbols, strict=True)
    return array_type(first.result).shape == array_type(second.result).shape and all(a is b for a, b in pairs)


def _step_of_windows(found: Access) -> int:
    """Elements from a window of an array to the one that follows; 0 when that is not constant."""
    steps: dict[int, int] = {}
    for term in address_terms(found.type):
        form = found.forms[term.dim]
        if form is None or found.varying_lanes(term.dim) or term.divisor != 1 or term.modulus is not None:
            return 0
        for symbol, coefficient in form.symbols:
            steps[symbol] = steps.get(symbol, 0) + coefficient * term.stride
    return min((step for step in steps.values() if step > 0), default=0)

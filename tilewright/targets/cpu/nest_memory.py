"""Print the memory accesses of a loop nest: coordinates, addresses, bounds, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import reduce

from llvmlite import ir
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.passes.affine_access import Access, Form, Indices, access_of, address_terms
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.coordinate_ranges import CoordinateRanges
from tilewright.targets.cpu.first_lanes import load_first, store_first
from tilewright.targets.cpu.index_sets import Comparison, IndexSets, Linear, Term, comparison_of
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
    maximum,
    minimum,
    multiply,
    offset_pointer,
    opaque,
    overwritten,
    prefetch,
    static,
    where_known,
)
from tilewright.targets.cpu.masked_memory import scatter, store_first_lane_where
from tilewright.targets.cpu.nest_addresses import NestAddresses
from tilewright.targets.cpu.nest_guards import Guard, common_guards, guard_of, guards_along
from tilewright.targets.cpu.nest_plan import Item, NestPlan, is_place, lanes_vary
from tilewright.targets.cpu.nest_position import Position
from tilewright.targets.cpu.nest_prefetches import NestPrefetches
from tilewright.targets.cpu.past_caches import outgrows_cache, store_past_caches
from tilewright.targets.cpu.strided_access import (
    fills_vector,
    has_strided_load,
    load_reversed,
    load_strided,
    load_strided_masked,
    store_interleaved,
)
from tilewright.targets.cpu.transposed_loads import elements_before, load_transposed
from tilewright.targets.llvm.conversions import emit_cast, load_form, narrow, register_form, widen
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.integer_division import divide_unsigned, remainder_unsigned
from tilewright.targets.llvm.values import Builder, Value, splat

# Bound on positions that are compared as 32-bit integers, far from overflowing together with a limit.
SMALL = 2**30


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
        self.addresses = NestAddresses(context, position)
        self.inside: set[Guard] = set()  # which hold in the whole of the nest
        self._stored = {root.destination for root in plan.roots if isinstance(root, tile.StoreOp)}
        self.ranges = CoordinateRanges(context, plan, position)
        self._comparisons: dict[Item, Comparison | None] = {}
        self._checks: dict[tuple[int, tuple[tuple[Value, int], ...], int], Value] = {}
        self.prefetches = NestPrefetches(context, plan, position, self.first_pointer)

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
        """The value of a linear expression of index scalars, scalar tiles and loops, for the first lane of a vector."""
        total: Value = i64(linear.constant)
        for term, coefficient in linear.terms:
            value = self.position.index[term] if isinstance(term, int) else self._symbol(*term)
            total = add(self.builder, total, multiply(self.builder, value, coefficient))
        return total

    def form_value(self, form: Form, symbols: Sequence[SSAValue]) -> Value:
        """A form's value for the first lane."""
        return self._total(form.constant, self._terms(form, symbols))

    def _terms(self, form: Form, symbols: Sequence[SSAValue]) -> list[tuple[Value, int]]:
        """The values of a form and their factors."""
        terms = [(self.context.scalars[symbols[position]], coefficient) for position, coefficient in form.symbols]
        return terms + [(self.position.index[dim], coefficient) for dim, coefficient in form.dims]

    def _total(self, constant: int, terms: Sequence[tuple[Value, int]]) -> Value:
        total: Value = i64(constant)
        for value, factor in terms:
            total = add(self.builder, total, multiply(self.builder, value, factor))
        return total

    def beyond(self, op: tile.FillPaddingOp, at: Indices) -> Value:
        """Whether a padding's position is at its limit or after it: of each lane if that makes a difference."""
        limit, symbols = op.limit, list(op.symbols)
        found = self._padded_position(op, at)
        form, dim = found.forms[0], self.plan.vector_dim
        if form is None or found.lanes or dim is None or form.coefficient(dim) != 1 or not self._is_small(form, found):
            position = self.expression(op.map.results[0], at, symbols)
            return self.builder.icmp_signed(">=", position, splat(position.type, limit))
        room = self._as_wide_as_masks(self.builder.sub(i64(limit), self.form_value(form, symbols)))
        lanes = self.plan.lanes
        return self.builder.icmp_signed(">=", lane_numbers(room.type, lanes), broadcast(self.builder, room, lanes))

    def is_cut_before(self, op: tile.FillPaddingOp, at: Indices) -> bool:
        """Whether loops along rows end before the limit of a padding."""
        found = self._padded_position(op, at)
        form, dim = found.forms[0], self.plan.vector_dim
        moves = form is None or (dim is not None and form.coefficient(dim) != 0)
        return not moves and self._is_clipped(form, found, op.limit)

    def _padded_position(self, op: tile.FillPaddingOp, at: Indices) -> Access:
        return access_of(op.source, op.map, list(op.symbols), at, {s: not is_place(s) for s in op.symbols})

    def _is_small(self, form: Form, found: Access) -> bool:
        low, high = self.ranges.of_form(form, found)
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

    def first_pointer(self, found: Access) -> Value:
        """The address of the first lane."""
        pointer = self.addresses.first(found)
        if pointer is not None:
            return pointer
        return self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])

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
            inside = self._both(inside, self._check(found, position))
        return inside

    def common_guards(self) -> list[Guard]:
        """The guards without which a nest stores nothing."""
        return common_guards(self.plan, self.sets, self._unsure)

    def holds(self, guards: Sequence[Guard]) -> Value:
        """Whether guards hold that do not vary within the nest."""
        first, *others = (self._below(self.linear(guard.coordinate), guard.size) for guard in guards)
        return reduce(self.builder.and_, others, first)

    @contextmanager
    def known(self, guards: Sequence[Guard]) -> Generator[None]:
        """The part of a nest in which guards hold."""
        before, self.inside = self.inside, self.inside.union(guards)
        yield
        self.inside = before

    def blocks_inside(self, dim: int, whole: Value, size: int) -> tuple[Value, Sequence[Guard]]:
        """The end of the blocks of `size` positions along a dim, up to `whole`, in which all that is transposed is
        inside, and the guards that hold until then: one of a later position is a vector that is loaded lane by lane."""
        is_turned = dim == self.plan.turned_dim
        guards = guards_along(self.plan, self.sets, dim, self._unsure, self._least) if is_turned else ()
        for guard in guards:
            self.position.index[dim] = i64(0)
            room = self.builder.sub(i64(guard.size), self.linear(guard.coordinate))
            room = self.builder.and_(maximum(self.builder, room, i64(0)), i64(-size))
            whole = minimum(self.builder, whole, room)
        return whole, guards

    def _least(self, found: Access, position: int) -> float:
        return self.ranges.of(found, position)[0]

    def _check(self, found: Access, position: int) -> Value:
        """Whether lanes are inside the ref along one dimension."""
        size, form, dim = found.type.shape[position], found.forms[position], self.plan.vector_dim
        if form is None or found.varying_lanes(position):
            return self._below(self._coordinate(found, position), size)
        stride = 0 if dim is None else form.coefficient(dim)
        if stride and self._is_small(form, found):
            return self._below(self._positions(self.form_value(form, found.symbols), stride), min(size, SMALL))
        if stride:
            return self._below(self._coordinate(found, position), size)
        terms = self._terms(form, found.symbols)
        key = (form.constant, tuple(terms), size)
        if key not in self._checks:
            with where_known(self.builder, *(value for value, _ in terms)):
                self._checks[key] = self._below(self._total(form.constant, terms), size)
        return self._checks[key]

    def _positions(self, first: Value, stride: int) -> Value:
        """The positions of all lanes from that of the first one."""
        lanes, first = self.plan.lanes, self._as_wide_as_masks(first)
        steps = ir.Constant(ir.VectorType(first.type, lanes), [lane * stride for lane in range(lanes)])
        return self.builder.add(broadcast(self.builder, first, lanes), steps)

    def _as_wide_as_masks(self, position: Value) -> Value:
        """A position in 64 bits, if so many lanes of them fit a vector, otherwise in 32."""
        is_wide = self.plan.lanes * I64.width <= 8 * self.context.machine.vector.bytes
        return position if is_wide else self.builder.trunc(position, I32)

    def comparison(self, item: Item) -> Comparison | None:
        """The comparison of positions that an item is, if these differ from lane to lane and 32 bits hold them."""
        if item not in self._comparisons:
            self._comparisons[item] = self._comparison(item)
        return self._comparisons[item]

    def _comparison(self, item: Item) -> Comparison | None:
        found, dim = comparison_of(self.plan, item), self.plan.vector_dim
        if found is None or dim is None or not found.difference.coefficient(dim):
            return None
        extents = [(self._extent(term), factor) for term, factor in found.difference.terms]
        spread = sum(SMALL if extent is None else abs(factor) * extent for extent, factor in extents)
        return found if spread + abs(found.difference.constant) + abs(found.bound) < SMALL else None

    def _extent(self, term: Term) -> int | None:
        """The bound of a term of a position; None where it is not known."""
        if isinstance(term, int):
            return self.plan.space[term]
        return self.context.bound(term[0]) if is_place(term[0]) else None

    def compared(self, comparison: Comparison) -> Value:
        """Whether a comparison of positions holds in each lane."""
        stride = comparison.difference.coefficient(self.plan.vector_dim or 0)
        positions = self._positions(self.linear(comparison.difference), stride)
        bound = splat(positions.type, comparison.bound)
        return self.builder.icmp_signed("<" if comparison.is_below else ">=", positions, bound)

    def _below(self, coordinate: Value, size: int) -> Value:
        # One unsigned comparison covers both ends.
        return self.builder.icmp_unsigned("<", coordinate, splat(coordinate.type, size))

    def _unsure(self, found: Access) -> list[int]:
        """The dimensions of a ref along which lanes may be outside."""
        result: list[int] = []
        for position, size in enumerate(found.type.shape):
            form = found.forms[position]
            low, high = self.ranges.of(found, position)
            least, greatest = self.sets.limits(found, position, self.position.parts)
            low = low if least is None else max(low, least)
            high = high if greatest is None else min(high, greatest)
            begins = low >= 0 or (form is not None and self._is_clipped(form.negated(), found, 1))
            surely = begins and (high < size or self._is_clipped(form, found, size))
            if not surely and guard_of(self.sets, found, position) not in self.inside:
                result.append(position)
        return result

    def unsure_loads(self, dim: int, start: int, end: int) -> int:
        """How many loads of the open parts of loops may be outside from one index along a dim to another, counted for
        each dimension of a ref."""
        self.position.spans[dim] = (start, end - 1)
        needed = self.sets.needed(self.position.parts) if self.position.parts else self.plan.dependences
        loads = [(value.owner, at) for value, at in needed if dim in self.plan.dependences[value, at]]
        found = [self._unsure(self.plan.access(op, at)) for op, at in loads if isinstance(op, tile.LoadOp)]
        del self.position.spans[dim]
        return sum(map(len, found))

    def _is_clipped(self, form: Form | None, found: Access, size: int) -> bool:
        """Whether positions that matter keep a coordinate below `size`; of indices that are read, none is known to."""
        if form is None or any(symbol in found.lanes for symbol, _ in form.symbols):
            return False
        return any(c.keeps_below(size, form, found.symbols, self.context.bound) for c in self.plan.clips)

    def _both(self, first: Value | None, second: Value | None) -> Value | None:
        """Lanes that two masks let through; None lets all through."""
        if first is None or second is None:
            return first if second is None else second
        return self.builder.and_(*aligned(self.builder, [first, second], self.plan.lanes))

    # ---- accesses -----------------------------------------------------------------------------------------------

    def load(self, op: tile.LoadOp, at: Indices) -> Value:
        """The registers of a loaded tile at nest indices."""
        value = self._loaded(op, at)
        return overwritten(self.builder, value) if op.source in self._stored else value

    def _loaded(self, op: tile.LoadOp, at: Indices) -> Value:
        found = self.plan.access(op, at)
        dtype = array_type(op.result).dtype
        dims = self.plan.dependences[(op.result, at)]
        guard = self._guard(found)
        fill = op.fill if op.fill is not None else 0
        in_vector = self.plan.vector_dim in dims
        if self.ranges.are_outside(found):
            return splat(register_form(dtype, self.plan.lanes if in_vector else 1), fill)
        if self.plan.vector_dim is None or not in_vector:
            return self._load_scalar(found, dtype, guard, fill)
        vary = lanes_vary(self.plan, found)
        if found.is_contiguous(self.plan.vector_dim, self.plan.lanes, vary):
            self.prefetches.ask_for_next_window(op, found)
            self.prefetches.ask_for_stream(op, found)
            return self._load_vector(found, dtype, guard, fill)
        stride = found.stride_along(self.plan.vector_dim, vary)
        if stride == -1 or has_strided_load(stride, dtype.itemsize, self.plan.lanes, self._known_lanes(guard)):
            return self._load_strided(found, stride or 0, dtype, guard, fill)
        return self._gather(found, dtype, guard, fill)

    def load_turned(self, op: tile.LoadOp, at: Indices, length: int) -> list[Value] | None:
        """The value that a load reads at each of the `length` positions of the open block, in memory form; None where
        it has to look at each position whether it is inside."""
        found, plan = self.plan.access(op, at), self.plan
        dim, vector = plan.turned_dim, plan.vector_dim
        unsure = [(found.type.shape[position], found.forms[position]) for position in self._unsure(found)]
        if dim is None or vector is None or any(form is None or form.coefficient(dim) for _, form in unsure):
            return None
        start = self.position.index[vector]
        stride = found.stride_along(vector, False) or 0
        pointer = opaque(self.builder, self.first_pointer(found))
        itemsize = found.type.dtype.itemsize
        along_runs = plan.order[-1] == dim and outgrows_cache(found, self.context.machine)
        before = i64(elements_before(length, itemsize))
        base = offset_pointer(self.builder, self.context.pointers[found.ref], before, itemsize)
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
                row = self.builder.select(inside, row, base)
            rows.append(row)
        self.position.index[vector] = start
        form = load_form(found.type.dtype, plan.lanes)
        return load_transposed(self.builder, rows, form, itemsize, self.context.machine.vector.registers, length)

    def filled(self, op: tile.LoadOp, at: Indices, raw: Value) -> Value:
        """The registers of what was loaded, with the fill in lanes outside."""
        fill = op.fill if op.fill is not None else 0
        guard = self._guard(self.plan.access(op, at))
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
        pointer = self.first_pointer(found)
        shape = load_form(dtype, self.plan.lanes)
        self.prefetches.ask_ahead(found, pointer)
        if guard is not None and not isinstance(guard.type, ir.VectorType):
            # Where nothing is read, a page that is not there would still cost a trap in the processor.
            pointer = self.builder.select(guard, pointer, self.context.pointers[found.ref])
        mask = self._both(guard, self.position.mask)
        if mask is None:
            return widen(self.builder, self.builder.load(pointer, align=dtype.itemsize, typ=shape), dtype)
        count = self.position.tail if guard is None else None
        raw = load_first(self.builder, pointer, mask, count, shape, dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _load_strided(self, found: Access, stride: int, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        pointer = opaque(self.builder, self.first_pointer(found))
        shape = load_form(dtype, self.plan.lanes)
        mask, count = self._both(guard, self.position.mask), self._known_lanes(guard)
        if mask is not None:
            mask = broadcast(self.builder, mask, self.plan.lanes)
        if stride == -1:
            raw = load_reversed(self.builder, pointer, mask, count, shape, dtype.itemsize)
        elif count is not None and fills_vector(stride, self.plan.lanes, count):
            raw = load_strided(self.builder, pointer, stride, shape, dtype.itemsize, count)
        else:
            raw = load_strided_masked(self.builder, pointer, stride, mask, shape, dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _known_lanes(self, guard: Value | None) -> int | None:
        """How many first lanes are on, where that is known."""
        every = self.plan.lanes if self.position.mask is None else self.position.tail
        return every if guard is None else None

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
            first = opaque(self.builder, self.first_pointer(found))
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
        found = self.plan.access(op, at)
        dtype = array_type(op.value).dtype
        guard = self._guard(found)
        vector_dim = self.plan.vector_dim
        in_vector = vector_dim is not None and any(i.dim == vector_dim for i in at)
        if not in_vector:
            self._store_scalar(found, value, dtype, guard)
            return
        raw = narrow(self.builder, broadcast(self.builder, value, self.plan.lanes), dtype)
        mask, tail = self._both(guard, self.position.mask), self.position.tail
        vary = lanes_vary(self.plan, found)
        if vector_dim is not None and found.is_contiguous(vector_dim, self.plan.lanes, vary):
            pointer = self.first_pointer(found)
            if mask is None and op in self.past:
                store_past_caches(self.context, raw, pointer)
            elif mask is None:
                self.prefetches.claim_ahead(op, at, found, pointer)
                self.builder.store(raw, pointer, align=dtype.itemsize)
            elif tail == 1 and guard is not None:
                store_first_lane_where(self.builder, raw, pointer, guard, dtype.itemsize)
            else:
                store_first(self.builder, raw, pointer, mask, tail if guard is None else None, dtype.itemsize)
            return
        mask = broadcast(self.builder, splat(I1, 1) if mask is None else mask, self.plan.lanes)
        scatter(self.builder, raw, self._lane_pointers(found), mask, dtype.itemsize)

    def store_interleaved(self, op: tile.StoreOp, at: Indices, values: Sequence[Value]) -> None:
        """Write whole vectors of what belongs to each position of the innermost loop, which is at its first."""
        found, dtype = self.plan.access(op, at), array_type(op.value).dtype
        raw = [narrow(self.builder, broadcast(self.builder, value, self.plan.lanes), dtype) for value in values]
        pointer = opaque(self.builder, self.first_pointer(found))
        mask, count = self.position.mask, self.position.tail or self.plan.lanes
        store_interleaved(self.builder, raw, pointer, dtype.itemsize, mask, count)

    def is_inside(self, op: tile.StoreOp, at: Indices) -> bool:
        """Whether the lanes of a store are known, and to be inside its array."""
        return self._known_lanes(None) is not None and not self._unsure(self.plan.access(op, at))

    def _store_scalar(self, found: Access, value: Value, dtype: DType, guard: Value | None) -> None:
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        pointer = self._pointer(found, coordinates)
        raw = narrow(self.builder, value, dtype)
        if guard is None:
            self.builder.store(raw, pointer)
            return
        with self.builder.if_then(guard):
            self.builder.store(raw, pointer)

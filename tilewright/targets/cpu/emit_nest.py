"""Print one loop nest: loops in the planned order, the vector dimension in steps of the vector width with a masked
tail, every value computed at the outermost loop that it varies along."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr

from tilewright import dtypes, ops
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, decode
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Access, Form, Indices, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.conversions import emit_cast, load_form, narrow, register_form, round_to, widen
from tilewright.targets.cpu.functions import emit_function
from tilewright.targets.cpu.loops import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    add,
    broadcast,
    entry_alloca,
    i64,
    lane_numbers,
    loop,
    minimum,
    multiply,
    offset_pointer,
    static,
    vector,
)
from tilewright.targets.cpu.masked_memory import gather, masked_load, masked_store, scatter
from tilewright.targets.cpu.nest_plan import (
    Item,
    NestPlan,
    access,
    is_place,
    lanes_vary,
    operand_items,
    plan_nest,
    root_indices,
)
from tilewright.targets.cpu.vector_math_common import Builder, Value, lanes_of, splat, undefined

UNROLL = 4


@dataclass
class _Accumulator:
    """Running values of one reduction: `slots[u]` for the u-th vector of an unrolled step."""

    reduce: tile.ReduceOp
    slots: list[Value]
    shape: ir.Type
    dtype: DType


def emit_nest(context: FunctionContext, nest: scheduled.NestOp) -> None:
    """Append the code of a nest at the builder's position."""
    plan = plan_nest(nest, context.machine, context.bound)
    if 0 in plan.space:
        return
    NestEmitter(context, plan).run()


class NestEmitter:
    def __init__(self, context: FunctionContext, plan: NestPlan) -> None:
        self.context = context
        self.builder: Builder = context.builder
        self.plan = plan
        self.index: dict[int, Value] = {}
        self.mask: Value | None = None
        self._tail: int | None = None  # lanes that `mask` lets through, where that is known
        self._mask_scalar: Value | None = None
        self._scopes: list[dict[Item, Value]] = [{}]
        self._unrolled = 0
        self._waits: dict[Item, bool] = {}
        self._accumulators: dict[tile.ReduceOp, _Accumulator] = {}
        self._extents = self._clipped_extents()

    # ---- loops --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._level(0)

    def _clipped_extents(self) -> dict[int, Value]:
        extents: dict[int, Value] = {d: i64(n) for d, n in enumerate(self.plan.space)}
        for clip in self.plan.clips:
            start = self._form_value(clip.start, clip.symbols)
            known = static(start)
            room = self.builder.sub(i64(clip.limit), start) if known is None else i64(clip.limit - known)
            extents[clip.dim] = minimum(self.builder, extents[clip.dim], room)
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
        if dim == plan.vector_dim:
            self._vector_loop(level, dim)
        else:
            extent = self._extents[dim]
            if static(extent) == 0:
                return
            with loop(self.builder, i64(0), extent, 1, f"d{dim}") as index, self._scope():
                self.index[dim] = index
                self._level(level + 1)
        if level == plan.parallel_levels and plan.reduced:
            self._finish_accumulators()

    def _vector_loop(self, level: int, dim: int) -> None:
        lanes, extent = self.plan.lanes, self._extents[dim]
        known = static(extent)
        whole = i64(known // lanes * lanes) if known is not None else self.builder.and_(extent, i64(-lanes))
        start: Value = i64(0)
        if dim in self.plan.reduced:
            start = self._unrolled_loop(level, dim, whole)
        if static(whole) != static(start) or static(whole) is None:
            with loop(self.builder, start, whole, lanes, f"v{dim}") as index, self._scope():
                self.index[dim] = index
                self._level(level + 1)
        if known is not None and known % lanes == 0:
            return
        remaining = self.builder.sub(extent, whole) if known is None else i64(known % lanes)
        with self._when_positive(remaining), self._scope():
            self.index[dim] = whole
            numbers = lane_numbers(I32, lanes)
            count = ir.Constant(I32, known % lanes) if known is not None else self.builder.trunc(remaining, I32)
            self.mask = self.builder.icmp_signed("<", numbers, broadcast(self.builder, count, lanes))
            self._tail = known % lanes if known is not None else None
            self._level(level + 1)
            self.mask = self._tail = None

    def _unrolled_loop(self, level: int, dim: int, whole: Value) -> Value:
        """A reduction along the vector dimension keeps several running vectors, to hide the latency of combining."""
        known = static(whole)
        step = self.plan.lanes * UNROLL
        if known is None or known < 2 * step:
            return i64(0)
        end = known // step * step
        with loop(self.builder, i64(0), i64(end), step, f"u{dim}") as index:
            for position in range(UNROLL):
                with self._scope():
                    self._unrolled = position
                    self.index[dim] = add(self.builder, index, i64(position * self.plan.lanes))
                    self._level(level + 1)
        self._unrolled = 0
        return i64(end)

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
        for item in self.plan.dependences:
            owner = item[0].owner
            if isinstance(owner, tile.ReduceOp) or self._below_reduce(item):
                continue
            if self.plan.level(item) == level and self._find(item) is None and self._worth_hoisting(owner):
                self.value(*item)

    def _worth_hoisting(self, owner: object) -> bool:
        return not isinstance(owner, tile.FullOp | tile.BroadcastOp)

    def _below_reduce(self, item: Item) -> bool:
        """Items computed from a reduction's result have to wait for it."""
        known = self._waits.get(item)
        if known is None:
            value, at = item
            op = value.owner
            known = isinstance(op, tile.ReduceOp) or (
                isinstance(op, Operation)
                and any(self._below_reduce(inner) for inner in operand_items(op, at, self.plan))
            )
            self._waits[item] = known
        return known

    # ---- roots and reductions -----------------------------------------------------------------------------------

    def _body(self) -> None:
        for accumulator in self._accumulators.values():
            self._accumulate(accumulator)
        for root in self.plan.roots:
            if not isinstance(root.operands[0].owner, tile.ReduceOp):
                self._root(root)

    def _root(self, root: Operation) -> None:
        at = root_indices(self.plan, root)
        if isinstance(root, tile.StoreOp):
            self._store(root, at, self.value(root.value, at))
            return
        self.context.effect(root, self.value(root.operands[0], at), self.mask)

    def _start_accumulators(self) -> None:
        plan = self.plan
        for root in plan.roots:
            reduce = root.operands[0].owner
            if not isinstance(reduce, tile.ReduceOp):
                continue
            dtype = array_type(reduce.operands[0]).dtype
            shape = vector(register_form(dtype), plan.lanes if self._is_vector_reduce(reduce) else 1)
            known = self._accumulators.get(reduce)
            count = UNROLL if plan.vector_dim in plan.reduced else 1
            slots = known.slots if known else [entry_alloca(self.builder, shape) for _ in range(count)]
            for slot in slots:
                self.builder.store(self._identity(reduce, shape), slot)
            self._accumulators[reduce] = _Accumulator(reduce, slots, shape, dtype)

    def _is_vector_reduce(self, reduce: tile.ReduceOp) -> bool:
        (item,) = operand_items(reduce, (), self.plan)
        return self.plan.vector_dim is not None and (
            self.plan.vector_dim in self.plan.dependences[item] or self.plan.vector_dim in self.plan.reduced
        )

    def _identity(self, reduce: tile.ReduceOp, shape: ir.Type) -> Value:
        function = ops.FUNCTIONS[reduce.fn.data]
        if function.identity is None:
            raise CompilerBug(f"`{function.name}` does not reduce")
        return splat(shape, function.identity(array_type(reduce.operands[0]).dtype))

    def _accumulate(self, accumulator: _Accumulator) -> None:
        reduce = accumulator.reduce
        ((operand, at),) = operand_items(reduce, (), self.plan)
        value = self._widened(self.value(operand, at), accumulator.shape)
        if self.mask is not None and self.plan.vector_dim in self.plan.reduced:
            value = self.builder.select(self.mask, value, self._identity(reduce, accumulator.shape))
        slot = accumulator.slots[self._unrolled if len(accumulator.slots) > 1 else 0]
        combined = self._combine(accumulator, self.builder.load(slot, typ=accumulator.shape), value)
        self.builder.store(combined, slot)

    def _widened(self, value: Value, shape: ir.Type) -> Value:
        if isinstance(shape, ir.VectorType) and not isinstance(value.type, ir.VectorType):
            return broadcast(self.builder, value, lanes_of(shape))
        return value

    def _combine(self, accumulator: _Accumulator, left: Value, right: Value) -> Value:
        return emit_function(self.builder, accumulator.reduce.fn.data, accumulator.dtype.compute, [left, right])

    def _finish_accumulators(self) -> None:
        for root in self.plan.roots:
            reduce = root.operands[0].owner
            if not isinstance(reduce, tile.ReduceOp) or not isinstance(root, tile.StoreOp):
                continue
            accumulator = self._accumulators[reduce]
            parts = [self.builder.load(slot, typ=accumulator.shape) for slot in accumulator.slots]
            while len(parts) > 1:
                parts = [self._combine(accumulator, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            total = parts[0]
            if self.plan.vector_dim in self.plan.reduced and isinstance(total.type, ir.VectorType):
                total = self._across_lanes(accumulator, total)
            self._store(root, root_indices(self.plan, root), round_to(self.builder, total, accumulator.dtype))

    def _across_lanes(self, accumulator: _Accumulator, total: Value) -> Value:
        """Combine the lanes pairwise, in a fixed order."""
        lanes = lanes_of(total.type)
        while lanes > 1:
            half = lanes // 2
            other = undefined(total.type)
            low, high = (
                self.builder.shuffle_vector(total, other, ir.Constant(ir.VectorType(ir.IntType(32), half), list(r)))
                for r in (range(half), range(half, lanes))
            )
            total = self._combine(accumulator, low, high)
            lanes = half
        return self.builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

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
        if found is None:
            found = self._compute(value, at)
            self._scopes[-1][item] = found
        return found

    def _compute(self, value: SSAValue, at: Indices) -> Value:
        op = value.owner
        dtype = array_type(value).dtype
        if isinstance(op, tile.FullOp):
            # Rounded as NumPy stores it: a register holds a 16-bit float in more bits than it has.
            return splat(register_form(dtype), np.full((), decode(op.value), dtype.numpy).item())
        if isinstance(op, tile.LoadOp):
            return self._load(op, at)
        if isinstance(op, tile.IotaOp):
            return self._expression(op.map.data.results[0], at, list(op.symbols))
        if isinstance(op, tile.FillPaddingOp):
            return self._fill_padding(op, at, dtype)
        if not isinstance(op, Operation):
            raise CompilerBug("a nest value without an operation")
        operands = [self.value(o, inner) for o, inner in operand_items(op, at, self.plan)]
        if isinstance(op, tile.MapOp):
            operand_type = array_type(op.operands[-1]).dtype
            return emit_function(self.builder, op.fn.data, operand_type, self._aligned(operands))
        if isinstance(op, tile.CastOp):
            return emit_cast(self.builder, operands[0], array_type(op.operands[0]).dtype, dtype)
        if isinstance(op, tile.BitcastOp):
            return self._bitcast(operands[0], array_type(op.operands[0]).dtype, dtype)
        if isinstance(op, tile.BroadcastOp | tile.TransposeOp | tile.SliceOp | tile.ReshapeOp):
            return operands[0]
        raise CompilerBug(f"{op.name} cannot be computed inside a nest")

    def _aligned(self, operands: Sequence[Value]) -> list[Value]:
        """Operands all scalar or all vectors."""
        if any(isinstance(o.type, ir.VectorType) for o in operands):
            return [broadcast(self.builder, o, self.plan.lanes) for o in operands]
        return list(operands)

    def _bitcast(self, value: Value, source: DType, destination: DType) -> Value:
        form = load_form(destination, lanes_of(value.type))
        bits = self.builder.bitcast(narrow(self.builder, value, source), form)
        return widen(self.builder, bits, destination)

    def _fill_padding(self, op: tile.FillPaddingOp, at: Indices, dtype: DType) -> Value:
        value = self.value(op.source, at)
        position = self._expression(op.map.data.results[0], at, list(op.symbols))
        limit = splat(position.type, int(op.limit.value.data))
        beyond = self.builder.icmp_signed(">=", position, limit)
        fill = splat(value.type, decode(op.value))
        beyond, value, fill = self._aligned([beyond, value, fill])
        return self.builder.select(beyond, fill, value)

    def _expression(self, expression: AffineExpr, at: Indices, symbols: Sequence[SSAValue]) -> Value:
        """An affine expression as i64, scalar or vector."""
        if isinstance(expression, AffineConstantExpr):
            return i64(expression.value)
        if isinstance(expression, AffineDimExpr):
            index = at[expression.position]
            if index.dim is None:
                return i64(index.offset)
            return self._plus(self._times(self._dim_value(index.dim), index.stride), i64(index.offset))
        if isinstance(expression, AffineBinaryOpExpr):
            left = self._expression(expression.lhs, at, symbols)
            right = self._expression(expression.rhs, at, symbols)
            if expression.kind is AffineBinaryOpKind.Add:
                return self._plus(left, right)
            left, right = self._aligned([left, right])
            if expression.kind is AffineBinaryOpKind.Mul:
                return self.builder.mul(left, right)
            fn = "floor_divide" if expression.kind is AffineBinaryOpKind.FloorDiv else "remainder"
            return emit_function(self.builder, fn, dtypes.i64, [left, right])
        return self._symbol(symbols[expression.position], at)  # type: ignore[attr-defined]  the only kind left

    def _symbol(self, symbol: SSAValue, at: Indices) -> Value:
        if is_place(symbol):
            return self.context.scalars[symbol]
        value = self.value(symbol, at)
        return emit_cast(self.builder, value, array_type(symbol).dtype, dtypes.i64)

    def _plus(self, left: Value, right: Value) -> Value:
        if isinstance(left.type, ir.VectorType) or isinstance(right.type, ir.VectorType):
            if static(right) == 0:
                return left
            left, right = self._aligned([left, right])
            return self.builder.add(left, right)
        return add(self.builder, left, right)

    def _times(self, value: Value, factor: int) -> Value:
        if isinstance(value.type, ir.VectorType):
            return value if factor == 1 else self.builder.mul(value, splat(value.type, factor))
        return multiply(self.builder, value, factor)

    def _dim_value(self, dim: int) -> Value:
        """The index along a nest dimension, a vector for the vector dimension."""
        if dim != self.plan.vector_dim:
            return self.index[dim]
        base = broadcast(self.builder, self.index[dim], self.plan.lanes)
        return self.builder.add(base, lane_numbers(I64, self.plan.lanes))

    # ---- memory -------------------------------------------------------------------------------------------------

    def _form_value(self, form: Form, symbols: Sequence[SSAValue]) -> Value:
        """A form's value for the first lane."""
        total: Value = i64(form.constant)
        for position, coefficient in form.symbols:
            scalar = self.context.scalars[symbols[position]]
            total = add(self.builder, total, multiply(self.builder, scalar, coefficient))
        for dim, coefficient in form.dims:
            total = add(self.builder, total, multiply(self.builder, self.index[dim], coefficient))
        return total

    def _coordinate(self, found: Access, position: int) -> Value:
        form = found.forms[position]
        if form is None or found.varying_lanes(position):
            return self._expression(found.map.results[position], found.at, found.symbols)
        if self.plan.vector_dim is not None and form.coefficient(self.plan.vector_dim):
            return self._expression(found.map.results[position], found.at, found.symbols)
        return self._form_value(form, found.symbols)

    def _first_lane(self, found: Access, position: int) -> Value:
        """A coordinate for the first lane of the vector."""
        form = found.forms[position]
        if form is not None and not found.varying_lanes(position):
            return self._form_value(form, found.symbols)
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
        return i64(known // divisor) if known is not None else self.builder.udiv(value, splat(value.type, divisor))

    def _modulo(self, value: Value, modulus: int) -> Value:
        known = static(value)
        return i64(known % modulus) if known is not None else self.builder.urem(value, splat(value.type, modulus))

    def _guard(self, found: Access) -> Value | None:
        """Whether lanes are inside the ref, for coordinates that are not known to be; None when all are."""
        inside: Value | None = None
        clipped: set[tuple[object, ...]] = {(c.dim, c.limit, c.start, c.symbols) for c in self.plan.clips}
        for position, size in enumerate(found.type.shape):
            form = found.forms[position]
            low, high = self._range(found, position)
            if low >= 0 and high < size:
                continue
            if form is not None and low >= 0 and self._is_clipped(form, found, size, clipped):
                continue
            coordinate = self._coordinate(found, position)
            # One unsigned comparison covers both ends.
            check = self.builder.icmp_unsigned("<", coordinate, splat(coordinate.type, size))
            inside = check if inside is None else self.builder.and_(*self._aligned([inside, check]))
        return inside

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

    def _load(self, op: tile.LoadOp, at: Indices) -> Value:
        found = access(op, at)
        dtype = array_type(op.result).dtype
        dims = self.plan.dependences[(op.result, at)]
        guard = self._guard(found)
        fill = decode(op.fill) if op.fill is not None else 0
        if self.plan.vector_dim is None or self.plan.vector_dim not in dims:
            return self._load_scalar(found, dtype, guard, fill)
        vary = lanes_vary(self.plan, found)
        if found.is_contiguous(self.plan.vector_dim, self.plan.lanes, vary):
            return self._load_vector(found, dtype, guard, fill)
        return self._gather(found, dtype, guard, fill)

    def _pointer(self, found: Access, coordinates: Sequence[Value]) -> Value:
        offset = self._offset(found, coordinates)
        return offset_pointer(self.builder, self.context.pointers[found.ref], offset, found.type.dtype.itemsize)

    def _load_scalar(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        form = load_form(dtype)
        if guard is None:
            return widen(self.builder, self.builder.load(self._pointer(found, coordinates), typ=form), dtype)
        # The base of a ref is always readable: lanes outside read it and are then replaced.
        pointer = self.builder.select(guard, self._pointer(found, coordinates), self.context.pointers[found.ref])
        value = widen(self.builder, self.builder.load(pointer, typ=form), dtype)
        return self.builder.select(guard, value, splat(value.type, fill))

    def _combined_mask(self, guard: Value | None) -> Value | None:
        if guard is None or self.mask is None:
            return guard if self.mask is None else self.mask
        return self.builder.and_(*self._aligned([guard, self.mask]))

    def _load_vector(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
        shape = load_form(dtype, self.plan.lanes)
        mask = self._combined_mask(guard)
        if mask is None:
            return widen(self.builder, self.builder.load(pointer, align=dtype.itemsize, typ=shape), dtype)
        mask = broadcast(self.builder, mask, self.plan.lanes)
        raw = masked_load(self.builder, pointer, mask, shape, dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _filled(self, value: Value, guard: Value | None, fill: float | int) -> Value:
        if guard is None or fill == 0:
            return value
        guard, value = self._aligned([guard, value])
        return self.builder.select(guard, value, splat(value.type, fill))

    def _gather(self, found: Access, dtype: DType, guard: Value | None, fill: float | int) -> Value:
        pointers = self._lane_pointers(found)
        mask = self._combined_mask(guard)
        mask = self._every_lane() if mask is None else broadcast(self.builder, mask, self.plan.lanes)
        raw = gather(self.builder, pointers, mask, load_form(dtype, self.plan.lanes), dtype.itemsize)
        return self._filled(widen(self.builder, raw, dtype), guard, fill)

    def _lane_pointers(self, found: Access) -> Value:
        offset = self._offset(found, [self._coordinate(found, i) for i in range(len(found.type.shape))])
        offset = broadcast(self.builder, offset, self.plan.lanes)
        scaled = self._times(offset, found.type.dtype.itemsize)
        base = self.context.pointers[found.ref]
        gep = self.builder.gep(base, [scaled], source_etype=I8)
        gep.type = ir.VectorType(POINTER, self.plan.lanes)
        return gep

    def _every_lane(self) -> Value:
        return splat(ir.VectorType(I1, self.plan.lanes), 1)

    def _store(self, op: tile.StoreOp, at: Indices, value: Value) -> None:
        found = access(op, at)
        dtype = array_type(op.value).dtype
        guard = self._guard(found)
        vector_dim = self.plan.vector_dim
        in_vector = vector_dim is not None and any(i.dim == vector_dim for i in at)
        if not in_vector:
            self._store_scalar(found, value, dtype, guard)
            return
        raw = narrow(self.builder, broadcast(self.builder, value, self.plan.lanes), dtype)
        mask = self._combined_mask(guard)
        vary = lanes_vary(self.plan, found)
        if vector_dim is not None and found.is_contiguous(vector_dim, self.plan.lanes, vary):
            pointer = self._pointer(found, [self._first_lane(found, i) for i in range(len(found.type.shape))])
            if mask is None:
                self.builder.store(raw, pointer, align=dtype.itemsize)
            elif guard is None and self._tail == 1:
                # LLVM 22 on AVX-512 turns a truncation and a masked store of one lane into a store of the wide type.
                first = self.builder.extract_element(raw, ir.Constant(I32, 0))
                self.builder.store(first, pointer, align=dtype.itemsize)
            else:
                mask = broadcast(self.builder, mask, self.plan.lanes)
                masked_store(self.builder, raw, pointer, mask, dtype.itemsize)
            return
        mask = self._every_lane() if mask is None else broadcast(self.builder, mask, self.plan.lanes)
        scatter(self.builder, raw, self._lane_pointers(found), mask, dtype.itemsize)

    def _store_scalar(self, found: Access, value: Value, dtype: DType, guard: Value | None) -> None:
        coordinates = [self._coordinate(found, i) for i in range(len(found.type.shape))]
        pointer = self._pointer(found, coordinates)
        raw = narrow(self.builder, value, dtype)
        if guard is None:
            self.builder.store(raw, pointer)
            return
        with self.builder.if_then(guard):
            self.builder.store(raw, pointer)

"""Loads and stores: each thread its own elements, in vectors where they are next to each other in memory.

A lane beyond the array's end reads the array's first element instead, and takes `fill`: no branch is needed. Each
element is stored by one of the threads that hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.dialects import tile
from tilewright.dtypes import DType
from tilewright.layout import Layout, row_major
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.iters import XorTerm
from tilewright.layout.refinement import Copy, Slot
from tilewright.passes.affine_access import linear_form
from tilewright.records import dataclass
from tilewright.targets.llvm.conversions import load_form, narrow, register_form, widen
from tilewright.targets.llvm.values import undefined
from tilewright.targets.simt.fragments import Builder, Coordinates, Value, held, i32, is_packed, registers_of

Range = tuple[int, int]
ANY: Range = (-(1 << 62), 1 << 62)
GLOBAL_SPACE, SHARED_SPACE = 1, 3


@dataclass(frozen=True)
class Memory:
    """An array or a buffer: where it begins, its shape, how its elements are laid out, and in which address space."""

    pointer: Value
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout
    space: int

    @staticmethod
    def of(pointer: Value, type: tile.RefType, layout: Layout | None, space: int) -> Memory:
        return Memory(pointer, type.shape, type.dtype, layout or row_major(type.shape), space)


@dataclass(frozen=True)
class Symbol:
    """An operand of an access's map: its value for a register of the thread, and between what it is."""

    value: Callable[[Mapping[Slot, int]], Value]
    range: Range


@dataclass
class Window:
    """The elements of a memory that a thread's registers stand for."""

    builder: Builder
    memory: Memory
    coordinates: Coordinates
    map: Sequence[AffineExpr]
    symbols: Sequence[Symbol]

    def places(self, digits: Mapping[Slot, int]) -> list[Value]:
        """The coordinates in the memory of the element in a register."""
        index = self.coordinates.at(digits)
        given = [symbol.value(digits) for symbol in self.symbols]
        return [evaluated(self.builder, expression, index, given) for expression in self.map]

    def is_there(self, digits: Mapping[Slot, int], places: Sequence[Value]) -> Value | None:
        """Whether a register's element is in the tile and in the memory; None where that is always so."""
        result = self.coordinates.is_inside(digits)
        for place, size, expression in zip(places, self.memory.shape, self.map, strict=True):
            low, high = self._range(expression, digits)
            if low < 0:
                result = self._both(result, self.builder.icmp_signed(">=", place, i32(0)))
            if high >= size:
                result = self._both(result, self.builder.icmp_signed("<", place, i32(size)))
        return result

    def _both(self, first: Value | None, second: Value) -> Value:
        return second if first is None else self.builder.and_(first, second)

    def _range(self, expression: AffineExpr, digits: Mapping[Slot, int]) -> Range:
        """Between what a coordinate of the memory is, over all threads."""
        dims = [
            (
                self.coordinates.register_part(d, digits),
                self.coordinates.register_part(d, digits) + self.coordinates.highest(d),
            )
            for d in range(self.coordinates.layout.rank)
        ]
        dims = [
            (low, min(high, size - 1))
            for (low, high), size in zip(dims, self.coordinates.layout.static_shape, strict=True)
        ]
        return range_of(expression, dims, [symbol.range for symbol in self.symbols])

    def offset(self, places: Sequence[Value]) -> Value:
        """How many elements into the memory the element at some coordinates is."""
        return offset_of(self.builder, self.memory.layout, places)

    def pointer(self, offset: Value) -> Value:
        return self.builder.gep(self.memory.pointer, [offset], source_etype=load_form(self.memory.dtype))


def offset_of(builder: Builder, layout: Layout, places: Sequence[Value]) -> Value:
    """How many elements into a memory of some layout the element at some coordinates is."""
    total: Value = i32(0)
    for term in layout.linear_terms(memory_axis(layout)):
        part = places[term.dim]
        if term.divisor > 1:
            part = builder.udiv(part, i32(term.divisor))
        if term.modulus is not None:
            part = builder.urem(part, i32(term.modulus))
        total = builder.add(total, builder.mul(part, i32(term.stride)))
    for term in layout.swizzle:
        total = _swizzled(builder, total, term)
    return total


def memory_axis(layout: Layout) -> str:
    return next((axis for axis in layout.axes if kind_of(axis) == Kind.MEMORY), "mem")


def _swizzled(builder: Builder, offset: Value, term: XorTerm) -> Value:
    mask = i32(((1 << term.bits) - 1) << term.source)
    bits = builder.and_(offset, mask)
    shift = term.source - term.target
    moved = builder.lshr(bits, i32(shift)) if shift > 0 else builder.shl(bits, i32(-shift))
    return builder.xor(offset, moved)


def evaluated(builder: Builder, expression: AffineExpr, dims: Sequence[Value], symbols: Sequence[Value]) -> Value:
    """The value of an affine expression."""
    if isinstance(expression, AffineConstantExpr):
        return i32(expression.value)
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position]
    if isinstance(expression, AffineSymExpr):
        return symbols[expression.position]
    assert isinstance(expression, AffineBinaryOpExpr)
    left = evaluated(builder, expression.lhs, dims, symbols)
    right = evaluated(builder, expression.rhs, dims, symbols)
    if expression.kind is AffineBinaryOpKind.Add:
        return builder.add(left, right)
    if expression.kind is AffineBinaryOpKind.Mul:
        return builder.mul(left, right)
    quotient = builder.sdiv(left, right)
    remainder = builder.sub(left, builder.mul(quotient, right))
    if expression.kind is AffineBinaryOpKind.CeilDiv:
        is_above = builder.icmp_signed(">", remainder, i32(0))
        return builder.add(quotient, builder.zext(is_above, quotient.type))
    is_below = builder.icmp_signed("<", remainder, i32(0))
    if expression.kind is AffineBinaryOpKind.Mod:
        return builder.select(is_below, builder.add(remainder, right), remainder)
    return builder.sub(quotient, builder.zext(is_below, quotient.type))


def range_of(expression: AffineExpr, dims: Sequence[Range], symbols: Sequence[Range]) -> Range:
    """Between what an affine expression is; divisors are positive constants."""
    if isinstance(expression, AffineConstantExpr):
        return expression.value, expression.value
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position]
    if isinstance(expression, AffineSymExpr):
        return symbols[expression.position]
    assert isinstance(expression, AffineBinaryOpExpr)
    left, right = range_of(expression.lhs, dims, symbols), range_of(expression.rhs, dims, symbols)
    if expression.kind is AffineBinaryOpKind.Add:
        return left[0] + right[0], left[1] + right[1]
    if expression.kind is AffineBinaryOpKind.Mul:
        corners = [a * b for a in left for b in right]
        return min(corners), max(corners)
    if expression.kind is AffineBinaryOpKind.Mod:
        return left if left[0] >= 0 and left[1] < right[0] else (0, right[1] - 1)
    if expression.kind is AffineBinaryOpKind.FloorDiv:
        return left[0] // right[0], left[1] // right[0]
    return -(-left[0] // right[0]), -(-left[1] // right[0])


def below(symbols: Sequence[Symbol], expression: AffineExpr, limit: int) -> list[Symbol]:
    """The symbols where an expression of them, one of them and a constant, is known to be below a limit."""
    form = linear_form(expression, ())
    if form is None or len(form.symbols) != 1 or form.symbols[0][1] != 1:
        return list(symbols)
    at = form.symbols[0][0]
    low, high = symbols[at].range
    return [
        Symbol(symbol.value, (low, min(high, limit - 1 - form.constant))) if position == at else symbol
        for position, symbol in enumerate(symbols)
    ]


def load(window: Window, vector: Sequence[int], fill: float | int | None) -> dict[int, Value]:
    """The registers of a tile that is loaded, those that are `vector` further on together."""
    builder, dtype = window.builder, window.memory.dtype
    values: dict[int, Value] = {}
    registers = dict(registers_of(window.coordinates.table))
    for number, digits in registers.items():
        if number in values:
            continue
        if any(number + further not in registers for further in vector):  # whole vectors are padding from here on
            values[number] = held_constant(builder, 0, dtype)
            continue
        places = window.places(digits)
        there = window.is_there(digits, places)
        offset = window.offset(places)
        if there is not None:
            offset = builder.select(there, offset, i32(0))
        count = len(vector)
        raw = builder.load(window.pointer(offset), typ=load_form(dtype, count), align=count * dtype.itemsize)
        for lane, further in enumerate(vector):
            own = builder.extract_element(raw, i32(lane)) if count > 1 else raw
            value = own if is_packed(dtype) else widen(builder, own, dtype)
            if there is not None and fill is not None:
                value = builder.select(there, value, held_constant(builder, fill, dtype))
            values[number + further] = value
    return values


def store(window: Window, vector: Sequence[int], values: Mapping[int, Value]) -> None:
    """Write the registers of a tile, once each, those that are `vector` further on together."""
    builder, dtype, table = window.builder, window.memory.dtype, window.coordinates.table
    copies = [slot for slot, content in table.slots.items() if isinstance(content, Copy)]
    threads = window.coordinates.threads
    elected = threads.is_first(
        [slot for slot in copies if kind_of(slot.axis) in (Kind.LANE, Kind.WARP)] + threads.unheld(table)
    )
    done: set[int] = set()
    for number, digits in registers_of(table):
        if number in done or any(slot in copies and digit for slot, digit in digits.items()):
            continue
        if any(number + further not in values for further in vector):  # whole vectors are padding from here on
            continue
        done.update(number + further for further in vector)
        places = window.places(digits)
        there = window.is_there(digits, places)
        if elected is not None:
            there = elected if there is None else builder.and_(there, elected)
        raw = _packed(builder, [_stored(builder, values[number + further], dtype) for further in vector], dtype)
        pointer = window.pointer(window.offset(places))
        if there is None:
            builder.store(raw, pointer, align=len(vector) * dtype.itemsize)
            continue
        with builder.if_then(there):
            builder.store(raw, pointer, align=len(vector) * dtype.itemsize)


def _stored(builder: Builder, value: Value, dtype: DType) -> Value:
    """A held element in memory form."""
    return value if is_packed(dtype) else narrow(builder, value, dtype)


def held_constant(builder: Builder, number: float | int, dtype: DType) -> Value:
    """A number as an element is held."""
    return held(builder, ir.Constant(register_form(dtype), float(number) if dtype.is_float else int(number)), dtype)


def _packed(builder: Builder, values: Sequence[Value], dtype: DType) -> Value:
    if len(values) == 1:
        return values[0]
    result: Value = undefined(load_form(dtype, len(values)))
    for lane, value in enumerate(values):
        result = builder.insert_element(result, value, i32(lane))
    return result

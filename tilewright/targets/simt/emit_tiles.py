"""The fragments of a thread of the tiles of a kernel: its registers of each, as their layouts state.

Tiles without a layout are functions of an index, which are called where an element is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Operation, SSAValue

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.refinement import IndexDigit, Slot
from tilewright.passes.warps.tile_lower_to_warps import layout_of
from tilewright.records import dataclass
from tilewright.targets.llvm.conversions import load_form, narrow, register_form, widen
from tilewright.targets.llvm.values import with_element
from tilewright.targets.llvm.vector_math import SUPPORTED as MATHEMATICS
from tilewright.targets.simt import emit_relayout
from tilewright.targets.simt.emit_memory import (
    ANY,
    Range,
    Symbol,
    evaluated,
    held_constant,
)
from tilewright.targets.simt.emit_scan import Line, scanned
from tilewright.targets.simt.fragments import (
    I32,
    Builder,
    Coordinates,
    Fragment,
    Threads,
    Value,
    computed,
    held,
    i32,
    is_packed,
    registers_of,
    slots_of,
    table_of,
)
from tilewright.targets.simt.functions import emit_cast, emit_function
from tilewright.targets.simt.lane_groups import Grouped, grouped, groups_of

I64 = ir.IntType(64)
# Functions of many instructions beside those of mathematics, and those that branch where an argument is huge.
_LONG = frozenset({"divide", "reciprocal", "sqrt"})
_WITH_BRANCHES = frozenset({"sin", "cos", "tan"})


Index = Sequence[Value]


def _same(index: Index) -> Index:
    return index


@dataclass(frozen=True)
class Lazy:
    """A tile that is rematerialised at each use: its element at an index, from the elements of its operands at the
    operand index `seen(index)`."""

    dtype: DType
    at: Callable[[Index, Sequence[Value]], Value]
    operands: Sequence[SSAValue] = ()
    seen: Callable[[Index], Index] = _same


def of_value(dtype: DType, value: Value) -> Lazy:
    """A scalar already emitted, or a splat: every element is `value`."""
    return Lazy(dtype, lambda index, operands: value)


Held = Fragment | Lazy


class Elements:
    """Memoised elements of lazy tiles, by tile and index. Indices compare by the identity of their values, so that
    each entry keeps its index alive."""

    def __init__(self) -> None:
        self._found: dict[tuple[SSAValue, tuple[int, ...]], tuple[Index, Value]] = {}

    def __contains__(self, place: tuple[SSAValue, Index]) -> bool:
        return self._key(*place) in self._found

    def __getitem__(self, place: tuple[SSAValue, Index]) -> Value:
        return self._found[self._key(*place)][1]

    def __setitem__(self, place: tuple[SSAValue, Index], element: Value) -> None:
        self._found[self._key(*place)] = (place[1], element)

    def _key(self, value: SSAValue, index: Index) -> tuple[SSAValue, tuple[int, ...]]:
        return value, tuple(map(id, index))


@dataclass
class TileEmitter:
    """Code for the tiles of a kernel. `indices`: what counts loops and blocks, with the numbers that each may be in
    `ranges`."""

    builder: Builder = field(init=False)
    threads: Threads = field(init=False)
    tiles: dict[SSAValue, Held] = field(init=False, default_factory=dict[SSAValue, Held])
    indices: dict[SSAValue, Value] = field(init=False, default_factory=dict[SSAValue, Value])
    ranges: dict[SSAValue, Range] = field(init=False, default_factory=dict[SSAValue, Range])
    _elements: Elements | None = field(init=False, default=None)

    def _layout(self, value: SSAValue) -> Any:
        layout = layout_of(value)
        if layout is None:
            raise CompilerBug(f"a tile of {array_type(value)} is moved that has no layout")
        return layout

    def _symbol(self, symbol: SSAValue) -> Symbol:
        if isinstance(symbol.type, IndexType):
            return Symbol(lambda digits: self.indices[symbol], self.ranges.get(symbol, ANY))
        fragment = self.tiles[symbol]
        if not isinstance(fragment, Fragment):
            raise CompilerBug("indices of lanes have no layout")

        def of_register(digits: Mapping[Slot, int]) -> Value:
            number = fragment.values[sum(slot.stride * digit for slot, digit in digits.items())]
            return number if number.type == I32 else self.builder.trunc(number, I32)

        return Symbol(of_register, ANY)

    def _fragment(self, value: SSAValue) -> Fragment:
        """A tile with each register by itself."""
        held = self.tiles[value]
        if not isinstance(held, Fragment):
            raise CompilerBug(f"a tile of {array_type(value)} has no layout")
        return replace(held, values=dict(held.values)) if isinstance(held.values, Grouped) else held

    def _element(self, value: SSAValue, index: Index) -> Value:
        """The element of a tile that is made where it is used, or the one element of a scalar, in register form.

        Elements are memoised within one request only: what is emitted in a branch does not dominate later uses.
        """
        if self._elements is not None:
            return self._element_from(self._elements, value, index)
        self._elements = Elements()
        try:
            return self._element_from(self._elements, value, index)
        finally:
            self._elements = None

    def _element_from(self, elements: Elements, value: SSAValue, index: Index) -> Value:
        """The element, emitting its operands' elements first: in post-order, without recursion."""
        pending: list[tuple[SSAValue, Index, Index | None]] = [(value, index, None)]
        while pending:
            wanted, place, seen = pending.pop()
            tile = self.tiles[wanted]
            if (wanted, place) in elements:
                continue
            if isinstance(tile, Fragment):
                elements[wanted, place] = self._only_element(tile)
            elif seen is None and tile.operands:
                seen = tile.seen(place)
                pending.append((wanted, place, seen))
                pending += [(operand, seen, None) for operand in reversed(tile.operands)]
            else:
                operands = [] if seen is None else [elements[operand, seen] for operand in tile.operands]
                elements[wanted, place] = tile.at(place, operands)
        return elements[value, index]

    def _only_element(self, tile: Fragment) -> Value:
        if tile.layout.rank:
            raise CompilerBug(f"an element of a tile in {tile.layout} is asked for by its index")
        return computed(self.builder, next(iter(tile.values.values())), tile.dtype)

    def _full(self, op: tile.FullOp) -> Lazy:
        dtype = array_type(op.result).dtype
        number = op.value
        constant = ir.Constant(register_form(dtype), float(number) if dtype.is_float else int(number))
        return of_value(dtype, constant)

    def _iota(self, op: tile.IotaOp) -> Held:
        (expression,) = op.map.results
        layout = layout_of(op.result)
        if layout is not None:
            places = [self._symbol(symbol) for symbol in op.symbols]
            coordinates = Coordinates(self.threads, layout)
            values: dict[int, Value] = {}
            for number, digits in registers_of(coordinates.table):
                symbols = [place.value(digits) for place in places]
                found = evaluated(self.builder, expression, coordinates.at(digits), symbols)
                values[number] = self.builder.sext(found, I64)
            return Fragment(layout, array_type(op.result).dtype, values)

        def at(index: Index, operands: Sequence[Value]) -> Value:
            symbols = [self._index_of(symbol, index) for symbol in op.symbols]
            return self.builder.sext(evaluated(self.builder, expression, index, symbols), I64)

        return Lazy(array_type(op.result).dtype, at)

    def _index_of(self, symbol: SSAValue, index: Index) -> Value:
        """A symbol of an affine map at an element of a tile."""
        if isinstance(symbol.type, IndexType):
            return self.indices[symbol]
        value = self._element(symbol, index)
        return value if value.type == I32 else self.builder.trunc(value, I32)

    def _elementwise(self, op: Operation) -> Held:
        type = array_type(op.results[0])
        layout = layout_of(op.results[0])
        if layout is None:

            def at(index: Index, operands: Sequence[Value]) -> Value:
                return self._rounded(self._apply(op, index, operands), type.dtype)

            return self._lazy(op, at, _tiles(op))
        coordinates = Coordinates(self.threads, layout)
        registers = list(registers_of(coordinates.table))
        if _is_choice(op):
            chosen = {number: self._chosen(op, number, coordinates.at(digits)) for number, digits in registers}
            return Fragment(layout, type.dtype, chosen)
        if self._is_grouped(op):
            return Fragment(layout, type.dtype, self._in_groups(op, coordinates, registers))
        values: dict[int, Value] = {}
        for number, digits in registers:
            index = coordinates.at(digits)
            operands = [self._register(operand, number, index) for operand in _tiles(op)]
            values[number] = held(self.builder, self._apply(op, index, operands), type.dtype)
        return Fragment(layout, type.dtype, values)

    def _lazy(self, op: Operation, at: Callable[[Index, Sequence[Value]], Value], operands: Sequence[SSAValue]) -> Lazy:
        """The result of an operation where it is used; scalars are computed once, where they are defined."""
        type = array_type(op.results[0])
        if type.shape:
            return Lazy(type.dtype, at, operands)
        return of_value(type.dtype, at((), [self._element(operand, ()) for operand in operands]))

    def _is_grouped(self, op: Operation) -> bool:
        """Whether an operation is computed on vectors: it is many instructions, its operands are in vectors, or the
        chip converts its types two at a time."""
        if isinstance(op, tile.MapOp) and op.fn in _WITH_BRANCHES:
            return False
        held = [self.tiles[operand] for operand in _tiles(op)]
        if any(isinstance(tile, Fragment) and isinstance(tile.values, Grouped) for tile in held):
            return True
        intrinsics = self.builder.intrinsics
        if any(intrinsics.converts(self.builder, array_type(v).dtype) for v in (*_tiles(op), op.results[0])):
            return True
        return isinstance(op, tile.MapOp) and (op.fn in MATHEMATICS or op.fn in _LONG)

    def _in_groups(
        self, op: Operation, coordinates: Coordinates, registers: Sequence[tuple[int, dict[Slot, int]]]
    ) -> Grouped:
        """The results of an elementwise operation that does not depend on where an element is."""
        numbers, dtype = [number for number, _ in registers], array_type(op.results[0]).dtype
        places = {number: coordinates.at(digits) for number, digits in registers} if self._has_lazy(op) else {}
        operands = [self._vectors(operand, numbers, places) for operand in _tiles(op)]
        results = [held(self.builder, self._apply(op, (), given), dtype) for given in zip(*operands, strict=True)]
        return Grouped(self.builder, results, numbers)

    def _has_lazy(self, op: Operation) -> bool:
        return any(isinstance(self.tiles[operand], Lazy) for operand in _tiles(op))

    def _vectors(self, operand: SSAValue, numbers: Sequence[int], places: Mapping[int, Sequence[Value]]) -> list[Value]:
        """An operand's elements in vectors, in register form."""
        tile = self.tiles[operand]
        if isinstance(tile, Lazy):
            return [
                grouped(self.builder, [self._element(operand, places[n]) for n in group])
                for group in groups_of(numbers)
            ]
        if isinstance(tile.values, Grouped):
            vectors = tile.values.vectors
        else:
            vectors = [grouped(self.builder, [tile.values[n] for n in group]) for group in groups_of(numbers)]
        return [computed(self.builder, vector, tile.dtype) for vector in vectors]

    def _chosen(self, op: Operation, number: int, index: Index) -> Value:
        """One of several elements: as it is held, so that none is converted there and back."""
        if isinstance(op, tile.MapOp):
            condition, first, second = _tiles(op)
            given = self._register(condition, number, index)
            return self.builder.select(given, self._held(first, number, index), self._held(second, number, index))
        assert isinstance(op, tile.FillPaddingOp)
        filling = held_constant(self.builder, op.value, array_type(op.result).dtype)
        beyond = self._is_beyond(op, index)
        return self.builder.select(beyond, filling, self._held(op.source, number, index))

    def _is_beyond(self, op: tile.FillPaddingOp, index: Index) -> Value:
        """Whether an element is padding."""
        (expression,) = op.map.results
        place = evaluated(self.builder, expression, index, [self._index_of(s, index) for s in op.symbols])
        return self.builder.icmp_signed(">=", place, i32(op.limit))

    def _rounded(self, value: Value, dtype: DType) -> Value:
        """A computed value as one of its type, in register form."""
        return computed(self.builder, held(self.builder, value, dtype), dtype)

    def _register(self, operand: SSAValue, number: int, index: Index) -> Value:
        """An operand's element in register form."""
        tile = self.tiles[operand]
        if isinstance(tile, Lazy):
            return self._element(operand, index)
        return computed(self.builder, tile.values[number], tile.dtype)

    def _held(self, operand: SSAValue, number: int, index: Index = ()) -> Value:
        """An operand's element as it is held; of a scalar its one, which has no index."""
        tile = self.tiles[operand]
        if isinstance(tile, Lazy):
            return held(self.builder, self._element(operand, index), tile.dtype)
        return tile.values[number]

    def _apply(self, op: Operation, index: Index, operands: Sequence[Value]) -> Value:
        dtype = array_type(op.results[0]).dtype
        if isinstance(op, tile.MapOp):
            dtype = array_type(op.operands[-1]).dtype
            return emit_function(self.builder, op.fn, dtype, operands, ftz=op.ftz, contract=op.contract)
        source = array_type(op.operands[0]).dtype
        if isinstance(op, tile.CastOp):
            return emit_cast(self.builder, operands[0], source, dtype)
        if isinstance(op, tile.BitcastOp):
            given = narrow(self.builder, operands[0], source)
            bits = self.builder.bitcast(given, with_element(given.type, load_form(dtype)))
            return widen(self.builder, bits, dtype)
        assert isinstance(op, tile.FillPaddingOp)
        number = op.value
        filling = ir.Constant(register_form(dtype), float(number) if dtype.is_float else int(number))
        return self.builder.select(self._is_beyond(op, index), filling, operands[0])

    def _renamed(self, source: SSAValue, result: SSAValue) -> Held:
        """The registers of a tile under another layout."""
        held = self.tiles[source]
        if not isinstance(held, Fragment):
            raise CompilerBug(f"a tile of {array_type(source)} has no layout")
        return Fragment(self._layout(result), array_type(result).dtype, held.values)

    def _view(self, op: Operation) -> Held:
        """Registers stay what they are; a broadcast reads some several times."""
        source, result = op.operands[0], op.results[0]
        given = self.tiles[source]
        if isinstance(given, Lazy):
            return Lazy(given.dtype, _first, (source,), lambda index: _seen_through(self.builder, op, index))
        if not isinstance(op, tile.BroadcastOp):
            return self._renamed(source, result)
        layout, axes = self._layout(result), op.axes
        coordinates = Coordinates(self.threads, layout)
        values: dict[int, Value] = {}
        for number, digits in registers_of(coordinates.table):
            at = 0
            for slot, content in slots_of(table_of(given.layout), Kind.REGISTER):
                if isinstance(content, IndexDigit):
                    step = coordinates.register_part(axes[content.dim], digits)
                    at += slot.stride * (step // content.weight % content.extent)
            values[number] = given.values[at]
        return Fragment(layout, given.dtype, values)

    def _reduce(self, op: tile.ReduceOp) -> Held:
        """Each thread combines what it holds; padding counts as the identity."""
        source, dtype = self._fragment(op.operands[0]), array_type(op.results[0]).dtype
        coordinates = Coordinates(self.threads, source.layout)
        identity = held_constant(self.builder, _identity(op.fn, dtype), dtype)
        values = dict(source.values)
        for number, digits in registers_of(coordinates.table):
            inside = coordinates.is_inside(digits)
            if inside is not None:
                values[number] = self.builder.select(inside, values[number], identity)
        layout = self._layout(op.results[0])
        combine = self._combination(op.fn, dtype)
        masked = Fragment(source.layout, dtype, values)
        return Fragment(layout, dtype, emit_relayout.combine_registers(masked, layout, combine))

    def _scan(self, op: tile.ScanOp) -> Held:
        source, fn = self._fragment(op.operands[0]), op.fn
        identity = held_constant(self.builder, _identity(fn, source.dtype), source.dtype)
        axis, backwards = op.axis, bool(op.reverse)
        return scanned(self.threads, source, fn, Line(axis, backwards), identity)

    def _combination(self, name: str, dtype: DType) -> emit_relayout.Combine:
        builder = self.builder

        def combine(first: Value, second: Value) -> Value:
            operands = [computed(builder, each, dtype) for each in (first, second)]
            return held(builder, emit_function(builder, name, dtype, operands), dtype)

        return combine

    def _relayout(self, op: tile.RelayoutOp) -> Held:
        type, given = array_type(op.result), self.tiles[op.source]
        if layout_of(op.result) is None:
            return self._lazy(op, _first, (op.source,))
        layout = self._layout(op.result)
        if isinstance(given, Fragment):
            given = self._fragment(op.source)
        else:
            coordinates = Coordinates(self.threads, layout)
            values = {
                number: held(self.builder, self._element(op.source, coordinates.at(digits)), type.dtype)
                for number, digits in registers_of(coordinates.table)
            }
            return Fragment(layout, type.dtype, values)
        terms = [term for term in given.layout.partial if term not in layout.partial]
        if not terms:
            return Fragment(layout, type.dtype, emit_relayout.rearranged(self.threads, given, layout))
        combine = self._combination(terms[0].op, type.dtype)
        if all(kind_of(term.axis) == Kind.LANE for term in terms):
            return Fragment(layout, type.dtype, emit_relayout.combine_lanes(self.threads, given, layout, combine))
        return Fragment(layout, type.dtype, emit_relayout.combine_registers(given, layout, combine))


def numbers_of(layout: Layout | None) -> list[int]:
    """The registers of a layout; the one of a scalar."""
    return [0] if layout is None else [number for number, _ in registers_of(table_of(layout))]


def row_major(shape: Sequence[int]) -> list[int]:
    """The steps of the dims of an array whose last is dense, in elements."""
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _first(index: Index, operands: Sequence[Value]) -> Value:
    return operands[0]


def _tiles(op: Operation) -> list[SSAValue]:
    """The tiles that an elementwise operation takes its values from."""
    if isinstance(op, tile.FillPaddingOp):
        return [op.source]
    return [operand for operand in op.operands if isinstance(operand.type, TensorType)]


def _is_choice(op: Operation) -> bool:
    """Whether an operation gives one of several elements as it is held: padding, or a narrow float."""
    if isinstance(op, tile.MapOp) and op.fn == "select":
        return is_packed(array_type(op.results[0]).dtype)
    return isinstance(op, tile.FillPaddingOp)


def _identity(name: str, dtype: DType) -> float | int:
    identity = ops.FUNCTIONS[name].identity
    return 0 if identity is None else identity(dtype)


def _seen_through(builder: Builder, op: Operation, index: Index) -> list[Value]:
    """The index in the operand of a view that an index in its result stands for."""
    source = array_type(op.operands[0]).shape
    if isinstance(op, tile.TransposeOp):
        order = op.permutation
        return [index[order.index(dim)] for dim in range(len(source))]
    if isinstance(op, tile.BroadcastOp):
        return [i32(0) if size == 1 else index[axis] for size, axis in zip(source, op.axes, strict=True)]
    total: Value = i32(0)
    for own, step in zip(index, row_major(array_type(op.results[0]).shape), strict=True):
        total = builder.add(total, builder.mul(own, i32(step)))
    found: list[Value] = []
    for size, step in zip(source, row_major(source), strict=True):
        found.append(builder.urem(builder.udiv(total, i32(step)), i32(size)))
    return found

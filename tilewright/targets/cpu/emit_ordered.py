"""Print scans, argument reductions and sorts: sequential along one axis, element by element over the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.conversions import load_form, narrow, register_form, widen
from tilewright.targets.cpu.functions import emit_function
from tilewright.targets.cpu.loops import I64, add, entry_alloca, i64, loop, minimum, multiply, offset_pointer
from tilewright.targets.cpu.vector_math_common import Value

ORDERED = (tile.ScanOp, tile.ArgReduceOp, tile.SortOp)


def ordered_op(nest: scheduled.NestOp) -> tile.TileOp | None:
    """The ordered operation of a nest, if it holds one."""
    return next((op for op in nest.body.block.ops if isinstance(op, ORDERED)), None)


def emit_ordered(context: FunctionContext, nest: scheduled.NestOp, op: tile.TileOp) -> None:
    """Append the code of a nest around an ordered operation at the builder's position."""
    sources = [_Line.of(context, operand.owner.source) for operand in op.operands]  # type: ignore[union-attr]  loads
    stores = {s.value: s for s in nest.body.block.ops if isinstance(s, tile.StoreOp)}
    targets = [_Line.of(context, stores[r].destination) for r in op.results]
    shape = array_type(op.operands[0]).shape
    axis: int = op.attributes_of()["axis"]
    others = [d for d in range(len(shape)) if d != axis]

    def nest_loops(dims: Sequence[int], position: dict[int, Value]) -> None:
        if dims:
            with loop(context.builder, i64(0), i64(shape[dims[0]]), 1, f"d{dims[0]}") as index:
                nest_loops(dims[1:], position | {dims[0]: index})
            return
        kept = [position[d] for d in others]
        inner = [line.along(axis, position) for line in sources]
        if isinstance(op, tile.ArgReduceOp):
            _arg_reduce(context, op, inner[0], targets[0], kept, shape[axis])
        elif isinstance(op, tile.ScanOp):
            _scan(context, op, inner[0], targets[0].along(axis, position), shape[axis])
        elif isinstance(op, tile.SortOp):
            _sort(context, op, inner, [t.along(axis, position) for t in targets], shape[axis])

    if 0 not in shape:
        nest_loops(others, {})


@dataclass(frozen=True)
class _Line:
    """A row-major buffer, or one line of it: element i at `pointer + i * stride`."""

    context: FunctionContext
    pointer: Value
    dtype: DType
    shape: tuple[int, ...]
    stride: int = 1

    @staticmethod
    def of(context: FunctionContext, ref: SSAValue) -> _Line:
        type = tile.ref_type(ref)
        if type.layout.data:
            raise CompilerBug("ordered operations work on row-major buffers")
        return _Line(context, context.pointers[ref], type.dtype, type.shape)

    def strides(self) -> list[int]:
        result: list[int] = []
        below = 1
        for n in reversed(self.shape):
            result.append(below)
            below *= n
        return result[::-1]

    def along(self, axis: int, position: dict[int, Value]) -> _Line:
        builder, strides = self.context.builder, self.strides()
        offset: Value = i64(0)
        for d, index in position.items():
            offset = add(builder, offset, multiply(builder, index, strides[d]))
        start = offset_pointer(builder, self.pointer, offset, self.dtype.itemsize)
        return _Line(self.context, start, self.dtype, self.shape, strides[axis])

    def _pointer(self, index: Value) -> Value:
        builder = self.context.builder
        return offset_pointer(builder, self.pointer, multiply(builder, index, self.stride), self.dtype.itemsize)

    def load(self, index: Value) -> Value:
        raw = self.context.builder.load(self._pointer(index), typ=load_form(self.dtype))
        return widen(self.context.builder, raw, self.dtype)

    def store(self, index: Value, value: Value) -> None:
        self.context.builder.store(narrow(self.context.builder, value, self.dtype), self._pointer(index))


def _scan(context: FunctionContext, op: tile.ScanOp, source: _Line, target: _Line, count: int) -> None:
    builder = context.builder
    fn, reverse = op.fn.data, bool(op.reverse.value.data)
    running = entry_alloca(builder, register_form(source.dtype))

    def place(index: Value) -> Value:
        return builder.sub(i64(count - 1), index) if reverse else index

    first = i64(count - 1 if reverse else 0)
    builder.store(source.load(first), running)
    target.store(first, source.load(first))
    if count == 1:
        return
    with loop(builder, i64(1), i64(count), 1, "scan") as index:
        at = place(index)
        total = builder.load(running, typ=register_form(source.dtype))
        total = emit_function(builder, fn, source.dtype.compute, [total, source.load(at)])
        builder.store(total, running)
        target.store(at, total)


def _arg_reduce(
    context: FunctionContext, op: tile.ArgReduceOp, source: _Line, target: _Line, kept: Sequence[Value], count: int
) -> None:
    builder = context.builder
    form = register_form(source.dtype)
    best, where = entry_alloca(builder, form), entry_alloca(builder, I64)
    builder.store(source.load(i64(0)), best)
    builder.store(i64(0), where)
    if count > 1:
        with loop(builder, i64(1), i64(count), 1, "arg") as index:
            value, current = source.load(index), builder.load(best, typ=form)
            fn = "greater" if op.fn.data == "maximum" else "less"
            better = _precedes(context, fn, source.dtype, value, current)
            builder.store(builder.select(better, value, current), best)
            builder.store(builder.select(better, index, builder.load(where, typ=I64)), where)
    offset: Value = i64(0)
    for index, stride in zip(kept, target.strides(), strict=True):
        offset = add(builder, offset, multiply(builder, index, stride))
    pointer = offset_pointer(builder, target.pointer, offset, dtypes.i64.itemsize)
    builder.store(builder.load(where, typ=I64), pointer)


def _precedes(context: FunctionContext, fn: str, dtype: DType, value: Value, other: Value) -> Value:
    """`fn(value, other)`, where a NaN precedes everything but a NaN."""
    builder = context.builder
    ordered = emit_function(builder, fn, dtype, [value, other])
    if not dtype.is_float:
        return ordered
    value_nan = builder.fcmp_unordered("uno", value, value)
    other_nan = builder.fcmp_unordered("uno", other, other)
    return builder.or_(ordered, builder.and_(value_nan, builder.not_(other_nan)))


def _sort(context: FunctionContext, op: tile.SortOp, sources: list[_Line], targets: list[_Line], count: int) -> None:
    """Bottom-up merge sort of positions: stable, n log n, two arrays of positions."""
    builder = context.builder
    keys = sources[0]
    descending = bool(op.descending.value.data)
    order = _Positions(context, entry_alloca(builder, ir.PointerType()), context.temporary(count * 8))
    spare = _Positions(context, entry_alloca(builder, ir.PointerType()), context.temporary(count * 8))
    with loop(builder, i64(0), i64(count), 1, "init") as index:
        order.store(index, index)

    def comes_first(right: Value, left: Value) -> Value:
        """Whether the element at `right` must come before the one at `left`, which was earlier."""
        a, b = keys.load(right), keys.load(left)
        if descending:
            return _precedes(context, "greater", keys.dtype, a, b)
        # Ascending: NaN is largest, so the left one moves back when it is NaN and the right one is not.
        less = emit_function(builder, "less", keys.dtype, [a, b])
        if not keys.dtype.is_float:
            return less
        only_left = builder.and_(builder.fcmp_unordered("uno", b, b), builder.fcmp_ordered("ord", a, a))
        return builder.or_(less, only_left)

    width = 1
    while width < count:
        with loop(builder, i64(0), i64(count), 2 * width, "runs") as start:
            _merge(context, order, spare, start, width, count, comes_first)
        order, spare = spare, order
        width *= 2
    with loop(builder, i64(0), i64(count), 1, "place") as index:
        position = order.load(index)
        for source, target in zip(sources, targets, strict=True):
            target.store(index, source.load(position))


class _Positions:
    """An array of i64 positions."""

    def __init__(self, context: FunctionContext, slot: Value, base: Value) -> None:
        self._context = context
        context.builder.store(base, slot)
        self._slot = slot

    def _pointer(self, index: Value) -> Value:
        base = self._context.builder.load(self._slot, typ=ir.PointerType())
        return offset_pointer(self._context.builder, base, index, 8)

    def load(self, index: Value) -> Value:
        return self._context.builder.load(self._pointer(index), typ=I64)

    def store(self, index: Value, value: Value) -> None:
        self._context.builder.store(value, self._pointer(index))


def _merge(
    context: FunctionContext,
    source: _Positions,
    target: _Positions,
    start: Value,
    width: int,
    count: int,
    comes_first: Callable[[Value, Value], Value],
) -> None:
    """Merge the runs [start, start + width) and [start + width, start + 2 * width) of `source` into `target`."""
    builder = context.builder
    middle = minimum(builder, add(builder, start, i64(width)), i64(count))
    end = minimum(builder, add(builder, start, i64(2 * width)), i64(count))
    left, right = entry_alloca(builder, I64), entry_alloca(builder, I64)
    builder.store(start, left)
    builder.store(middle, right)
    last = i64(count - 1)
    with loop(builder, start, end, 1, "merge") as index:
        i, j = builder.load(left, typ=I64), builder.load(right, typ=I64)
        left_empty = builder.icmp_signed(">=", i, middle)
        right_left = builder.icmp_signed("<", j, end)
        # Clamped reads stay inside the arrays when a run is used up; the flags then decide.
        left_position = source.load(minimum(builder, i, last))
        right_position = source.load(minimum(builder, j, last))
        first = comes_first(right_position, left_position)
        take_right = builder.and_(right_left, builder.or_(left_empty, first))
        target.store(index, builder.select(take_right, right_position, left_position))
        taken = builder.zext(take_right, I64)
        builder.store(builder.add(j, taken), right)
        builder.store(builder.add(i, builder.sub(i64(1), taken)), left)

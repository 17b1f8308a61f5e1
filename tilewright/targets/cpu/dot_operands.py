"""Addresses of the operands and the result of a matmul, and the extents of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Form, Index, address_terms, linear_form
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.loops import add, i64, maximum, minimum, multiply, offset_pointer, static
from tilewright.targets.llvm.values import Value


@dataclass(frozen=True)
class Left:
    """The left operand from the tile's origin on, in elements. `rows` of the tile exist, which is one of `counts`.
    `step_strides` are those of the summed dims around the depth."""

    pointer: Value
    row_stride: int
    depth_stride: int
    rows: Value
    counts: frozenset[int]
    step_strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Right:
    """The right operand from the tile's origin on, in elements. It has `panels` from there; the last of them has only
    `tail` columns if `tail` is not 0. `step_strides` are those of the summed dims around the depth."""

    pointer: Value
    panel_stride: int
    depth_stride: int
    panels: Value
    tail: int
    step_strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Accumulator:
    """The accumulator from the tile's origin on, in elements: a buffer, which has room for whole register blocks, or a
    window of an array, which has `rows` (one of `counts`) and `columns`, in `panels`, the last of them with `tail`."""

    pointer: Value
    pitch: int
    rows: Value | None = None
    counts: frozenset[int] = frozenset()
    columns: Value | None = None
    panels: Value | None = None
    tail: int = 0


def depth_of(context: FunctionContext, op: scheduled.DotOp, depth: int) -> Value:
    if op.depth_map is None or op.depth_limit is None:
        return i64(depth)
    form = linear_form(op.depth_map.results[0], ())
    if form is None:
        raise CompilerBug("the depth of a matmul is not linear")
    room = context.room(op.depth_limit, form, op.symbols)
    return minimum(context.builder, i64(depth), room)


def start_of(context: FunctionContext, form: Form, symbols: list[SSAValue]) -> Value:
    total: Value = i64(form.constant)
    for position, coefficient in form.symbols:
        total = add(context.builder, total, multiply(context.builder, context.scalars[symbols[position]], coefficient))
    return total


def forms_of(map: AffineMap) -> list[Form]:
    at = tuple(Index(dim) for dim in range(map.num_dims))
    forms = [linear_form(e, at) for e in map.results]
    if any(f is None for f in forms):
        raise CompilerBug(f"operand map {map} is not linear")
    return [f for f in forms if f is not None]


def left_of(context: FunctionContext, op: scheduled.DotOp) -> Left:
    """A strided operand."""
    type = tile.ref_type(op.left)
    forms = forms_of(op.left_map)
    row_stride = depth_stride = 0
    steps = [0] * len(op.outer_steps)
    offset: Value = i64(0)
    rows: Value = i64(op.shape[0])
    counts = frozenset({op.shape[0]})
    for term in address_terms(type):
        if term.divisor != 1 or term.modulus is not None:
            raise CompilerBug("the left operand of a matmul is not strided")
        form = forms[term.dim]
        row_stride += term.stride * form.coefficient(0)
        depth_stride += term.stride * form.coefficient(1)
        steps = [n + term.stride * form.coefficient(2 + step) for step, n in enumerate(steps)]
        start = start_of(context, form, list(op.symbols))
        offset = add(context.builder, offset, multiply(context.builder, start, term.stride))
        if form.coefficient(0):
            size = type.shape[term.dim]
            rows = minimum(context.builder, rows, context.room(size, form, op.symbols))
            counts = _counts(context, form, op.symbols, size, op.shape[0])
    pointer = offset_pointer(context.builder, context.pointers[op.left], offset, type.dtype.itemsize)
    return Left(pointer, row_stride, depth_stride, rows, counts, tuple(steps))


def accumulator_of(context: FunctionContext, op: scheduled.DotOp) -> Accumulator:
    type = tile.ref_type(op.accumulator)
    if op.accumulator_map is None:
        return Accumulator(context.pointers[op.accumulator], type.shape[1])
    builder, width = context.builder, op.micro_tile[1]
    offset, rows, columns, panels = i64(0), i64(op.shape[0]), i64(op.shape[1]), i64(-(-op.shape[1] // width))
    pitch = tail = 0
    counts = frozenset({op.shape[0]})
    for term, form in zip(address_terms(type), forms_of(op.accumulator_map), strict=True):
        start = start_of(context, form, list(op.symbols))
        offset = add(builder, offset, multiply(builder, start, term.stride))
        size = type.shape[term.dim]
        if form.coefficient(0):
            pitch = term.stride
            rows = minimum(builder, rows, context.room(size, form, op.symbols))
            counts = _counts(context, form, op.symbols, size, op.shape[0])
        if form.coefficient(1):
            tail = size % width
            columns = minimum(builder, columns, context.room(size, form, op.symbols))
            room = add(builder, context.room(size, form, op.symbols), i64(width - 1))
            known = static(room)
            panels = i64(known // width) if known is not None else builder.udiv(room, i64(width))
    pointer = offset_pointer(builder, context.pointers[op.accumulator], offset, type.dtype.itemsize)
    return Accumulator(pointer, pitch, rows, counts, columns, panels, tail)


def right_of(context: FunctionContext, op: scheduled.DotOp) -> Right:
    """An operand in panels, or one whose columns follow each other in memory."""
    return _window_of(context, op) if op.outer_steps else _panels_of(context, op)


def _window_of(context: FunctionContext, op: scheduled.DotOp) -> Right:
    """An operand that is read in place, from any column on, and has all columns that the accumulator has."""
    type, builder, width = tile.ref_type(op.right), context.builder, op.micro_tile[1]
    strides = [0] * (2 + len(op.outer_steps))
    offset: Value = i64(0)
    for term, form in zip(address_terms(type), forms_of(op.right_map), strict=True):
        strides = [n + term.stride * form.coefficient(dim) for dim, n in enumerate(strides)]
        start = start_of(context, form, list(op.symbols))
        offset = add(builder, offset, multiply(builder, start, term.stride))
    depth, column, *steps = strides
    pointer = offset_pointer(builder, context.pointers[op.right], offset, type.dtype.itemsize)
    return Right(pointer, column * width, depth, i64(-(-op.shape[1] // width)), 0, tuple(steps))


def _panels_of(context: FunctionContext, op: scheduled.DotOp) -> Right:
    type = tile.ref_type(op.right)
    forms = forms_of(op.right_map)
    width = op.micro_tile[1]
    panel = depth = tail = 0
    offset: Value = i64(0)
    remaining: Value = i64(-(-op.shape[1] // width))
    builder = context.builder
    for term in address_terms(type):
        form = forms[term.dim]
        start = start_of(context, form, list(op.symbols))
        if form.coefficient(1):
            # The tile starts at a whole panel, so only the panel number moves the start. Where the depth is 1, panels
            # follow each other without a gap and the layout is one run of columns too.
            whole = term.divisor == 1 and term.modulus is None
            if term.divisor == width or whole:
                step = term.stride * (width if whole else 1)
                panel += step
                known = static(start)
                number = i64(known // width) if known is not None else builder.sdiv(start, i64(width))
                offset = add(builder, offset, multiply(builder, number, step))
                size = type.shape[term.dim]
                total = -(-size // width)
                # What has a layout is padded to whole panels.
                tail = 0 if type.layout.data else size % width
                moves = static(number) is None
                remaining = builder.sub(i64(total), number) if moves else i64(total - int(static(number) or 0))
                if context.highest(form, op.symbols) // width > total:
                    remaining = maximum(builder, remaining, i64(0))
            elif term.divisor != 1 or term.stride != 1:
                raise CompilerBug("the right operand of a matmul is not packed in panels of the register block's width")
            continue
        if term.divisor != 1 or term.modulus is not None:
            raise CompilerBug("the right operand of a matmul is split along its depth")
        depth += term.stride * form.coefficient(0)
        offset = add(builder, offset, multiply(builder, start, term.stride))
    pointer = offset_pointer(builder, context.pointers[op.right], offset, type.dtype.itemsize)
    return Right(pointer, panel, depth, remaining, tail)


def _counts(context: FunctionContext, start: Form, symbols: Sequence[SSAValue], size: int, most: int) -> frozenset[int]:
    """How many of `most` positions from a start on may be below `size`, for every value of the index scalars."""
    starts = {start.constant}
    for position, coefficient in start.symbols:
        steps = [coefficient * value for value in range(context.bound(symbols[position]))]
        starts = {low + step for low in starts for step in steps}
    return frozenset(max(0, min(most, size - low)) for low in starts)

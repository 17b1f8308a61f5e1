"""Tile kernels for operations that need a whole axis at once or in order: `scan`, `sort`, `arg_reduce`, `top_k`.

Long lines of which there are few are cut into parts, which threads share. Of an argument reduction a first kernel takes
each part for itself, a second one joins what it found. A part of a scan is summed, which loads it into a cache, then
scanned from the total that the part before it passes on: memory is read once. Parts depend on the shape and the machine
alone, and with them the order in which floats are added.

On machines with lanes a tile is what a block holds in registers; a block scans the parts of a line one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright import dtypes, ops, schedules
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import yielded
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.kernels.group_stages import Stage, Values
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear, Tile
from tilewright.passes.kernels.tile_builder import TileBuilder
from tilewright.primitives import ArrayType

Ordered = array.ScanOp | array.SortOp | array.ArgReduceOp | array.TopKOp
ORDERED = (array.ScanOp, array.SortOp, array.ArgReduceOp, array.TopKOp)


# Lines side by side of which a tile takes a part.
PART_COLUMNS = 64


class OrderedPlan(msgspec.Struct, frozen=True):
    """A tile holds `part` elements along `axis` and lines next to each other: `extents` of the other dimensions. With
    `reverse`, parts are counted from the far end."""

    shape: tuple[int, ...]
    axis: int
    part: int
    extents: dict[int, int]
    reverse: bool = False

    @property
    def beside(self) -> tuple[int, ...]:
        """The grid without the axis."""
        return tuple(-(-self.shape[d] // extent) for d, extent in self.extents.items())

    @property
    def parts(self) -> int:
        return -(-self.shape[self.axis] // max(1, self.part))


def ordered_op(group: array.FusedOp) -> Ordered:
    return next(op for op in group.body.block.ops if isinstance(op, ORDERED))


def axis_of(op: Ordered) -> int:
    """The axis along which an ordered operation works."""
    return array_type(op.operands[0]).rank - 1 if isinstance(op, array.TopKOp) else op.axis


def ordered_plan(op: Ordered, schedule: schedules.Ordered) -> OrderedPlan:
    """The tiles of an ordered operation by its schedule."""
    axis, tile = axis_of(op), schedule.tile
    extents = {d: extent for d, extent in enumerate(tile) if d != axis}
    reverse = isinstance(op, array.ScanOp) and bool(op.reverse)
    return OrderedPlan(array_type(op.operands[0]).shape, axis, tile[axis], extents, reverse)


def ordered_stages(group: array.FusedOp, plan: OrderedPlan, in_turns: bool) -> list[Stage]:
    """The kernels of a group around an ordered operation. `in_turns`: a program instance scans all parts of a line."""
    op = ordered_op(group)
    if plan.parts <= 1:
        return [Stage(plan.beside, lambda builder, indices, outputs, _: _whole(group, plan, builder, indices, outputs))]
    type = array_type(op.operands[0])
    shape = tuple(plan.parts if d == plan.axis else n for d, n in enumerate(type.shape))
    grid = (*plan.beside, plan.parts)
    if isinstance(op, array.ScanOp) and in_turns:
        return [
            Stage(plan.beside, lambda builder, indices, outputs, _: _scan_in_turns(op, plan, builder, indices, outputs))
        ]
    if isinstance(op, array.ScanOp):
        totals = ArrayType(shape, type.dtype.compute)
        return [
            Stage(
                grid,
                lambda builder, indices, outputs, _: _scan_part(op, plan, builder, indices, outputs),
                passed=(totals,),
            )
        ]
    return [
        Stage(
            grid,
            lambda builder, indices, outputs, _: _best_of_parts(op, plan, builder, indices, outputs),
            "parts",
            (ArrayType(shape, type.dtype), ArrayType(shape, dtypes.i64)),
        ),
        Stage(
            plan.beside,
            lambda builder, indices, outputs, earlier: _best_part(op, plan, builder, indices, outputs, earlier),
        ),
    ]


# ---- tiles ----------------------------------------------------------------------------------------------------------


class _Tiling(msgspec.Struct, frozen=True):
    """The coordinates of a tile's elements in the whole array: its axes, `along` the one of the operation."""

    along: Axis
    axes: tuple[Axis, ...]
    at: Coordinates

    @property
    def kept(self) -> tuple[Axis, ...]:
        """The axes next to the operation's."""
        return tuple(axis for axis in self.axes if axis is not self.along)

    def with_axis(self, dim: int, position: Linear) -> Coordinates:
        """The coordinates with another one along the operation's axis."""
        return tuple(position if d == dim else c for d, c in enumerate(self.at))


def _tiling(plan: OrderedPlan, indices: Values, extent: int) -> _Tiling:
    """The tile at grid indices, with `extent` elements along the axis: of a part where there is an index for it."""
    along = Axis(extent, plan.axis, "all")
    axes: list[Axis] = [along]
    at: dict[int, Linear] = {plan.axis: Linear.of(along)}
    if len(indices) > len(plan.extents):
        at[plan.axis] = at[plan.axis] + _start(plan, indices[-1], extent)
    for (d, extent_beside), counter in zip(plan.extents.items(), indices, strict=False):
        at[d] = Linear.of(counter, extent_beside) if extent_beside < plan.shape[d] else Linear()
        if extent_beside > 1:
            axes.append(Axis(extent_beside, d, f"d{d}"))
            at[d] = at[d] + Linear.of(axes[-1])
    axes.sort(key=lambda axis: axis.order)
    return _Tiling(along, tuple(axes), tuple(at[d] for d in range(len(plan.shape))))


def _start(plan: OrderedPlan, counter: SSAValue, extent: int) -> Linear:
    """The start of a part; parts are counted in their order of execution."""
    number = Linear.of(counter, -1) + (plan.parts - 1) if plan.reverse else Linear.of(counter)
    return number * extent


def _whole(group: array.FusedOp, plan: OrderedPlan, builder: TileBuilder, indices: Values, outputs: Values) -> None:
    """Pull the whole axis of each operand, apply the operation, store."""
    op = ordered_op(group)
    tiling = _tiling(plan, indices, plan.shape[plan.axis])
    operands = [builder.expand(builder.pull(operand, tiling.at), tiling.axes) for operand in op.operands]
    results, kept = _apply(builder, op, operands, tiling)
    stored = tiling.at
    if isinstance(op, array.ArgReduceOp):
        stored = tuple(c for d, c in enumerate(tiling.at) if d != plan.axis)
    elif isinstance(op, array.TopKOp):
        stored = tiling.with_axis(plan.axis, Linear.of(kept[-1]))
    for value, ref in zip(yielded(group.body.block), outputs, strict=True):
        result = results[[r is value for r in op.results].index(True)]
        builder.store(Tile(result, kept), ref, stored)


def _apply(
    builder: TileBuilder, op: Ordered, operands: Sequence[SSAValue], tiling: _Tiling
) -> tuple[Sequence[SSAValue], tuple[Axis, ...]]:
    """Append the tile form of the operation; gives its results and their axes."""
    axes, position = tiling.axes, tiling.axes.index(tiling.along)
    types = [array_type(o) for o in operands]
    if isinstance(op, array.ArgReduceOp):
        result = tensor(ArrayType(tuple(axis.extent for axis in tiling.kept), dtypes.i64))
        made = tile.ArgReduceOp(arguments=operands, fn=op.fn, axis=position, outputs=[result])
        builder.block.add_op(made)
        return made.results, tiling.kept
    if isinstance(op, array.TopKOp):
        first = Axis(op.k, tiling.along.order, "first")
        shape = (*(axis.extent for axis in tiling.kept), op.k)
        made = tile.TopKOp(
            arguments=operands,
            k=op.k,
            outputs=[tensor(ArrayType(shape, dtype)) for dtype in (types[0].dtype, dtypes.i64)],
        )
        builder.block.add_op(made)
        return made.results, (*tiling.kept, first)
    if isinstance(op, array.ScanOp):
        made = tile.ScanOp(arguments=operands, fn=op.fn, axis=position, reverse=op.reverse, outputs=[tensor(types[0])])
    else:
        outputs = [tensor(t) for t in types]
        made = tile.SortOp(arguments=operands, axis=position, descending=op.descending, runs=op.runs, outputs=outputs)
    builder.block.add_op(made)
    return made.results, axes


# ---- parts ----------------------------------------------------------------------------------------------------------


def _neutral(fn: str, dtype: DType) -> float | int:
    """The identity element of the operation."""
    identity = ops.FUNCTIONS[fn].identity
    if identity is None:
        raise CompilerBug(f"`{fn}` has no identity")
    value = identity(dtype)
    return float(value) if dtype.is_float else int(value)


def _scan_part(op: array.ScanOp, plan: OrderedPlan, builder: TileBuilder, indices: Values, outputs: Values) -> None:
    """Scan a part from the total of those before it; pass its own on before that."""
    totals, result = outputs
    tiling = _tiling(plan, indices, plan.part)
    dtype, size = array_type(op.operands[0]).dtype.compute, plan.shape[plan.axis]
    part = builder.cast(builder.pull(op.operands[0], tiling.at), dtype)
    part = Tile(builder.expand(part, tiling.axes), tiling.axes)
    if size % plan.part:
        part = builder.fill_padding(part, tiling.at[plan.axis], size, _neutral(op.fn, dtype))
    total = builder.reduce(part, op.fn, [tiling.along])
    number = Linear.of(indices[-1])
    before = builder.load(totals, tiling.with_axis(plan.axis, number + -1), fill=_neutral(op.fn, dtype))
    builder.store(builder.map(op.fn, before, total), totals, tiling.with_axis(plan.axis, number))
    operand = builder.expand(builder.pull(op.operands[0], tiling.at), tiling.axes)
    initial = builder.expand(before, tiling.kept)
    results, axes = _apply(builder, op, [operand, initial], tiling)
    builder.store(Tile(results[0], axes), result, tiling.at)


def _scan_in_turns(op: array.ScanOp, plan: OrderedPlan, builder: TileBuilder, indices: Values, outputs: Values) -> None:
    """Part after part of a line, each from the total of those before it."""
    dtype, size, fn = array_type(op.operands[0]).dtype.compute, plan.shape[plan.axis], op.fn
    tiling = _tiling(plan, indices, plan.part)

    def turn(counter: SSAValue, carried: list[Tile]) -> list[Tile]:
        place = tiling.at[plan.axis] + _start(plan, counter, plan.part)
        at = tiling.with_axis(plan.axis, place)
        part = builder.cast(builder.pull(op.operands[0], at), dtype)
        part = Tile(builder.expand(part, tiling.axes), tiling.axes)
        if size % plan.part:
            part = builder.fill_padding(part, place, size, _neutral(fn, dtype))
        results, axes = _apply(builder, op, [part.value], tiling)
        result = builder.map(fn, carried[0], Tile(results[0], axes))
        builder.store(builder.cast(result, array_type(op.results[0]).dtype), outputs[0], at)
        return [builder.map(fn, carried[0], builder.reduce(part, fn, [tiling.along]))]

    builder.loop(plan.parts, [builder.full(_neutral(fn, dtype), dtype, tiling.kept)], turn)


def _best_of_parts(op: Ordered, plan: OrderedPlan, builder: TileBuilder, indices: Values, outputs: Values) -> None:
    """The best element of each part, and its index in the line."""
    tiling = _tiling(plan, indices, plan.part)
    part = _part_that_loses(op, plan, builder, tiling)
    results, kept = _apply(builder, op, [builder.expand(part, tiling.axes)], tiling)
    place = Linear.of(Tile(results[0], kept)) + Linear.of(indices[-1], plan.part)
    best = builder.pull(op.operands[0], tiling.with_axis(plan.axis, place))
    stored = tiling.with_axis(plan.axis, Linear.of(indices[-1]))
    builder.store(best, outputs[0], stored)
    builder.store(builder.position(place), outputs[1], stored)


def _part_that_loses(op: Ordered, plan: OrderedPlan, builder: TileBuilder, tiling: _Tiling) -> Tile:
    """A part of the operand; what is beyond its end loses against all elements."""
    operand, size = op.operands[0], plan.shape[plan.axis]
    if size % plan.part == 0:
        return builder.pull(operand, tiling.at)
    if not isinstance(op, array.ArgReduceOp):
        raise CompilerBug(f"`{op.name}` is not divided into parts")
    value = _neutral(op.fn, array_type(operand).dtype)
    if operand in builder.refs:
        return builder.load(builder.refs[operand], tiling.at, fill=value)
    return builder.fill_padding(builder.pull(operand, tiling.at), tiling.at[plan.axis], size, value)


def _best_part(
    op: Ordered, plan: OrderedPlan, builder: TileBuilder, indices: Values, outputs: Values, earlier: Values
) -> None:
    """The index of the best of all parts' elements."""
    tiling = _tiling(plan, indices, plan.parts)
    bests = builder.expand(builder.load(earlier[0], tiling.at), tiling.axes)
    (part, *_), kept = _apply(builder, op, [bests], tiling)
    place = builder.load(earlier[1], tiling.with_axis(plan.axis, Linear.of(Tile(part, kept))))
    builder.store(place, outputs[0], tuple(c for d, c in enumerate(tiling.at) if d != plan.axis))

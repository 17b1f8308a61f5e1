"""Tile kernels for operations that need a whole axis at once or in order: `scan`, `sort`, `arg_reduce`, `scatter`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.cost.register_blocks import even_split
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.passes.indexing import Axis, Linear, Tile
from tilewright.passes.tile_builder import TileBuilder
from tilewright.primitives import ArrayType

COLUMNS = 64
ORDERED = (array.ScanOp, array.SortOp, array.ArgReduceOp)


@dataclass(frozen=True)
class OrderedPlan:
    """A tile holds the whole of `axis` and `columns` neighbours along the last dimension (1 if that is the axis)."""

    shape: tuple[int, ...]
    axis: int
    columns: int

    @property
    def grid(self) -> tuple[int, ...]:
        extents = self.extents
        return tuple(-(-n // extents[d]) for d, n in enumerate(self.shape) if d != self.axis)

    @property
    def extents(self) -> dict[int, int]:
        last = len(self.shape) - 1
        return {d: self.columns if d == last else 1 for d in range(len(self.shape)) if d != self.axis}


def ordered_op(group: array.FusedOp) -> array.ArrayOp:
    return next(op for op in group.body.block.ops if isinstance(op, ORDERED))


def plan_ordered(group: array.FusedOp) -> OrderedPlan:
    op = ordered_op(group)
    shape = array_type(op.operands[0]).shape
    axis = op.attributes_of()["axis"]
    vectorises = isinstance(op, array.ScanOp) and axis != len(shape) - 1
    return OrderedPlan(shape, axis, even_split(shape[-1], COLUMNS) if vectorises else 1)


def lower_ordered_group(
    group: array.FusedOp,
    plan: OrderedPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """Pull the whole axis of each operand, apply the operation, store."""
    op = ordered_op(group)
    counters = iter(indices)
    whole = Axis(plan.shape[plan.axis], plan.axis, "all")
    at: list[Linear] = []
    axes: list[Axis] = [whole]
    for d, n in enumerate(plan.shape):
        if d == plan.axis:
            at.append(Linear.of(whole))
            continue
        counter, extent = next(counters), plan.extents[d]
        position = Linear.of(counter, extent) if extent < n else Linear()
        if extent > 1:
            axes.append(Axis(extent, d, f"d{d}"))
            position = position + Linear.of(axes[-1])
        at.append(position)
    axes.sort(key=lambda axis: axis.order)
    operands: list[SSAValue] = []
    for operand in op.operands:
        pulled = builder.pull(operand, tuple(at))
        operands.append(builder.expand(pulled, tuple(axes)))
    results, kept = _apply(builder, op, operands, axes, axes.index(whole))
    stored = at if not isinstance(op, array.ArgReduceOp) else [c for d, c in enumerate(at) if d != plan.axis]
    for value, ref in zip(array.yielded(group.body.block), outputs, strict=True):
        result = results[[r is value for r in op.results].index(True)]
        builder.store(Tile(result, tuple(kept)), ref, tuple(stored))


def _apply(
    builder: TileBuilder, op: array.ArrayOp, operands: Sequence[SSAValue], axes: list[Axis], position: int
) -> tuple[Sequence[SSAValue], list[Axis]]:
    """Append the tile form of the operation; gives its results and their axes."""
    a = op.attributes_of()
    types = [array_type(o) for o in operands]
    if isinstance(op, array.ArgReduceOp):
        kept = [axis for i, axis in enumerate(axes) if i != position]
        result = tensor(ArrayType(tuple(axis.extent for axis in kept), dtypes.i64))
        made = tile.ArgReduceOp.make(operands, {"fn": a["fn"], "axis": position}, [result])
        builder.block.add_op(made)
        return made.results, kept
    if isinstance(op, array.ScanOp):
        attributes = {"fn": a["fn"], "axis": position, "reverse": a["reverse"]}
        made = tile.ScanOp.make(operands, attributes, [tensor(types[0])])
    else:
        attributes = {"axis": position, "descending": a["descending"]}
        made = tile.SortOp.make(operands, attributes, [tensor(t) for t in types])
    builder.block.add_op(made)
    return made.results, axes


# ---- scatter --------------------------------------------------------------------------------------------------------


def scatter_of(group: array.FusedOp) -> array.ScatterOp:
    return next(op for op in group.body.block.ops if isinstance(op, array.ScatterOp))


def lower_scatter_group(group: array.FusedOp, builder: TileBuilder, outputs: Sequence[SSAValue]) -> None:
    """Copy the operand, then combine updates one index at a time: later updates must see earlier ones."""
    op = scatter_of(group)
    a = op.attributes_of()
    source, updates, *index_arrays = op.operands
    shape = array_type(source).shape
    (out,) = outputs
    _copy(builder, source, out)
    index_shape = array_type(index_arrays[0]).shape
    rest = [d for d in range(len(shape)) if d not in a["axes"]]

    def place(counters: list[SSAValue]) -> None:
        position = tuple(Linear.of(c) for c in counters)
        pairs = zip(index_arrays, a["axes"], strict=True)
        lanes = {axis: builder.cast(builder.pull(i, position), dtypes.i64) for i, axis in pairs}
        axes = {d: Axis(shape[d], d, f"d{d}") for d in rest}
        target = tuple(Linear.of(lanes[d]) if d in lanes else Linear.of(axes[d]) for d in range(len(shape)))
        update = builder.pull(updates, (*position, *(Linear.of(axes[d]) for d in rest)))
        if a["fn"] != "set":
            update = builder.map(a["fn"], builder.load(out, target), update)
        builder.store(update, out, target)

    def nest(dims: tuple[int, ...], counters: list[SSAValue]) -> None:
        if not dims:
            place(counters)
            return

        def body(counter: SSAValue, carried: object) -> tuple[()]:
            nest(dims[1:], [*counters, counter])
            return ()

        builder.loop(dims[0], [], body)

    if math.prod(index_shape):
        nest(index_shape, [])


def _copy(builder: TileBuilder, source: SSAValue, out: SSAValue) -> None:
    shape = array_type(source).shape
    axes = [Axis(n, d, f"d{d}") for d, n in enumerate(shape)]
    at = tuple(Linear.of(axis) for axis in axes)
    builder.store(builder.pull(source, at), out, at)

"""Tile kernels for `scatter` (group kind `scatter`; `update` where it writes over the array that it updates)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.kernels.indexing import Axis, Linear
from tilewright.passes.kernels.tile_builder import TileBuilder


def scatter_of(group: array.FusedOp) -> array.ScatterOp:
    return next(op for op in group.body.block.ops if isinstance(op, array.ScatterOp))


def lower_scatter_group(group: array.FusedOp, builder: TileBuilder, outputs: Sequence[SSAValue]) -> None:
    """Copy the operand, then combine updates with the copy."""
    op = scatter_of(group)
    _copy(builder, op.operands[0], outputs[0])
    combine_updates(op, builder, outputs[0])


def combine_updates(op: array.ScatterOp, builder: TileBuilder, out: SSAValue) -> None:
    """Combine updates with what `out` holds, one index at a time: later updates must see earlier ones."""
    source, updates, *index_arrays = op.operands
    shape = array_type(source).shape
    index_shape = array_type(index_arrays[0]).shape
    rest = [d for d in range(len(shape)) if d not in op.axes]

    def place(counters: list[SSAValue]) -> None:
        position = tuple(Linear.of(c) for c in counters)
        pairs = zip(index_arrays, op.axes, strict=True)
        lanes = {axis: builder.cast(builder.pull(i, position), dtypes.i64) for i, axis in pairs}
        axes = {d: Axis(shape[d], d, f"d{d}") for d in rest}
        target = tuple(Linear.of(lanes[d]) if d in lanes else Linear.of(axes[d]) for d in range(len(shape)))
        update = builder.pull(updates, (*position, *(Linear.of(axes[d]) for d in rest)))
        if op.fn != "set":
            update = builder.map(op.fn, builder.load(out, target), update)
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

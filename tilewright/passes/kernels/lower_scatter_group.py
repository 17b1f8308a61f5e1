"""Tile kernels for `scatter` (group kind `scatter`; `update` where it writes over the array that it updates)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.cost.tiles import dividing_split
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.kernels.indexing import Axis, Linear
from tilewright.passes.kernels.lower_loop_group import ROW_ELEMENTS
from tilewright.passes.kernels.tile_builder import TileBuilder

# The fewest elements of a row, two lines of a cache of f32, that a program instance updates.
_LEAST_COLUMNS = 32
_LINE_COLUMNS = 16


def scatter_of(group: array.FusedOp) -> array.ScatterOp:
    return next(op for op in group.body.block.ops if isinstance(op, array.ScatterOp))


class ScatterRows(msgspec.Struct, frozen=True):
    """The rows of a scatter are the dimensions before those that indices choose from: an index changes the same element
    of each. A program instance updates `block` rows along the last of `dims`, one after the other; where there are no
    rows, or the machine's lanes take all of them, `dims` is 0."""

    shape: tuple[int, ...]
    dims: int = 0
    block: int = 1

    @property
    def grid(self) -> tuple[int, ...]:
        if not self.dims:
            return ()
        return (*self.shape[: self.dims - 1], -(-self.shape[self.dims - 1] // self.block))

    def coordinates(self, indices: Sequence[SSAValue]) -> dict[int, Linear]:
        """The coordinates of a program instance's first row."""
        if not self.dims:
            return {}
        return dict(enumerate((*map(Linear.of, indices[:-1]), Linear.of(indices[-1], self.block))))


class ScatterColumns(msgspec.Struct, frozen=True):
    """A program instance updates up to `count` columns along the last dimension, which indices do not choose from."""

    shape: tuple[int, ...]
    count: int

    @property
    def grid(self) -> tuple[int, ...]:
        return (-(-self.shape[-1] // self.count),)

    def coordinates(self, indices: Sequence[SSAValue]) -> dict[int, Linear]:
        """The coordinates of a program instance's columns."""
        last = len(self.shape) - 1
        return {last: Linear.of(Axis(self.count, last, f"d{last}")) + Linear.of(indices[0], self.count)}


def scatter_rows(op: array.ScatterOp, shares: int) -> ScatterRows:
    """The rows of a scatter, in blocks that stay in the first-level cache. `shares`: how many program instances run at
    once."""
    shape, dims = array_type(op.operands[0]).shape, min(op.axes)
    if shares == 1 or 0 in shape or not dims:
        return ScatterRows(shape)
    return ScatterRows(shape, dims, dividing_split(shape[dims - 1], max(1, ROW_ELEMENTS // math.prod(shape[dims:]))))


def scatter_parts(op: array.ScatterOp, shares: int) -> ScatterRows | ScatterColumns:
    """The rows of a scatter, or its columns where it has no rows. To copy the array too takes long runs, so whole
    rows."""
    shape = array_type(op.operands[0]).shape
    if shares == 1 or 0 in shape or min(op.axes) or len(shape) - 1 in op.axes:
        return scatter_rows(op, shares)
    size = shape[-1]
    parts = min(shares, size // _LEAST_COLUMNS)
    if parts < 2:
        return scatter_rows(op, shares)
    # Parts begin where lines of the cache do, where rows do.
    count = size // parts if size % parts == 0 else -(-size // parts // _LINE_COLUMNS) * _LINE_COLUMNS
    return ScatterColumns(shape, count)


def lower_scatter_group(
    group: array.FusedOp,
    rows: ScatterRows,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """Copy the operand, then combine updates with the copy."""
    op = scatter_of(group)
    _copy(builder, op.operands[0], outputs[0], rows, indices)
    combine_updates(op, rows, builder, indices, outputs[0])


def combine_updates(
    op: array.ScatterOp,
    parts: ScatterRows | ScatterColumns,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    out: SSAValue,
) -> None:
    """Combine updates with what `out` holds, one index at a time: later updates must see earlier ones."""
    source, updates, *index_arrays = op.operands
    shape = array_type(source).shape
    index_shape = array_type(index_arrays[0]).shape
    rest = [d for d in range(len(shape)) if d not in op.axes]
    window = {d: Linear.of(Axis(shape[d], d, f"d{d}")) for d in rest} | parts.coordinates(indices)

    def place(window: dict[int, Linear], counters: list[SSAValue]) -> None:
        position = tuple(Linear.of(c) for c in counters)
        pairs = zip(index_arrays, op.axes, strict=True)
        at = {axis: Linear.of(builder.cast(builder.pull(i, position), dtypes.i64)) for i, axis in pairs}
        at |= window
        target = tuple(at[d] for d in range(len(shape)))
        update = builder.pull(updates, (*position, *(at[d] for d in rest)))
        if op.fn != "set":
            update = builder.map(op.fn, builder.load(out, target), update)
        builder.store(update, out, target)

    def nest(window: dict[int, Linear], dims: tuple[int, ...], counters: list[SSAValue]) -> None:
        if not dims:
            place(window, counters)
            return

        def body(counter: SSAValue, carried: object) -> tuple[()]:
            nest(window, dims[1:], [*counters, counter])
            return ()

        builder.loop(dims[0], [], body)

    if not math.prod(index_shape):
        return
    if not isinstance(parts, ScatterRows) or parts.block == 1:
        nest(window, index_shape, [])
        return
    dim = parts.dims - 1

    def each_row(counter: SSAValue, carried: object) -> tuple[()]:
        nest({**window, dim: window[dim] + Linear.of(counter)}, index_shape, [])
        return ()

    builder.loop(parts.block, [], each_row)


def _copy(
    builder: TileBuilder, source: SSAValue, out: SSAValue, rows: ScatterRows, indices: Sequence[SSAValue]
) -> None:
    """Copy the rows of a program instance."""
    shape, start = rows.shape, rows.coordinates(indices)
    extents = [*[1] * (rows.dims - 1), rows.block] if rows.dims else []
    extents += shape[rows.dims :]
    at = tuple(start.get(d, Linear()) + Linear.of(Axis(n, d, f"d{d}")) for d, n in enumerate(extents))
    builder.store(builder.pull(source, at), out, at)

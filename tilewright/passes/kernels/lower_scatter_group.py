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


def scatter_of(group: array.FusedOp) -> array.ScatterOp:
    return next(op for op in group.body.block.ops if isinstance(op, array.ScatterOp))


class ScatterRows(msgspec.Struct, frozen=True):
    """The rows of a scatter are the dimensions before those that indices choose from: an index changes the same element
    of each. A program instance updates `block` rows along the last of `dims`, one after the other; where there are no
    rows, or the machine's lanes take all of them, `dims` is 0. Program instances may each take `columns` along the last
    dimension instead, if there are no rows."""

    shape: tuple[int, ...]
    dims: int = 0
    block: int = 1
    columns: int = 0

    @property
    def grid(self) -> tuple[int, ...]:
        if self.columns:
            return (self.shape[-1] // self.columns,)
        if not self.dims:
            return ()
        return (*self.shape[: self.dims - 1], -(-self.shape[self.dims - 1] // self.block))

    def start(self, indices: Sequence[SSAValue]) -> list[Linear]:
        """The coordinates of a program instance's first row."""
        if not self.dims:
            return []
        return [*(Linear.of(index) for index in indices[:-1]), Linear.of(indices[-1], self.block)]


def scatter_rows(op: array.ScatterOp, shares: int, copies: bool = True) -> ScatterRows:
    """The rows of a scatter, in blocks that stay in the first-level cache, or its columns. `shares`: how many program
    instances run at once. `copies`: whether the array is copied too, which takes long runs and so whole rows."""
    shape, dims = array_type(op.operands[0]).shape, min(op.axes)
    if shares == 1 or 0 in shape:
        return ScatterRows(shape)
    if not dims:
        return ScatterRows(shape, columns=0 if copies else _shared_columns(op, shape, shares))
    return ScatterRows(shape, dims, dividing_split(shape[dims - 1], max(1, ROW_ELEMENTS // math.prod(shape[dims:]))))


def _shared_columns(op: array.ScatterOp, shape: tuple[int, ...], shares: int) -> int:
    """The columns of a program instance; 0 where all are of one."""
    size = shape[-1]
    if len(shape) - 1 in op.axes:
        return 0
    parts = next((n for n in range(min(shares, size // _LEAST_COLUMNS), 1, -1) if size % n == 0), 0)
    return size // parts if parts else 0


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
    op: array.ScatterOp, rows: ScatterRows, builder: TileBuilder, indices: Sequence[SSAValue], out: SSAValue
) -> None:
    """Combine updates with what `out` holds, one index at a time: later updates must see earlier ones."""
    source, updates, *index_arrays = op.operands
    shape = array_type(source).shape
    index_shape = array_type(index_arrays[0]).shape
    rest = [d for d in range(len(shape)) if d not in op.axes]

    whole = {d: Linear.of(Axis(shape[d], d, f"d{d}")) for d in rest}
    if rows.columns:
        last = len(shape) - 1
        whole[last] = Linear.of(Axis(rows.columns, last, f"d{last}")) + Linear.of(indices[0], rows.columns)

    def place(row: list[Linear], counters: list[SSAValue]) -> None:
        position = tuple(Linear.of(c) for c in counters)
        pairs = zip(index_arrays, op.axes, strict=True)
        at = {axis: Linear.of(builder.cast(builder.pull(i, position), dtypes.i64)) for i, axis in pairs}
        at |= {d: row[d] if d < len(row) else whole[d] for d in rest}
        target = tuple(at[d] for d in range(len(shape)))
        update = builder.pull(updates, (*position, *(at[d] for d in rest)))
        if op.fn != "set":
            update = builder.map(op.fn, builder.load(out, target), update)
        builder.store(update, out, target)

    def nest(row: list[Linear], dims: tuple[int, ...], counters: list[SSAValue]) -> None:
        if not dims:
            place(row, counters)
            return

        def body(counter: SSAValue, carried: object) -> tuple[()]:
            nest(row, dims[1:], [*counters, counter])
            return ()

        builder.loop(dims[0], [], body)

    def each_row(counter: SSAValue, carried: object) -> tuple[()]:
        *outer, first = rows.start(indices)
        nest([*outer, first + Linear.of(counter)], index_shape, [])
        return ()

    if not math.prod(index_shape):
        return
    if rows.dims and rows.block > 1:
        builder.loop(rows.block, [], each_row)
    else:
        nest(rows.start(indices), index_shape, [])


def _copy(
    builder: TileBuilder, source: SSAValue, out: SSAValue, rows: ScatterRows, indices: Sequence[SSAValue]
) -> None:
    """Copy the rows of a program instance."""
    shape, start = rows.shape, rows.start(indices)
    extents = [*[1] * (rows.dims - 1), rows.block] if rows.dims else []
    extents += shape[rows.dims :]
    at = tuple(
        (start[d] if d < rows.dims else Linear()) + Linear.of(Axis(n, d, f"d{d}")) for d, n in enumerate(extents)
    )
    builder.store(builder.pull(source, at), out, at)

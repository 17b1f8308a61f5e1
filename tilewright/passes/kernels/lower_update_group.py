"""Tile kernels for updates that write over the array that they update (group kind `update`)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.cost.tiles import loop_tile
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.kernels.group_stages import Stage, Values
from tilewright.passes.kernels.indexing import Axis, Linear
from tilewright.passes.kernels.lower_loop_group import ROW_ELEMENTS
from tilewright.passes.kernels.lower_scatter_group import combine_updates, scatter_parts
from tilewright.passes.kernels.tile_builder import TileBuilder, clamp


def update_stage(group: array.FusedOp, shares: int) -> Stage:
    """The one kernel of a group; it touches no more than what is updated. `shares`: by how many program instances a
    scatter is shared."""
    op = next(op for op in group.body.block.ops if isinstance(op, array.DynamicUpdateSliceOp | array.ScatterOp))
    updates = [arg is op.operands[0] for arg in group.body.block.args].index(True)
    if isinstance(op, array.ScatterOp):
        parts = scatter_parts(op, shares)

        def combine(builder: TileBuilder, indices: Values, outputs: Values, earlier: Values) -> None:
            combine_updates(op, parts, builder, indices, outputs[0])

        return Stage(parts.grid, combine, updates=updates)
    shape = array_type(op.operands[1]).shape
    transposes = any(isinstance(each, array.TransposeOp) for each in group.body.block.ops)
    extents = tuple(map(_divisor, shape, loop_tile(shape, ROW_ELEMENTS, square=transposes)))

    def write(builder: TileBuilder, indices: Values, outputs: Values, earlier: Values) -> None:
        _write(op, extents, builder, indices, outputs[0])

    return Stage(tuple(n // extent for n, extent in zip(shape, extents, strict=True)), write, updates=updates)


def _divisor(size: int, extent: int) -> int:
    """A tile extent near `extent` that divides the size: a tile must not reach beyond the window. All of a size that
    has none."""
    found = next(n for n in range(extent, 0, -1) if size % n == 0)
    return found if 4 * found >= extent else size


def _write(
    op: array.DynamicUpdateSliceOp,
    extents: tuple[int, ...],
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    out: SSAValue,
) -> None:
    source, update, *starts = op.operands
    sizes = array_type(update).shape
    at: list[Linear] = []
    place: list[Linear] = []
    for d, (counter, extent, size, limit) in enumerate(
        zip(indices, extents, sizes, array_type(source).shape, strict=True)
    ):
        position = Linear.of(Axis(extent, d, f"d{d}")) if extent > 1 else Linear()
        at.append(position + Linear.of(counter, extent) if extent < size else position)
        room = limit - size
        place.append(at[d] + clamp(builder, builder.pull(starts[d], ()), room) if room else at[d])
    builder.store(builder.pull(update, tuple(at)), out, tuple(place))

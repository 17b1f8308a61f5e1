"""Tile kernels of matmuls and their epilogues: `contract` groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.dtypes import DType
from tilewright.passes.kernels.contract_facts import (
    accumulator_of,
    result_dims,
)
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear, Tile
from tilewright.passes.kernels.tile_builder import TileBuilder

ROW, COLUMN, DEPTH = 0.0, 1.0, 2.0
_START = Linear()

# Adds to a sum what one point of the loops over contracted dimensions, given their counters, contributes.
Step = Callable[[Sequence[SSAValue], Tile], Tile]


class ContractPlan(msgspec.Struct, frozen=True):
    """Tile extents of the result dimensions and of the contracted ones (all but the last are 1). `part`: how much of
    the last contracted dimension is summed together; the parts are the first result dimension. `operand`: the type that
    operands are converted to before they are multiplied; None: they are multiplied as they are. `atom`: the name of
    what multiplies a tile. `warps`, `stages`: as those of `Stage`. `checked`: where the atom's result is not finite,
    the matmul is computed again without it."""

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    depth_sizes: tuple[int, ...]
    depth_extent: int
    operand: DType | None
    atom: str = ""
    warps: int | None = None
    stages: int | None = None
    checked: bool = False
    part: int | None = None

    @property
    def trips(self) -> tuple[int, ...]:
        """How many steps there are along the contracted dimensions."""
        if not self.depth_sizes:
            return ()
        last = self.depth_sizes[-1] if self.part is None else min(self.part, self.depth_sizes[-1])
        return (*self.depth_sizes[:-1], -(-last // self.depth_extent))

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // e) if n else 0 for n, e in zip(self.shape, self.extents, strict=True))


def contract_of(group: array.FusedOp) -> array.ContractOp:
    """The matmul of a `contract` group."""
    return next(op for op in group.body.block.ops if isinstance(op, array.ContractOp))


def has_more(group: array.FusedOp, op: array.ContractOp | array.ConvolveOp) -> bool:
    """Whether a group does more with a matmul's result than to store it."""
    roots = yielded(group.body.block)
    return len(roots) > 1 or roots[0] is not op.results[0]


def lower_contract_group(
    group: array.FusedOp,
    plan: ContractPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """One output tile: a loop over the contracted dimensions, then the epilogue."""
    op = contract_of(group)
    batch, rows, columns = result_dims(op)
    result = array_type(op.results[0])
    row = Axis(plan.extents[rows[-1]] if rows else 1, ROW, "m")
    column = Axis(plan.extents[columns[-1]] if columns else 1, COLUMN, "n")
    at: list[Linear] = []
    for d, counter in enumerate(indices):
        axis = row if rows and d == rows[-1] else column if columns and d == columns[-1] else None
        at.append(tile_position(axis, counter, plan.extents[d], plan.shape[d]))
    depth = Axis(plan.depth_extent, DEPTH, "k")
    acc_type = accumulator_of(result.dtype)
    first = _START if plan.part is None or plan.shape[0] == 1 else Linear.of(indices[0], plan.part)

    def step(counters: Sequence[SSAValue], total: Tile, atom: str) -> Tile:
        inner = depth_positions(plan, depth, counters, first)
        left_at = operand_coordinates(
            array_type(op.operands[0]).rank,
            op.left_batch,
            op.left_contract,
            [at[d] for d in batch],
            inner,
            [at[d] for d in rows],
        )
        right_at = operand_coordinates(
            array_type(op.operands[1]).rank,
            op.right_batch,
            op.right_contract,
            [at[d] for d in batch],
            inner,
            [at[d] for d in columns],
        )
        left, right = builder.pull(op.operands[0], left_at), builder.pull(op.operands[1], right_at)
        if op.precision is not None:
            left, right = builder.cast(left, dtypes.tf32), builder.cast(right, dtypes.tf32)
        if plan.operand is not None:
            left, right = builder.cast(left, plan.operand), builder.cast(right, plan.operand)
        for position, limit in _depth_ends(plan, inner, first):
            left = builder.fill_padding(left, position, limit, 0)
            right = builder.fill_padding(right, position, limit, 0)
        return builder.dot(left, right, total, (row, column, depth), atom)

    def multiplied(atom: str) -> Tile:
        total = builder.full(0, acc_type, (row, column))
        if 0 in plan.depth_sizes:
            return total
        return depth_loop(plan, builder, total, lambda counters, t: step(counters, t, atom))

    total = multiplied(plan.atom)
    if plan.checked:
        cut = [d for d in (*rows[-1:], *columns[-1:]) if plan.shape[d] % plan.extents[d]]
        finite = _is_finite(builder, total, [(at[d], plan.shape[d]) for d in cut])
        quick = total
        total = builder.branch(finite, lambda: quick, lambda: _where_finite(builder, quick, multiplied("")))
    product = builder.cast(squeeze(builder, total, at), result.dtype)
    builder.define(op.results[0], tuple(at), product)
    store_roots(group, op.results[0], builder, tuple(at), outputs)


def _is_finite(builder: TileBuilder, total: Tile, ends: Sequence[tuple[Linear, int]]) -> Tile:
    """Whether all elements of a tile within the array's `ends` are finite: if and only if they are, `x - x` has the sum
    0."""
    for position, size in ends:
        total = builder.fill_padding(total, position, size, 0)
    difference = builder.map("subtract", total, total)
    zero = builder.full(0, array_type(total.value).dtype)
    return builder.map("equal", builder.reduce(difference, "add", total.axes), zero)


def _where_finite(builder: TileBuilder, total: Tile, otherwise: Tile) -> Tile:
    """Select the finite elements of a tile, and elements of `otherwise` for the rest. Each element's result depends on
    that element alone, never on the others of its tile."""
    return builder.map("select", builder.map("isfinite", total), total, otherwise)


def store_roots(
    group: array.FusedOp,
    anchor: SSAValue,
    builder: TileBuilder,
    at: Coordinates,
    outputs: Sequence[SSAValue],
) -> None:
    """Store every root of a group at the coordinates that make it pull the anchor at `at`."""
    for value, ref in zip(yielded(group.body.block), outputs, strict=True):
        coordinates = _outward(value, anchor, at)
        builder.store(builder.pull(value, coordinates), ref, coordinates)


def _outward(value: SSAValue, anchor: SSAValue, at: Coordinates) -> Coordinates:
    """Coordinates of a root, seen through the transposes between it and the anchor."""
    while value is not anchor and isinstance(value.owner, array.TransposeOp):
        permutation: tuple[int, ...] = value.owner.permutation
        inner = _outward(value.owner.operands[0], anchor, at)
        return tuple(inner[p] for p in permutation)
    return at


def tile_position(axis: Axis | None, counter: SSAValue, extent: int, size: int) -> Linear:
    """A coordinate that is cut into tiles: the axis, if it is one of the tile, from the counter's multiple on."""
    position = Linear.of(axis) if axis is not None and size > 1 else Linear()
    return position + Linear.of(counter, extent) if extent < size else position


def depth_positions(
    plan: ContractPlan, depth: Axis, counters: Sequence[SSAValue], first: Linear = _START
) -> list[Linear]:
    """Positions along the contracted dimensions in one step, those along the last from `first` on."""
    positions = [Linear.of(c) if n > 1 else Linear() for c, n in zip(counters, plan.depth_sizes, strict=False)]
    if not plan.depth_sizes:
        return []
    last = Linear.of(depth) + first
    if plan.trips[-1] > 1:
        last = last + Linear.of(counters[len(plan.depth_sizes) - 1], plan.depth_extent)
    return [*positions[: len(plan.depth_sizes) - 1], last]


def _depth_ends(plan: ContractPlan, positions: Sequence[Linear], first: Linear) -> Iterator[tuple[Linear, int]]:
    """Positions along the last contracted dimension that reach beyond the end of a part, or of all; and those ends."""
    if not plan.depth_sizes:
        return
    size = plan.depth_sizes[-1]
    part = size if plan.part is None else min(plan.part, size)
    if part < size and part % plan.depth_extent:
        yield positions[-1] + first * -1, part
    if size % part or (part == size and size % plan.depth_extent):
        yield positions[-1], size


def depth_loop(plan: ContractPlan, builder: TileBuilder, total: Tile, step: Step) -> Tile:
    trips = plan.trips

    def nest(depth: int, counters: list[SSAValue], current: Tile) -> Tile:
        if depth == len(trips):
            return step(counters, current)
        if trips[depth] == 1:
            return nest(depth + 1, [*counters, None], current)  # type: ignore[list-item]  never read: one trip
        (result,) = builder.loop(trips[depth], [current], lambda i, t: [nest(depth + 1, [*counters, i], t[0])])
        return result

    return nest(0, [], total)


def operand_coordinates(
    rank: int,
    batch_dims: Sequence[int],
    contract_dims: Sequence[int],
    batch: Sequence[Linear],
    inner: Sequence[Linear],
    free: Sequence[Linear],
) -> Coordinates:
    """Coordinates of a matmul's operand of `rank` dimensions: of its batch, contracted and other ones."""
    known: Mapping[int, Linear] = dict(zip(batch_dims, batch, strict=True)) | dict(
        zip(contract_dims, inner, strict=True)
    )
    rest = iter(free)
    return tuple(known[d] if d in known else next(rest) for d in range(rank))


def squeeze(builder: TileBuilder, total: Tile, at: Sequence[Linear]) -> Tile:
    """Drop accumulator axes that the result's coordinates do not have (sizes of 1)."""
    used = {axis for c in at for axis in c.axes}
    return builder.drop(total, [axis for axis in total.axes if axis not in used])

"""Lowering of `loop` groups, fused loops and reductions, to tile kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright import schedules
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.dialects.walks import reached
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear
from tilewright.passes.kernels.tile_builder import TileBuilder

ROW_ELEMENTS = 4096
# How many values are looked at for a gather from which elementwise operations compute one.
_MOST_BETWEEN = 16
_COMPUTES = (array.MapOp, array.CastOp)


class LoopPlan(msgspec.Struct, frozen=True):
    """How a loop group is tiled. `extents` are tile extents of the kept dimensions of `space`; `reduced` maps each
    reduced dimension to its tile extent. Of a group that reduces `in_parts` the first dimension of `space` counts the
    parts, and the extent of the divided dimension is that of a part."""

    space: tuple[int, ...]
    extents: dict[int, int]
    reduced: dict[int, int]
    in_parts: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.space)) if d not in self.reduced)

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-self.space[d] // self.extents[d]) for d in self.kept)


class ReducedSpace(msgspec.Struct, frozen=True):
    """The reductions of a loop group: by which function, of which shape, over which of its dimensions. In parts, the
    first dimension counts them; `is_uneven`: the last part is shorter. `is_read_again`: the group stores arrays of the
    whole shape, too."""

    fn: str
    dtype: DType
    space: tuple[int, ...]
    axes: tuple[int, ...]
    in_parts: bool
    is_uneven: bool
    is_read_again: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with sizes of at least one."""
        return tuple(max(1, n) for n in self.space)


def reduced_space(group: array.FusedOp) -> ReducedSpace:
    """The reductions of a group that has some."""
    space, axes = group_space(group)
    first = next(op for op in group.body.block.ops if isinstance(op, array.ReduceOp))
    in_parts = first.part is not None
    again = any(array_type(value).shape == space for value in yielded(group.body.block))
    is_uneven = False
    if first.part is not None and first.part_axis is not None:
        is_uneven = space[first.part_axis] % first.part != 0
        space, axes = _space_of_parts(first)
    dtype = array_type(first.operands[0]).dtype.compute
    return ReducedSpace(first.fn, dtype, space, axes, in_parts, is_uneven, again and not in_parts)


def loop_plan(group: array.FusedOp, schedule: schedules.Loop) -> LoopPlan:
    """The tiles of a group by its schedule."""
    space, axes = group_space(group)
    if not axes:
        return LoopPlan(space, dict(enumerate(schedule.tile)), {})
    reduced, tile = reduced_space(group), schedule.tile
    kept = [d for d in range(len(reduced.space)) if d not in reduced.axes]
    steps = {d: tile[d] for d in sorted(reduced.axes, reverse=True)}
    return LoopPlan(reduced.space, {d: tile[d] for d in kept}, steps, reduced.in_parts)


def loop_space(group: array.FusedOp) -> tuple[int, ...]:
    """The dimensions that a group's tiles divide: those of its reductions, the parts among them, or of its results."""
    space, axes = group_space(group)
    return reduced_space(group).space if axes else space


def has_transpose(group: array.FusedOp, space: tuple[int, ...]) -> bool:
    """Whether a group transposes arrays of more than one dimension."""
    return len(space) > 1 and any(isinstance(op, array.TransposeOp) for op in group.body.block.ops)


def has_long_transpose(group: array.FusedOp, space: tuple[int, ...]) -> bool:
    """Whether a group transposes arrays whose neighbours are then far apart, along rows longer than a few elements, or
    far from such rows. A transpose of what is gathered puts dims back that the dims of the indices come before; one
    that gives an element for each row is not read along rows."""
    if len(space) < 2:
        return False
    transposes = [op for op in group.body.block.ops if isinstance(op, array.TransposeOp)]
    along_rows = [op for op in transposes if not _is_spread_along_rows(op.results[0])]
    return not all(
        is_short_transpose(op) or reads_along_rows_of_few(op) or _is_of_gathered(op.operands[0]) for op in along_rows
    )


def reads_along_rows_of_few(op: array.TransposeOp) -> bool:
    """Whether a transpose reads along the dim before a last one of a few elements, which vector units store as whole
    vectors of shuffled lanes. Dims of size one do not count."""
    shape = array_type(op.results[0]).shape
    longer = [d for d, n in enumerate(shape) if n > 1]
    return len(longer) > 1 and shape[-1] in SHUFFLED_STRIDES and op.permutation[longer[-2]] == len(shape) - 1


def _is_of_gathered(value: SSAValue) -> bool:
    return isinstance(value.owner, array.GatherOp) or is_gathered_along_rows(value)


def puts_gathered_dims_back(op: array.TransposeOp) -> bool:
    """Whether a transpose puts the dims of the indices of a gather where the dims are that it takes from: what it reads
    is then in the order of memory."""
    gather = op.operands[0].owner
    if not isinstance(gather, array.GatherOp):
        return False
    before, indices = min(gather.axes), array_type(gather.operands[1]).rank
    order = list(range(array_type(gather.results[0]).rank))
    return list(op.permutation) == order[indices : indices + before] + order[:indices] + order[indices + before :]


def is_gathered_along_rows(value: SSAValue) -> bool:
    """Whether a value is computed from elements that are gathered from rows: the dims of the indices come first, but
    near each other in memory is what has one row, which the transpose of the value goes along."""
    sources = reached(value, lambda each: each.owner.operands if isinstance(each.owner, _COMPUTES) else ())
    owners = (each.owner for each in itertools.islice(sources, _MOST_BETWEEN))
    return any(isinstance(op, array.GatherOp) and array_type(op.operands[0]).rank - 1 in op.axes for op in owners)


def _is_spread_along_rows(value: SSAValue) -> bool:
    """Whether only broadcasts use a value, each of which repeats its elements along rows."""
    users = [use.operation for use in value.uses]
    return all(isinstance(op, array.BroadcastOp) and array_type(op.results[0]).rank - 1 not in op.axes for op in users)


def is_short_transpose(op: Operation) -> bool:
    """Whether elements that a transpose makes neighbours are a few elements apart before: so few that vector units load
    whole vectors and shuffle their lanes."""
    if not isinstance(op, array.TransposeOp):
        return False
    shape, permutation = array_type(op.operands[0]).shape, op.permutation
    return len(shape) > 1 and math.prod(shape[permutation[-1] + 1 :]) in SHUFFLED_STRIDES


def _space_of_parts(op: array.ReduceOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and reduced dimensions that a reduction in parts would have, were the parts a dimension of its own."""
    shape = list(array_type(op.operands[0]).shape)
    if op.part_axis is not None and op.part is not None:
        shape[op.part_axis] = op.part
    return (array_type(op.results[0]).shape[0], *shape), tuple(d + 1 for d in op.axes)


def group_space(group: array.FusedOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The full shape of a loop group and the dimensions that it reduces."""
    for op in group.body.block.ops:
        if isinstance(op, array.ReduceOp):
            return array_type(op.operands[0]).shape, op.axes
    return array_type(group.results[0]).shape, ()


def lower_loop_group(
    group: array.FusedOp,
    plan: LoopPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """Fill the kernel's block: row values first, then every root at the tile's coordinates."""
    counters = dict(zip(plan.kept, indices, strict=True))
    at: dict[int, Linear] = {}
    for d in plan.kept:
        at[d] = _position(Axis(plan.extents[d], d, f"d{d}"), counters[d], plan.extents[d], plan.space[d])
    row = tuple(at[d] for d in plan.kept)
    space, axes = group_space(group)
    builder.reduced[(space, axes)] = {d - plan.in_parts: extent for d, extent in plan.reduced.items()}
    for independent in _reductions_in_order(group, space):
        builder.pull_reductions(independent, row)
    roots = list(zip(yielded(group.body.block), outputs, strict=True))
    row_shape = tuple(plan.space[d] for d in plan.kept)
    full = [(v, ref) for v, ref in roots if array_type(v).shape == plan.space and not plan.in_parts]
    for value, ref in roots:
        if (value, ref) not in full:
            coordinates = _row_coordinates(array_type(value).shape, row_shape, plan, at)
            builder.store(builder.pull(value, coordinates), ref, coordinates)
    if full:
        _store_full(plan, builder, at, full)


def _reductions_in_order(group: array.FusedOp, space: tuple[int, ...]) -> list[list[array.ReduceOp]]:
    """The reductions of a group's full shape: those that need no other one first, then those that need these, ..."""
    depths: dict[SSAValue, int] = {}
    found: dict[int, list[array.ReduceOp]] = {}
    for op in group.body.block.ops:
        depth = max((depths.get(operand, 0) for operand in op.operands), default=0)
        if isinstance(op, array.ReduceOp):
            if array_type(op.operands[0]).shape == space:
                found.setdefault(depth, []).append(op)
            depth += 1
        depths.update(dict.fromkeys(op.results, depth))
    return [found[depth] for depth in sorted(found)]


def _position(axis: Axis, counter: SSAValue, extent: int, size: int) -> Linear:
    if size == 1:
        return Linear()
    position = Linear.of(axis) if extent > 1 else Linear()
    return position + Linear.of(counter, extent) if extent < size else position


def _row_coordinates(
    shape: tuple[int, ...], row_shape: tuple[int, ...], plan: LoopPlan, at: Mapping[int, Linear]
) -> Coordinates:
    """Coordinates of a root without the reduced dimensions, or with them kept at size 1."""
    if shape == row_shape:
        return tuple(at[d] for d in plan.kept)
    if plan.in_parts or shape != tuple(n if d in plan.kept else 1 for d, n in enumerate(plan.space)):
        raise CompilerBug(f"a result of shape {shape} in a group over {plan.space} that reduces to {row_shape}")
    return tuple(at.get(d, Linear()) for d in range(len(plan.space)))


def _store_full(
    plan: LoopPlan,
    builder: TileBuilder,
    at: Mapping[int, Linear],
    roots: Sequence[tuple[SSAValue, SSAValue]],
) -> None:
    looped = [d for d, extent in plan.reduced.items() if extent < plan.space[d]]

    def nest(dims: Sequence[int], counters: dict[int, SSAValue]) -> None:
        if dims:
            d = dims[0]
            trips = -(-plan.space[d] // plan.reduced[d])

            def body(counter: SSAValue, carried: object) -> tuple[()]:
                nest(dims[1:], counters | {d: counter})
                return ()

            builder.loop(trips, [], body)
            return
        coordinates = list[Linear]()
        for d in range(len(plan.space)):
            if d in at:
                coordinates.append(at[d])
                continue
            axis = builder.reduce_axis(plan.space, d, plan.reduced[d], ())
            offset = Linear.of(counters[d], plan.reduced[d]) if d in counters else 0
            coordinates.append(Linear.of(axis) + offset)
        for value, ref in roots:
            builder.store(builder.pull(value, tuple(coordinates)), ref, tuple(coordinates))

    nest(looped, {})

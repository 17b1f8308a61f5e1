"""Lowering of `loop` groups, fused loops and reductions, to tile kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.ir import SSAValue

from tilewright.cost.core_tiles import loop_extents, reduction_extents
from tilewright.cost.reductions import Reduction, best_reduction_tile, reread_tile
from tilewright.cost.tiles import loop_tile, turned_tile
from tilewright.cost.warp_loops import warp_reduction_tile, warp_transpose_tile
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.core_grid import CoreGrid
from tilewright.machines.machine import Machine
from tilewright.passes.fallbacks import halved
from tilewright.passes.indexing import Axis, Coordinates, Linear
from tilewright.passes.tile_builder import TileBuilder, held_window

ROW_ELEMENTS = 4096
LEAST_ELEMENTS = 32


@dataclass(frozen=True)
class LoopPlan:
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


def plan_loop(group: array.FusedOp, machine: Machine, threads: int, level: int = 0) -> LoopPlan:
    """The plan of a loop group; each `level` halves its tiles."""
    plan = _plan(group, machine, threads)
    smaller = halved(plan.extents | ({} if plan.in_parts else plan.reduced), level)
    reduced = {d: smaller.get(d, extent) for d, extent in plan.reduced.items()}
    return replace(plan, extents={d: smaller[d] for d in plan.extents}, reduced=reduced)


def _plan(group: array.FusedOp, machine: Machine, threads: int) -> LoopPlan:
    """Choose tiles: of a reduction those that are predicted to be the quickest, but rows of which each element is
    needed again stay near; plain loops take about a page of elements at a time."""
    space, axes = group_space(group)
    if machine.grid is not None:
        return _plan_for_cores(group, space, axes, machine.grid)
    if not axes:
        turned = None if machine.has_warps else _turned_dim(group)
        if turned is not None:
            extents = turned_tile(space, turned, ROW_ELEMENTS, array_type(group.results[0]).dtype, machine)
        else:
            transposes = len(space) > 1 and any(isinstance(op, array.TransposeOp) for op in group.body.block.ops)
            is_by_warps = transposes and machine.has_warps
            elements = (
                max(LEAST_ELEMENTS, ROW_ELEMENTS // _window_elements(group, machine.most_of_window))
                if machine.has_warps
                else ROW_ELEMENTS
            )
            extents = warp_transpose_tile(space) if is_by_warps else loop_tile(space, elements, square=transposes)
        return LoopPlan(space, dict(enumerate(extents)), {})
    first = next(op for op in group.body.block.ops if isinstance(op, array.ReduceOp))
    in_parts = first.part is not None
    if in_parts:
        space, axes = _space_of_parts(first)
    adds = first.attributes_of()["fn"] == "add"
    reduction = Reduction(tuple(max(1, n) for n in space), axes, array_type(first.operands[0]).dtype.compute, adds)
    again = any(array_type(value).shape == space for value in array.yielded(group.body.block))
    if again and not in_parts:
        tile = reread_tile(reduction)
    elif machine.has_warps:
        tile = warp_reduction_tile(reduction.shape, axes, machine.cores)
    else:
        tile = best_reduction_tile(reduction, machine, threads)
    reduced = {d: tile[d] for d in sorted(axes, reverse=True)}
    return LoopPlan(space, {d: tile[d] for d in reduction.kept}, reduced, in_parts)


def _window_elements(group: array.FusedOp, most: int | None) -> int:
    """How many registers the elements of the largest window take for each result: warps hold that many at once."""
    reductions = (op for op in group.body.block.ops if isinstance(op, array.WindowReduceOp))
    windows = [held_window(op.attributes_of()["window"], most) for op in reductions]
    return max((prod(1 << (n - 1).bit_length() for n in window) for window in windows), default=1)


def _space_of_parts(op: array.ReduceOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and reduced dimensions that a reduction in parts would have, were the parts a dimension of its own."""
    a, shape = op.attributes_of(), list(array_type(op.operands[0]).shape)
    shape[a["part_axis"]] = a["part"]
    return (array_type(op.results[0]).shape[0], *shape), tuple(d + 1 for d in a["axes"])


def _plan_for_cores(group: array.FusedOp, space: tuple[int, ...], axes: tuple[int, ...], grid: CoreGrid) -> LoopPlan:
    """Tiles of whole pages."""
    if not axes:
        return LoopPlan(space, dict(enumerate(loop_extents(space, grid))), {})
    again = any(array_type(value).shape == space for value in array.yielded(group.body.block))
    tile = reduction_extents(space, axes, again, grid)
    kept = [d for d in range(len(space)) if d not in axes]
    return LoopPlan(space, {d: tile[d] for d in kept}, {d: tile[d] for d in sorted(axes, reverse=True)})


def _turned_dim(group: array.FusedOp) -> int | None:
    """The dimension along which a group that only transposes reads, where it does not write along that one."""
    transpose, *rest = group.body.block.ops
    if not isinstance(transpose, array.TransposeOp) or len(rest) != 1 or 0 in array_type(group.results[0]).shape:
        return None
    permutation: tuple[int, ...] = transpose.attributes_of()["permutation"]
    last = len(permutation) - 1
    turned = permutation.index(last)
    return turned if turned != last and array_type(group.results[0]).shape[turned] > 1 else None


def group_space(group: array.FusedOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The full shape of a loop group and the dimensions that it reduces."""
    for op in group.body.block.ops:
        if isinstance(op, array.ReduceOp):
            return array_type(op.operands[0]).shape, op.attributes_of()["axes"]
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
    roots = list(zip(array.yielded(group.body.block), outputs, strict=True))
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

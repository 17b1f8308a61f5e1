"""Lowering of `contract` groups to tile kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import BlockArgument, SSAValue

from tilewright import dtypes, ops
from tilewright.cost.core_tiles import product_tile
from tilewright.cost.products import Product, Right, best_schedule
from tilewright.cost.register_blocks import micro_kernel_name
from tilewright.cost.split_products import split_tile
from tilewright.cost.tiles import is_streamed, matrix_tile, streaming_tile
from tilewright.cost.warp_products import warp_schedule
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.contract_facts import (
    accumulator_of,
    array_behind,
    batches_of,
    depth_of,
    multiplied_as,
    multiplied_types,
    piece_bytes,
    result_dims,
    untransposed,
    warp_product,
)
from tilewright.passes.indexing import Axis, Coordinates, Linear, Tile
from tilewright.passes.tile_builder import TileBuilder

ROW, COLUMN, DEPTH = 0.0, 1.0, 2.0
_START = Linear()

# Adds to a sum what one point of the loops over contracted dimensions, given their counters, contributes.
Step = Callable[[Sequence[SSAValue], Tile], Tile]


@dataclass(frozen=True)
class ContractPlan:
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


def plan_contract(group: array.FusedOp, machine: Machine, threads: int) -> ContractPlan:
    op = contract_of(group)
    a = op.attributes_of()
    left, result = array_type(op.operands[0]), array_type(op.results[0])
    _, rows, columns = result_dims(op)
    summed: tuple[int, ...] = a["left_contract"]
    depth_sizes = tuple(left.shape[d] for d in summed)
    if machine.has_warps:
        return _plan_for_warps(group, op, machine, depth_sizes)
    if machine.grid is not None:
        return _plan_for_cores(op, machine.grid, depth_sizes, _cycles_after(group, op, machine.grid))
    last_rows = result.shape[rows[-1]] if rows else 1
    last_columns = result.shape[columns[-1]] if columns else 1
    share = 1 if batches_of(op) >= 2 * threads else threads
    last_depth = depth_of(op)
    streamed = is_streamed(last_rows, last_columns, result.dtype) and _reads_array(group, op)
    types = multiplied_types(op)
    atom = machine.matrix_atom(*types, accumulator_of(result.dtype), last_depth)
    if atom is not None and last_rows < atom.rows:
        atom = None
    name, checked = "", False
    if atom is not None:
        tile = matrix_tile(last_rows, last_columns, last_depth, atom, machine, share)
    elif streamed:
        tile = streaming_tile(last_rows, last_columns, last_depth, result.dtype, machine, share)
    else:
        product = product_of(group)
        parts = _atom_of_parts(group, op, machine)
        split = None if parts is None else split_tile(product, parts, machine, threads)
        if parts is not None and split is not None:
            tile, name, checked = split, parts.name, True
        else:
            schedule = best_schedule(product, machine, threads)
            tile = schedule.tile
            name = micro_kernel_name(max(1, min(tile.rows, last_rows)), schedule.block)
    extents = [1] * result.rank
    if rows:
        extents[rows[-1]] = max(1, min(tile.rows, last_rows))
    if columns:
        extents[columns[-1]] = max(1, min(tile.columns, last_columns))
    return ContractPlan(
        result.shape,
        tuple(extents),
        depth_sizes,
        tile.depth if checked else max(1, min(tile.depth, last_depth)),
        accumulator_of(result.dtype) if atom is None else None,
        name,
        checked=checked,
        part=a.get("part"),
    )


def _plan_for_warps(
    group: array.FusedOp, op: array.ContractOp, machine: Machine, depth_sizes: tuple[int, ...]
) -> ContractPlan:
    """Tiles of whole instructions: what reaches beyond the result is masked."""
    result = array_type(op.results[0])
    _, rows, columns = result_dims(op)
    pieces = [_piece_bytes(op, n) for n in range(2)]
    product = replace(warp_product(op, pieces, machine), is_followed=has_more(group, op))
    schedule = warp_schedule(product, machine)
    tile = schedule.tile
    extents = [1] * result.rank
    if product.rows > 1:
        extents[rows[-1]] = tile.rows
    if product.columns > 1:
        extents[columns[-1]] = tile.columns
    step = tile.depth if depth_sizes else 1
    return ContractPlan(
        result.shape,
        tuple(extents),
        depth_sizes,
        step,
        multiplied_as(op, machine),
        schedule.atom,
        None if schedule.across is None else schedule.warps,
        schedule.stages if schedule.stages > 1 else None,
        part=op.attributes_of().get("part"),
    )


def _cycles_after(group: array.FusedOp, op: array.ContractOp, grid: CoreGrid) -> float:
    """Of the vector unit, for what follows one page of the matmul: functions of arrays of its shape."""
    shape = array_type(op.results[0]).shape
    maps = [each for each in group.body.walk() if isinstance(each, array.MapOp)]
    after = [each for each in maps if array_type(each.results[0]).shape == shape]
    return sum(grid.vector_tile_cycles(ops.FUNCTIONS[each.fn.data].cost) for each in after)


def _plan_for_cores(
    op: array.ContractOp, grid: CoreGrid, depth_sizes: tuple[int, ...], cycles_after: float
) -> ContractPlan:
    """Tiles of whole pages."""
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    _, rows, columns = result_dims(op)
    ends = [result.shape[dims[-1]] if dims else 1 for dims in (rows, columns)]
    batches = math.prod(result.shape) // max(1, ends[0] * ends[1])
    page_bytes = TILE * TILE * max(left.dtype.itemsize, right.dtype.itemsize)
    is_exact = not result.dtype.is_float
    tile = product_tile(ends[0], ends[1], depth_of(op), max(1, batches), page_bytes, grid, is_exact, cycles_after)
    extents = [1] * result.rank
    if rows:
        extents[rows[-1]] = tile.rows
    if columns:
        extents[columns[-1]] = tile.columns
    same = left.dtype == right.dtype and left.dtype.is_float
    operand = None if same else accumulator_of(result.dtype)
    depth = max(1, min(tile.depth, depth_of(op)))
    return ContractPlan(result.shape, tuple(extents), depth_sizes, depth, operand, part=op.attributes_of().get("part"))


def _piece_bytes(op: array.ContractOp, operand: int) -> int:
    """The same of a matmul in a group, where the operand is an array of the group; else 0."""
    return piece_bytes(op, operand) if isinstance(array_behind(op.operands[operand]), BlockArgument) else 0


def _atom_of_parts(group: array.FusedOp, op: array.ContractOp, machine: Machine) -> MatrixAtom | None:
    """What multiplies the operands in parts, where both are arrays of the group, known at run time only, seen through
    transposes: they are read again where its result is not finite."""
    left, right = (array_type(operand).dtype for operand in op.operands)
    a = op.attributes_of()
    _, rows, columns = result_dims(op)
    ends = [array_type(op.results[0]).shape[d] for d in (*rows[-1:], *columns[-1:])]
    ends += [array_type(op.operands[0]).shape[d] for d in a["left_contract"][-1:]]
    if op.precision is not None or op.part is not None or len(ends) < 3 or min(ends) < 2:
        return None
    for operand in op.operands:
        value = untransposed(operand)
        if not isinstance(value, BlockArgument) or isinstance(group.operands[value.index].owner, array.ConstantOp):
            return None
    return machine.split_atom(left, right, accumulator_of(array_type(op.results[0]).dtype))


def product_of(group: array.FusedOp) -> Product:
    """Facts of a `contract` group for the cost model."""
    op = contract_of(group)
    a = op.attributes_of()
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    _, rows, columns = result_dims(op)
    summed: tuple[int, ...] = a["left_contract"]
    dtype = accumulator_of(result.dtype)
    is_read = left.dtype == dtype and op.precision is None
    in_place = bool(summed) and _lies_along(op.operands[0], summed[-1]) and is_read
    width = result.shape[columns[-1]] if columns else 1
    return Product(
        rows=max(1, result.shape[rows[-1]] if rows else 1),
        columns=max(1, width),
        depth=depth_of(op),
        dtype=dtype,
        batches=max(1, batches_of(op)),
        pitch_bytes=right.shape[-1] * right.dtype.itemsize if right.rank else 0,
        choices=_right_choices(group, op),
        copies_left=not in_place,
        buffered=len(summed) > 1 or has_more(group, op),
    )


def _right_choices(group: array.FusedOp, op: array.ContractOp) -> tuple[Right, ...]:
    """What can be done with the right operand: an array of the group, seen through transposes, is packed as a whole, or
    read in place where the matmul's columns are side by side; what the group computes is packed by each tile."""
    value = untransposed(op.operands[1])
    if not isinstance(value, BlockArgument) or op.precision is not None:
        return (Right.ALONE,)
    if isinstance(group.operands[value.index].owner, array.ConstantOp):
        return (Right.READY,)
    return (Right.IN_PLACE, Right.KEPT, Right.TOGETHER) if _reads_array(group, op) else (Right.TOGETHER,)


def has_more(group: array.FusedOp, op: array.ContractOp | array.ConvolveOp) -> bool:
    """Whether a group does more with a matmul's result than to store it."""
    roots = array.yielded(group.body.block)
    return len(roots) > 1 or roots[0] is not op.results[0]


def _lies_along(value: SSAValue, dim: int) -> bool:
    """Whether a value is an array of the group, seen through transposes, whose neighbours in memory are those along a
    dim: such a left operand is read in place."""
    while isinstance(value.owner, array.TransposeOp | array.UnfoldOp):
        a, (inner,) = value.owner.attributes_of(), value.owner.operands
        if isinstance(value.owner, array.TransposeOp):
            dim = a["permutation"][dim]
        elif array_type(inner).rank - 1 != a["axis"] or dim < a["axis"] or a["steps"][dim - a["axis"]] != 1:
            return False
        else:
            dim = a["axis"]
        value = inner
    return isinstance(value, BlockArgument) and dim == array_type(value).rank - 1


def _reads_array(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether the right operand is an array known at run time only, its columns side by side, of the type that the
    matmul is computed in: it is read in place."""
    right = op.operands[1]
    type = array_type(right)
    if not isinstance(right, BlockArgument) or op.precision is not None:
        return False
    if type.dtype != array_type(op.results[0]).dtype.compute:
        return False
    summed = op.attributes_of()["right_contract"]
    return type.rank - 1 not in summed and not isinstance(group.operands[right.index].owner, array.ConstantOp)


def lower_contract_group(
    group: array.FusedOp,
    plan: ContractPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """One output tile: a loop over the contracted dimensions, then the epilogue."""
    op = contract_of(group)
    a = op.attributes_of()
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
            a["left_batch"],
            a["left_contract"],
            [at[d] for d in batch],
            inner,
            [at[d] for d in rows],
        )
        right_at = operand_coordinates(
            array_type(op.operands[1]).rank,
            a["right_batch"],
            a["right_contract"],
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
    """Whether all numbers of a tile are finite that are before the ends of the dims it is cut from: if they are, and
    only then, their differences with themselves have the sum 0."""
    for position, size in ends:
        total = builder.fill_padding(total, position, size, 0)
    difference = builder.map("subtract", total, total)
    zero = builder.full(0, array_type(total.value).dtype)
    return builder.map("equal", builder.reduce(difference, "add", total.axes), zero)


def _where_finite(builder: TileBuilder, total: Tile, otherwise: Tile) -> Tile:
    """The numbers of a tile that are finite, and of another for the rest: no result depends on what is in its tile."""
    return builder.map("select", builder.map("isfinite", total), total, otherwise)


def store_roots(
    group: array.FusedOp,
    anchor: SSAValue,
    builder: TileBuilder,
    at: Coordinates,
    outputs: Sequence[SSAValue],
) -> None:
    """Store every root of a group at the coordinates that make it pull the anchor at `at`."""
    for value, ref in zip(array.yielded(group.body.block), outputs, strict=True):
        coordinates = _outward(value, anchor, at)
        builder.store(builder.pull(value, coordinates), ref, coordinates)


def _outward(value: SSAValue, anchor: SSAValue, at: Coordinates) -> Coordinates:
    """Coordinates of a root, seen through the transposes between it and the anchor."""
    while value is not anchor and isinstance(value.owner, array.TransposeOp):
        permutation: tuple[int, ...] = value.owner.attributes_of()["permutation"]
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

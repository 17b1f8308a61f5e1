"""The tiles that the blocks of a kernel of matmuls do: what they read of arrays, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineSymExpr

from tilewright.cost.warps.occupancy import occupancy
from tilewright.cost.warps.products import REGISTERS_BESIDE
from tilewright.cost.warps.tile_order import TileGrid
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import asynchronous, tensor_memory, tile_order
from tilewright.machines.machine import Machine
from tilewright.records import dataclass

_Read = tile.LoadOp | scheduled.CopyOp | asynchronous.TensorCopyOp


@dataclass(frozen=True)
class ProductGrid:
    """Which dims of a region's points are the rows and the columns of tiles, and the panels that these read."""

    rows: int
    columns: int
    tiles: TileGrid


def product_grid(kernel: tile.KernelOp, region: scheduled.ParallelOp) -> ProductGrid | None:
    """The two dims of a region with matmuls of which one array is read by the one alone, and one by the other; None
    where there are none."""
    if not any(isinstance(op, scheduled.MmaOp | tensor_memory.TensorMmaOp) for op in region.walk()):
        return None
    indices, panels = list(region.body.block.args), _panels(kernel, region)
    found: list[ProductGrid] = []
    for rows, columns in combinations(range(len(indices)), 2):
        row_bytes = _bytes_with(panels, indices[rows], indices[columns])
        column_bytes = _bytes_with(panels, indices[columns], indices[rows])
        if row_bytes and column_bytes:
            grid = TileGrid(region.shape[rows], region.shape[columns], row_bytes, column_bytes)
            found.append(ProductGrid(rows, columns, grid))
    return max(found, key=lambda each: each.tiles.row_bytes + each.tiles.column_bytes, default=None)


def _bytes_with(panels: dict[tuple[SSAValue, frozenset[SSAValue]], int], one: SSAValue, other: SSAValue) -> int:
    """Bytes of windows that depend on one coordinate and not on another."""
    return sum(nbytes for (_, used), nbytes in panels.items() if one in used and other not in used)


def _panels(kernel: tile.KernelOp, region: scheduled.ParallelOp) -> dict[tuple[SSAValue, frozenset[SSAValue]], int]:
    """Bytes of the windows of each array that a block reads, by the coordinates of their offsets. A window that is
    copied before a loop is copied once more in it."""
    panels: dict[tuple[SSAValue, frozenset[SSAValue]], int] = {}
    indices = set(region.body.block.args)
    for op in region.walk():
        if not isinstance(op, _Read) or op.source not in kernel.refs:
            continue
        if any(not isinstance(symbol.type, IndexType) for symbol in op.symbols):
            continue  # gathered: who reads what is not known
        used = set(symbols_used(op.map, op.symbols))
        shape = array_type(op.result).shape if isinstance(op, tile.LoadOp) else tile.ref_type(op.destination).shape
        nbytes = prod(shape) * tile.ref_type(op.source).dtype.itemsize
        nbytes *= prod(loop.trips for loop in _loops_around(op) if loop.body.block.args[0] in used)
        key = (op.source, frozenset(used & indices))
        panels[key] = max(nbytes, panels.get(key, 0))
    return panels


def symbols_used(map: AffineMap, symbols: Sequence[SSAValue]) -> Iterator[SSAValue]:
    """The symbols that a map goes by."""
    for result in map.results:
        yield from (symbols[part.position] for part in result.dfs() if isinstance(part, AffineSymExpr))


def _loops_around(op: Operation) -> Iterator[tile.ForOp]:
    around = op.parent_op()
    while around is not None:
        if isinstance(around, tile.ForOp):
            yield around
        around = around.parent_op()


def blocks_together(region: scheduled.ParallelOp, machine: Machine) -> int:
    """How many blocks of a region a core has room for, at least one: shared memory, if no buffers share it, warps, and
    registers for their sums and what is next to."""
    ops = list(region.walk())
    taken = sum(op.count * op.stage_bytes for op in ops if isinstance(op, scheduled.AllocOp))
    warps = 1 if region.warps is None else region.warps
    sums = max((prod(array_type(op.result).shape) for op in ops if isinstance(op, scheduled.MmaOp)), default=0)
    registers = REGISTERS_BESIDE + sums // (warps * machine.axes["lane"])
    warps += sum(op.warps for op in ops if isinstance(op, scheduled.RoleOp))
    return max(1, occupancy(machine, warps * machine.axes["lane"], registers, taken).blocks)


def number_points(region: scheduled.ParallelOp, dims: Sequence[int], group: int) -> tile_order.PointOp:
    """Have the blocks of a region numbered: the dims in a new order, the last but one in groups."""
    block, shape = region.body.block, region.shape
    extents = [shape[dim] for dim in dims]
    number = block.insert_arg(IndexType(), 0)
    point = tile_order.PointOp(
        symbols=[number],
        map=AffineMap(0, 1, (AffineExpr.symbol(0),)),
        extents=tuple(extents),
        group=group,
        coordinates=[IndexType() for _ in dims],
    )
    first = block.first_op
    assert first is not None
    block.insert_op_before(point, first)
    for result, dim in zip(point.results, dims, strict=True):
        argument = block.args[1 + dim]
        result.name_hint = argument.name_hint
        argument.replace_all_uses_with(result)
    for argument in list(block.args[1:]):
        block.erase_arg(argument)
    region.extents = (prod(shape),)
    return point


def point_of(region: scheduled.ParallelOp) -> tile_order.PointOp | None:
    """The operation that computes the coordinates of a region's blocks from their index."""
    first = region.body.block.first_op
    return first if isinstance(first, tile_order.PointOp) else None

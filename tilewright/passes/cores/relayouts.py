"""Kernels that move an array to another placement and storage format."""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.rewriter import InsertPoint, Rewriter

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.func import ReturnOp
from tilewright.errors import LayoutError
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.placements import Pages, page_matrix
from tilewright.layout.relayout import Plan, plan_relayout
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.tile_facts import is_wide_type
from tilewright.primitives import ArrayType

# A queue between the mover that reads and the one that writes has room for twice as many pages.
_MOST_PAGES = 8


def insert_relayout(unit: Unit, last: ReturnOp, number: int, source: Pages, target: Pages) -> SSAValue:
    """A result of the program becomes a copy of what it was, stored as `target`."""
    last.operands[number] = _moved(unit, last.operands[number], last, f"relayout_{number}", source, target)
    return last.operands[number]


def insert_tilize(unit: Unit, argument: SSAValue, first: Operation, number: int, source: Pages) -> SSAValue:
    """A copy of an argument of the program that is stored by rows, in tiles. `first`: what reads it first."""
    return _moved(unit, argument, first, f"tilize_{number}", source, Pages())


def _moved(unit: Unit, value: SSAValue, before: Operation, name: str, source: Pages, target: Pages) -> SSAValue:
    """A copy of an array that is stored as `target`."""
    type = array_type(value)
    unit.module.body.block.add_op(_kernel(name, type, source, target, unit.machine))
    call = array.CallOp(arguments=[value], callee=name, outputs=[tensor(type)])
    Rewriter.insert_op(call, InsertPoint.before(before))
    planned = relayout_plan(type, source, target, unit.machine)
    why = str(planned) if isinstance(planned, Plan) else f"no plan of it is known: {planned}"
    unit.remarks.append(Remark("tile-store-arrays", name, f"moved from {source} to {target}", why))
    return call.results[0]


def relayout_plan(type: ArrayType, source: Pages, target: Pages, machine: Machine) -> Plan | str:
    """How an array is moved, or why that is not known."""
    rows, columns = page_matrix(type.shape)
    shape = rows * TILE, columns * TILE
    try:
        before, after = source.layout(shape), target.layout(shape)
    except LayoutError as error:
        return error.message
    planned = plan_relayout(before, after, type.dtype, machine)
    return planned if isinstance(planned, Plan) else planned.message


def _registers(type: ArrayType, machine: Machine) -> int:
    return machine.core_grid.half_registers(is_wide_type(type.dtype))


def _even_part(count: int, most: int) -> int:
    """The size of as few parts of a number as are no larger than `most`."""
    return -(-count // max(1, -(-count // most)))


def _kernel(name: str, type: ArrayType, source: Pages, target: Pages, machine: Machine) -> tile.KernelOp:
    """Rectangles of whole tiles are loaded and stored: as large as the shards of the target, if they are not larger
    than a queue should be, so that cores write to their own memories. To and from rows they are one tile high and, all
    of them alike, as wide as the registers have room for at most."""
    shape = type.shape
    height, width = (1, _MOST_PAGES) if target.placement is None else target.placement.shard
    if source.is_row_major or target.is_row_major:
        height, width = 1, _even_part(page_matrix(shape)[1], _registers(type, machine))
    width = max(1, min(width, _MOST_PAGES, page_matrix(shape)[1]))
    height = max(1, min(height, _MOST_PAGES // width))
    sides = [1] * max(0, len(shape) - 2) + [TILE * height, TILE * width][max(0, 2 - len(shape)) :]
    grid = tuple(-(-size // side) for size, side in zip(shape, sides, strict=True))
    ref = tile.ref(type)
    made = tile.kernel(name, grid, [ref, ref], [tile.IN, tile.OUT])
    block = made.body.block
    places = [AffineExpr.dimension(d) + AffineExpr.symbol(d) * side for d, side in enumerate(sides)]
    map = AffineMap(len(shape), len(shape), tuple(places))
    if prod(grid):
        indices = list(made.indices)
        held = tensor(ArrayType(tuple(sides), type.dtype))
        load = tile.LoadOp(source=made.refs[0], symbols=indices, map=map, result=held)
        block.add_op(load)
        block.add_op(tile.StoreOp(value=load.result, destination=made.refs[1], symbols=indices, map=map))
    block.add_op(tile.YieldOp())
    return made

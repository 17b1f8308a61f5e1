"""Rings of buffers for pipelined copies of matmul operands, and removal of the loads that they replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.traits import Pure

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import block_of, erase
from tilewright.dialects.scheduled import asynchronous
from tilewright.passes.warps.copied_windows import Landing, Window, is_point
from tilewright.records import dataclass

# Two stages are copied while one is multiplied: the products of one of these take longer than a copy.
_FEWEST_BESIDE = 3


def described(op: scheduled.MmaOp) -> str:
    """A matmul's tile, and by what it is multiplied."""
    rows, columns = array_type(op.accumulator).shape
    left = op.left.type
    depth = array_type(left.array if isinstance(left, tile.RefType) else op.left).shape[1]
    return f"tile {rows} x {columns} x {depth}, {op.atom}"


@dataclass
class Operand:
    """An operand of a matmul that is copied ahead."""

    product: scheduled.MmaOp
    value: SSAValue
    window: Window
    landing: Landing

    @property
    def is_left(self) -> bool:
        """Of the two operands."""
        return self.value is self.product.left

    def ring(self, stages: int) -> scheduled.AllocOp:
        """So many buffers of it."""
        type = tile.ref(self.window.type, scheduled.BLOCK, str(self.landing.buffer))
        return scheduled.AllocOp(stages=stages, result=type)

    def bytes(self, stages: int) -> int:
        """Bytes of a ring."""
        ring = self.ring(stages)
        return stages * ring.stage_bytes


def left_bytes(loop: tile.ForOp, operands: Sequence[Operand]) -> int:
    """The maximum bytes of the other buffers in a loop, and of the rings around it."""
    gone = {alloc for operand in operands for alloc, _ in operand.window.trips}
    inside = [op for op in loop.body.block.walk() if isinstance(op, scheduled.AllocOp) and op not in gone]
    total = sum(op.count * op.stage_bytes for op in inside)
    around = loop.parent_block()
    while around is not None:
        total += sum(op.count * op.stage_bytes for op in around.ops if isinstance(op, scheduled.AllocOp) and op.stages)
        around = around.parent_block()
    return total


def stages_beside(loop: tile.ForOp, wanted: int, room: int, bytes_of: Callable[[int], int]) -> int:
    """The stages, of `bytes_of` them, next to which a room has place for the buffers after a loop, too: a block with
    several tiles uses these while stages of the next one are filled. As many as wanted, if that left too few."""
    around = block_of(loop)
    behind = list(around.ops)[around.get_operation_index(loop) :]
    room -= sum(op.count * op.stage_bytes for op in behind if isinstance(op, scheduled.AllocOp))
    fitting = (stages for stages in range(wanted, min(wanted, _FEWEST_BESIDE) - 1, -1) if bytes_of(stages) <= room)
    return next(fitting, wanted)


def with_symbols(map: AffineMap, by: Sequence[AffineExpr], count: int) -> AffineMap:
    """A map with expressions for its symbols, of so many others."""
    dims = [AffineExpr.dimension(dim) for dim in range(map.num_dims)]
    return map.replace_dims_and_symbols(dims, list(by), map.num_dims, count)


def stage_of(ring: scheduled.AllocOp, symbols: Sequence[SSAValue], number: AffineExpr) -> scheduled.StageOp:
    """The tile of a ring whose number is an expression of symbols."""
    map = AffineMap(0, len(symbols), (number,))
    return scheduled.StageOp(ring=ring.result, symbols=symbols, map=map, result=ring.result.type)


def take_from(operand: Operand, stage: scheduled.StageOp | scheduled.AllocOp) -> None:
    """The matmul reads a stage or buffer; what loaded its operand goes."""
    op = operand.product
    position = 0 if operand.is_left else 1
    op.operands[position] = stage.result
    if operand.landing.fragment is not None:
        key = "left_fragment" if position == 0 else "right_fragment"
        op.properties[key] = StringAttr(str(operand.landing.fragment))
    points = [symbol.owner for symbol in operand.window.load.symbols if is_point(symbol)]
    for moved in operand.window.moves:
        erase(moved)
    for point in dict.fromkeys(points):
        if isinstance(point, Operation) and not any(list(place.uses) for place in point.results):
            erase(point)


def drop_unused(value: SSAValue) -> None:
    """Erase an operation whose results have no uses, and the operations that only it uses."""
    op = value.owner
    if not isinstance(op, Operation) or not op.has_trait(Pure) or any(list(each.uses) for each in op.results):
        return
    operands = list(op.operands)
    erase(op)
    for operand in operands:
        drop_unused(operand)


def remove_trips(stores: Sequence[tile.StoreOp]) -> None:
    """The barriers around stores that all go, and a fence."""
    for store in stores:
        before, after = _around(store, back=True), _around(store, back=False)
        if before is None or after is None:  # with an earlier store of the same barriers
            continue
        between = list(_between(before, after))
        if all(op in stores for op in between if isinstance(op, tile.StoreOp)):
            fences = (op for op in between if isinstance(op, asynchronous.FenceOp))
            for op in (before, *fences, after):
                erase(op)


def _around(op: Operation, back: bool) -> scheduled.BarrierOp | None:
    """The barrier next to a store, over other stores, allocations and a fence."""
    at = op.prev_op if back else op.next_op
    while isinstance(at, scheduled.AllocOp | tile.StoreOp | asynchronous.FenceOp):
        at = at.prev_op if back else at.next_op
    return at if isinstance(at, scheduled.BarrierOp) else None


def _between(first: Operation, last: Operation) -> Iterator[Operation]:
    at = first.next_op
    while at is not None and at is not last:
        yield at
        at = at.next_op

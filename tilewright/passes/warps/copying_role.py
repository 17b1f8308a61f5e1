"""The producer role: a warp that issues copies of matmul operands stage by stage, and its mbarriers.

The first symbol of its maps is the trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of
from tilewright.dialects.scheduled import asynchronous, tile_order
from tilewright.passes.warps.copied_windows import Landing, Refused, is_point, matrix_landing, window_behind
from tilewright.passes.warps.operand_rings import Operand, stage_of, with_symbols
from tilewright.passes.warps.tensor_windows import boxes_of
from tilewright.primitives import ArrayType
from tilewright.records import dataclass

# The roles of warps: this one, and that which begins the products of tensor memory.
COPIES, MULTIPLIES = "copies", "multiplies"
TRIP = AffineExpr.symbol(0)


def copied_operand(product: scheduled.MmaOp, side: SSAValue, counter: SSAValue, around: Block | None = None) -> Operand:
    """An operand that the machine copies by itself. `counter`: of the loop whose trips it is copied in; `around`: a
    block whose operations may load it too.

    Raises:
        Refused: it does not.
    """
    is_left = side is product.left
    block = block_of(product)
    window = window_behind(side, block, is_left, around)
    others = [symbol for symbol in window.load.symbols if symbol is not counter]
    if not all(is_of_the_block(symbol) or _is_of(symbol, counter) for symbol in others):
        raise Refused("the offset of a window is not known at the start of the block")
    buffer = matrix_landing(window, 1 if is_left else 0)
    boxes_of(window.map, tile.ref_type(window.load.source), buffer)
    return Operand(product, side, window, Landing(buffer))


def is_of_the_block(symbol: SSAValue) -> bool:
    """Whether it is a coordinate of the block in the grid."""
    return isinstance(symbol, BlockArgument) and isinstance(symbol.owner.parent_op(), scheduled.ParallelOp)


def _is_of(symbol: SSAValue, counter: SSAValue) -> bool:
    """Whether it is a coordinate of the point that a trip stands for."""
    return is_point(symbol) and isinstance(symbol.owner, Operation) and list(symbol.owner.operands) == [counter]


def barriers(count: int, arrivals: int) -> asynchronous.MbarrierOp:
    """So many barriers in memory, whose phases complete by so many arrivals."""
    type = tile.ref(ArrayType((count,), dtypes.i64), scheduled.BLOCK)
    return asynchronous.MbarrierOp(count=count, arrivals=arrivals, result=type)


def number(expression: AffineExpr) -> AffineMap:
    """A number of the trip."""
    return AffineMap(0, 1, (expression,))


def await_phase(
    mbarriers: asynchronous.MbarrierOp, trip: SSAValue, stage: AffineExpr, phase: AffineExpr
) -> asynchronous.AwaitOp:
    """Wait in a trip for a phase of the barrier of a stage."""
    return asynchronous.AwaitOp(mbarrier=mbarriers.result, symbols=[trip], number=number(stage), phase=number(phase))


def labels_around(op: Operation) -> list[str]:
    """The zones of its block that an operation is in, the outer ones first."""
    return [zone.label for zone in tile.zones_around(op)]


def in_zones(labels: Sequence[str], ops: Sequence[Operation]) -> list[Operation]:
    """Operations within zones of their own role: what it does of what zones enclose."""
    begin = [tile.zone(label, tile.BEGIN) for label in labels]
    return [*begin, *ops, *(tile.zone(label, tile.END) for label in reversed(labels))]


def _zones(operand: Operand) -> list[str]:
    return labels_around(operand.window.load)


@dataclass(frozen=True)
class CopyingRole:
    """Fills stages of `rings` with the operands of a loop's trips: those of barrier `empty` that are, to complete a
    phase of `full`."""

    loop: tile.ForOp
    operands: Sequence[Operand]
    stages: int
    rings: Sequence[scheduled.AllocOp]
    full: asynchronous.MbarrierOp
    empty: asynchronous.MbarrierOp

    def role(self) -> scheduled.RoleOp:
        """A loop of as many trips."""
        body = Block(arg_types=[IndexType()])
        trip = body.args[0]
        uses_before = TRIP // self.stages - 1
        body.add_ops([await_phase(self.empty, trip, self._stage, uses_before), self._expect(trip)])
        places = self._points(body, trip)
        for zones, fed in groupby(zip(self.operands, self.rings, strict=True), lambda each: _zones(each[0])):
            copies: list[Operation] = []
            for operand, ring in fed:
                stage = stage_of(ring, [trip], self._stage)
                copies += [stage, self._copy(operand, stage, trip, places)]
            body.add_ops(in_zones(zones, copies))
        body.add_op(tile.YieldOp())
        loop = tile.ForOp(trips=self.loop.trips, body=Region(body))
        block = Block()
        block.add_ops([*in_zones(labels_around(self.loop), [loop]), scheduled.EndOp()])
        return scheduled.RoleOp(role=COPIES, warps=1, body=Region(block))

    @property
    def _stage(self) -> AffineExpr:
        return TRIP % self.stages

    def _expect(self, trip: SSAValue) -> asynchronous.ExpectOp:
        nbytes = sum(prod(each.window.type.shape) * each.window.type.dtype.itemsize for each in self.operands)
        return asynchronous.ExpectOp(
            mbarrier=self.full.result, symbols=[trip], number=number(self._stage), bytes=nbytes
        )

    def _points(self, body: Block, trip: SSAValue) -> dict[SSAValue, SSAValue]:
        """The points that trips of the loop stand for, for those of the role: by a coordinate the new one."""
        places: dict[SSAValue, SSAValue] = {self.loop.body.block.args[0]: trip}
        points = [op for op in self.loop.body.block.ops if isinstance(op, tile_order.PointOp)]
        body.add_ops([point.clone(places) for point in points])
        return places

    def _copy(
        self, operand: Operand, stage: scheduled.StageOp, trip: SSAValue, places: Mapping[SSAValue, SSAValue]
    ) -> asynchronous.TensorCopyOp:
        window, counter = operand.window, self.loop.body.block.args[0]
        others = [places.get(symbol, symbol) for symbol in window.load.symbols if symbol is not counter]
        left = iter(range(1, len(others) + 1))
        by = [TRIP if symbol is counter else AffineExpr.symbol(next(left)) for symbol in window.load.symbols]
        map = with_symbols(window.map, by, len(others) + 1)
        op = asynchronous.TensorCopyOp(
            source=window.load.source,
            destination=stage.result,
            mbarrier=self.full.result,
            symbols=[trip, *others],
            map=map,
            number=AffineMap(0, len(others) + 1, (self._stage,)),
        )
        op.location = window.load.location
        return op

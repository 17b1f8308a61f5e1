"""The matmuls of a block in a loop over tiles: in registers of warpgroups, or in two accumulators of tensor memory.

Stages and phases are counted on from tile to tile. Registers hold one sum, which is stored before the next tile is
multiplied; of two accumulators the warpgroups store one while the next tile adds up in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import rewrite_maps
from tilewright.dialects.rewriting import erase
from tilewright.dialects.scheduled import asynchronous, tensor_memory
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import MULTIPLIES, TRIP, await_phase, barriers, number
from tilewright.passes.warps.operand_rings import with_symbols
from tilewright.records import dataclass

_Counted = (
    asynchronous.AwaitOp
    | asynchronous.ExpectOp
    | asynchronous.ArriveOp
    | asynchronous.TensorCopyOp
    | scheduled.StageOp
    | tensor_memory.MmaCommitOp
)
_ACCUMULATORS = 2


class Parts(Protocol):
    """The operations of a block that move into loops over tiles."""

    roles: Sequence[scheduled.RoleOp]

    @property
    def loops(self) -> Sequence[tile.ForOp]:
        """Over the steps of the contracted dim of a tile, of roles and warpgroups."""
        ...

    @property
    def waits(self) -> Operation:
        """The point where the warpgroups wait for all MMAs of a tile."""
        ...

    def prepare(self) -> None:
        """Make what the loops share."""
        ...

    def write_role(self, role: scheduled.RoleOp, body: Block) -> None:
        """The work of a role on one tile, in the body of its loop, whose argument is the turn."""
        ...

    def write_warpgroups(self, body: Block) -> Sequence[Operation]:
        """Emit the work of the warpgroups; returns the operations after their loop."""
        ...


def _loop_in(role: scheduled.RoleOp, others: int) -> tile.ForOp:
    """The loop of a role that has so many operations next to it.

    Raises:
        Refused: it has not.
    """
    ops = [op for op in role.body.block.ops if not isinstance(op, tile.ZoneOp)]
    loops = [op for op in ops if isinstance(op, tile.ForOp)]
    if len(loops) != 1 or len(ops) != others + 1:
        raise Refused(f"the role {role.role} does more than a loop")
    return loops[0]


def _count_on(loop: tile.ForOp, turn: SSAValue) -> None:
    """Stages and phases go by the number of the trip since the block began; whether there is a trip before, and what is
    copied, by that in the tile."""
    counter, trips = loop.body.block.args[0], loop.trips
    for op in list(loop.body.walk()):
        if isinstance(op, _Counted) and counter in op.symbols:
            _count_op_on(op, counter, trips, turn)


def _count_op_on(op: _Counted, counter: SSAValue, trips: int, turn: SSAValue) -> None:
    count, at = len(op.symbols), list(op.symbols).index(counter)
    same = [AffineExpr.symbol(position) for position in range(count)]
    on = [*same[:at], same[at] + AffineExpr.symbol(count) * trips, *same[at + 1 :]]
    counted = ("map",) if isinstance(op, scheduled.StageOp) else ("number", "phase")
    op.operands = [*op.operands, turn]
    rewrite_maps(op, lambda name, map: with_symbols(map, on if name in counted else same, count + 1))


# ---- in registers ---------------------------------------------------------------------------------------------------


@dataclass
class _InRegisters:
    """`empty`: the barriers that state that stages are; `waits`: for all matmuls of `loop`."""

    roles: Sequence[scheduled.RoleOp]
    loops: Sequence[tile.ForOp]
    empty: asynchronous.MbarrierOp
    waits: scheduled.MmaWaitOp

    def prepare(self) -> None:
        """Nothing is shared but stages."""

    def write_role(self, role: scheduled.RoleOp, body: Block) -> None:
        _count_on(self.loops[0], body.args[0])

    def write_warpgroups(self, body: Block) -> Sequence[Operation]:
        """When all matmuls have been done, the last stage is empty, too."""
        turn, loop = body.args[0], self.loops[1]
        _count_on(loop, turn)
        trips = loop.trips
        last = number((TRIP * trips + (trips - 1)) % self.empty.count)
        body.insert_op_after(asynchronous.ArriveOp(mbarrier=self.empty.result, symbols=[turn], number=last), self.waits)
        return []


def sums_in_registers(region: scheduled.ParallelOp, roles: Sequence[scheduled.RoleOp]) -> Parts:
    """The parts of a region in which MMA warpgroups read the windows that a producer copies.

    Raises:
        Refused: there are others.
    """
    ops = list(region.body.block.ops)
    fed = [op for op in ops if isinstance(op, tile.ForOp) and any(isinstance(each, _Counted) for each in op.walk())]
    arrivals = [op.mbarrier.owner for op in region.walk() if isinstance(op, asynchronous.ArriveOp)]
    waits = [op for op in ops if isinstance(op, scheduled.MmaWaitOp)]
    if len(fed) != 1 or len(arrivals) != 1 or len(waits) != 1 or not isinstance(arrivals[0], asynchronous.MbarrierOp):
        raise Refused("the matmuls are not in one loop")
    return _InRegisters(roles, [_loop_in(roles[0], 1), fed[0]], arrivals[0], waits[0])


# ---- in tensor memory -----------------------------------------------------------------------------------------------


@dataclass
class _InTensorMemory:
    """`total` is where matmuls add up, `commit` states that they are done, to who `waits` for it; then it is
    `freed`."""

    region: scheduled.ParallelOp
    roles: Sequence[scheduled.RoleOp]
    loops: Sequence[tile.ForOp]
    total: tensor_memory.TensorAllocOp
    commit: tensor_memory.MmaCommitOp
    waits: asynchronous.AwaitOp
    freed: tensor_memory.TensorFreeOp
    done: asynchronous.MbarrierOp = field(init=False)
    taken: asynchronous.MbarrierOp = field(init=False)

    def prepare(self) -> None:
        """Two accumulators, and for each a barrier that signals that its sum is there, and one that it was taken."""
        groups = 1 if self.region.warps is None else self.region.warps // WARPGROUP
        columns = _ACCUMULATORS * self.total.columns
        totals = tensor_memory.TensorAllocOp(columns=columns, stages=_ACCUMULATORS, result=self.total.result.type)
        self.done, self.taken = barriers(_ACCUMULATORS, 1), barriers(_ACCUMULATORS, groups)
        before = self.waits.mbarrier.owner
        assert isinstance(before, asynchronous.MbarrierOp)
        block = self.region.body.block
        block.insert_op_before(totals, self.total)
        block.insert_ops_before([self.done, self.taken], before)
        for user in (self.waits, self.commit):
            user.operands[0] = self.done.result
        self.total.result.replace_all_uses_with(totals.result)
        for op in (before, self.total):
            erase(op)
        self.total = totals

    def write_role(self, role: scheduled.RoleOp, body: Block) -> None:
        """Matmuls of a turn begin when the sum of the one before the last was taken."""
        turn = body.args[0]
        if role.role != MULTIPLIES:
            _count_on(self.loops[0], turn)
            return
        loop = self.loops[1]
        _count_on(loop, turn)
        stage = self._stage(turn)
        for op in loop.body.block.ops:
            if isinstance(op, tensor_memory.TensorMmaOp):
                op.operands[2] = stage.result
        wait = await_phase(self.taken, turn, TRIP % _ACCUMULATORS, TRIP // _ACCUMULATORS - 1)
        fence = tensor_memory.TensorFenceOp(side=tensor_memory.AFTER)
        body.insert_ops_before([wait, fence, stage], loop)
        _at_turn(self.commit, turn)

    def write_warpgroups(self, body: Block) -> Sequence[Operation]:
        """The sum is there, and taken when all warps have loaded it, which the first one signals for them: what they
        signalled it of tensor memory goes with that."""
        turn = body.args[0]
        stage = self._stage(turn)
        body.insert_op_before(stage, self.waits)
        for use in [use for use in self.total.result.uses if isinstance(use.operation, tensor_memory.TensorLoadOp)]:
            use.operation.operands[use.index] = stage.result
        _at_turn(self.waits, turn)
        self.waits.phase = number(TRIP // _ACCUMULATORS)
        taken = asynchronous.ArriveOp(mbarrier=self.taken.result, symbols=[turn], number=number(TRIP % _ACCUMULATORS))
        told = tensor_memory.TensorFenceOp(side=tensor_memory.AFTER)
        body.insert_ops_before([told, taken], self.freed)
        self.freed.detach()
        return [self.freed]

    def _stage(self, turn: SSAValue) -> tensor_memory.TensorStageOp:
        turns = number(TRIP % _ACCUMULATORS)
        total = self.total.result
        return tensor_memory.TensorStageOp(tensor=total, symbols=[turn], map=turns, result=total.type)


def _at_turn(op: asynchronous.AwaitOp | tensor_memory.MmaCommitOp, turn: SSAValue) -> None:
    """An operation at the barrier of the accumulator of a turn."""
    op.operands = [op.mbarrier, turn]
    op.number = number(TRIP % _ACCUMULATORS)


def sums_in_tensor_memory(region: scheduled.ParallelOp, roles: Sequence[scheduled.RoleOp]) -> Parts:
    """The parts of a region of which one role copies and one multiplies.

    Raises:
        Refused: there are others, or no room for two sums.
    """
    ops, multiplied = list(region.body.block.ops), list(roles[1].body.block.ops)
    totals = [op for op in ops if isinstance(op, tensor_memory.TensorAllocOp)]
    commits = [op for op in multiplied if isinstance(op, tensor_memory.MmaCommitOp)]
    waits = [op for op in ops if isinstance(op, asynchronous.AwaitOp)]
    freed = [op for op in ops if isinstance(op, tensor_memory.TensorFreeOp)]
    if any(len(each) != 1 for each in (totals, commits, waits, freed)):
        raise Refused("there is more than one sum")
    if _ACCUMULATORS * totals[0].columns > tensor_memory.COLUMNS:
        raise Refused("tensor memory has no room for two sums")
    loops = [_loop_in(roles[0], 1), _loop_in(roles[1], 2)]
    return _InTensorMemory(region, roles, loops, totals[0], commits[0], waits[0], freed[0])

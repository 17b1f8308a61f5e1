"""Windows that a chain of matmuls reads: asynchronous MMAs of warpgroups in one loop and around it.

Windows of one array that matmuls read in the same form come after each other, and may be in the same buffers by turns:
a feed. `Refused` states why a warp that copies cannot do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import block_of, in_block
from tilewright.passes.affine_access import linear_form
from tilewright.passes.warps.copied_windows import Refused
from tilewright.passes.warps.copying_role import copied_operand
from tilewright.passes.warps.operand_rings import Operand
from tilewright.records import dataclass


@dataclass
class Fill:
    """A window that matmuls read in a buffer: how often it is filled before, of the buffers of its feed, is `number`,
    of some indices; the counter of the loop is the first of those that are filled in it."""

    operand: Operand
    number: AffineExpr
    symbols: Sequence[SSAValue]


@dataclass
class Feed:
    """The windows of one array that the matmuls read in the same buffers, in sequence. The fills of a resident feed are
    all of one window."""

    fills: list[Fill]
    is_resident: bool

    def bytes(self, stages: int) -> int:
        """Bytes of its buffers."""
        ring = self.fills[0].operand.ring(max(2, stages))
        return ring.stage_bytes * (1 if self.is_resident else stages)

    @property
    def fill_bytes(self) -> int:
        type = self.fills[0].operand.window.type
        return prod(type.shape) * type.dtype.itemsize


def loop_of(products: Sequence[scheduled.MmaOp], region: scheduled.ParallelOp) -> tile.ForOp:
    """The loop that has matmuls, others of which are before and after it.

    Raises:
        Refused: there are several, or how many trips it has is not known when the block begins.
    """
    if any(isinstance(op, scheduled.RoleOp) for op in region.body.block.ops):
        raise Refused("another loop already has a producer warp")
    loops = list(dict.fromkeys(op.parent_op() for op in products if op.parent_op() is not region))
    if len(loops) != 1 or not isinstance(loop := loops[0], tile.ForOp) or loop.parent_op() is not region:
        raise Refused("the matmuls are not in and around one loop")
    for product in products:
        wait_of(product)
    _check_trips(loop, region)
    return loop


def wait_of(product: scheduled.MmaOp) -> scheduled.MmaWaitOp:
    """The one wait for a matmul, next to it.

    Raises:
        Refused: there is none, or nothing uses what it gives.
    """
    users = users_of(product.result)
    if len(users) != 1 or not isinstance(wait := users[0], scheduled.MmaWaitOp) or not _arein_block(product, wait):
        raise Refused("a matmul is not waited for in the block that issues it")
    if not users_of(wait.result):
        raise Refused("the result of a matmul is unused")
    return wait


def _arein_block(op: Operation, other: Operation) -> bool:
    return op.parent_block() is other.parent_block()


def users_of(value: SSAValue) -> list[Operation]:
    """The operations that use a value."""
    return [use.operation for use in value.uses]


def first_use(wait: scheduled.MmaWaitOp) -> Operation:
    """The first operation next to a wait that uses what it gives, or has one inside that does."""
    block = block_of(wait)
    return min((in_block(user, block) for user in users_of(wait.result)), key=block.get_operation_index)


def check_turns(feeds: Sequence[Feed], loop: tile.ForOp, stages: int) -> None:
    """Check that each window is released before the copy that reuses its stage: a stage is empty once its matmul's
    result is first used. After the loop no warp signals an empty stage.

    Raises:
        Refused: two wait for each other.
    """
    block = block_of(loop)
    at = block.get_operation_index
    for feed in (feed for feed in feeds if not feed.is_resident):
        products = [fill.operand.product for fill in feed.fills if fill.operand.product.parent_block() is block]
        before = [product for product in products if at(product) < at(loop)]
        if len(products) - len(before) > stages:
            raise Refused(f"after the loop {len(products) - len(before)} windows share {stages} stages")
        for number, product in enumerate(before):
            used = at(first_use(wait_of(product)))
            later = before[number + stages :]
            if used > at(loop) or (later and used >= at(later[0])):
                raise Refused("the result of a matmul is first used after the stage of its window must be free")


def _check_trips(loop: tile.ForOp, region: scheduled.ParallelOp) -> None:
    """The end of a loop is how many trips it has, in any block."""
    if loop.end is None:
        return
    form = linear_form(loop.end.results[0], ())
    if form is None or any(symbol not in region.body.block.args for symbol in loop.symbols):
        raise Refused("the trip count of the loop is not known at block start")
    coordinates = region.body.block.args
    extents = [region.shape[coordinates.index(symbol)] for symbol in loop.symbols]
    last = [step * (extents[number] - 1) for number, step in form.symbols]
    least, most = (form.constant + sum(pick(0, each) for each in last) for pick in (min, max))
    if least < 0 or most > loop.trips:
        raise Refused("the trip count of the loop differs between blocks")


def feeds_of(products: Sequence[scheduled.MmaOp], loop: tile.ForOp, region: scheduled.ParallelOp) -> list[Feed]:
    """The windows of all matmuls, those of one array together.

    Raises:
        Refused: the machine does not copy one, or does not know when.
    """
    counter = loop.body.block.args[0]
    operands = [
        copied_operand(op, side, counter, region.body.block)
        for op in products
        for side in (op.left, op.right)
        if _is_buffer(side) and not (side is op.left and _is_computed(side))
    ]
    inside = [operand for operand in operands if operand.product.parent_op() is loop]
    known = {_alike(operand): operand for operand in inside}
    if len(known) < len(inside):
        raise Refused("two matmuls of the loop read the same array")
    feeds: list[Feed] = []
    for key, own in known.items():
        together = [operand for operand in operands if _alike(operand) == key]
        is_resident = counter not in own.window.load.symbols
        if is_resident and any(_place(operand) != _place(own) for operand in together):
            raise Refused("one window of an array is loop-invariant, another is not")
        fills = [Fill(operand, AffineExpr.constant(0), ()) for operand in together]
        feeds.append(Feed(fills if is_resident else _in_turn(together, loop), is_resident))
    if sum(len(feed.fills) for feed in feeds) < len(operands):
        raise Refused("a matmul outside the loop reads an array that the loop does not")
    return feeds


def _is_buffer(side: SSAValue) -> bool:
    return isinstance(side.type, tile.RefType)


def _is_computed(side: SSAValue) -> bool:
    """Whether a buffer holds computed elements instead of those of an array."""
    stores = [op for op in users_of(side) if isinstance(op, tile.StoreOp)]
    value = stores[0].value if stores else side
    while isinstance(value.owner, tile.RelayoutOp | tile.TransposeOp | tile.ReshapeOp | tile.FillPaddingOp):
        value = value.owner.operands[0]
    return not isinstance(value.owner, tile.LoadOp)


def _alike(operand: Operand) -> object:
    """Properties that windows in the same buffers share."""
    return operand.is_left, operand.window.load.source, operand.window.type, str(operand.landing.buffer)


def _place(operand: Operand) -> object:
    """The offsets of a window in its array."""
    return operand.window.map, tuple(operand.window.load.symbols)


def _in_turn(operands: Sequence[Operand], loop: tile.ForOp) -> list[Fill]:
    """Windows in the order in which they are read: how many there are before each."""
    counter, trips = loop.body.block.args[0], AffineExpr.constant(loop.trips)
    if loop.end is not None:
        trips = loop.end.results[0]
    fills: list[Fill] = []
    is_behind = False
    for number, operand in enumerate(operands):
        if operand.product.parent_op() is loop:
            fills.append(Fill(operand, AffineExpr.symbol(0) + number, (counter,)))
            is_behind = True
        elif is_behind:
            fills.append(Fill(operand, trips + (number - 1), loop.symbols))
        else:
            fills.append(Fill(operand, AffineExpr.constant(number), ()))
    return fills

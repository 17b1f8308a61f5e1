"""Edits of programs for grids of cores that plant a mistake in what brings order, and in where things are."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import Rewriter

from tilewright.dialects import cores, tile
from tilewright.dialects.fields import decode, encode

Edit = Callable[[Operation], None]

SYNCHRONISES = (
    *(cores.ReserveOp, cores.PushOp, cores.WaitOp, cores.PopOp, cores.BarrierOp),
    *(cores.SemaphoreSetOp, cores.SemaphoreIncrementOp, cores.SemaphoreWaitOp, cores.SemaphoreMulticastOp),
    *(cores.RegistersOp, cores.ConfigureOp, cores.AccumulateOp),
)
MOVES = (
    *(cores.FetchOp, cores.PadOp, cores.PutOp, cores.GenerateOp, cores.MulticastOp, cores.SendOp),
    *(
        cores.FetchRowsOp,
        cores.PutRowsOp,
        cores.GatherOp,
        cores.ScatterOp,
        cores.RearrangeOp,
        cores.ScanOp,
        cores.SortOp,
    ),
)


def leave_out(op: Operation) -> None:
    op.detach()
    op.erase()


def repeat(op: Operation) -> None:
    block = op.parent_block()
    assert block is not None
    block.insert_op_after(op.clone(), op)


def neighbour(op: Operation, forwards: bool) -> Operation | None:
    """What an operation is moved past; nothing at the end of a block."""
    other = op.next_op if forwards else op.prev_op
    return None if isinstance(other, cores.EndOp | tile.YieldOp) else other


def move(op: Operation, forwards: bool) -> None:
    """One place down, or up."""
    other, block = neighbour(op, forwards), op.parent_block()
    if other is None:
        return
    assert block is not None
    op.detach()
    if forwards:
        block.insert_op_after(op, other)
    else:
        block.insert_op_before(op, other)


def put(op: Operation, name: str, value: Attribute) -> None:
    op.properties[name] = value


def added(name: str, by: int) -> Edit:
    """An attribute that is a number, and `by` more."""

    def edit(op: Operation) -> None:
        old = op.properties[name]
        assert isinstance(old, IntegerAttr)
        op.properties[name] = IntegerAttr(old.value.data + by, old.type)

    return edit


def shifted(name: str, result: int, by: int) -> Edit:
    """A map, of which one result is `by` more."""

    def edit(op: Operation) -> None:
        old = op.properties[name]
        assert isinstance(old, AffineMapAttr)
        map = old.data
        results = tuple(each + by if i == result else each for i, each in enumerate(map.results))
        op.properties[name] = AffineMapAttr(AffineMap(map.num_dims, map.num_symbols, results))

    return edit


def of_pages(pages: int) -> Edit:
    """A queue of so many pages."""

    def edit(op: Operation) -> None:
        assert isinstance(op, cores.QueueOp)
        type = cores.queue_type(op.result)
        Rewriter.replace_value_with_new_type(op.result, cores.queue(type.format.data, pages))

    return edit


def with_argument(number: int, by: int) -> Edit:
    """Another register as an operand of a function."""

    def edit(op: Operation) -> None:
        old = op.properties["arguments"]
        assert isinstance(old, DenseArrayBase)
        arguments = [*decode(old)]
        arguments[number] += by
        op.properties["arguments"] = encode(tuple(arguments))

    return edit


def with_text(name: str, text: str) -> Edit:
    return lambda op: put(op, name, StringAttr(text))


def flipped(name: str) -> Edit:
    """An attribute that says yes or no, and says the other."""
    return lambda op: put(op, name, encode(not decode(op.properties[name])))


def at_address(address_bytes: int) -> Edit:
    return lambda op: put(op, "address_bytes", encode(address_bytes))

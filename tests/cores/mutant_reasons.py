"""Why a program with an edit is none with a mistake: because it does the same, in an order that is the same wherever
that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.cores.order_graph import NoOrderError, Order, order_of
from tests.cores.traces import ProtocolError, UnknownEventsError
from tilewright.dialects import cores
from tilewright.machines.machine import Machine
from tilewright.semantics.cores.memory_plan import addresses_of
from tilewright.semantics.hazards import CoreHazard

DEPTH = "a queue of another depth passes on the same pages"
NETWORK = "on another network the same takes another time"
PLACE = "no other queue is where this one is"
UNREAD = "the coordinate along a side that is not filled says nothing of what is filled"
SAME = "each agent does the same in the same order"
ORDERED = "all that touches the same does so in the same order, and nobody waits in a circle"


class Reasons:
    """Those of edits of one program."""

    def __init__(self, program: cores.ProgramOp, machine: Machine) -> None:
        self._program = program
        self._order: Order = order_of(program)
        self._machine = machine

    def why_in_order(self, planted: cores.ProgramOp) -> str:
        """Why a program is as good as the one that it was made from; empty where nobody knows."""
        if _shape(self._program) != _shape(planted) or not self._fits(planted):
            return ""
        try:
            order = order_of(planted, self._order)
        except (NoOrderError, ProtocolError, UnknownEventsError):
            return ""
        for reason, facts in _FACTS.items():
            if facts(self._program) != facts(planted):
                return reason
        return SAME if order.traces == self._order.traces else ORDERED

    def _fits(self, planted: cores.ProgramOp) -> bool:
        try:
            addresses_of(planted, self._machine.core_grid)
        except CoreHazard:
            return False
        return True


def _shape(program: cores.ProgramOp) -> Sequence[object]:
    """What has to be alike in any case."""
    return [
        program.shape,
        program.wide,
        [cores.queue_type(queue.result).format for queue in program.queues],
        [each.initial for each in program.semaphores],
        [each.role for each in program.threads],
    ]


_FACTS: dict[str, Callable[[cores.ProgramOp], Sequence[object]]] = {
    DEPTH: lambda program: [cores.queue_type(queue.result).pages for queue in program.queues],
    NETWORK: lambda program: [each.noc for each in program.threads],
    PLACE: lambda program: [each.address_bytes for each in program.queues],
    UNREAD: lambda program: sorted({str(op.map) for op in program.body.walk() if isinstance(op, cores.PadOp)}),
}

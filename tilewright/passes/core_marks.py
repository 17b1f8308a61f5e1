"""Zones and prints of a kernel, in the threads of its program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.dialects import cores, tile
from tilewright.passes.core_threads import Threads, drop_empty


def place_zone(threads: Threads, op: tile.ZoneOp) -> None:
    """An edge of a zone, where each thread is."""
    for role in threads.roles:
        threads.add(role, tile.ZoneOp, [], {"label": op.label.data, "edge": op.edge.data})


def place_print(threads: Threads, op: tile.PrintOp, queues: Sequence[SSAValue]) -> None:
    """A print of queues in each thread: that which computes waited for their pages."""
    for role in threads.roles:
        threads.add(role, tile.PrintOp, queues, {"label": op.label.data})


def drop_empty_zones(program: cores.ProgramOp) -> None:
    """Take out zones in which a thread does nothing, and the loops and threads that have nothing else."""
    found = True
    while found:
        found = False
        for op in list(program.body.walk()):
            after = op.next_op
            if isinstance(op, tile.ZoneOp) and op.begins and isinstance(after, tile.ZoneOp) and not after.begins:
                for edge in (op, after):
                    edge.detach()
                    edge.erase()
                found = True
                break
        for thread in program.threads:
            drop_empty(thread.body.block)
    for thread in program.threads:
        if thread.body.block.first_op is thread.body.block.last_op:
            thread.detach()
            thread.erase()

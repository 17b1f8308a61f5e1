"""Lowering of zones and prints to the threads of a core program."""

from __future__ import annotations

from tilewright.dialects import cores, tile
from tilewright.dialects.rewriting import erase
from tilewright.passes.cores.conditions import choices_of
from tilewright.passes.cores.queued_tiles import QueuedTiles
from tilewright.passes.cores.threads import drop_empty
from tilewright.passes.cores.tile_facts import refuse


def place_mark(tiles: QueuedTiles, op: tile.ZoneOp | tile.PrintOp) -> None:
    """An edge of a zone where each thread is, or a print of the queues that tiles are in, whose pages the thread that
    computes waited for.

    Raises:
        UnsupportedOnTargetError: a print in a branch.
    """
    if isinstance(op, tile.PrintOp):
        if choices_of(op):
            what = "`print` in a branch does not run on a grid of cores, where both branches are computed"
            raise refuse(op, what, help='print before the branch, or run it with target="interp"')
        queues = [tiles.held(value, tiles.natural(value)).queue for value in op.arguments]
        attributes = {"label": op.label}
    else:
        queues, attributes = [], {"label": op.label, "edge": op.edge}
    for role in tiles.threads.roles:
        tiles.threads.add(role, type(op), queues, attributes)


def drop_empty_zones(program: cores.ProgramOp) -> None:
    """Take out zones in which a thread does nothing, and the loops and threads that have nothing else."""
    found = True
    while found:
        found = False
        for op in list(program.body.walk()):
            after = op.next_op
            if isinstance(op, tile.ZoneOp) and op.begins and isinstance(after, tile.ZoneOp) and not after.begins:
                for edge in (op, after):
                    erase(edge)
                found = True
                break
        for thread in program.threads:
            drop_empty(thread.body.block)
    for thread in program.threads:
        if thread.body.block.first_op is thread.body.block.last_op:
            erase(thread)

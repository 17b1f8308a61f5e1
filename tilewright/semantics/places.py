"""Where in a kernel something happens, for errors."""

from __future__ import annotations

from xdsl.ir import Operation

from tilewright.dialects import scheduled, tile
from tilewright.semantics.tile import Values


def named(op: Operation, values: Values) -> str:
    """An operation, the trip of the loops around it, and its role."""
    trips: list[str] = []
    role = ""
    around = op.parent_op()
    while around is not None:
        if isinstance(around, tile.ForOp):
            trips.insert(0, str(values[around.body.block.args[0]]))
        if isinstance(around, scheduled.RoleOp):
            role = f" in role {around.role.data}"
        around = around.parent_op()
    return f"`{op.name}`" + (f" of trip {', '.join(trips)}" if trips else "") + role

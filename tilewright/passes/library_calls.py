"""Refusal of library routines on targets without these libraries."""

from __future__ import annotations

from tilewright.dialects import array
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_rules import location_of


def refuse_library_calls(unit: Unit, target: str) -> None:
    """Refuse a program that calls a routine.

    Raises:
        UnsupportedOnTargetError: it does; the error is at the line of the call.
    """
    for op in unit.main.walk():
        if isinstance(op, array.LibraryCallOp):
            error = UnsupportedOnTargetError(
                f"`{op.routine}` is a routine of a library on the CPU, which the {target} target does not call",
                help='compute this part in a program of its own with target="cpu", and pass its results',
            )
            error.location = location_of(op)
            raise error

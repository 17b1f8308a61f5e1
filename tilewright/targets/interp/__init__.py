"""The NumPy semantics of the `array` phase, operation by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import TargetError
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.targets.base import Executable


def _machine_named(name: str) -> Machine:
    if name:
        raise TargetError(f"the interp target has no machines, so none named `{name}`", help='use target="interp"')
    from tilewright.machines.machine import load

    return load("x86-64-v3")  # nothing is lowered, so that any machine will do


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.interp.target import InterpretedProgram

    return InterpretedProgram(unit)


TARGET = Target(
    "interp",
    lowered=False,
    program_files=False,
    machine_named=_machine_named,
    executable=_executable,
    calls_libraries=True,
)

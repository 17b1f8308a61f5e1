"""Compile only: every phase and the code of the machine, which is never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.targets.base import Target
from tilewright.targets.cpu import machine_named

if TYPE_CHECKING:
    from tilewright.passes.base import Unit
    from tilewright.targets.base import Executable


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.null.target import CompiledOnly

    return CompiledOnly(unit, stages)


TARGET = Target(
    "null",
    lowered=True,
    program_files=False,
    machine_named=machine_named,
    executable=_executable,
    calls_libraries=True,
)

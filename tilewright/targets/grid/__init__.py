"""Grids of cores with explicit data movement: programs run on a simulator, and are printed as TT-Metalium C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import TargetError
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.targets.base import Executable

DEFAULT = "wormhole"


def machine_named(name: str) -> Machine:
    """The grid called `name`, such as `blackhole`; `wormhole` where no name is given.

    Raises:
        TargetError: it is no grid of cores.
    """
    from tilewright.machines import machine as machines

    known = [found.name for found in map(machines.load, machines.names()) if found.grid is not None]
    if name and name not in known:
        raise TargetError(
            f"there is no grid of cores `{name}`", help=f"use grid:MACHINE with one of {', '.join(known)}"
        )
    return machines.load(name or DEFAULT)


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.grid.target import GridProgram

    return GridProgram(unit, stages)


TARGET = Target(
    "grid",
    lowered=True,
    program_files=False,
    machine_named=machine_named,
    executable=_executable,
    storage_formats=("bfp8", "bf16"),
)

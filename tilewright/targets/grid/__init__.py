"""Grids of cores with explicit data movement: programs run on a simulator, and are printed as TT-Metalium C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import CompilerBug, LayoutError, TargetError, UnsupportedOnTargetError
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.runtime.program import AnyProgram
    from tilewright.runtime.program_file import ProgramFile
    from tilewright.targets.base import Executable

DEFAULT = "wormhole"
# What floats may be stored as that are of another type.
_FORMATS = ("bfp8", "bf16")


def machine_named(name: str) -> Machine:
    """The grid called `name`, such as `blackhole`; `wormhole` where no name is given.

    Raises:
        TargetError: it is no grid of cores.
    """
    from tilewright.machines import machine as machines

    known = [found.name for found in map(machines.load, machines.names()) if found.model == machines.Model.CORES]
    if name and name not in known:
        raise TargetError(
            f"there is no grid of cores `{name}`", help=f"use grid:MACHINE with one of {', '.join(known)}"
        )
    return machines.load(name or DEFAULT)


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.grid.target import GridProgram

    return GridProgram(unit, stages)


def _open_file(file: ProgramFile) -> AnyProgram:
    from tilewright.runtime.grid.program import GridFile
    from tilewright.targets.grid.program import opened

    if not isinstance(file, GridFile):
        raise CompilerBug(f"`{file.manifest.name}` is no program for a grid of cores")
    return opened(file)


def check_storage(text: str) -> None:
    """Refuse what is no storage of an array on a grid.

    Raises:
        UnsupportedOnTargetError: it is none.
    """
    from tilewright.layout.catalogue.placements import parse_storage

    try:
        asked = parse_storage(text)
    except LayoutError as error:
        raise UnsupportedOnTargetError(error.message, help=error.help) from None
    if asked.format not in ("", *_FORMATS):
        raise UnsupportedOnTargetError(
            f"arrays are not stored as {asked.format}", help=f"the formats are {', '.join(_FORMATS)}"
        )


TARGET = Target(
    "grid",
    lowered=True,
    program_files=False,
    machine_named=machine_named,
    executable=_executable,
    check_storage=check_storage,
    open_file=_open_file,
)

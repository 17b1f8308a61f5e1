"""NVIDIA GPUs: LLVM's NVPTX back end, then NVIDIA's assembler; no GPU is needed for any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import TargetError
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.targets.base import Executable


def machine_named(name: str) -> Machine:
    """The chip called `name`, such as `sm_90a`.

    Raises:
        TargetError: no chip is named, or it is none of NVIDIA's.
    """
    from tilewright.machines import machine as machines

    chips = [each for each in machines.names() if each.startswith("sm_")]
    if name not in chips:
        named = f"there is no NVIDIA chip `{name}`" if name else "the cuda target compiles for a chip that is named"
        raise TargetError(named, help=f"use cuda:CHIP with one of {', '.join(chips)}")
    return machines.load(name)


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.cuda.target import CudaProgram

    return CudaProgram(unit, stages)


TARGET = Target(
    "cuda",
    lowered=True,
    program_files=True,
    machine_named=machine_named,
    executable=_executable,
    opens_anywhere=True,
    device_arrays=True,
)

"""NVIDIA GPUs: LLVM's NVPTX back end, then NVIDIA's assembler; no GPU is needed for any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import ResourceUnavailable, TargetError
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.runtime.cuda.driver import Device
    from tilewright.targets.base import Executable


def chips() -> list[str]:
    """All chips that there is a machine of, such as `sm_90a`."""
    from tilewright.machines import machine as machines

    return [name for name in machines.names() if name.startswith("sm_")]


def chip_of(device: Device) -> str | None:
    """The chip whose code a device runs, of several the one nearest to it; None where it runs that of none."""
    fitting = [chip for chip in chips() if device.runs(chip)]
    return max(fitting, key=lambda chip: (int(chip.removeprefix("sm_").rstrip("a")), chip), default=None)


def machine_named(name: str) -> Machine:
    """The chip called `name`, such as `sm_90a`; that of the first device where no name is given.

    Raises:
        TargetError: it is none of NVIDIA's.
        ResourceUnavailable: no name is given, and there is no device, or none whose chip is known; it states what was
            found.
    """
    from tilewright.machines import machine as machines

    known = chips()
    if name and name not in known:
        raise TargetError(f"there is no NVIDIA chip `{name}`", help=f"use cuda:CHIP with one of {', '.join(known)}")
    return machines.load(name or _chip_here())


def _chip_here() -> str:
    from tilewright.runtime.cuda import driver as cuda_driver

    found = cuda_driver.found()
    chip = chip_of(found.devices[0]) if found.devices else None
    if chip is None:
        raise ResourceUnavailable(
            f"the target `cuda` is the chip of the first NVIDIA GPU here; found: {found}",
            help=f"name a chip, which need not be here: cuda:CHIP with one of {', '.join(chips())}",
        )
    return chip


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

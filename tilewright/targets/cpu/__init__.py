"""CPUs through LLVM: x86-64 with AVX2 or AVX-512, AArch64 with NEON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.targets.base import Executable


def machine_named(name: str) -> Machine:
    from tilewright.targets.cpu import host

    return host.machine_named(name)


def _start(machine_name: str) -> None:
    from tilewright.targets.cpu import early

    early.start(machine_named(machine_name))


def _executable(unit: Unit, stages: dict[str, str]) -> Executable:
    from tilewright.targets.cpu.target import NativeProgram

    return NativeProgram(unit, stages)


TARGET = Target(
    "cpu",
    lowered=True,
    program_files=True,
    machine_named=machine_named,
    executable=_executable,
    start=_start,
    calls_libraries=True,
    viewed_inputs=True,
)

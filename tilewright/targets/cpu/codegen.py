"""LLVM text for a machine of ours to machine code, through llvmlite."""

from __future__ import annotations

from tilewright.errors import ToolFailure
from tilewright.machines.machine import Machine
from tilewright.targets.cpu.machine_code import machine_code

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def triple_of(machine: Machine) -> str:
    return _TRIPLES[machine.architecture]


def llvm_target(machine: Machine) -> tuple[str, str, str]:
    """What LLVM must know of a machine: triple, CPU and features, as `machine_code` takes them."""
    return triple_of(machine), machine.llvm_cpu, ",".join(f"+{f}" for f in machine.llvm_features)


def compile_object(text: str, machine: Machine) -> bytes:
    """Machine code as a relocatable ELF object.

    Raises:
        ToolFailure: LLVM rejects the module.
    """
    try:
        return machine_code(text, *llvm_target(machine))
    except RuntimeError as error:
        raise rejection(str(error)) from error


def compile_assembly(text: str, machine: Machine) -> str:
    """Machine code as assembly text.

    Raises:
        ToolFailure: LLVM rejects the module.
    """
    try:
        return machine_code(text, *llvm_target(machine), assembly=True)
    except RuntimeError as error:
        raise rejection(str(error)) from error


def rejection(reason: str) -> ToolFailure:
    return ToolFailure(f"LLVM rejects the emitted module: {reason}")

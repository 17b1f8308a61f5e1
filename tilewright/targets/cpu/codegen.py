"""LLVM text for a machine of ours to machine code, through llvmlite."""

from __future__ import annotations

from typing import Any

import llvmlite

from tilewright.errors import ToolFailure
from tilewright.locks import ForkBarrier
from tilewright.machines.machine import Machine
from tilewright.targets.cpu import machine_code as tool
from tilewright.targets.cpu.machine_code import machine_code
from tilewright.targets.tool_process import text_of

# LLVM, and llvmlite, hold locks while they work, which a forked child would wait for.
LLVM = ForkBarrier()
_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def triple_of(machine: Machine) -> str:
    return _TRIPLES[machine.architecture]


def llvm_target(machine: Machine) -> tuple[str, str, str]:
    """LLVM's description of a machine: triple, CPU and features, as `machine_code` takes them."""
    return triple_of(machine), machine.llvm_cpu, ",".join(f"+{f}" for f in machine.llvm_features)


def compiler_of(machine: Machine) -> str:
    """Everything but a module's text that decides its machine code.

    Raises:
        OSError: the text of the tool that compiles is not there.
    """
    versions = (llvmlite.__version__, *map(str, tool.llvm.llvm_version_info))
    return "\n".join((*versions, *llvm_target(machine), text_of(tool.__file__)))


def compile_object(text: str, machine: Machine) -> bytes:
    """Machine code as a relocatable ELF object.

    Raises:
        ToolFailure: LLVM rejects the module.
    """
    return _compiled(text, machine, assembly=False)


def compile_assembly(text: str, machine: Machine) -> str:
    """Machine code as assembly text.

    Raises:
        ToolFailure: LLVM rejects the module.
    """
    return _compiled(text, machine, assembly=True)


def _compiled(text: str, machine: Machine, *, assembly: bool) -> Any:
    with LLVM:
        try:
            return machine_code(text, *llvm_target(machine), assembly=assembly)
        except RuntimeError as error:
            # Its traceback keeps LLVM's objects, which are to end here.
            reason = str(error.with_traceback(None))
    raise rejection(reason)


def rejection(reason: str) -> ToolFailure:
    return ToolFailure(f"LLVM rejects the emitted module: {reason}")

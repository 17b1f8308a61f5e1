"""LLVM text to an object file, through llvmlite."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding

from tilewright.errors import ToolFailure
from tilewright.machines.machine import Machine

llvm: Any = llvmlite.binding  # it carries no annotations

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def triple_of(machine: Machine) -> str:
    return _TRIPLES[machine.architecture]


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _target_machine(triple: str, cpu: str, features: tuple[str, ...]) -> Any:
    _initialise()
    target = llvm.Target.from_triple(triple)
    flags = ",".join(f"+{f}" for f in features)
    return target.create_target_machine(cpu=cpu, features=flags, opt=2, reloc="pic", codemodel="small")


def _parse(text: str, machine: Machine) -> tuple[Any, Any]:
    target = _target_machine(triple_of(machine), machine.llvm_cpu, machine.llvm_features)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise ToolFailure(f"LLVM rejects the emitted module: {error}") from error
    # The text is clean SSA with explicit vectors; only accumulators live on the stack, and scalar replacement of
    # aggregates lifts those into registers. The vectorisers and unrollers would only undo the schedule.
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.run(module, builder)
    return module, target


def compile_object(text: str, machine: Machine) -> bytes:
    """Machine code as a relocatable ELF object.

    Raises:
        ToolFailure: LLVM rejects the module.
    """
    module, target = _parse(text, machine)
    return target.emit_object(module)


def compile_assembly(text: str, machine: Machine) -> str:
    """Machine code as assembly text."""
    module, target = _parse(text, machine)
    return target.emit_assembly(module)

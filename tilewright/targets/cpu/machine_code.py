"""LLVM text to machine code. It is a tool of `tool_process.py`; so it imports LLVM alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import llvmlite.binding

llvm: Any = llvmlite.binding  # it carries no annotations

MANY_LAUNCHES = 100
_LAUNCH = '  call void @"tw_kernel.'
_PHI = " = phi "


@functools.cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _target_machine(triple: str, cpu: str, features: str, effort: int) -> Any:
    _initialise()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=effort, reloc="pic", codemodel="small")


def effort_of(text: str) -> int:
    """LLVM's level of optimisation. A program that launches kernels one after another is one block, which runs once for
    a call: scheduling and register allocation take milliseconds, and gain nanoseconds for each launch. Many launches
    take time that grows faster than their number in a program with loops, too."""
    launches = text.count(_LAUNCH)
    is_one_block = launches > 0 and _PHI not in text
    return 0 if is_one_block or launches >= MANY_LAUNCHES else 2


def machine_code(text: str, triple: str, cpu: str, features: str, *, assembly: bool = False) -> Any:
    """A relocatable ELF object, or assembly text. `features` are such as "+avx2,+fma".

    Raises:
        RuntimeError: LLVM rejects the module.
    """
    target = _target_machine(triple, cpu, features, effort_of(text))
    module = llvm.parse_assembly(text)
    module.verify()
    # The text is clean SSA with explicit vectors; only accumulators live on the stack, and scalar replacement of
    # aggregates lifts those into registers. The vectorisers and unrollers would only undo the schedule.
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.run(module, builder)
    return target.emit_assembly(module) if assembly else target.emit_object(module)


def answer(target: Sequence[str], text: str) -> bytes:
    """An object for a target: its triple, CPU and features."""
    return machine_code(text, *target)


_initialise()

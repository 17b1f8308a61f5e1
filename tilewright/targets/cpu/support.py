"""The support object: the thread pool, the entry from Python and the memory of outputs, one relocatable object per kind
of machine.

It is compiled for the baseline of its architecture, so that it serves every program for that architecture, and travels
inside saved programs, so that running one needs no compiler.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import msgspec

from tilewright.errors import UnsupportedOnTargetError
from tilewright.targets.cpu.codegen import LLVM
from tilewright.targets.cpu.support_blocks import blocks_ir
from tilewright.targets.cpu.support_call import call_ir
from tilewright.targets.cpu.support_float_state import float_state_ir
from tilewright.targets.cpu.support_pool import pool_ir
from tilewright.targets.cpu.support_signals import signals_ir

llvm: Any = llvmlite.binding  # it carries no annotations


class _Architecture(msgspec.Struct, frozen=True):
    """Differences between the architectures: the CPU that every machine of it equals or exceeds, the spin hint, and
    Linux's system calls."""

    baseline_cpu: str
    pause_intrinsic: str
    pause_call: str
    futex_number: int
    gettid_number: int


_ARCHITECTURES = {
    "x86_64": _Architecture("x86-64", "llvm.x86.sse2.pause()", "llvm.x86.sse2.pause()", 202, 186),
    # Hint 1 is YIELD.
    "aarch64": _Architecture("generic", "llvm.aarch64.hint(i32)", "llvm.aarch64.hint(i32 1)", 98, 178),
}


def support_ir(triple: str) -> str:
    """The support module as LLVM IR for a target triple.

    Raises:
        UnsupportedOnTargetError: the triple is not Linux on x86-64 or AArch64.
    """
    architecture = _architecture(triple)
    pool = pool_ir(
        architecture.pause_intrinsic,
        architecture.pause_call,
        architecture.futex_number,
        architecture.gettid_number,
    )
    parts = (pool, call_ir(), blocks_ir(), signals_ir(), float_state_ir(triple.partition("-")[0]))
    return f'target triple = "{triple}"\n{"".join(parts)}'


_objects: dict[str, bytes] = {}  # by triple


def support_object(triple: str | None = None) -> bytes:
    """The support object for a target triple, by default the host's.

    Raises:
        UnsupportedOnTargetError: the triple is not Linux on x86-64 or AArch64.
    """
    with LLVM:  # whoever comes while another thread compiles it waits, and has it
        triple = triple or str(llvm.get_process_triple())
        if triple not in _objects:
            _objects[triple] = _compiled(triple)
        return _objects[triple]


def _compiled(triple: str) -> bytes:
    architecture = _architecture(triple)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Fifty short functions take LLVM 80 ms at level 2, for the number of its passes, and 13 ms at level 0. A call of a
    # program takes 0.02 us more.
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=architecture.baseline_cpu, opt=0, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(support_ir(triple))
    module.verify()
    return machine.emit_object(module)


def _architecture(triple: str) -> _Architecture:
    name = triple.partition("-")[0]
    if name not in _ARCHITECTURES or "linux" not in triple:
        raise UnsupportedOnTargetError(
            f"the native runtime does not support `{triple}`",
            help="use Linux on x86-64 or AArch64, or the target `interp`",
        )
    return _ARCHITECTURES[name]

"""LLVM text to machine code. Run as a script it is a compiler process of `compile_pool.py`; so it imports LLVM alone.

A request is a header, the sizes of a JSON document and of the text, then both. An answer is a status, the seconds that
it took and a size, then an object or an error message. A process that is ready says so with an empty answer.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
import time
from typing import Any

import llvmlite.binding

llvm: Any = llvmlite.binding  # it carries no annotations

REQUEST = struct.Struct("<QQ")
ANSWER = struct.Struct("<?dQ")


@functools.cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _target_machine(triple: str, cpu: str, features: str) -> Any:
    _initialise()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def machine_code(text: str, triple: str, cpu: str, features: str, *, assembly: bool = False) -> Any:
    """A relocatable ELF object, or assembly text. `features` are such as "+avx2,+fma".

    Raises:
        RuntimeError: LLVM rejects the module.
    """
    target = _target_machine(triple, cpu, features)
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


def _serve() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _initialise()

    def answer(good: bool, seconds: float, content: bytes) -> None:
        answers.write(ANSWER.pack(good, seconds, len(content)) + content)
        answers.flush()

    answer(True, 0.0, b"")
    while header := requests.read(REQUEST.size):
        target_bytes, text_bytes = REQUEST.unpack(header)
        target, text = json.loads(requests.read(target_bytes)), requests.read(text_bytes).decode()
        start = time.perf_counter()
        try:
            content, good = machine_code(text, *target), True
        except RuntimeError as error:
            content, good = str(error).encode(), False
        answer(good, time.perf_counter() - start, content)


if __name__ == "__main__":
    _serve()

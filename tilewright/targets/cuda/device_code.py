"""LLVM text to PTX, and PTX to a cubin. It is a tool of `tool_process.py`: both can end the process that they run in.

A request is a JSON object with `step`: `ptx` with `cpu` and `features`, or `cubin` with `chip`. A cubin comes after the
assembler's report and that report's size.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

REPORT = struct.Struct("<Q")


def ptx_of(text: str, cpu: str, features: str) -> bytes:
    """PTX for a chip.

    Raises:
        RuntimeError: LLVM rejects the module.
    """
    import llvmlite.binding

    llvm: Any = llvmlite.binding  # it carries no annotations
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # At 3 code generation looks for common subexpressions again, which the passes below have left none of, and takes
    # twice as long.
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=cpu, features=features, opt=2)
    module = llvm.parse_assembly(text)
    module.verify()
    # Vectors are decided before; only loops that carry registers and common subexpressions are left to LLVM.
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    return target.emit_assembly(module).encode()


def cubin_of(ptx: str, chip: str) -> bytes:
    """The assembler's report and the cubin.

    Raises:
        RuntimeError: the assembler rejects the text, or is not there.
    """
    try:
        api: Any = importlib.import_module("cuda.bindings.nvjitlink")
    except ImportError as error:
        raise RuntimeError(f"there is no nvJitLink: {error}") from error
    content = ptx.encode()
    # What comes from the driver's own cache, where there is a device, is reported without spills and warnings.
    options = [f"-arch={chip}", "-O3", "-verbose", "-no-cache"]
    handle = api.create(len(options), options)
    try:
        try:
            api.add_data(handle, api.InputType.PTX, content, len(content), "kernel.ptx")
            api.complete(handle)
        except api.nvJitLinkError as error:
            raise RuntimeError(_log(api.get_error_log_size, api.get_error_log, handle) or str(error)) from error
        cubin = bytearray(api.get_linked_cubin_size(handle))
        api.get_linked_cubin(handle, cubin)
        report = _log(api.get_info_log_size, api.get_info_log, handle).encode()
    finally:
        api.destroy(handle)
    return REPORT.pack(len(report)) + report + bytes(cubin)


def _log(size: Any, read: Any, handle: Any) -> str:
    content = bytearray(size(handle))
    if content:
        read(handle, content)
    return content.rstrip(b"\0").decode(errors="replace")


def answer(request: dict[str, str], text: str) -> bytes:
    """The result of one step."""
    if request["step"] == "ptx":
        return ptx_of(text, request["cpu"], request["features"])
    return cubin_of(text, request["chip"])

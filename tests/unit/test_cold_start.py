"""Imports of a process that compiles one small program: they take most of its time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMPILE = """
import sys
import numpy as np
import tilewright as tw
tw.jit(lambda x: {program})(np.zeros((64, 64), np.float32))
print(*sys.modules)
"""
DATACLASSES = """
import sys
import numpy as np
import tilewright as tw
tw.jit(lambda x: x + 1)(np.zeros((64, 64), np.float32))
ours = [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "tilewright"]
classes = {value for m in ours for value in vars(m).values() if isinstance(value, type)}
print(*(c.__qualname__ for c in classes if c.__module__.startswith("tilewright") and "__dataclass_params__" in vars(c)))
"""
# Text of the IR is read and written only to be looked at. Other execution models have planners and dialects of their
# own.
TEXT = ("xdsl.parser", "xdsl.printer")
CORES = ("tilewright.dialects.cores", "tilewright.passes.kernels.core_planner")
WARPS = ("tilewright.passes.kernels.warp_planner", "tilewright.passes.warps.tile_lower_to_warps")
MATMULS = ("tilewright.targets.cpu.emit_dot", "tilewright.targets.cpu.emit_ordered")
FUNCTIONS = ("tilewright.api.fft", "tilewright.api.linalg")
# Of tools in processes of their own, which programs with much code start.
TOOLS = ("json", "subprocess")


def output_of(program: str, cache: Path) -> list[str]:
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TW_CACHE_DIR": str(cache)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def imported(program: str, cache: Path) -> set[str]:
    """The modules of a process that compiles a program, with an empty cache."""
    return {*output_of(COMPILE.format(program=program), cache)}


def test_a_small_program_is_compiled_without_what_others_need(tmp_path: Path) -> None:
    modules = imported("x + 1", tmp_path)
    assert "tilewright.passes.kernels.vector_planner" in modules
    assert not modules & {*TEXT, *CORES, *WARPS, *MATMULS, *FUNCTIONS, *TOOLS}


def test_what_a_program_needs_is_imported(tmp_path: Path) -> None:
    assert "tilewright.targets.cpu.emit_dot" in imported("x @ x", tmp_path)
    assert "tilewright.targets.cpu.emit_ordered" in imported("tw.sort(x)", tmp_path)


def test_few_classes_of_a_small_program_are_dataclasses(tmp_path: Path) -> None:
    """Python compiles the methods of each from text, which takes more than ten times as long as a `msgspec.Struct`."""
    found = output_of(DATACLASSES, tmp_path)
    assert "Options" in found
    assert len(found) <= 15


def test_the_package_is_imported_without_its_libraries(tmp_path: Path) -> None:
    modules = output_of("import sys, tilewright; print(*sys.modules)", tmp_path)
    assert "tilewright.options" in modules
    assert not {"msgspec", "xdsl", "llvmlite", "filelock", "sqlite3"} & {*modules}

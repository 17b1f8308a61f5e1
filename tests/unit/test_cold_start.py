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
# Text of the IR is read and written only to be looked at. Other execution models have planners and dialects of their
# own.
TEXT = ("xdsl.parser", "xdsl.printer")
CORES = ("tilewright.dialects.cores", "tilewright.passes.kernels.core_planner")
WARPS = ("tilewright.passes.kernels.warp_planner", "tilewright.passes.warps.tile_lower_to_warps")
MATMULS = ("tilewright.targets.cpu.emit_dot", "tilewright.targets.cpu.emit_ordered")


def imported(program: str, cache: Path) -> set[str]:
    """The modules of a process that compiles a program, with an empty cache."""
    command = [sys.executable, "-c", COMPILE.format(program=program)]
    environment = {**os.environ, "TW_CACHE_DIR": str(cache)}
    return {*subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()}


def test_a_small_program_is_compiled_without_what_others_need(tmp_path: Path) -> None:
    modules = imported("x + 1", tmp_path)
    assert "tilewright.passes.kernels.vector_planner" in modules
    assert not modules & {*TEXT, *CORES, *WARPS, *MATMULS}


def test_what_a_program_needs_is_imported(tmp_path: Path) -> None:
    assert "tilewright.targets.cpu.emit_dot" in imported("x @ x", tmp_path)
    assert "tilewright.targets.cpu.emit_ordered" in imported("tw.sort(x)", tmp_path)

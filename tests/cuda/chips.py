"""The chips that kernels are compiled for, and running what was compiled for them without one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.counts import Counts
from tests.emulators.ptx.emulator import run
from tilewright.api.stages import Lowered
from tilewright.dialects import tile
from tilewright.driver.compile import build_executable
from tilewright.passes.base import Unit
from tilewright.passes.warps.warp_space import SHARED
from tilewright.semantics.array import Interpreter
from tilewright.semantics.scheduled import run_call
from tilewright.semantics.tile import poison
from tilewright.targets.cuda.target import CudaProgram

Tensor = np.ndarray[Any, Any]
CHIPS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")
# One of each kind: what differs within a kind are numbers.
KINDS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def built(lowered: Lowered, target: str) -> CudaProgram:
    """A traced program compiled by itself, to be looked at: not by way of the compile cache."""
    return build_executable(lowered.graph, target, lowered.donated)


def emulated(program: CudaProgram, arrays: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """Run a program's PTX on an emulator, its blocks in random order; what is not a kernel by its definition."""
    return emulated_and_counted(program, arrays, seed)[0]


def emulated_and_counted(
    program: CudaProgram, arrays: Sequence[Tensor], seed: int = 0
) -> tuple[list[Tensor], dict[str, Counts]]:
    """The same, and what the emulator counted of each kernel."""
    order = random.Random(seed)
    counts: dict[str, Counts] = {}

    def call(callee: str, operands: list[Tensor]) -> list[Tensor]:
        kernel, code = program.unit.kernel(callee), program.kernels[callee]
        pending = iter(operands)
        given: list[Tensor] = []
        results: list[Tensor] = []
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
            type = tile.ref_type(ref)
            array = poison(type.shape, type.dtype) if effect == tile.OUT else np.array(next(pending), copy=True)
            given.append(array)
            if effect != tile.IN:
                results.append(array)
        given = [*given, *tensor_maps(code.tensor_maps, given)]
        counts[callee] = run(program.ptx[callee], callee, code.blocks, code.threads, given, code.shared_bytes, order)
        return results

    found = Interpreter(program.unit.constants, call).run(program.unit.main.body.block, list(arrays))
    return found, counts


def by_definition(unit: Unit, arrays: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """Run a program by the definitions of the scheduled operations, which check the order of all accesses."""
    shared_bytes = unit.machine.memory_of(SHARED).bytes

    def call(callee: str, operands: list[Tensor]) -> list[Tensor]:
        return run_call(unit.kernel(callee), operands, seed, shared_bytes)

    return Interpreter(unit.constants, call).run(unit.main.body.block, list(arrays))

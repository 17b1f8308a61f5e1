"""An executable that runs a GPU's program on this host, by the definitions of its scheduled operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.cost.program import ProgramCost
from tilewright.passes.warps.warp_space import SHARED
from tilewright.semantics.array import Interpreter
from tilewright.semantics.scheduled import run_call
from tilewright.targets.base import Executable, KernelTime, Tensor, UnlinkedExecutable


class DefinedExecutable(UnlinkedExecutable):
    """Runs the unit of a compiled program by definition; everything else is the compiled program's.

    `seed` draws the order of the threads.
    """

    def __init__(self, compiled: Executable, seed: int) -> None:
        super().__init__(compiled.unit)
        self._compiled = compiled
        self._seed = seed

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        shared_bytes = self.unit.machine.memory_of(SHARED).bytes

        def call(callee: str, operands: Sequence[Tensor]) -> list[Tensor]:
            return run_call(self.unit.kernel(callee), operands, self._seed, shared_bytes)

        results = Interpreter(self.unit.constants, call).run(self.unit.main.body.block, list(arrays))
        for target, result in zip(out or (), results, strict=out is not None):
            np.copyto(target, result)
        return results

    def ir(self, phase: str) -> str:
        return self._compiled.ir(phase)

    def asm(self) -> str:
        return self._compiled.asm()

    def cost(self) -> ProgramCost:
        return self._compiled.cost()

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        return self._compiled.profile(arrays, repeat)

    def explain(self) -> str:
        return self._compiled.explain()

    def save(self, path: str) -> None:
        self._compiled.save(path)

"""An executable that runs a GPU's program on this host, by the definitions of its scheduled operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.cost.program import ProgramCost
from tilewright.dialects.base import array_type
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.passes.warps.warp_space import SHARED
from tilewright.semantics.host import HostMemory, in_place
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
        unit = self.unit
        shared_bytes = unit.machine.memory_of(SHARED).bytes
        kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        run_kernel = in_place(lambda kernel, operands: run_call(kernel, operands, self._seed, shared_bytes))
        host = host_program(unit, plan_memory(unit), list(kernels))
        types = [array_type(each) for each in unit.main.function_type.outputs]
        memory = HostMemory(host, kernels, unit.constants, unit.donated, run_kernel)
        return memory.run(arrays, types, out)

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

    def save(self, path: str, inputs: Sequence[str] = ()) -> None:
        self._compiled.save(path, inputs)

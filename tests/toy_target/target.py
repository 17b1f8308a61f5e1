"""The toy target: kernels as Python functions of flat arrays, called by the host program on NumPy memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.toy_target.emit import emit_kernel
from tilewright.dialects.base import array_type
from tilewright.dialects.tile import KernelOp
from tilewright.passes.base import Unit
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.semantics.host import HostMemory, Tensor
from tilewright.targets.interp.target import InterpretedProgram


class ScalarProgram(InterpretedProgram):
    """A program whose kernels run element by element."""

    def __init__(self, unit: Unit, stages: dict[str, str]) -> None:
        super().__init__(unit)
        self._stages = stages
        kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self._code = {name: emit_kernel(kernel) for name, kernel in kernels.items()}
        for code in self._code.values():
            exec(code.text, code.names)
        host = host_program(unit, plan_memory(unit), list(kernels))
        self._memory = HostMemory(host, kernels, unit.constants, unit.donated, self._run_kernel)

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        return self._memory.run(arrays, [array_type(each) for each in self.unit.main.function_type.outputs], out)

    def _run_kernel(self, kernel: KernelOp, arrays: Sequence[Tensor]) -> None:
        code = self._code[kernel.sym_name]
        with np.errstate(all="ignore"):
            code.names[code.function](*(array.reshape(-1) for array in arrays))

    def ir(self, phase: str) -> str:
        return self._stages[phase]

    def asm(self) -> str:
        return "\n".join(code.text for code in self._code.values())

    def explain(self) -> str:
        return "\n".join(map(str, self.unit.remarks))

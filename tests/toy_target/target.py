"""The toy target: kernels as Python functions of flat arrays, called by the interpreter of array programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.toy_target.emit import emit_kernel
from tilewright.dialects import tile
from tilewright.passes.base import Unit
from tilewright.semantics.tile import Tensor
from tilewright.targets.interp.target import InterpretedProgram


class ScalarProgram(InterpretedProgram):
    """A program whose kernels run element by element."""

    def __init__(self, unit: Unit, stages: dict[str, str]) -> None:
        super().__init__(unit)
        self._stages = stages
        self._remarks = unit.remarks
        self._kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self._code = {name: emit_kernel(kernel) for name, kernel in self._kernels.items()}
        for code in self._code.values():
            exec(code.text, code.names)

    def _call(self, callee: str, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a kernel: inputs in order, fresh outputs, copies of what is updated."""
        kernel, code, pending = self._kernels[callee], self._code[callee], iter(operands)
        arrays: list[Tensor] = []
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
            type = tile.ref_type(ref)
            given = np.zeros(type.shape, type.dtype.numpy) if effect == tile.OUT else next(pending)
            arrays.append(np.array(given, order="C", copy=effect == tile.INOUT or None))
        with np.errstate(all="ignore"):
            code.names[code.function](*(array.reshape(-1) for array in arrays))
        return [array for array, effect in zip(arrays, kernel.effects, strict=True) if effect != tile.IN]

    def ir(self, phase: str) -> str:
        return self._stages[phase]

    def asm(self) -> str:
        return "\n".join(code.text for code in self._code.values())

    def explain(self) -> str:
        return "\n".join(map(str, self._remarks))

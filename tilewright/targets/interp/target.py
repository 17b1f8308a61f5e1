"""The interpreter target: the `array` program as NumPy runs it. The first oracle for every other target.

A program for several devices runs on all of them. Each is given the arguments; the results are those of device 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tilewright.cost.program import ProgramCost
from tilewright.dialects.func import FuncOp
from tilewright.dialects.tile import KernelOp
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.semantics import mesh
from tilewright.targets.base import KernelTime, Tensor, UnlinkedExecutable, unmeasured
from tilewright.targets.interp.kernels import run_checked


class InterpretedProgram(UnlinkedExecutable):
    """Runs `main` of a module by the NumPy semantics."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self._main = main_of(unit.module)
        self._devices = mesh.devices_of(unit.module)

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        results = mesh.run(self._main.body.block, [arrays] * self._devices, self.unit.constants, self._call)[0]
        if out is None:
            # Copies: a result may be a view of an argument or of a constant.
            return [np.array(r, order="C") for r in results]
        for target, result in zip(out, results, strict=True):
            np.copyto(target, result)
        return list(out)

    def _call(self, callee: str, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        kernel = next(
            op for op in self.unit.module.body.block.ops if isinstance(op, KernelOp) and op.sym_name == callee
        )
        return run_checked(kernel, operands)

    def ir(self, phase: str) -> str:
        if phase not in ("array", "tile"):
            message = f"the interp target has no `{phase}` phase"
            raise UnsupportedOnTargetError(message, help="ask for `array` or `tile`, which are one program here")
        return str(self.unit.module)

    def asm(self) -> str:
        raise UnsupportedOnTargetError("the interp target emits no machine code", help='compile with target="cpu"')

    def cost(self) -> ProgramCost:
        raise UnsupportedOnTargetError("the interp target has no cost model", help='compile with target="cpu"')

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        raise unmeasured("interp")

    def explain(self) -> str:
        return "interp runs the array program operation by operation; nothing is fused or scheduled"

    def save(self, path: str, inputs: Sequence[str] = ()) -> None:
        raise UnsupportedOnTargetError("the interp target has nothing to save", help='compile with target="cpu"')


def main_of(module: ModuleOp) -> FuncOp:
    """The entry function of a program."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise CompilerBug("the module has no function `main`")

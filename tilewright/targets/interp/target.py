"""The interpreter target: the `array` program as NumPy runs it. The first oracle for every other target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.semantics.array import Interpreter
from tilewright.targets.base import Tensor


class InterpretedProgram:
    """Runs `main` of a module by the NumPy semantics."""

    def __init__(self, module: ModuleOp, constants: Mapping[str, Tensor]) -> None:
        self._module = module
        self._constants = constants
        self._main = main_of(module)

    def __call__(self, *arrays: Tensor) -> list[Tensor]:
        results = Interpreter(self._constants).run(self._main.body.block, arrays)
        # Copies: a result may be a view of an argument or of a constant.
        return [np.array(r, order="C") for r in results]

    def ir(self, phase: str) -> str:
        if phase != "array":
            raise UnsupportedOnTargetError(f"the interp target has no `{phase}` phase", help="ask for `array`")
        return str(self._module)

    def asm(self) -> str:
        raise UnsupportedOnTargetError("the interp target emits no machine code", help='compile with target="cpu"')

    def cost(self) -> dict[str, Any]:
        raise UnsupportedOnTargetError("the interp target has no cost model", help='compile with target="cpu"')

    def explain(self) -> str:
        return "interp runs the array program operation by operation; nothing is fused or scheduled"

    def save(self, path: str) -> None:
        raise UnsupportedOnTargetError("the interp target has nothing to save", help='compile with target="cpu"')


def main_of(module: ModuleOp) -> FuncOp:
    """The entry function of a program."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise CompilerBug("the module has no function `main`")

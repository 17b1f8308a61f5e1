"""The compiler on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdsl.dialects.builtin import ModuleOp

    from tilewright.targets.base import Executable, Tensor


def compile_module(module: ModuleOp, constants: Mapping[str, Tensor], target: str) -> Executable:
    """Compile a module of the `array` phase for a target such as `cpu`, `cpu:x86-64-v3` or `interp`."""
    name, _, machine = target.partition(":")
    if name == "interp":
        from tilewright.targets.interp.target import InterpretedProgram

        return InterpretedProgram(module, constants)
    raise TargetError(f"there is no target `{target}`", help="use cpu, interp or null")

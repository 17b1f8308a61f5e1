"""The null target: what the cpu target compiles, for any machine file, without a processor that could run it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import UnsupportedOnTargetError
from tilewright.targets.base import KernelTime, Tensor, unmeasured
from tilewright.targets.cpu.target import NativeProgram


class CompiledOnly(NativeProgram):
    """A program that can be looked at and saved, not run."""

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Refuse.

        Raises:
            UnsupportedOnTargetError: always.
        """
        raise UnsupportedOnTargetError("the null target compiles programs and runs none", help='use target="cpu"')

    def profile(self, arrays: Sequence[Tensor], repeat: int) -> list[KernelTime]:
        raise unmeasured("null")

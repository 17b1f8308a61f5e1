"""What a target is, and what compiling gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Tensor = np.ndarray[Any, Any]


class Executable(Protocol):
    """A compiled program. Arrays in and out are NumPy arrays of exactly the traced types."""

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Run the program; results are written to `out` where it is given."""
        ...

    def ir(self, phase: str) -> str:
        """The program's text at the end of a phase: `array`, `tile`, `scheduled` or the target's own."""
        ...

    def asm(self) -> str:
        """Machine code as text."""
        ...

    def cost(self) -> dict[str, Any]:
        """Predicted time and work, per kernel and in all."""
        ...

    def explain(self) -> str:
        """Why the program was fused and scheduled as it was."""
        ...

    def save(self, path: str) -> None:
        """Write a program file that runs without the compiler."""
        ...


def as_list(arrays: Sequence[Tensor]) -> list[Tensor]:
    return [np.asarray(a) for a in arrays]

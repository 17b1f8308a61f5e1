"""An opcode such as `add.rn.ftz.f32` as a name and modifiers that a decoder takes one by one.

What no decoder has taken is not implemented: nothing is ignored by accident.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.emulators.ptx.parser import Instruction


@dataclass(frozen=True)
class Pure:
    """An instruction of registers alone: types of results and sources, and what maps the sources to the results."""

    results: tuple[str, ...]
    sources: tuple[str, ...]
    compute: Callable[..., np.ndarray | tuple[np.ndarray, ...]]


class Words:
    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.name, *self.left = instruction.opcode.split(".")

    def unknown(self) -> NotImplementedError:
        return NotImplementedError(f"line {self.instruction.line}: {self.instruction.text}")

    def take(self, word: str) -> bool:
        """Whether `word` is among the modifiers, which it then leaves."""
        if word not in self.left:
            return False
        self.left.remove(word)
        return True

    def take_one(self, choices: Sequence[str], default: str | None) -> str:
        """The first modifier that is one of `choices`; without one, and without a default, it is not implemented."""
        for word in self.left:
            if word in choices:
                self.left.remove(word)
                return word
        if default is None:
            raise self.unknown()
        return default

    def take_type(self, choices: Sequence[str]) -> str:
        """The last modifier, which names the type."""
        if not self.left or self.left[-1] not in choices:
            raise self.unknown()
        return self.left.pop()

    def finish(self) -> None:
        if self.left:
            raise self.unknown()

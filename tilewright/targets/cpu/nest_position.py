"""The position of the emission of a loop nest."""

from __future__ import annotations

from dataclasses import field

from tilewright.records import dataclass
from tilewright.targets.llvm.values import Value


@dataclass(eq=False)
class Position:
    """The position of emission: the index of every open loop, which part of a cut loop it is, the active lanes."""

    index: dict[int, Value] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict[int, int])
    mask: Value | None = None  # None when all lanes are on
    tail: int | None = None  # how many lanes `mask` lets through, where that is known
    count: Value | None = None  # how many lanes `mask` lets through
    block: Value | None = None  # where the block starts that is loaded as a whole

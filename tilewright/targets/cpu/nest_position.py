"""The position of the emission of a loop nest."""

from __future__ import annotations

import msgspec

from tilewright.targets.llvm.values import Value


class Position(msgspec.Struct, eq=False):
    """The position of emission: the index of every open loop, which part of a cut loop it is, from where to where
    it goes if that is not all of a dim, the active lanes."""

    index: dict[int, Value] = msgspec.field(default_factory=dict)
    parts: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    spans: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict[int, tuple[int, int]])
    mask: Value | None = None  # None when all lanes are on
    tail: int | None = None  # how many lanes `mask` lets through, where that is known
    count: Value | None = None  # how many lanes `mask` lets through
    block: Value | None = None  # where the block starts that is loaded as a whole
    block_length: int | None = None  # the positions of a block that is shorter than a vector has lanes

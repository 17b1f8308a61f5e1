"""The position of the emission of a loop nest."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import msgspec

from tilewright.targets.cpu.loops import i64
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

    @contextmanager
    def at(self, places: Mapping[int, int]) -> Generator[None]:
        """Known positions along dims."""
        self.index.update((dim, i64(place)) for dim, place in places.items())
        self.spans.update((dim, (place, place)) for dim, place in places.items())
        yield
        for dim in places:
            del self.spans[dim]

"""Zones that kernels recorded, as time slices.

A kernel's records are an array of blocks x sections x words of 64 bits, one section for each role. A section is a
header of six words, two at a time: nanoseconds of the device and cycles of the multiprocessor when the role began
(`START`); the number of the multiprocessor, and how many edges of zones there were (`PLACE`); nanoseconds and cycles
when it ended (`STOP`). Edges follow, of two words: twice the number of the zone, and one more where it ends; and the
cycles. Edges for which there was no room are counted, not noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

HEADER_WORDS, EDGE_WORDS = 6, 2
START, PLACE, STOP = 0, 2, 4
# The nanoseconds of the device come in steps of up to a microsecond: a span of 100 of them gives the clock to 1 %.
_LONG_ENOUGH_NS = 100_000

Records = np.ndarray[Any, Any]


class Zones(msgspec.Struct, frozen=True, kw_only=True):
    """The recording plan of a kernel: the labels of its zones and its roles, each by number, the words of a section,
    and the cycles of a second that the machine's file names."""

    labels: tuple[str, ...]
    roles: tuple[str, ...]
    words: int
    clock_hertz: float

    def nbytes(self, blocks: int) -> int:
        """Bytes of the records of so many blocks."""
        return 8 * blocks * len(self.roles) * self.words


class Slice(msgspec.Struct, frozen=True):
    """Some time of a block's role, in nanoseconds of the device. `label` is None for all of the role. `lost`: how many
    edges of zones were not noted, of a role; `is_cut`: the end of a zone was not, and the role's is given."""

    label: str | None
    multiprocessor: int
    block: int
    role: int
    start_ns: float
    stop_ns: float
    lost: int = 0
    is_cut: bool = False


def first_ns(zones: Zones, records: Records) -> int:
    """When the first role of a launch began, in nanoseconds of the device."""
    return int(records.reshape(-1, zones.words)[:, START].min())


def slices_of(zones: Zones, records: Records, origin_ns: int = 0) -> list[Slice]:
    """The slices of a launch, each after those that it is in. Cycles count from the first block on a multiprocessor on,
    whose nanoseconds are taken. Nanoseconds of a device are some 2^60, of which a float keeps no fraction: slices have
    them from `origin_ns` on."""
    blocks = records.reshape(-1, len(zones.roles), zones.words)
    cycles_per_ns = _cycles_per_ns(zones, blocks)
    first: dict[int, tuple[int, int]] = {}
    for section in blocks.reshape(-1, zones.words):
        ns, clock = (int(word) for word in section[START : START + 2])
        where = int(section[PLACE])
        if where not in first or clock < first[where][1]:
            first[where] = (ns - origin_ns, clock)
    found: list[Slice] = []
    for block, sections in enumerate(blocks):
        for role, section in enumerate(sections):
            found += _of_section(zones, section, block, role, first[int(section[PLACE])], cycles_per_ns)
    return found


def _cycles_per_ns(zones: Zones, blocks: Records) -> float:
    """By the longest span, if that is long; else what the machine's file states."""
    spans = (blocks[:, :, STOP : STOP + 2] - blocks[:, :, START : START + 2]).reshape(-1, 2)
    ns, cycles = spans[int(np.argmax(spans[:, 0]))]
    return float(cycles) / float(ns) if ns >= _LONG_ENOUGH_NS else zones.clock_hertz * 1e-9


def _of_section(
    zones: Zones, section: Records, block: int, role: int, first: tuple[int, int], cycles_per_ns: float
) -> Iterator[Slice]:
    where, count = int(section[PLACE]), int(section[PLACE + 1])

    def ns(clock: int) -> float:
        return first[0] + (clock - first[1]) / cycles_per_ns

    noted = min(count, (zones.words - HEADER_WORDS) // EDGE_WORDS)
    stop = ns(int(section[STOP + 1]))
    yield Slice(None, where, block, role, ns(int(section[START + 1])), stop, count - noted)
    opened: list[tuple[int, int]] = []
    inner: list[Slice] = []
    for edge, clock in section[HEADER_WORDS:][: EDGE_WORDS * noted].reshape(-1, EDGE_WORDS).tolist():
        if edge % 2 == 0:
            opened.append((edge // 2, clock))
            continue
        number, start = opened.pop()
        inner.append(Slice(zones.labels[number], where, block, role, ns(start), ns(clock)))
    inner += [Slice(zones.labels[number], where, block, role, ns(start), stop, is_cut=True) for number, start in opened]
    yield from sorted(inner, key=lambda each: (each.start_ns, -each.stop_ns))

"""Slow programs by what they have in common: the kernel that takes most of the time, and what bounds it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from tilewright.cli.hunt.program import Program, Record

CALL, MEMORY, COMPUTE = "call", "memory", "compute"
# Below this a call does little but being called.
_CALL_S = 5e-6
# At this share of the bandwidth of a copy, or above, a program is bound by memory.
_BANDWIDTH_SHARE = 0.4


class Slow(msgspec.Struct, frozen=True):
    """A slow program, as small as it could be made, with the measurement of it."""

    program: Program
    ratio: float
    ours_s: float
    best_peer: str
    kernel: str
    bound: str

    @property
    def cause(self) -> str:
        """The kind of the slowest kernel, what bounds it, and the operators."""
        return f"{self.kernel}, {self.bound}: {', '.join(sorted({step.op for step in self.program.steps}))}"


def slow_of(program: Program, record: Record) -> Slow:
    """A slow program with the record of its measurement."""
    kernels: Mapping[str, float] = record["kernels"]
    slowest = max(kernels, key=lambda name: kernels[name], default="copy")
    return Slow(
        program=program,
        ratio=record["ratio"],
        ours_s=record["ours_s"],
        best_peer=record["best_peer"],
        kernel=re.sub(r"_\d+$", "", slowest),
        bound=_bound(record),
    )


def _bound(record: Record) -> str:
    if record["ours_s"] < _CALL_S:
        return CALL
    return MEMORY if record["peak_fraction"] >= _BANDWIDTH_SHARE else COMPUTE


def by_cause(found: Sequence[Slow]) -> dict[str, list[Slow]]:
    """Slow programs by their causes; the group with the slowest one is first."""
    groups: dict[str, list[Slow]] = {}
    for each in sorted(found, key=lambda slow: slow.ratio):
        groups.setdefault(each.cause, []).append(each)
    return groups

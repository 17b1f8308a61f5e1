"""What the emitters of one native function share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import i64, offset_pointer
from tilewright.targets.cpu.vector_math_common import Builder, Value

ALIGNMENT = 64


def round_up(value: int, multiple: int = ALIGNMENT) -> int:
    return -(-value // multiple) * multiple


@dataclass
class Scratch:
    """Bytes of one thread's scratch memory, the most that any kernel needs."""

    bytes: int = 0

    def require(self, bytes: int) -> None:
        self.bytes = max(self.bytes, round_up(bytes))


@dataclass(eq=False)
class FunctionContext:
    """One function: `pointers` of refs, `scalars` of index values and how many values each may take (`bounds`)."""

    builder: Builder
    machine: Machine
    worker: Value
    scratch: Scratch
    used_bytes: int
    effect_of: Callable[[FunctionContext, Operation, Value, Value | None], None]
    pointers: dict[SSAValue, Value] = field(default_factory=dict)
    scalars: dict[SSAValue, Value] = field(default_factory=dict)
    bounds: dict[SSAValue, int] = field(default_factory=dict)

    def bound(self, symbol: SSAValue) -> int:
        return self.bounds[symbol]

    def effect(self, op: Operation, value: Value, mask: Value | None) -> None:
        """Print or check a value."""
        self.effect_of(self, op, value, mask)

    def temporary(self, bytes: int) -> Value:
        """Scratch memory of this thread beyond the planned buffers, until the function returns."""
        start = self.used_bytes
        self.used_bytes += round_up(bytes)
        self.scratch.require(self.used_bytes)
        return offset_pointer(self.builder, self.worker, i64(start), 1)

"""The predicted cost of a kernel and of a program, in the same terms for every target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import asdict

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"


class Cost(msgspec.Struct, frozen=True):
    """The predicted time and work of one call.

    Attributes:
        seconds: the time in all: compute and memory traffic overlap, launches do not.
        compute_s: seconds of arithmetic at the rates of the machine.
        memory_s: seconds to move `bytes` at the bandwidth of the machine.
        launch_s: seconds to launch or dispatch the kernel; 0 where kernels are parts of one native call.
        bytes: bytes of arrays moved to and from memory.
        flops: floating-point operations; a multiply-add is two.
        bound: the largest part, `compute`, `memory` or `launch`.
    """

    seconds: float
    compute_s: float
    memory_s: float
    launch_s: float
    bytes: float
    flops: float
    bound: str

    @staticmethod
    def of(
        compute_s: float,
        memory_s: float,
        launch_s: float = 0.0,
        bytes: float = 0.0,
        flops: float = 0.0,
        seconds: float | None = None,
    ) -> Cost:
        """The cost made of these parts; `seconds` where something else than the parts has counted them."""
        parts = {COMPUTE: compute_s, MEMORY: memory_s, LAUNCH: launch_s}
        overlapped = launch_s + max(compute_s, memory_s) if seconds is None else seconds
        return Cost(overlapped, compute_s, memory_s, launch_s, bytes, flops, max(parts, key=lambda name: parts[name]))

    @staticmethod
    def total(costs: Iterable[Cost]) -> Cost:
        """The cost of kernels that run one after another."""
        listed = list(costs)
        sums = (
            sum(c.compute_s for c in listed),
            sum(c.memory_s for c in listed),
            sum(c.launch_s for c in listed),
            sum(c.bytes for c in listed),
            sum(c.flops for c in listed),
        )
        return Cost.of(*sums, seconds=sum(c.seconds for c in listed))


@dataclass(frozen=True, eq=False)
class ProgramCost(Mapping[str, Any]):
    """The predicted cost of a program on a machine. Items are those of `document()`.

    Attributes:
        machine: the machine that the cost is predicted for.
        kernels: the cost of each kernel, of all its runs in a call.
        details: plain values that the target adds to those of a kernel, such as registers.
        runs: plain values of each run of a kernel in a call, where the target predicts each run by itself.
        arena_bytes: bytes of intermediate arrays; None where the target plans none.
    """

    machine: str
    kernels: Mapping[str, Cost]
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    runs: tuple[Mapping[str, Any], ...] | None = None
    arena_bytes: int | None = None

    @property
    def total(self) -> Cost:
        """The cost of the whole program."""
        return Cost.total(self.kernels.values())

    def document(self) -> dict[str, Any]:
        """All of it as plain values, seconds and bytes."""
        found: dict[str, Any] = {"machine": self.machine, **asdict(self.total)}
        if self.arena_bytes is not None:
            found["arena_bytes"] = self.arena_bytes
        if self.runs is not None:
            return found | {"kernels": [dict(run) for run in self.runs]}
        kernels = {name: asdict(cost) | dict(self.details.get(name, {})) for name, cost in self.kernels.items()}
        return found | {"kernels": kernels}

    def __getitem__(self, key: str) -> Any:
        return self.document()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document())

    def __len__(self) -> int:
        return len(self.document())

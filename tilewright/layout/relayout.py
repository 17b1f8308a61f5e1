"""Moving data is changing layout: the plan that takes a value from one layout to another, and what it costs.

    plan = plan_relayout(source, target, dtypes.f16, machine)
    print(plan)                                   # steps with their cost, or the reason why there is none

Two layouts of one shape are written with common digits (`refinement`); the axes on which the digits differ determine
the data movement. Between registers that is renaming, shuffles within a warp, or a trip through a memory; between
registers and memory a load or a store; within a memory a copy; between cores and devices messages or collectives. Terms
of a sum are combined on the way. The layout solver, the cost model and the emitters all ask this one function.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

import msgspec

from tilewright.dtypes import DType
from tilewright.layout.axes import Kind
from tilewright.layout.layout import Layout
from tilewright.machines.machine import Machine


class Move(StrEnum):
    """The kind of a step."""

    RENAME = "rename"  # registers within a thread
    SHUFFLE = "shuffle"  # between the lanes of a warp
    STORE = "store"  # registers to memory
    LOAD = "load"  # memory to registers
    COPY = "copy"  # within the memories of one core
    SEND = "send"  # messages between cores or devices, element by element as needed
    BROADCAST = "broadcast"  # one place to all
    ALL_GATHER = "all-gather"  # shards to copies
    REDUCE_SCATTER = "reduce-scatter"  # terms to shards
    ALL_REDUCE = "all-reduce"  # terms to copies
    REDUCE = "reduce"  # terms to one place
    ALL_TO_ALL = "all-to-all"  # shards of one dim to shards of another
    COMBINE = "combine"  # terms within a thread, a warp or a memory


class Step(msgspec.Struct, frozen=True):
    """One movement.

    Attributes:
        move: what happens.
        layout: where the value is afterwards.
        reach: the outermost kind of axis along which elements move.
        seconds: the time that it takes on one core, predicted.
        detail: what is counted, such as `8 shuffles` or `16 wavefronts, 4 of them conflicts`.
    """

    move: Move
    layout: Layout
    reach: Kind
    seconds: float
    detail: str

    def __str__(self) -> str:
        return f"{self.move} ({self.detail}): {self.seconds * 1e9:.1f} ns"


class Plan(msgspec.Struct, frozen=True):
    """The steps from `source`; none where the value already is where it should be."""

    source: Layout
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def layout(self) -> Layout:
        """The space of the value at the end."""
        return self.steps[-1].layout if self.steps else self.source

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps)) if self.steps else "no data movement"


class Reason(msgspec.Struct, frozen=True):
    """Why there is no plan."""

    message: str

    def __str__(self) -> str:
        return self.message


@lru_cache(maxsize=65536)
def plan_relayout(source: Layout, target: Layout, dtype: DType, machine: Machine) -> Plan | Reason:
    """The cheapest known way from `source` to `target` for elements of `dtype`."""
    from tilewright.layout.relayout_planner import Planner

    return Planner(dtype, machine).plan(source, target)

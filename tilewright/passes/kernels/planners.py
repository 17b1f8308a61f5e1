"""How groups of operations are tiled: one planner for each execution model."""

from __future__ import annotations

from typing import Protocol

from tilewright.dialects import array
from tilewright.machines.machine import Machine, Model
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.core_planner import CorePlanner
from tilewright.passes.kernels.lower_attention_group import AttentionParts, AttentionPlan
from tilewright.passes.kernels.lower_contract_group import ContractPlan
from tilewright.passes.kernels.lower_loop_group import LoopPlan
from tilewright.passes.kernels.lower_ordered_group import Ordered, OrderedPlan
from tilewright.passes.kernels.lower_reshape_group import ReshapePlan
from tilewright.passes.kernels.vector_planner import VectorPlanner
from tilewright.passes.kernels.warp_planner import WarpPlanner


class KernelPlanner(Protocol):
    """Chooses tile sizes of the kernels of a group on one machine. `level` is that of the group's fallback: each level
    halves tiles, or the room for them.

    Attributes:
        most_windows: the most arrays, and windows of them, that a fused kernel may read and store; None: any number.
        most_of_window: the most elements of a reduced window that a kernel holds at once; None: one after the other.
        sums_in_blocks: whether long sums are nested, with a partial sum for each block of trips.
        scans_in_turns: whether one program instance scans all parts of a line, one after the other.
    """

    @property
    def most_windows(self) -> int | None: ...

    @property
    def most_of_window(self) -> int | None: ...

    @property
    def sums_in_blocks(self) -> bool: ...

    @property
    def scans_in_turns(self) -> bool: ...

    def loop(self, group: array.FusedOp, level: int = 0) -> LoopPlan:
        """Tiles of an elementwise or reducing group."""
        ...

    def contract(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        """Tiles of a matmul and its epilogue."""
        ...

    def convolve(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        """Tiles of a convolution and its epilogue: output channels are rows, the last spatial dimension columns."""
        ...

    def fuses_attention(self, parts: AttentionParts) -> bool:
        """Whether one kernel computes the scores, their softmax and the weighted sum as the array program does."""
        ...

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        """The fallback with which tiles of attention fit, from the given one on, and whether there is one."""
        ...

    def attention(self, parts: AttentionParts, fallback: Fallback) -> AttentionPlan:
        """Blocks of queries and keys."""
        ...

    def ordered(self, op: Ordered, level: int = 0) -> OrderedPlan:
        """Tiles of a scan, a sort, an argument reduction or a top-k: the full length of the axis, or parts of it.

        Raises:
            UnsupportedOnTargetError: the machine's targets have no code for the operation.
        """
        ...

    def reshape(self, group: array.FusedOp) -> ReshapePlan:
        """Tiles of a copy from one arrangement of pages to another."""
        ...


def planner_for(machine: Machine, threads: int) -> KernelPlanner:
    """The planner of a machine's execution model, for programs that run on so many threads."""
    match machine.model:
        case Model.VECTORS:
            return VectorPlanner(machine, threads)
        case Model.WARPS:
            return WarpPlanner(machine, threads)
        case Model.CORES:
            return CorePlanner(machine.core_grid)

"""How groups of operations are tiled: one planner for each execution model."""

from __future__ import annotations

from typing import Protocol

from tilewright import schedules
from tilewright.dialects import array, tile
from tilewright.machines.machine import Machine, Model
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.lower_attention_group import AttentionParts, AttentionPlan
from tilewright.passes.kernels.lower_contract_group import ContractPlan
from tilewright.passes.kernels.lower_ordered_group import Ordered


class KernelPlanner(Protocol):
    """Chooses schedules of the kernels of a group on one machine, and derives tiles from them where the machine's
    instructions decide. `level` is that of the group's fallback: each level halves tiles, or the room for them.

    Attributes:
        matmuls: the kinds of schedules that matmuls have.
        tile_kernels: the kinds of schedules that kernels have which the user wrote; none where nothing is decided.
        most_operations: the most operations of a fused kernel.
        most_windows: the most arrays, and windows of them, that a fused kernel may read and store; None: any number.
        most_of_window: the most elements of a reduced window that a kernel holds at once; None: one after the other.
        sums_in_blocks: whether long sums are nested, with a partial sum for each block of trips.
        shuffles_lanes: whether elements a few apart are loaded and stored as vectors whose lanes are shuffled.
        scans_in_turns: whether one program instance scans all parts of a line, one after the other.
        scatter_shares: by how many program instances at least rows or columns of a scatter are shared; 1: by none, the
            machine's lanes take all.
    """

    @property
    def matmuls(self) -> tuple[type[schedules.Schedule], ...]: ...

    @property
    def tile_kernels(self) -> tuple[type[schedules.Schedule], ...]: ...

    @property
    def most_operations(self) -> int: ...

    @property
    def most_windows(self) -> int | None: ...

    @property
    def most_of_window(self) -> int | None: ...

    @property
    def shuffles_lanes(self) -> bool: ...

    @property
    def sums_in_blocks(self) -> bool: ...

    @property
    def scans_in_turns(self) -> bool: ...

    @property
    def scatter_shares(self) -> int: ...

    def check(self, group: array.FusedOp, schedule: schedules.Schedule) -> None:
        """Check a requested schedule of a kind that the group, which is no attention, admits.

        Raises:
            ScheduleError: the kernel or the machine does not admit it.
        """
        ...

    def check_tile_kernel(self, kernel: tile.KernelOp, schedule: schedules.TileKernel) -> None:
        """Check a requested schedule of a kernel that the user wrote.

        Raises:
            ScheduleError: the kernel or the machine does not admit it.
        """
        ...

    def check_attention(self, parts: AttentionParts, schedule: schedules.Attention) -> None:
        """Check a requested schedule of attention.

        Raises:
            ScheduleError: the kernel or the machine does not admit it.
        """
        ...

    def loop(self, group: array.FusedOp, level: int = 0) -> schedules.Loop:
        """The schedule of an elementwise or reducing group."""
        ...

    def contract(self, group: array.FusedOp, level: int = 0) -> schedules.Matmul:
        """The schedule of a matmul and its epilogue."""
        ...

    def contract_plan(self, group: array.FusedOp, schedule: schedules.Matmul) -> ContractPlan:
        """The tiles of a matmul by its schedule, with the atom and the type that operands are multiplied in."""
        ...

    def convolve(self, group: array.FusedOp, level: int = 0) -> schedules.Convolution:
        """The schedule of a convolution and its epilogue: output channels are rows, the last spatial dimension
        columns."""
        ...

    def convolve_plan(self, group: array.FusedOp, schedule: schedules.Convolution) -> ContractPlan:
        """The tiles of a convolution by its schedule."""
        ...

    def fuses_attention(self, parts: AttentionParts) -> bool:
        """Whether one kernel computes the scores, their softmax and the weighted sum as the array program does."""
        ...

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        """The fallback with which tiles of attention fit, from the given one on, and whether there is one."""
        ...

    def attention(self, parts: AttentionParts, fallback: Fallback) -> schedules.Attention:
        """The schedule of attention: blocks of queries and keys."""
        ...

    def attention_plan(self, parts: AttentionParts, schedule: schedules.Attention) -> AttentionPlan:
        """The tiles of attention by its schedule, with the instructions that multiply them."""
        ...

    def ordered(self, op: Ordered, level: int = 0) -> schedules.Ordered:
        """The schedule of a scan, a sort, an argument reduction or a top-k: tiles of the full length of the axis, or of
        parts of it.

        Raises:
            UnsupportedOnTargetError: the machine's targets have no code for the operation.
        """
        ...

    def reshape(self, group: array.FusedOp) -> schedules.Reshape:
        """The schedule of a copy from one arrangement of pages to another."""
        ...


def planner_for(machine: Machine, threads: int) -> KernelPlanner:
    """The planner of a machine's execution model, for programs that run on so many threads."""
    # A process that compiles for one model needs none of the other planners, and of what they import.
    match machine.model:
        case Model.VECTORS:
            from tilewright.passes.kernels.vector_planner import VectorPlanner

            return VectorPlanner(machine, threads)
        case Model.WARPS:
            from tilewright.passes.kernels.warp_planner import WarpPlanner

            return WarpPlanner(machine, threads)
        case Model.CORES:
            from tilewright.passes.kernels.core_planner import CorePlanner

            return CorePlanner(machine.core_grid)

"""The layout space of a machine, by its execution model."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import TargetError
from tilewright.machines.machine import Machine, Model
from tilewright.passes.layouts.layout_spaces import Space
from tilewright.passes.vectors.vector_space import VectorSpace
from tilewright.passes.warps.warp_space import WarpSpace, all_families


def has_layouts(machine: Machine) -> bool:
    """Whether layouts of tiles are inferred for a machine: it computes in lanes or in vectors."""
    return machine.model != Model.CORES


def space_of(machine: Machine, warps: int = 4, families: Sequence[str] | None = None) -> Space:
    """The space of a machine, by the axes that it has; `families` are the kinds of matmuls that warps may do,
    all of the machine's where none are given.

    Raises:
        TargetError: the machine computes neither in lanes nor in vectors.
    """
    match machine.model:
        case Model.WARPS:
            return WarpSpace(machine, warps, all_families(machine) if families is None else tuple(families))
        case Model.VECTORS:
            return VectorSpace(machine)
        case Model.CORES:
            raise TargetError(
                f"layouts of tiles are not inferred for {machine.name}: it has the axes {', '.join(machine.axes)}",
                help="choose a machine with lanes or vectors, such as sm_90a or x86-64-v4",
            )

"""A group of operations is lowered to one kernel, or to several that run after each other: its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright.passes.kernels.tile_builder import TileBuilder
from tilewright.primitives import ArrayType

Values = Sequence[SSAValue]


class Stage(msgspec.Struct, frozen=True):
    """One kernel of a group.

    Attributes:
        grid: its grid.
        fill: writes its body: `fill(builder, grid indices, refs of its results, refs of what earlier stages computed)`.
        name: what it computes; the last stage of a group is named by the group.
        results: types of its results; none stands for those of the group.
        updates: the operand of the group that it writes its one result over.
        passed: types of results that come before the others: a point of the grid leaves there what the next one along
            the last dimension loads.
        warps: how many share a point of the grid, where the lowering states it.
        stages: how many trips of a loop what it multiplies is copied for at a time, where the lowering states it.
    """

    grid: tuple[int, ...]
    fill: Callable[[TileBuilder, Values, Values, Values], None]
    name: str = ""
    results: tuple[ArrayType, ...] = ()
    updates: int | None = None
    passed: tuple[ArrayType, ...] = ()
    warps: int | None = None
    stages: int | None = None

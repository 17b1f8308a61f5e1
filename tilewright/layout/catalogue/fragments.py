"""Layouts of the operands and sums of MMA instructions, by the family that a machine file names.

warp_fragments("mma.sync").accumulator((32, 16), 16, (2, 1))      # of 2 x 1 warps, operands of 16 bits
group_fragments("wgmma").accumulator((128, 64), 2)                # of two groups of four warps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.nvidia_registers import (
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.catalogue.nvidia_tensor_memory import tcgen05_registers
from tilewright.layout.iters import Iter
from tilewright.layout.layout import Layout
from tilewright.layout.operations import product
from tilewright.records import dataclass

Shape = Sequence[int]
_Fragments = TypeVar("_Fragments")


@dataclass(frozen=True)
class WarpFragments:
    """Registers of single warps. Each function takes the shape of a tile, the bits of operands, and how many warps
    share the tile along the rows and columns of the result."""

    left: Callable[[Shape, int, tuple[int, int]], Layout]
    right: Callable[[Shape, int, tuple[int, int]], Layout]
    accumulator: Callable[[Shape, int, tuple[int, int]], Layout]


@dataclass(frozen=True)
class GroupFragments:
    """Registers of groups of warps: of the sums of a tile shared by some groups, and of its left operand of some bits,
    where a family reads that from registers."""

    accumulator: Callable[[Shape, int], Layout]
    left: Callable[[Shape, int, int], Layout] | None = None


def warp_fragments(family: str) -> WarpFragments:
    """The layouts of a family of single warps.

    Raises:
        CompilerBug: the catalogue has none.
    """
    return _found(family, _OF_WARPS)


def group_fragments(family: str) -> GroupFragments:
    """The layouts of a family of groups of warps.

    Raises:
        CompilerBug: the catalogue has none.
    """
    return _found(family, _OF_GROUPS)


def _found(family: str, known: Mapping[str, _Fragments]) -> _Fragments:
    if family not in known:
        raise CompilerBug(f"the catalogue has no layouts of `{family}`: it has those of {', '.join(known)}")
    return known[family]


def _rows_shared(layout: Callable[[Shape], Layout], shape: Shape, groups: int) -> Layout:
    """Each group has some of the rows."""
    rows, columns = shape
    outer = Layout((groups, 1), (_groups(groups), ()))
    return product(outer, layout((rows // groups, columns)))


def _columns_shared(layout: Callable[[Shape], Layout], shape: Shape, groups: int) -> Layout:
    """Each group has some of the columns."""
    rows, columns = shape
    outer = Layout((1, groups), ((), _groups(groups)))
    return product(outer, layout((rows, columns // groups)))


def _groups(groups: int) -> tuple[Iter, ...]:
    return (Iter(groups, 1, "warp"),) if groups > 1 else ()


def _wgmma_left(shape: Shape, bits: int, groups: int) -> Layout:
    return _rows_shared(partial(wgmma_operand, bits=bits), shape, groups)


_OF_WARPS = {"mma.sync": WarpFragments(mma_operand_a, mma_operand_b, mma_accumulator)}
_OF_GROUPS = {
    "wgmma": GroupFragments(partial(_rows_shared, wgmma_accumulator), _wgmma_left),
    "tcgen05": GroupFragments(partial(_columns_shared, partial(tcgen05_registers, load="32x32b"))),
}

"""Layout spaces: what layout inference asks of a machine. Each execution model has its own (`vectors/vector_space.py`,
`warps/warp_space.py`).

A space names the layouts worth considering for a value (`distributions`), and the atoms by which matmuls can be done
(`atoms`). Everything else — which of them, and what moves between them — is the solver's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tilewright.dialects import tile
from tilewright.layout import Iter, Layout
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.primitives import ArrayType


class Atom(msgspec.Struct, frozen=True):
    """One way to do a matmul: the layouts that it wants of its operands and gives its accumulator, and its time.
    `block` is the part of the accumulator that a micro-kernel keeps in registers, `instruction` what multiplies
    matrices for it. One that is `asked` for is for matmuls that name it, no others. An `asynchronous` one completes
    later, and reads operands in buffers."""

    name: str
    left: Layout
    right: Layout
    accumulator: Layout
    seconds: float
    block: Layout | None = None
    instruction: MatrixAtom | None = None
    asked: bool = False
    asynchronous: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def has_whole_blocks(self) -> bool:
        """Whether its instruction reads and writes whole blocks, those beyond the edges of a tile too."""
        return self.instruction is not None and not self.instruction.is_vector


class Space(Protocol):
    """Queries of layout inference to a machine."""

    @property
    def machine(self) -> Machine: ...

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes of the registers of a thread (`reg`) and of memories that the tiles of a kernel share, where they are
        what counts."""
        ...

    @property
    def streams(self) -> bool:
        """Whether tiles stream through loops a vector at a time: a loop computes all in one layout, and loads a tile
        that a broadcast repeats for each repeat."""
        ...

    def reads_in_place(self, op: tile.DotOp, columns: int) -> bool:
        """Whether a matmul reads its right operand, a window of an array, from the array, which is packed in panels
        of so many columns."""
        ...

    def accepts(self, type: ArrayType, layout: Layout) -> bool:
        """Whether a tile can be in such a layout where something is computed."""
        ...

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        """Layouts of registers that are good for streaming a tile whose dim `fastest` is contiguous in memory."""
        ...

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        """The ways to multiply tiles of these types, preferred ones first."""
        ...


def dealt(
    shape: Sequence[int],
    order: Sequence[int],
    holders: Sequence[tuple[str, int]],
    vector: int,
    uncut: tuple[str, int] | None = None,
) -> Layout:
    """A tile dealt to holders: vectors of `vector` elements along the first dim of `order`, then each holder takes what
    is next, along `order`; the rest are registers. Holders without an element to take hold copies of nothing: the tile
    is padded to whole vectors. `uncut`: a holder and the dim of which it takes nothing."""
    left = list(shape)
    digits: list[list[Iter]] = [[] for _ in shape]

    def take(dim: int, extent: int, axis: str, stride: int) -> None:
        if extent > 1:
            digits[dim].insert(0, Iter(extent, stride, axis))
            left[dim] = -(-left[dim] // extent)

    vector = min(vector, power_up(shape[order[0]])) if shape else 1
    if shape:
        take(order[0], vector, "reg", 1)
    registers = vector
    for axis, count in holders:
        stride = 1
        for dim in order:
            if uncut == (axis, dim):
                continue
            extent = min(count // stride, power_up(left[dim]))
            take(dim, extent, axis, stride)
            stride *= max(1, extent)
    for dim in order:
        extent = left[dim]
        take(dim, extent, "reg", registers)
        registers *= max(1, extent)
    return Layout(tuple(shape), tuple(tuple(each) for each in digits))


def power_up(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()

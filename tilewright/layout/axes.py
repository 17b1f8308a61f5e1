"""Kinds of axes, and the distance between positions.

An axis belongs to a kind by the first part of its name: `core.x` is a core axis. The kinds of positions that compute
are nested: a register is in a lane, a lane in a warp, a warp in a block, and so on; moving an element between two
positions takes the mechanism of the outermost kind on which they differ.
"""

from __future__ import annotations

from enum import IntEnum

from tilewright.errors import LayoutError


class Kind(IntEnum):
    """Kinds of axes, from the nearest to the farthest."""

    MEMORY = 0  # an address in the memory of what the other axes name
    REGISTER = 1  # a register of one thread
    LANE = 2  # a lane of one vector register or warp
    WARP = 3  # a warp, wave or thread of one block or core
    BLOCK = 4  # a block of a cluster
    CORE = 5  # a core of a chip
    DEVICE = 6  # a device of a mesh


_KINDS = {
    "mem": Kind.MEMORY,
    "tmem": Kind.MEMORY,
    "dram": Kind.MEMORY,
    "reg": Kind.REGISTER,
    "simd": Kind.LANE,
    "lane": Kind.LANE,
    "thread": Kind.WARP,
    "warp": Kind.WARP,
    "wave": Kind.WARP,
    "warpgroup": Kind.WARP,
    "cta": Kind.BLOCK,
    "core": Kind.CORE,
    "device": Kind.DEVICE,
}


def kind_of(axis: str) -> Kind:
    """The kind of a named axis.

    Raises:
        LayoutError: no machine has such an axis.
    """
    first = axis.partition(".")[0]
    if first not in _KINDS:
        raise LayoutError(f"`{axis}` is no axis of any machine", help=f"axes begin with {', '.join(_KINDS)}")
    return _KINDS[first]

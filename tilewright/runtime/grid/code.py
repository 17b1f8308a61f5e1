"""The code of a program for a grid of cores: its host program, and how its arrays are stored.

The kernels are one IR text, in the order of the host program: the simulator interprets them.
"""

from __future__ import annotations

import msgspec

from tilewright.runtime.array_spec import ArraySpec
from tilewright.runtime.host_program import HostProgram


class GridCode(msgspec.Struct, frozen=True, kw_only=True):
    """The machine by name, a digest of its numbers, the host program, types of its constants, and storage formats and
    placements of inputs by index where they are not the default."""

    machine: str
    machine_digest: str
    host: HostProgram
    constants: tuple[ArraySpec, ...]
    storage: dict[int, str]

"""The file of a program for a grid of cores. The simulator that runs it is part of the compiler."""

from __future__ import annotations

from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.runtime.grid.code import GridCode
from tilewright.runtime.program_file import UNSETTLED, Array, ProgramFile, Settled


class GridFile(ProgramFile):
    """Kernels as IR text with their manifest and constants, and the device's source code where it exists."""

    @property
    def code(self) -> GridCode:
        """The part of the manifest that is about the grid."""
        if self.manifest.grid is None:
            raise CompilerBug(f"the manifest of `{self.manifest.name}` declares no grid of cores")
        return self.manifest.grid

    def __call__(self, *arrays: object, out: object = None) -> Array | tuple[Array, ...]:
        """Refuse: the runtime alone has no simulator.

        Raises:
            UnsupportedOnTargetError: always.
        """
        raise UnsupportedOnTargetError(
            f"`{self.manifest.name}` is compiled for {self.manifest.triple}, whose simulator is part of the compiler",
            help="load it with `tw.load`, where the compiler is installed",
        )

    @property
    def settled(self) -> Settled:
        """The function that serves plain calls without this class: none does."""
        return UNSETTLED

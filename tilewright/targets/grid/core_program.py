"""A program for a grid of cores as a run needs it: kernels, host program, constants, and how arrays are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import array, cores, tile
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import same_pages
from tilewright.machines.machine import Machine
from tilewright.passes.base import Unit
from tilewright.passes.host_program import host_program
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.passes.program_memory import MemoryPlan, plan_memory
from tilewright.runtime.array_spec import ArraySpec
from tilewright.runtime.host_program import HostProgram
from tilewright.targets.base import Tensor, spec_of
from tilewright.targets.grid.emit import ProgramSource, emit_program


@dataclass(frozen=True, eq=False)
class CoreProgram:
    """A compiled program, or one that was loaded from a file.

    Attributes:
        name: the name of the function.
        kernels: by name, each with a program for a grid of cores, or with none where nothing is computed.
        constants: in the order of the host program.
        donated: input index to the index of the output that may take its memory.
        storage: formats and placements of inputs by index, where they are not the default.
        sources: device source of kernels by name, where it is known already.
    """

    name: str
    machine: Machine
    kernels: Mapping[str, tile.KernelOp]
    host: HostProgram
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    constants: tuple[Tensor, ...]
    donated: Mapping[int, int]
    storage: Mapping[int, str]
    sources: Mapping[str, ProgramSource] = field(default_factory=dict[str, Any])

    def source_of(self, kernel: tile.KernelOp) -> ProgramSource:
        """The device source of a kernel.

        Raises:
            UnsupportedOnTargetError: something in it has no form there.
        """
        known = self.sources.get(kernel.sym_name)
        return emit_program(kernel, self.machine) if known is None else known


def core_program(unit: Unit, plan: MemoryPlan | None = None) -> CoreProgram:
    """The program of a scheduled unit.

    Raises:
        UnsupportedOnTargetError: something in `main` does not run on a grid of cores.
    """
    _check_reshapes(unit)
    kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
    host = host_program(unit, plan or plan_memory(unit), list(kernels))
    types = unit.main.function_type
    return CoreProgram(
        name=unit.name,
        machine=unit.machine,
        kernels=kernels,
        host=host,
        inputs=tuple(spec_of(f"in{n}", array_type(type)) for n, type in enumerate(types.inputs)),
        outputs=tuple(spec_of(f"out{n}", array_type(type)) for n, type in enumerate(types.outputs)),
        constants=tuple(np.asarray(unit.constants[name]) for name in host.constants),
        donated=dict(unit.donated),
        storage={n: text for n, text in unit.storage.items() if n < len(types.inputs)},
    )


def has_program(kernel: tile.KernelOp) -> bool:
    """Whether a kernel computes something."""
    return any(isinstance(op, cores.ProgramOp) for op in kernel.body.block.ops)


def ref_bytes(ref: SSAValue) -> int:
    """Bytes of the array of a parameter, in its own type."""
    type = tile.ref_type(ref)
    return prod(type.shape) * type.dtype.itemsize


def _check_reshapes(unit: Unit) -> None:
    """Views of the host program keep their pages.

    Raises:
        UnsupportedOnTargetError: a reshape is none.
    """
    for op in unit.main.walk():
        if not isinstance(op, array.ReshapeOp):
            continue
        before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
        if not same_pages(before, after):
            what = f"a reshape of {before} to {after} is no view on a grid of cores"
            error = UnsupportedOnTargetError(what, help='use target="cpu" for this program')
            error.location = location_of(op)
            raise error

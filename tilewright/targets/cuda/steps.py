"""The description of a program for a GPU: its host program, and how each kernel is launched."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.dialects import tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.runtime.cuda.steps import MOST_BLOCKS, DeviceCode, Kernel
from tilewright.runtime.host_program import HostProgram
from tilewright.targets.cuda.emit import KernelCode


def launched(kernels: Mapping[str, KernelCode]) -> list[str]:
    """The kernels that have something to compute."""
    return [name for name, code in kernels.items() if code.blocks]


def device_code(unit: Unit, host: HostProgram, kernels: Mapping[str, KernelCode]) -> DeviceCode:
    """The description of a program whose kernels are emitted.

    Raises:
        UnsupportedOnTargetError: a grid is too large.
    """
    return DeviceCode(
        chip=unit.machine.llvm_cpu,
        kernels=tuple(_kernel(unit, kernels[name]) for name in host.kernels),
        arena=host.arena,
        steps=host.steps,
    )


def _kernel(unit: Unit, code: KernelCode) -> Kernel:
    refs = unit.kernel(code.name).refs
    sizes = tuple(prod(tile.ref_type(ref).shape) * tile.ref_type(ref).dtype.itemsize for ref in refs)
    if code.blocks > MOST_BLOCKS:
        raise UnsupportedOnTargetError(
            f"`{code.name}` has {code.blocks} blocks", help=f"use larger tiles: a grid has at most {MOST_BLOCKS}"
        )
    return Kernel(
        name=code.name,
        blocks=code.blocks,
        threads=code.threads,
        shared_bytes=code.shared_bytes,
        parameters=sizes,
        cluster=code.cluster,
        tensor_maps=code.tensor_maps,
        zones=code.zones,
    )

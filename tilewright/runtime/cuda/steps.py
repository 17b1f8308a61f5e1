"""The code of a program for a GPU: kernels and how they are launched, and the steps of the host program."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tilewright.errors import CompilerBug
from tilewright.runtime.host_program import If, Slot, Step, While, check_steps
from tilewright.runtime.zones import Zones

MOST_BLOCKS = 2**31 - 1
"""Of a grid of one dimension. CUDA C++ Programming Guide, "Compute Capabilities", technical specifications."""

ALIGNMENT_BYTES = 16
"""Kernels read and write vectors of up to so many bytes: every buffer begins at a multiple of it."""


class TensorMap(msgspec.Struct, frozen=True, kw_only=True):
    """The tensor map of the array at a parameter: the name of its type, tf32 for one of f32 that is rounded on the way,
    its `shape` in elements and the `strides` in bytes of all dims but the first, elements of a box along each dim, the
    first dim being the fastest, and bytes of the swizzle. CUDA Driver API, "Tensor Map Object Management"."""

    parameter: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def nbytes(self) -> int:
        """The minimum bytes of the array."""
        return self.strides[-1] * self.shape[-1] if self.strides else self.shape[0]


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of one module, and how it is launched: blocks, threads of each, bytes of dynamic shared memory, and
    blocks of a cluster. Each of its `parameters` is the address of a buffer of at least as many bytes; `tensor_maps`
    are parameters after them. With `zones`, the last of its buffers is for their records."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    parameters: tuple[int, ...]
    cluster: int = 1
    tensor_maps: tuple[TensorMap, ...] = ()
    zones: Zones | None = None


class DeviceCode(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels for a chip such as `sm_90a`, the offsets in the arena, and the steps of a call, in order."""

    chip: str
    kernels: tuple[Kernel, ...]
    arena: tuple[Slot, ...]
    steps: tuple[Step, ...]

    @property
    def arena_bytes(self) -> int:
        return max((slot.offset + slot.nbytes for slot in self.arena), default=0)

    @property
    def reads_on_host(self) -> bool:
        """Whether what a call does depends on what its kernels compute."""
        return any(isinstance(step, While | If) for step in self.steps)

    @property
    def records_zones(self) -> bool:
        """Whether kernels record when zones begin and end."""
        return any(kernel.zones is not None for kernel in self.kernels)


def check_device(name: str, code: DeviceCode, array_bytes: Sequence[int]) -> None:
    """Refuse a description that contradicts itself; `array_bytes` are those of inputs, outputs and constants.

    Raises:
        CompilerBug: it does; the compiler wrote it.
    """
    sizes = [*array_bytes, *(slot.nbytes for slot in code.arena)]
    for slot in code.arena:
        if slot.offset < 0 or slot.offset % ALIGNMENT_BYTES:
            raise CompilerBug(f"`{name}` places a buffer at byte {slot.offset} of its arena")
    for kernel in code.kernels:
        extents = (kernel.blocks, kernel.threads, kernel.cluster)
        fits = min(extents) >= 1 and kernel.blocks <= MOST_BLOCKS and kernel.blocks % kernel.cluster == 0
        if not fits or kernel.shared_bytes < 0:
            raise CompilerBug(f"`{name}` launches `{kernel.name}` with {kernel}")
        if kernel.zones is not None and kernel.parameters[-1:] != (kernel.zones.nbytes(kernel.blocks),):
            raise CompilerBug(f"`{name}` records {kernel.zones} of `{kernel.name}` in {kernel.parameters}")
        for each in kernel.tensor_maps:
            if not 0 <= each.parameter < len(kernel.parameters) or each.nbytes > kernel.parameters[each.parameter]:
                raise CompilerBug(f"`{name}` launches `{kernel.name}` with {each} of {kernel.parameters}")
    kernels = [(kernel.name, kernel.parameters) for kernel in code.kernels]
    check_steps(name, code.steps, kernels, sizes)

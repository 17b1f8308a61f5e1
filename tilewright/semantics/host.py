"""The host program on NumPy: buffers are bytes of the host's memory, in which slots of the arena overlap.

For targets whose kernels run on the host. Memory that nothing was written to holds poison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.dialects import tile
from tilewright.primitives import ArrayType
from tilewright.runtime.host_program import Copy, HostProgram, Launch, take

Tensor = np.ndarray[Any, Any]
RunKernel = Callable[[tile.KernelOp, Sequence[Tensor]], None]
"""Runs a kernel on the arrays of its parameters, in place."""

_POISON = 0xA5


class HostMemory:
    """The memory of one call. `donated` maps inputs to the outputs that take their memory, by index."""

    def __init__(
        self,
        program: HostProgram,
        kernels: Mapping[str, tile.KernelOp],
        constants: Mapping[str, Tensor],
        donated: Mapping[int, int],
        run_kernel: RunKernel,
    ) -> None:
        self._program = program
        self._kernels = kernels
        self._constants = [
            np.ascontiguousarray(constants[name]).reshape(-1).view(np.uint8) for name in program.constants
        ]
        self._donated = donated
        self._run_kernel = run_kernel
        self._buffers: list[Tensor] = []

    def run(
        self, arrays: Sequence[Tensor], types: Sequence[ArrayType], out: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """The results of a call, of these types, written to `out` where it is given; the arguments stay as they are."""
        inputs = [np.array(array, order="C").reshape(-1).view(np.uint8) for array in arrays]
        outputs = [np.full(type.nbytes, _POISON, np.uint8) for type in types]
        for source, target in self._donated.items():
            outputs[target] = inputs[source]
        slots = self._program.arena
        arena = np.full(max((slot.offset + slot.nbytes for slot in slots), default=0), _POISON, np.uint8)
        in_arena = [arena[slot.offset : slot.offset + slot.nbytes] for slot in slots]
        self._buffers = [*inputs, *outputs, *self._constants, *in_arena]
        take(self._program.steps, self)
        results = [output.view(t.dtype.numpy).reshape(t.shape) for output, t in zip(outputs, types, strict=True)]
        for target, result in zip(out or (), results, strict=out is not None):
            np.copyto(target, result)
        return results if out is None else list(out)

    def launch(self, step: Launch) -> None:
        kernel = self._kernels[self._program.kernels[step.kernel]]
        arrays: list[Tensor] = []
        for ref, number in zip(kernel.refs, step.buffers, strict=True):
            type = tile.ref_type(ref)
            nbytes = prod(type.shape) * type.dtype.itemsize
            arrays.append(self._buffers[number][:nbytes].view(type.dtype.numpy).reshape(type.shape))
        self._run_kernel(kernel, arrays)

    def copy(self, step: Copy) -> None:
        self._buffers[step.target][: step.nbytes] = self._buffers[step.source][: step.nbytes]

    def is_set(self, flag: int) -> bool:
        return bool(self._buffers[flag][0])


def in_place(call: Callable[[tile.KernelOp, list[Tensor]], Sequence[Tensor]]) -> RunKernel:
    """A function that returns a kernel's results, as one that writes them to the arrays of its parameters."""

    def run_kernel(kernel: tile.KernelOp, arrays: Sequence[Tensor]) -> None:
        pairs = list(zip(arrays, kernel.effects, strict=True))
        results = call(kernel, [array for array, effect in pairs if effect != tile.OUT])
        written = [array for array, effect in pairs if effect != tile.IN]
        for target, result in zip(written, results, strict=True):
            target[...] = result

    return run_kernel

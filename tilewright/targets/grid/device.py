"""Runs the kernels of a program by TT-Metalium, from ttnn, on a device or on the vendor's own simulator of one.

Kernels are given as text: ttnn compiles them. Arrays are tensors of ttnn in tiles or by rows, interleaved over the
banks of DRAM, or in shards in memories of cores (`memory_config.py`).
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from tilewright.dialects import cores, tile
from tilewright.dtypes import DType
from tilewright.errors import DeviceError, ResourceUnavailable, UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import FORMATS
from tilewright.layout.catalogue.placements import Pages, Storage
from tilewright.machines.machine import Machine
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType
from tilewright.semantics.cores import tile_formats
from tilewright.targets.base import Tensor
from tilewright.targets.grid.core_program import CoreProgram
from tilewright.targets.grid.host_run import HostRun
from tilewright.targets.grid.memory_config import memory_config

# The variable of TT-Metalium that names the vendor's simulator.
SIMULATOR = "TT_METAL_SIMULATOR"
# By their names in ttnn; in which type of NumPy their numbers go there.
_TYPES: dict[str, tuple[str, Any]] = {
    "f32": ("float32", np.float32),
    "bf16": ("bfloat16", np.float32),
    "bfp8": ("bfloat8_b", np.float32),
    "i32": ("int32", np.int32),
    "u32": ("uint32", np.uint32),
}


def is_asked_for() -> bool:
    """Whether the user named a simulator of the vendor's."""
    return bool(os.environ.get(SIMULATOR))


def machine_name() -> str:
    """The machine that ttnn's device is: the one that it opens, whichever way the user named it.

    Raises:
        ResourceUnavailable: ttnn is not installed, or opens no device.
    """
    return str(_ttnn_and_device()[0].get_arch_name()).partition("_")[0]


class DeviceRun(HostRun[Any]):
    """One run of a program on the device that ttnn opens.

    Raises:
        ResourceUnavailable: ttnn or torch is not installed, or opens no device, or one of another kind than the
            program's machine.
    """

    def __init__(self, program: CoreProgram | Unit) -> None:
        super().__init__(program)
        self._ttnn, self._device = _opened(self.program.machine)

    def given(self, array: Tensor | None, type: ArrayType, stored: Storage) -> Any:
        if array is None:
            raise DeviceError("a device computes with numbers", help="give arrays")
        ttnn, torch = self._ttnn, importlib.import_module("torch")
        grid = self.program.machine.core_grid
        pages = stored.pages(type.shape, (grid.rows, grid.columns))
        of_ttnn, of_numpy = _type_of(_format_of(pages, type.dtype))
        numbers = torch.from_numpy(_checked(array, of_numpy).reshape(_shape(type.shape)))
        return ttnn.from_torch(
            numbers,
            dtype=getattr(ttnn, of_ttnn),
            layout=self._layout(pages.is_row_major),
            device=self._device,
            memory_config=memory_config(ttnn, type.shape, pages.placement),
        )

    def undefined(self, ref: SSAValue) -> Any:
        ttnn, type, pages = self._ttnn, tile.ref_type(ref), cores.stored_pages(ref)
        of_ttnn, _ = _type_of(_format_of(pages, type.dtype))
        shape = ttnn.Shape(list(_shape(type.shape)))
        config = memory_config(ttnn, type.shape, pages.placement)
        layout = self._layout(pages.is_row_major)
        return ttnn.allocate_tensor_on_device(shape, getattr(ttnn, of_ttnn), layout, self._device, config)

    def _layout(self, is_row_major: bool) -> Any:
        return self._ttnn.ROW_MAJOR_LAYOUT if is_row_major else self._ttnn.TILE_LAYOUT

    def copied(self, array: Any) -> Any:
        return self._ttnn.clone(array)

    def viewed(self, array: Any, shape: tuple[int, ...]) -> Any:
        # Kernels see pages by their numbers, which stay.
        return array

    def to_numpy(self, array: Any, type: ArrayType) -> Tensor:
        torch = importlib.import_module("torch")
        numbers = self._ttnn.to_torch(array)
        if numbers.dtype == torch.bfloat16:
            numbers = numbers.to(torch.float32)
        return np.asarray(numbers.numpy()).reshape(type.shape).astype(type.dtype.numpy)

    def run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[Any]) -> None:
        source = self.program.source_of(kernel)
        texts = {cores.READER: source.reader, cores.COMPUTE: source.compute, cores.WRITER: source.writer}
        names: dict[str, Any] = {}
        # The text is the compiler's own.
        exec(compile(source.host, f"<host of {kernel.sym_name}>", "exec"), names)
        describe = names["describe"]
        takes_device = describe.__code__.co_varnames[0] == "device"
        described = describe(*([self._device] if takes_device else []), texts, *arrays)
        effects = kernel.effects
        # Those that are written come last.
        tensors = [a for a, effect in zip(arrays, effects, strict=True) if effect == tile.IN]
        tensors += [a for a, effect in zip(arrays, effects, strict=True) if effect != tile.IN]
        self._ttnn.generic_op(tensors, described)


def _format_of(pages: Pages, dtype: DType) -> str:
    return pages.format or tile_formats.format_of(dtype).name


def _type_of(format: str) -> tuple[str, Any]:
    if format not in _TYPES:
        known = ", ".join(name for name in FORMATS if name in _TYPES)
        raise UnsupportedOnTargetError(f"ttnn has no arrays of {format}", help=f"use one of {known}")
    return _TYPES[format]


def _checked(array: Tensor, type: Any) -> Tensor:
    """The numbers in the type that torch takes."""
    if np.issubdtype(type, np.integer) and array.size:
        info = np.iinfo(type)
        if array.min() < info.min or array.max() > info.max:
            raise DeviceError(f"a number does not fit {info.bits} bits", help="a grid of cores computes with 32")
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    return np.ascontiguousarray(array.astype(type, copy=False))


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in ttnn, where arrays in tiles have rows and columns."""
    return (1,) * (2 - len(shape)) + tuple(shape)


@functools.cache
def _device(ttnn: Any) -> Any:
    # The vendor's simulator has no way to run what dispatches programs on the device.
    os.environ.setdefault("TT_METAL_SLOW_DISPATCH_MODE", "1")
    try:
        device = ttnn.open_device(device_id=0)
    except RuntimeError as error:
        raise ResourceUnavailable(f"ttnn opens no device: {error}", help=f"set {SIMULATOR}, or unset it") from error
    atexit.register(ttnn.close_device, device)
    return device


def _ttnn_and_device() -> tuple[Any, Any]:
    try:
        ttnn = importlib.import_module("ttnn")
        importlib.import_module("torch")
    except ImportError as error:
        help = f"install ttnn and torch, or unset {SIMULATOR} to run on Tilewright's own simulator"
        raise ResourceUnavailable(f"{error.name} is not installed", help=help) from error
    return ttnn, _device(ttnn)


def _opened(machine: Machine) -> tuple[Any, Any]:
    ttnn, device = _ttnn_and_device()
    found = str(ttnn.get_arch_name())
    if not found.startswith(machine.name):
        help = f'compile for "grid:{found.partition("_")[0]}"'
        raise ResourceUnavailable(f"the program is for {machine.name}, and the device is {found}", help=help)
    return ttnn, device

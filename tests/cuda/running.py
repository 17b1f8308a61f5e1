"""Programs for cuda on the emulated driver: what its tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tests.emulators.cuda_driver import FakeDriver
from tilewright.machines.machine import Machine
from tilewright.runtime.cuda.array import DeviceArray
from tilewright.targets.cuda.toolchain import Cubin, Usage

Tensor = np.ndarray[Any, Any]
CHIP = "cuda:sm_90a"
X = np.arange(24, dtype=np.float32).reshape(4, 6)


def unassembled(name: str, ptx: str, machine: Machine) -> Cubin:
    """What stands for machine code: the emulator reads PTX."""
    return Cubin(ptx.encode(), Usage(0, 0, 0, 0))


class Foreign:
    """An array of another library on a device: DLPack, by way of ours."""

    def __init__(self, driver: FakeDriver, content: Tensor, *, device: int = 0, offset: int = 0) -> None:
        self.driver = driver
        self.content = content
        whole = np.concatenate([np.zeros(offset, np.uint8), content.reshape(-1).view(np.uint8)])
        self.base = driver.array(whole, device)
        self.shape, self.dtype = content.shape, content.dtype
        self.array = DeviceArray(self.base + offset, content.shape, content.dtype, device, self)
        self.asked: list[int | None] = []

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__(stream=-1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def numpy(self) -> Tensor:
        found = self.driver.contents(self.array.address, self.content.nbytes)
        return found.view(self.content.dtype).reshape(self.shape).copy()

    def free(self) -> None:
        with self.driver.context(0):
            self.driver.synchronise_all()
            self.driver.free(self.base)


def compiled(function: Callable[..., Any], *arrays: Any, donate: Any = (), target: str = CHIP) -> Any:
    return tw.jit(function, donate=donate).lower(*arrays).compile(target)


def two_kernels(x: Any) -> Any:
    """A sum of rows, then one of columns: nothing fuses them."""
    return tw.sum(tw.nn.softmax(x, axis=-1), axis=0)

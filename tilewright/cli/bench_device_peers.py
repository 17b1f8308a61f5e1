"""The libraries that a case on a GPU is compared with, on our arrays and our stream: torch, and kernels in Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.cli.bench_peers import PeerUnavailable, Runner, failing_is_absence, torch_to_numpy, ways_of
from tilewright.cli.bench_suites.case import Case, DeviceCase
from tilewright.records import dataclass
from tilewright.runtime.cuda.array import DeviceArray


@dataclass(frozen=True)
class _Library:
    """The package that must be installed, and the module whose functions the cases call."""

    modules: tuple[str, ...]
    functions: str


_LIBRARIES: Mapping[str, _Library] = {
    "torch": _Library(("torch",), "torch"),
    "triton": _Library(("triton", "torch"), "tilewright.cli.bench_suites.triton_kernels"),
}


def prepare(library: str, case: Case, arrays: tuple[DeviceArray, ...], stream: int) -> dict[str, Runner]:
    """The variants of a peer for a case, by name ("" for a single one); variants that fail are left out. Each reads the
    arrays in device memory and launches on a stream, given by the driver's handle.

    Raises:
        PeerUnavailable: it is not installed, finds no GPU, cannot express the case, or fails at it in all ways.
    """
    if library not in _LIBRARIES or not isinstance(case, DeviceCase):
        raise PeerUnavailable("is measured on the host only")
    ways = ways_of(library, case, _LIBRARIES[library].modules)
    with failing_is_absence():
        torch = _torch()
        torch.cuda.set_stream(torch.cuda.ExternalStream(stream, device=arrays[0].device))
        functions = importlib.import_module(_LIBRARIES[library].functions)
        tensors = [tensor_of(torch, array) for array in arrays]
    runners: dict[str, Runner] = {}
    failures: list[str] = []
    for name, way in ways.items():
        try:
            runners[name] = _started(torch, partial(way, functions, *tensors))
        except PeerUnavailable as reason:
            failures.append(f"{name}: {reason}" if name else str(reason))
    if not runners:
        raise PeerUnavailable("; ".join(failures))
    return runners


@cache
def _torch() -> Any:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise PeerUnavailable("torch finds no GPU")
    torch.set_grad_enabled(False)
    # Only the cases of tf32 multiply matrices of f32.
    torch.set_float32_matmul_precision("high")
    return torch


def _started(torch: ModuleType, call: Callable[[], object]) -> Runner:
    with failing_is_absence():
        call()
        # What fails on the device is heard of by those who wait for it.
        torch.cuda.synchronize()
        return Runner(call, partial(torch_to_numpy, torch))


def tensor_of(torch: ModuleType, array: DeviceArray) -> Any:
    """A tensor of torch on an array's memory. Floats of 8 bits go by way of bytes: not every torch takes them."""
    if array.dtype.itemsize > 1 or array.dtype.kind in "biu":
        return torch.from_dlpack(array)
    as_bytes = DeviceArray(array.address, array.shape, np.dtype(np.uint8), array.device, array, array.stream)
    return torch.from_dlpack(as_bytes).view(getattr(torch, array.dtype.name))

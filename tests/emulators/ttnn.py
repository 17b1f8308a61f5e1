"""Stands for `ttnn` in the description of a program that is printed for the host: keeps what it is called with."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

# Where the first core of a device is on its networks.
FIRST_X, FIRST_Y = 18, 20
_ENUMS = ("DataMovementProcessor", "NOC", "MathFidelity", "UnpackToDestMode")
_ENUMS += ("BufferType", "ShardOrientation", "TensorMemoryLayout")
_TYPES = ("bfloat16", "float32", "int32", "uint32", "bfloat8_b")
_RECORDS = ("CBDescriptor", "CBFormatDescriptor", "SemaphoreDescriptor", "ProgramDescriptor", "KernelDescriptor")
_RECORDS += ("ComputeConfigDescriptor", "DataMovementConfigDescriptor", "CoreRange", "CoreRangeSet")
_RECORDS += ("MemoryConfig", "ShardSpec", "NdShardSpec")


class Names:
    """An enumeration: each member is its name."""

    def __getattr__(self, name: str) -> str:
        return name


class Device:
    def worker_core_from_logical_core(self, core: Any) -> Any:
        return types.SimpleNamespace(x=FIRST_X + core.x, y=FIRST_Y + core.y)


class Tensor:
    """An array at an address, whose pages have a size."""

    def __init__(self, address: int, page_bytes: int) -> None:
        self._address, self.page_bytes = address, page_bytes

    def buffer_address(self) -> int:
        return self._address


def _record(kind: str) -> Any:
    return lambda *args, **given: types.SimpleNamespace(kind=kind, args=args, **given)


def module() -> types.SimpleNamespace:
    ttnn = types.SimpleNamespace(**{name: Names() for name in _ENUMS}, **{name: name for name in _TYPES})
    for name in _RECORDS:
        setattr(ttnn, name, _record(name))
    ttnn.KernelDescriptor.SourceType = types.SimpleNamespace(SOURCE_CODE="source code")
    ttnn.CoreCoord = lambda x, y: types.SimpleNamespace(x=x, y=y)
    ttnn.RuntimeArgs = lambda: {column: {} for column in range(32)}
    ttnn.TensorAccessorArgs = lambda tensor: types.SimpleNamespace(get_compile_time_args=lambda: [2, tensor.page_bytes])
    return ttnn


def describe(host: str, sources: Mapping[str, str], tensors: Sequence[Tensor]) -> Any:
    """What the description of a program gives; `shape` is that of its cores."""
    names: dict[str, Any] = {"ttnn": module()}
    assert host.count("import ttnn\n") == 1
    exec(host.replace("import ttnn\n", ""), names)
    function = names["describe"]
    takes_device = function.__code__.co_varnames[0] == "device"
    made = function(*([Device()] if takes_device else []), sources, *tensors)
    made.shape = names["ROWS"], names["COLUMNS"]
    return made

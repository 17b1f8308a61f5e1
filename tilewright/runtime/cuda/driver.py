"""The few calls of NVIDIA's driver that running programs takes, and what is found of it.

`Driver` is what the rest of the runtime uses; `BindingsDriver` is it over `cuda.bindings.driver`, which is imported
when a program runs. Handles and addresses are integers. All calls on a device are made inside `context(ordinal)`. Names
and meanings are those of the CUDA Driver API reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from typing import Any, Protocol, SupportsInt, TypeAlias

from tilewright.errors import DeviceError, ResourceUnavailable
from tilewright.locks import Lock
from tilewright.records import dataclass
from tilewright.runtime.cuda.steps import Kernel, TensorMap

INSTALL = "install NVIDIA's display driver, and the bindings with `pip install 'tilewright[cuda]'`"
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_NAME_BYTES = 128
# CUDA Driver API, CUtensorMap and CUtensorMapDataType.
_TENSOR_MAP_BYTES = 128
# Copies of TFLOAT32 round f32 (CUTLASS, sm90 collectives: "TMA converts f32 input to tf32").
_TENSOR_MAP_TYPES = {
    **{"bf16": "BFLOAT16", "f16": "FLOAT16", "tf32": "TFLOAT32"},
    **{"i8": "UINT8", "f8e4m3fn": "UINT8", "f8e5m2": "UINT8"},
}


class DriverFailure(DeviceError):
    """A call of the driver that did not succeed: `status` is the name of its result."""

    def __init__(self, call: str, status: str, text: str) -> None:
        super().__init__(f"{call} failed: {status} ({text})", help=_help_for(status))
        self.status = status

    @property
    def out_of_memory(self) -> bool:
        return self.status == _OUT_OF_MEMORY


# What destroys the context: nothing runs in this process any more.
_FATAL = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
    }
)


def _help_for(status: str) -> str:
    if status in _FATAL:
        return "the device is lost to this process: start it again, with TW_DEBUG=2 to learn which kernel it was"
    if status == _OUT_OF_MEMORY:
        return "free memory of the device, also in other processes"
    if status in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_SOURCE"):
        return "compile the program for the chip that `tilewright doctor` names"
    return "run `tilewright doctor`; where it finds nothing wrong, report this"


@dataclass(frozen=True)
class Device:
    """A GPU: `capability` is its compute capability, `shared_bytes` what one block may have of shared memory."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    shared_bytes: int

    def runs(self, chip: str) -> bool:
        """Whether it runs machine code for a chip such as `sm_80` or `sm_90a`. Code of a compute capability runs on
        those of the same first number and no lower second one; with a letter, on just that one. CUDA C++ Programming
        Guide, "Binary Compatibility" and "Feature Set Compiler Targets"."""
        digits = chip.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
        major, minor = int(digits[:-1]), int(digits[-1])
        if not chip.endswith(digits):
            return self.capability == (major, minor)
        return self.capability[0] == major and self.capability[1] >= minor

    def __str__(self) -> str:
        return f"{self.ordinal}: {self.name}, compute capability {self.capability[0]}.{self.capability[1]}"


Launcher: TypeAlias = Callable[[Sequence[int], int], None]
"""Runs a kernel on the arrays at some addresses, on a stream; its tensor maps are made of the addresses."""


class Driver(Protocol):
    """The calls. All that fail raise `DriverFailure`."""

    def version(self) -> tuple[int, int]:
        """The CUDA version that the driver supports."""
        ...

    def devices(self) -> Sequence[Device]:
        """All devices, in the order of their ordinals."""
        ...

    def context(self, ordinal: int) -> contextlib.AbstractContextManager[None]:
        """The device's primary context, which other libraries share, current for this thread."""
        ...

    def free_bytes(self) -> int:
        """Free memory of the device."""
        ...

    def device_of(self, address: int) -> int:
        """The ordinal of the device that has an address."""
        ...

    def load_module(self, content: bytes) -> int: ...

    def unload_module(self, module: int) -> None: ...

    def function(self, module: int, name: str) -> int: ...

    def allow_shared_bytes(self, function: int, nbytes: int) -> None:
        """Let blocks of a function have so much dynamic shared memory."""
        ...

    def blocks_at_a_time(self, function: int, threads: int, shared_bytes: int) -> int:
        """How many blocks of a function one multiprocessor holds."""
        ...

    def launcher(self, function: int, kernel: Kernel) -> Launcher:
        """The function that launches a kernel, one call at a time."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Memory for use on any stream, at a multiple of 256."""
        ...

    def free(self, address: int) -> None:
        """Give back memory that no stream uses any more."""
        ...

    def allocate_on(self, nbytes: int, stream: int) -> int:
        """Memory for what follows on a stream, at a multiple of 256."""
        ...

    def free_on(self, address: int, stream: int) -> None:
        """Give back memory of `allocate_on` after all that is on a stream."""
        ...

    def copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from the host. The source can be written once the call returns, if its pages can be swapped."""
        ...

    def copy_out(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy to the host; complete when the stream is."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None: ...

    def new_stream(self) -> int:
        """A stream that does not wait for the default one."""
        ...

    def synchronise(self, stream: int) -> None: ...

    def synchronise_all(self) -> None:
        """Wait for all that the device does."""
        ...

    def is_capturing(self, stream: int) -> bool: ...

    def new_event(self, timed: bool = False) -> int: ...

    def close_event(self, event: int) -> None: ...

    def record(self, event: int, stream: int) -> None: ...

    def wait(self, stream: int, event: int) -> None:
        """Make later work on the stream wait for the event."""
        ...

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two timed events that are over."""
        ...

    def begin_capture(self, stream: int) -> None: ...

    def end_capture(self, stream: int) -> int:
        """The captured work, as an executable graph."""
        ...

    def launch_graph(self, graph: int, stream: int) -> None: ...

    def close_graph(self, graph: int) -> None: ...


class _BindingsContext:
    """A context, current inside. Mostly it is already, after other libraries of this process made it so."""

    __slots__ = ("_context", "_driver", "_is_pushed")

    def __init__(self, driver: BindingsDriver, context: SupportsInt) -> None:
        self._driver = driver
        self._context = context
        self._is_pushed = False

    def __enter__(self) -> None:
        if int(self._driver.call("cuCtxGetCurrent")) != int(self._context):
            self._driver.call("cuCtxPushCurrent", self._context)
            self._is_pushed = True

    def __exit__(self, *_: object) -> None:
        if self._is_pushed:
            self._driver.call("cuCtxPopCurrent")


class _BindingsLauncher:
    """A kernel with the memory that its launches are described in. The driver copies parameters when it is called."""

    def __init__(self, driver: BindingsDriver, function: int, kernel: Kernel) -> None:
        self._driver, self._function, self._kernel = driver, function, kernel
        self._config = driver.launch_config(kernel)
        self._stream: int | None = None
        # The driver wants the addresses of the parameters, each of which is an address or a tensor map.
        count, maps = len(kernel.parameters), len(kernel.tensor_maps)
        self._values = (ctypes.c_void_p * count)()
        self._maps = (ctypes.c_char * (_TENSOR_MAP_BYTES * maps))()
        self._mapped: list[int | None] = [None] * maps
        places = [ctypes.addressof(self._values) + ctypes.sizeof(ctypes.c_void_p) * number for number in range(count)]
        places += [ctypes.addressof(self._maps) + _TENSOR_MAP_BYTES * number for number in range(maps)]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self._pointers_at = ctypes.addressof(self._pointers)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        if stream != self._stream:
            self._config.hStream = self._driver.api.CUstream(stream)
            self._stream = stream
        self._values[:] = addresses
        for number, described in enumerate(self._kernel.tensor_maps):
            address = addresses[described.parameter]
            if address != self._mapped[number]:
                start = _TENSOR_MAP_BYTES * number
                self._maps[start : start + _TENSOR_MAP_BYTES] = self._driver.tensor_map(described, address)
                self._mapped[number] = address
        self._driver.call("cuLaunchKernelEx", self._config, self._function, self._pointers_at, 0)


class BindingsDriver:
    """The calls over `cuda.bindings.driver`.

    Raises:
        ResourceUnavailable: there is no driver, or no bindings to it.
    """

    _success: Any = None

    def __init__(self) -> None:
        try:
            self.api: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise ResourceUnavailable(f"the package cuda-bindings is not installed ({error})", help=INSTALL) from None
        try:
            self.call("cuInit", 0)
        except DriverFailure as error:
            raise ResourceUnavailable(f"NVIDIA's driver does not start: {error.message}", help=INSTALL) from None
        except Exception as error:  # the bindings have their own for a library that is not there
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ResourceUnavailable(f"NVIDIA's driver is not there: {reason}", help=INSTALL) from None
        self._success = self.api.CUresult.CUDA_SUCCESS
        self._contexts: dict[int, Any] = {}
        self._pools: dict[int, Any] = {}
        self._lock = Lock()

    def call(self, call: str, *arguments: object) -> Any:
        """The results of a call: nothing, one, or a tuple."""
        status, *results = getattr(self.api, call)(*arguments)
        if status is not self._success and status.value != 0:
            raise DriverFailure(call, status.name, self._text(status))
        return results[0] if len(results) == 1 else tuple(results)

    def _text(self, status: SupportsInt) -> str:
        _, text = self.api.cuGetErrorString(status)
        return text.decode() if text else f"number {int(status)}"

    def version(self) -> tuple[int, int]:
        number = int(self.call("cuDriverGetVersion"))
        return number // 1000, number % 1000 // 10

    def devices(self) -> Sequence[Device]:
        return [self._device(ordinal) for ordinal in range(self.call("cuDeviceGetCount"))]

    @functools.cache  # noqa: B019  there is one driver
    def _device(self, ordinal: int) -> Device:
        handle = self.call("cuDeviceGet", ordinal)
        name = self.call("cuDeviceGetName", _NAME_BYTES, handle).split(b"\0")[0].decode()
        return Device(
            ordinal,
            name,
            (self._attribute(handle, "COMPUTE_CAPABILITY_MAJOR"), self._attribute(handle, "COMPUTE_CAPABILITY_MINOR")),
            int(self.call("cuDeviceTotalMem", handle)),
            self._attribute(handle, "MULTIPROCESSOR_COUNT"),
            self._attribute(handle, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        )

    def _attribute(self, handle: object, name: str) -> int:
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", attribute, handle))

    def context(self, ordinal: int) -> contextlib.AbstractContextManager[None]:
        return _BindingsContext(self, self._contexts.get(ordinal) or self._open(ordinal))

    def _open(self, ordinal: int) -> Any:
        """The primary context, retained for as long as the process lives."""
        with self._lock:
            if ordinal not in self._contexts:
                handle = self.call("cuDeviceGet", ordinal)
                context = self.call("cuDevicePrimaryCtxRetain", handle)
                if self._attribute(handle, "MEMORY_POOLS_SUPPORTED"):
                    self._pools[int(context)] = self._new_pool(ordinal)
                self._contexts[ordinal] = context
            return self._contexts[ordinal]

    def _new_pool(self, ordinal: int) -> Any:
        """A pool of our own, which keeps what is freed: the device's default pool belongs to the whole process."""
        api = self.api
        properties = api.CUmemPoolProps()
        properties.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        pool = self.call("cuMemPoolCreate", properties)
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t(2**64 - 1))
        return pool

    def _pool(self) -> object:
        if len(self._contexts) == 1:  # the current one is it, inside `context`
            return next(iter(self._pools.values()), None)
        return self._pools.get(int(self.call("cuCtxGetCurrent")))

    def free_bytes(self) -> int:
        free, _ = self.call("cuMemGetInfo")
        return int(free)

    def device_of(self, address: int) -> int:
        attribute = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.call("cuPointerGetAttribute", attribute, address))

    def load_module(self, content: bytes) -> int:
        return int(self.call("cuModuleLoadData", content))

    def unload_module(self, module: int) -> None:
        self.call("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        return int(self.call("cuModuleGetFunction", module, name.encode()))

    def allow_shared_bytes(self, function: int, nbytes: int) -> None:
        attribute = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, attribute, nbytes)

    def blocks_at_a_time(self, function: int, threads: int, shared_bytes: int) -> int:
        return int(self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared_bytes))

    def launcher(self, function: int, kernel: Kernel) -> Launcher:
        return _BindingsLauncher(self, function, kernel)

    def launch_config(self, kernel: Kernel) -> Any:
        """The launch attributes of a kernel: all but its function, stream and parameters."""
        api = self.api
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = kernel.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
        config.sharedMemBytes = kernel.shared_bytes
        config.numAttrs = 0
        if kernel.cluster > 1:
            cluster = api.CUlaunchAttribute()
            cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x = kernel.cluster
            cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
            config.attrs, config.numAttrs = [cluster], 1
        return config

    def allocate(self, nbytes: int) -> int:
        return int(self._with_pool_emptied("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        self.call("cuMemFree", address)

    def allocate_on(self, nbytes: int, stream: int) -> int:
        pool = self._pool()
        if pool is None:
            return self.allocate(nbytes)
        return int(self._with_pool_emptied("cuMemAllocFromPoolAsync", nbytes, pool, stream))

    def free_on(self, address: int, stream: int) -> None:
        if self._pool() is None:
            self.synchronise(stream)
            self.free(address)
        else:
            self.call("cuMemFreeAsync", address, stream)

    def _with_pool_emptied(self, call: str, *arguments: object) -> Any:
        """An allocation, tried again without what the pool keeps where there is no memory."""
        try:
            return self.call(call, *arguments)
        except DriverFailure as error:
            pool = self._pool()
            if not error.out_of_memory or pool is None:
                raise
        self.synchronise_all()
        self.call("cuMemPoolTrimTo", pool, 0)
        return self.call(call, *arguments)

    def copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def copy_out(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.call("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def new_stream(self) -> int:
        return int(self.call("cuStreamCreate", self.api.CUstream_flags.CU_STREAM_NON_BLOCKING.value))

    def synchronise(self, stream: int) -> None:
        self.call("cuStreamSynchronize", stream)

    def synchronise_all(self) -> None:
        self.call("cuCtxSynchronize")

    def is_capturing(self, stream: int) -> bool:
        status = self.call("cuStreamIsCapturing", stream)
        return status != self.api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    def new_event(self, timed: bool = False) -> int:
        flags = self.api.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        return int(self.call("cuEventCreate", chosen.value))

    def close_event(self, event: int) -> None:
        self.call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self.call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.call("cuStreamWaitEvent", stream, event, 0)

    def elapsed_s(self, start: int, end: int) -> float:
        return float(self.call("cuEventElapsedTime", start, end)) * 1e-3

    def begin_capture(self, stream: int) -> None:
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = self.call("cuStreamEndCapture", stream)
        try:
            return int(self.call("cuGraphInstantiate", graph, 0))
        finally:
            self.call("cuGraphDestroy", graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        self.call("cuGraphLaunch", graph, stream)

    def close_graph(self, graph: int) -> None:
        self.call("cuGraphExecDestroy", graph)

    @functools.lru_cache(maxsize=1024)  # noqa: B019  there is one driver
    def tensor_map(self, described: TensorMap, address: int) -> bytes:
        """The tensor map of the array at an address."""
        api = self.api
        count, swizzle = len(described.shape), described.swizzle
        tensor_map = self.call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TENSOR_MAP_TYPES[described.dtype]}"),
            count,
            address,
            [api.cuuint64_t(extent) for extent in described.shape],
            [api.cuuint64_t(stride) for stride in described.strides],
            [api.cuuint32_t(extent) for extent in described.box],
            [api.cuuint32_t(1)] * count,
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
            # What is near in a line of the second-level cache comes with it: other blocks will want it.
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return b"".join(int(word).to_bytes(8, "little") for word in tensor_map.opaque)


@dataclass(frozen=True)
class Found:
    """The CUDA installation: the driver's CUDA version and the devices, or the reason that there are none."""

    version: str | None = None
    devices: Sequence[Device] = field(default_factory=tuple[Device, ...])
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return self.problem
        named = "; ".join(map(str, self.devices)) or "no device"
        return f"a driver for CUDA {self.version}, and {named}"


@functools.cache
def _bindings() -> Driver:
    return BindingsDriver()


_replacement: list[Driver] = []


def driver() -> Driver:
    """The driver of this process.

    Raises:
        ResourceUnavailable: there is none.
    """
    return _replacement[-1] if _replacement else _bindings()


@contextlib.contextmanager
def replaced(other: Driver) -> Generator[None]:
    """Use another driver inside, in all threads: an emulation, in tests."""
    _replacement.append(other)
    try:
        yield
    finally:
        _replacement.remove(other)


def found() -> Found:
    """The report of `tilewright doctor` on CUDA."""
    try:
        here = driver()
        major, minor = here.version()
        return Found(f"{major}.{minor}", tuple(here.devices()))
    except (ResourceUnavailable, DriverFailure) as error:
        return Found(problem=error.message)


def device_for(name: str, chip: str, ordinal: int | None = None) -> Device:
    """The device that a program for a chip runs on: the first that fits, or the one that its arguments are on.

    Raises:
        ResourceUnavailable: there is none; it states what was found.
    """
    seen = found()
    chosen = [device for device in seen.devices if ordinal is None or device.ordinal == ordinal]
    for device in chosen:
        if device.runs(chip):
            return device
    wanted = f"`{name}` is compiled for {chip}"
    if chosen:
        devices = "; ".join(map(str, chosen))
        raise ResourceUnavailable(
            f"{wanted}, which no device here is, but: {devices}",
            help="compile it for the target that `tilewright doctor` names",
        )
    help = INSTALL if seen.problem else "look at the devices with `nvidia-smi`, and at CUDA_VISIBLE_DEVICES"
    raise ResourceUnavailable(f"`{name}` needs an NVIDIA GPU ({chip}); found: {seen}", help=help)

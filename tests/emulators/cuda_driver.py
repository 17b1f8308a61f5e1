"""A driver without a GPU: device memory is NumPy's, kernels are PTX on the emulator, streams are queues of work.

What is put on a stream is done when somebody waits for it, or for what follows it, and not before: whoever reads too
early finds old contents. Two streams that touch one place without an event between them are an error, and so are
addresses outside of what is allocated, handles that are not there, and what a device does not let a kernel have.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import random
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tests.emulators.ptx.emulator import cluster_size, run
from tests.emulators.ptx.parser import Address, Register, Symbol, parse
from tests.emulators.ptx.tensor_maps import TensorMap
from tilewright import dtypes
from tilewright.runtime.cuda import steps as cuda_steps
from tilewright.runtime.cuda.driver import Device, DriverFailure, Launcher
from tilewright.runtime.cuda.steps import Kernel

H200 = Device(0, "Emulated H200", (9, 0), 1 << 30, 132, 232448)
A100 = Device(0, "Emulated A100", (8, 0), 1 << 30, 108, 166912)
LEGACY = 1
_USUAL_SHARED_BYTES = 48 * 1024
_ALIGNMENT_BYTES = 256
# What every launch may be given at most: an address is 8 bytes, parameters have 4 KiB on all chips.
_MOST_PARAMETERS = 512

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Clock = dict[int, int]


def tensor_maps(described: Sequence[cuda_steps.TensorMap], arrays: Sequence[np.ndarray[Any, Any]]) -> list[TensorMap]:
    """What cuTensorMapEncodeTiled makes of a kernel's arrays."""
    return [
        TensorMap(
            arrays[each.parameter].reshape(-1).view(dtypes.by_name(each.dtype).numpy),
            each.box,
            each.swizzle,
            dims=each.shape,
            strides=each.strides,
            rounds_to_tf32=each.dtype == "tf32",
        )
        for each in described
    ]


class Misuse(AssertionError):
    """Something that a real driver does not notice, or answers with undefined behaviour."""


@contextlib.contextmanager
def _no_garbage_collection() -> Generator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class Allocation:
    """Live memory from an address on. `stream` is where it was allocated, None for one that all streams may use."""

    address: int
    data: Bytes
    device: int
    stream: int | None
    # The last work that wrote a byte range, and those that read it since: stream and its number there.
    writes: list[tuple[int, int, int, int]] = field(default_factory=list)
    reads: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass
class Work:
    """Something on a stream, with the accesses (address, bytes, whether it writes) and what it waits for."""

    do: Callable[[], None]
    accesses: Sequence[tuple[int, int, bool]] = ()


class FakeStream:
    """Work that is not done yet; `clock` is what of each stream is known to be before what comes next here."""

    def __init__(self, number: int, device: int) -> None:
        self.number = number
        self.device = device
        self.pending: list[Callable[[], None]] = []
        self.clock: Clock = {number: 0}
        self.captured: list[tuple[str, Work]] | None = None


@dataclass
class FakeEvent:
    timed: bool
    clock: Clock | None = None
    stream: int = 0


class FakeDriver:
    """The calls of `cuda_driver.Driver`. `fail` makes the next call of a name fail with a status."""

    def __init__(self, *devices: Device, seed: int = 0) -> None:
        self._devices = devices or (H200,)
        self._order = random.Random(seed)
        self._numbers = itertools.count(100)
        # Addresses of different allocations are far apart: what misses one hits none.
        self._next_address = 1 << 33
        self._lock = threading.RLock()
        self._current = threading.local()
        self.allocations: dict[int, Allocation] = {}
        self.modules: dict[int, str] = {}
        self.functions: dict[int, tuple[int, str]] = {}
        self.allowed_shared: dict[int, int] = {}
        self.streams: dict[int, FakeStream] = {LEGACY: FakeStream(LEGACY, 0)}
        self.waited_for: Clock = {}
        self._spare: dict[tuple[int, int | None], list[int]] = {}
        self.events: dict[int, FakeEvent] = {}
        self.graphs: dict[int, list[tuple[str, Work]]] = {}
        self.calls: list[str] = []
        self.failures: dict[str, str] = {}
        self.misuses: list[str] = []

    # ---- for tests ------------------------------------------------------------------------------------------------

    def fail(self, call: str, status: str) -> None:
        self.failures[call] = status

    def count(self, call: str) -> int:
        return self.calls.count(call)

    def array(self, content: np.ndarray[Any, Any], device: int = 0) -> int:
        """The address of memory with these contents, as another library would have made it."""
        with self.context(device):
            address = self.allocate(max(1, content.nbytes))
        self.allocations[address].data[: content.nbytes] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        return address

    def contents(self, address: int, nbytes: int) -> Bytes:
        """What memory holds now, whatever is still to be done."""
        allocation, offset = self._inside(address, nbytes)
        return allocation.data[offset : offset + nbytes]

    def _misuse(self, text: str) -> Misuse:
        """An error that counts although a finaliser swallows it."""
        self.misuses.append(text)
        return Misuse(text)

    def check_nothing_left(self) -> None:
        """Everything that was allocated has been given back, and nothing was misused on the way."""
        if self.misuses:
            raise Misuse("; ".join(self.misuses))
        left = {
            name: len(found)
            for name in ("allocations", "modules", "events", "graphs")
            if (found := getattr(self, name))
        }
        if left:
            raise Misuse(f"not given back: {left}")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        status = self.failures.pop(call, None)
        if status is not None:
            raise DriverFailure(f"cu_{call}", status, "as the test wants it")

    def _device(self) -> int:
        stack = getattr(self._current, "stack", [])
        if not stack:
            raise DriverFailure("any call", "CUDA_ERROR_INVALID_CONTEXT", "no context is current")
        return stack[-1]

    def _stream(self, handle: int) -> FakeStream:
        found = self.streams.get(handle)
        if found is None:
            raise DriverFailure("a call", "CUDA_ERROR_INVALID_HANDLE", f"no stream {handle}")
        return found

    def _inside(self, address: int, nbytes: int) -> tuple[Allocation, int]:
        for allocation in self.allocations.values():
            offset = address - allocation.address
            if offset >= 0 and offset + nbytes <= allocation.data.size and offset < max(1, allocation.data.size):
                return allocation, offset
        raise DriverFailure("a call", "CUDA_ERROR_ILLEGAL_ADDRESS", f"{nbytes} bytes at {address:#x} are not allocated")

    def _put(self, name: str, handle: int, work: Work) -> None:
        """Put work on a stream; what of other streams it needs to follow must be before it."""
        with self._lock:
            stream = self._stream(handle)
            if stream.captured is not None:
                stream.captured.append((name, work))
                return
            self._device()
            stream.clock[stream.number] += 1
            for address, nbytes, is_write in work.accesses:
                self._note(stream, address, nbytes, is_write, name)
            stream.pending.append(work.do)

    def _note(self, stream: FakeStream, address: int, nbytes: int, is_write: bool, name: str) -> None:
        """Two accesses of one place, at least one of which writes, are ordered by their streams or by events."""
        if nbytes == 0:
            return
        allocation, start = self._inside(address, nbytes)
        end = start + nbytes
        others = [*allocation.writes, *(allocation.reads if is_write else ())]
        for first, last, number, time in others:
            if first < end and start < last and stream.clock.get(number, 0) < time:
                raise self._misuse(f"{name} on stream {stream.number} touches what stream {number} may still be using")
        known = allocation.writes if is_write else allocation.reads
        known[:] = [each for each in known if not (start <= each[0] and each[1] <= end and each[2] == stream.number)]
        known.append((start, end, stream.number, stream.clock[stream.number]))

    def _do(self, stream: FakeStream) -> None:
        """Do all that is on a stream. What it waits for is done first, as part of its pending work. The garbage
        collector waits: finalisers synchronise too, and would do what follows a kernel that is not over."""
        with _no_garbage_collection():
            while stream.pending:
                stream.pending.pop(0)()

    # ---- the calls ------------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        return 13, 0

    def devices(self) -> Sequence[Device]:
        return self._devices

    @contextlib.contextmanager
    def context(self, ordinal: int) -> Generator[None]:
        stack: list[int] = self._current.__dict__.setdefault("stack", [])
        stack.append(ordinal)
        try:
            yield
        finally:
            stack.pop()

    def free_bytes(self) -> int:
        device = self._device()
        used = sum(each.data.size for each in self.allocations.values() if each.device == device)
        return self._devices[device].memory_bytes - used

    def device_of(self, address: int) -> int:
        return self._inside(address, 0)[0].device

    def load_module(self, content: bytes) -> int:
        self._enter("load_module")
        self._device()
        number = next(self._numbers)
        self.modules[number] = content.decode()
        return number

    def unload_module(self, module: int) -> None:
        del self.modules[module]
        self.functions = {number: each for number, each in self.functions.items() if each[0] != module}

    def function(self, module: int, name: str) -> int:
        self._enter("function")
        if name not in parse(self.modules[module]).entries:
            raise DriverFailure("cu_function", "CUDA_ERROR_NOT_FOUND", f"no entry {name}")
        number = next(self._numbers)
        self.functions[number] = (module, name)
        return number

    def allow_shared_bytes(self, function: int, nbytes: int) -> None:
        if nbytes > self._devices[self._device()].shared_bytes:
            raise DriverFailure("cu_allow_shared_bytes", "CUDA_ERROR_INVALID_VALUE", f"{nbytes} bytes")
        self.allowed_shared[function] = nbytes

    def blocks_at_a_time(self, function: int, threads: int, shared_bytes: int) -> int:
        return 2048 // threads

    def launcher(self, function: int, kernel: Kernel) -> Launcher:
        return partial(self.launch, function, kernel)

    def launch(self, function: int, kernel: Kernel, addresses: Sequence[int], stream: int) -> None:
        self._enter("launch")
        module, name = self.functions[function]
        entry = parse(self.modules[module]).entries[name]
        given = len(addresses) + len(kernel.tensor_maps)
        if len(entry.parameters) != given:
            raise self._misuse(f"{name} takes {len(entry.parameters)} parameters, got {given}")
        wrong = kernel.blocks < 1 or not 1 <= kernel.threads <= 1024 or len(addresses) > _MOST_PARAMETERS
        if wrong or kernel.shared_bytes > self.allowed_shared.get(function, _USUAL_SHARED_BYTES):
            raise DriverFailure("cu_launch", "CUDA_ERROR_INVALID_VALUE", str(kernel))
        cluster = kernel.cluster if kernel.cluster > 1 else None
        try:
            cluster_size(entry, kernel.blocks, cluster)
        except ValueError as reason:
            raise DriverFailure("cu_launch", "CUDA_ERROR_INVALID_CLUSTER_SIZE", str(reason)) from None
        sizes = kernel.parameters
        for address, nbytes in zip(addresses, sizes, strict=True):
            if nbytes and address % 16:
                raise DriverFailure("cu_launch", "CUDA_ERROR_MISALIGNED_ADDRESS", f"{address:#x}")
        ptx, seed = self.modules[module], self._order.random()

        def do() -> None:
            arrays = [
                self.contents(a, n) if n else np.zeros(0, np.uint8) for a, n in zip(addresses, sizes, strict=True)
            ]
            blocks = random.Random(seed)
            maps = tensor_maps(kernel.tensor_maps, arrays)
            run(ptx, name, kernel.blocks, kernel.threads, [*arrays, *maps], kernel.shared_bytes, blocks, cluster)

        accesses = list(zip(addresses, sizes, _written(ptx, name)[: len(addresses)], strict=True))
        self._put(f"the kernel {name}", stream, Work(do, accesses))

    def allocate(self, nbytes: int) -> int:
        self._enter("allocate")
        return self._allocated(nbytes, None)

    def _allocated(self, nbytes: int, stream: int | None) -> int:
        with self._lock:
            if nbytes <= 0:
                raise DriverFailure("cu_allocate", "CUDA_ERROR_INVALID_VALUE", f"{nbytes} bytes")
            if nbytes > self.free_bytes():
                raise DriverFailure("cu_allocate", "CUDA_ERROR_OUT_OF_MEMORY", f"{nbytes} bytes")
            # A pool gives memory of the same stream again; what is not of a pool never comes twice.
            spare = self._spare.get((nbytes, stream), [])
            address = spare.pop() if spare else self._next_address
            self._next_address += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES + (1 << 20)
            data = np.full(nbytes, 0xA5, np.uint8)
            allocation = Allocation(address, data, self._device(), stream)
            if stream is not None:
                owner = self._stream(stream)
                owner.clock[stream] += 1
                owner.pending.append(lambda: None)
                allocation.writes.append((0, nbytes, stream, owner.clock[stream]))
            self.allocations[address] = allocation
            return address

    def free(self, address: int) -> None:
        self._enter("free")
        with self._lock:
            allocation = self.allocations.get(address)
            if allocation is None:
                raise DriverFailure("cu_free", "CUDA_ERROR_INVALID_VALUE", f"{address:#x} is not allocated")
            if any(stream.pending for stream in self.streams.values()):
                self._check_unused(allocation)
            del self.allocations[address]

    def _check_unused(self, allocation: Allocation) -> None:
        """All that uses the memory is done."""
        for stream in self.streams.values():
            done = stream.clock[stream.number] - len(stream.pending)
            for _, _, number, time in (*allocation.writes, *allocation.reads):
                if number == stream.number and time > done:
                    raise self._misuse(f"memory at {allocation.address:#x} is freed while stream {number} uses it")

    def allocate_on(self, nbytes: int, stream: int) -> int:
        self._enter("allocate_on")
        return self._allocated(nbytes, stream)

    def free_on(self, address: int, stream: int) -> None:
        self._enter("free_on")
        with self._lock:
            allocation = self.allocations.get(address)
            if allocation is None or allocation.stream is None:
                raise DriverFailure("cu_free_on", "CUDA_ERROR_INVALID_VALUE", f"{address:#x} is not of a pool")
            self._note(self._stream(stream), address, allocation.data.size, True, "giving memory back")
            # The memory stays as it is until the stream comes here; nobody is told of it any more.
            self._do_all()
            self._spare.setdefault((allocation.data.size, allocation.stream), []).append(address)
            del self.allocations[address]

    def copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter("copy_in")
        content = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(source), np.uint8).copy()

        def do() -> None:
            self.contents(target, nbytes)[:] = content

        self._put("a copy from the host", stream, Work(do, [(target, nbytes, True)]))

    def copy_out(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter("copy_out")
        place = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(target), np.uint8)

        def do() -> None:
            place[:] = self.contents(source, nbytes)

        self._put("a copy to the host", stream, Work(do, [(source, nbytes, False)]))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._enter("copy")

        def do() -> None:
            self.contents(target, nbytes)[:] = self.contents(source, nbytes).copy()

        self._put("a copy", stream, Work(do, [(source, nbytes, False), (target, nbytes, True)]))

    def new_stream(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self.streams[number] = FakeStream(number, self._device())
            self.streams[number].clock.update(self.waited_for)
            return number

    def synchronise(self, stream: int) -> None:
        self._enter("synchronise")
        with self._lock:
            found = self._stream(stream)
            self._do(found)
            self._seen_by_all(found)

    def _seen_by_all(self, stream: FakeStream) -> None:
        """The host has waited: what anybody puts on a stream from now on follows what was on this one."""
        for clock in (self.waited_for, *(other.clock for other in self.streams.values())):
            for number, time in stream.clock.items():
                clock[number] = max(time, clock.get(number, 0))

    def synchronise_all(self) -> None:
        self._enter("synchronise_all")
        self._do_all()

    def _do_all(self) -> None:
        with self._lock:
            for stream in self.streams.values():
                self._do(stream)
            for stream in self.streams.values():
                self._seen_by_all(stream)

    def is_capturing(self, stream: int) -> bool:
        return self._stream(stream).captured is not None

    def new_event(self, timed: bool = False) -> int:
        with self._lock:
            number = next(self._numbers)
            self.events[number] = FakeEvent(timed)
            return number

    def close_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        with self._lock:
            found = self._stream(stream)
            self.events[event].clock = dict(found.clock)
            self.events[event].stream = stream

    def wait(self, stream: int, event: int) -> None:
        with self._lock:
            recorded = self.events[event]
            if recorded.clock is None:
                return
            found, before = self._stream(stream), self._stream(recorded.stream)
            for number, time in recorded.clock.items():
                found.clock[number] = max(time, found.clock.get(number, 0))
            found.clock[stream] += 1
            found.pending.append(lambda: self._do(before))

    def elapsed_s(self, start: int, end: int) -> float:
        """A microsecond for each piece of work between two events of one stream."""
        first, last = self.events[start], self.events[end]
        if not (first.timed and last.timed) or first.clock is None or last.clock is None:
            raise DriverFailure("cu_elapsed_s", "CUDA_ERROR_INVALID_HANDLE", "an event that is not timed or recorded")
        stream = self._stream(last.stream)
        if last.clock[stream.number] > stream.clock[stream.number] - len(stream.pending):
            raise DriverFailure("cu_elapsed_s", "CUDA_ERROR_NOT_READY", "the second event is not over")
        return 1e-6 * (last.clock[stream.number] - first.clock[stream.number])

    def begin_capture(self, stream: int) -> None:
        self._enter("begin_capture")
        found = self._stream(stream)
        if stream == LEGACY or found.captured is not None:
            raise DriverFailure("cu_begin_capture", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", f"stream {stream}")
        found.captured = []

    def end_capture(self, stream: int) -> int:
        self._enter("end_capture")
        found = self._stream(stream)
        if found.captured is None:
            raise DriverFailure("cu_end_capture", "CUDA_ERROR_ILLEGAL_STATE", f"stream {stream}")
        number = next(self._numbers)
        self.graphs[number], found.captured = found.captured, None
        return number

    def launch_graph(self, graph: int, stream: int) -> None:
        self._enter("launch_graph")
        if self.is_capturing(stream):
            raise self._misuse("a graph is launched on a stream that is being captured")
        for name, work in self.graphs[graph]:
            self._put(name, stream, work)

    def close_graph(self, graph: int) -> None:
        del self.graphs[graph]


@lru_cache(maxsize=64)
def _written(ptx: str, name: str) -> tuple[bool, ...]:
    """Which parameters an entry may write through: those whose address comes to the address of a store."""
    entry = parse(ptx).entries[name]
    numbers = {parameter.name: number for number, parameter in enumerate(entry.parameters)}
    origins: dict[int, set[int]] = {}
    written: set[int] = set()
    while True:
        before = sum(map(len, origins.values())) + len(written)
        for instruction in entry.instructions:
            target, *sources = instruction.operands or (None,)
            kind = instruction.opcode.partition(".")[0]
            if kind in ("st", "red", "atom"):
                address = sources[0] if kind == "atom" else target
                written |= _origins(address, origins, numbers)
            if isinstance(target, Register) and not instruction.opcode.startswith(("ld.global", "ld.shared")):
                found = {origin for source in sources for origin in _origins(source, origins, numbers)}
                origins.setdefault(target.index, set()).update(found)
        if sum(map(len, origins.values())) + len(written) == before:
            return tuple(number in written for number in range(len(entry.parameters)))


def _origins(operand: Any, origins: dict[int, set[int]], numbers: dict[str, int]) -> set[int]:
    """The parameters that an operand comes from."""
    if isinstance(operand, Address):
        return _origins(operand.base, origins, numbers)
    if isinstance(operand, Register):
        return origins.get(operand.index, set())
    return {numbers[operand.name]} if isinstance(operand, Symbol) and operand.name in numbers else set()

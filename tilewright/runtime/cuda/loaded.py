"""A program on one device: its modules and constants, the memory of its calls, and the graphs of those.

A call leases a workspace: the arena, and room for arrays that come from the host. There are as many workspaces as
concurrent calls, so that several threads may call one program; each is kept. A call is captured into a CUDA graph when
its addresses occur a second time, and launched as one from then on. Calls on other addresses are launched kernel by
kernel: a graph is never changed.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from tilewright.errors import DeviceError, ResourceExhausted, TilewrightError
from tilewright.events import emit, listening
from tilewright.locks import Lock
from tilewright.options import current
from tilewright.runtime.abi import round_up
from tilewright.runtime.container import Bytes
from tilewright.runtime.cuda.driver import Device, Driver, DriverFailure, Launcher
from tilewright.runtime.cuda.steps import DeviceCode, Kernel
from tilewright.runtime.cuda.stream import Stream, capturing, own_stream
from tilewright.runtime.host_program import Copy, Launch, take
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.trace_file import add_launch
from tilewright.runtime.zones import Zones

# More dynamic shared memory than this must be asked for. CUDA C++ Programming Guide, "Shared Memory" of 8.x and 9.0.
_USUAL_SHARED_BYTES = 48 * 1024
_MOST_GRAPHS = 8
_STAGING_ALIGNMENT_BYTES = 256
_LAUNCHES_LEVEL = 2
"""The level of the `debug` ladder that times kernels one by one."""


class Workspace:
    """Memory of one call at a time: `staging` is 0 until a call wants it. `graphs` are those of the calls with each
    addresses, the latest last, or None where there was one such call. `launchers` are those of the kernels."""

    def __init__(self, arena: int) -> None:
        self.arena = arena
        self.staging = 0
        self.launchers: dict[int, Launcher] = {}
        self.event = 0
        self.stream: Stream | None = None
        self.graphs: OrderedDict[tuple[int, ...], int | None] = OrderedDict()


class _OnStream:
    """The steps of a call, on a stream. The host waits for the conditions that it reads."""

    __slots__ = ("_buffers", "_loaded", "_stream", "_workspace")

    def __init__(self, loaded: Loaded, buffers: Sequence[int], workspace: Workspace, stream: int) -> None:
        self._loaded, self._buffers, self._workspace, self._stream = loaded, buffers, workspace, stream

    def launch(self, step: Launch) -> None:
        self._loaded.launch_kernel(step, self._buffers, self._workspace, self._stream)

    def copy(self, step: Copy) -> None:
        with self._loaded.naming("a copy"):
            target, source = self._buffers[step.target], self._buffers[step.source]
            self._loaded.driver.copy(target, source, step.nbytes, self._stream)

    def is_set(self, flag: int) -> bool:
        found, driver = np.empty(1, np.uint8), self._loaded.driver
        with self._loaded.naming("a condition or a kernel before it"):
            driver.copy_out(found.ctypes.data, self._buffers[flag], 1, self._stream)
            driver.synchronise(self._stream)
        return bool(found[0])


class Loaded:
    """A program's code and constants on a device, whose context is current in all calls but `close`.

    Raises:
        ResourceExhausted: the device cannot have the memory for the constants and one call.
    """

    def __init__(self, manifest: Manifest, code: DeviceCode, driver: Driver, device: Device) -> None:
        self.manifest = manifest
        self.code = code
        self.driver = driver
        self.device = device
        self._lock = Lock()
        self._idle: list[Workspace] = []
        self._every: list[Workspace] = []
        self._modules: list[int] = []
        self._functions: list[int] = []
        self._constants: tuple[int, ...] = ()
        self._constants_at = 0
        self._places, self.staging_bytes = staging_places(manifest)
        self._check_size()
        # A graph of one launch costs more than the launch; what the host decides or reads is in none.
        self._makes_graphs = len(code.steps) > 1 and not code.reads_on_host and not code.records_zones

    def _check_size(self) -> None:
        needed = self.code.arena_bytes + sum(constant.nbytes for constant in self.manifest.constants)
        if needed > self.device.memory_bytes:
            raise self.no_memory(f"it has {self.device.memory_bytes} bytes")
        for kernel in self.code.kernels:
            if kernel.shared_bytes > self.device.shared_bytes:
                raise ResourceExhausted(
                    f"the kernel `{kernel.name}` of `{self.manifest.name}` needs {kernel.shared_bytes} bytes of shared "
                    f"memory, of which {self.device} gives a block {self.device.shared_bytes}",
                    help="compile it for this device's chip",
                )

    def load(self, modules: Sequence[bytes]) -> None:
        """Load the kernels' machine code.

        Raises:
            DeviceError: the driver does not take a kernel.
        """
        for kernel, content in zip(self.code.kernels, modules, strict=True):
            self._functions.append(self._load(kernel, content))

    def _load(self, kernel: Kernel, content: bytes) -> int:
        with self.naming(f"the kernel `{kernel.name}`"):
            module = self.driver.load_module(content)
            self._modules.append(module)
            function = self.driver.function(module, kernel.name)
            if kernel.shared_bytes > _USUAL_SHARED_BYTES:
                self.driver.allow_shared_bytes(function, kernel.shared_bytes)
        return function

    def upload(self, constants: Sequence[Bytes]) -> None:
        """Copy the constants to the device.

        Raises:
            ResourceExhausted: it has not the memory for them.
        """
        offsets: list[int] = []
        end = 0
        for content in constants:
            offsets.append(end)
            end = round_up(end + len(content))
        stream = own_stream(self.driver, self.device.ordinal).handle
        if end:
            self._constants_at = self._allocated(end)
        for offset, content in zip(offsets, constants, strict=True):
            if len(content):
                self.driver.copy_in(self._constants_at + offset, content.ctypes.data, len(content), stream)
        self.driver.synchronise(stream)
        self._constants = tuple(self._constants_at + offset for offset in offsets)

    # ---- memory ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lease(self, stream: Stream) -> Generator[Workspace]:
        """A workspace for exclusive use by the following work on a stream.

        Raises:
            ResourceExhausted: there is no memory for one.
        """
        with self._lock:
            workspace = self._idle.pop() if self._idle else None
        if workspace is None:
            workspace = Workspace(self._allocated(self.code.arena_bytes) if self.code.arena_bytes else 0)
            with self._lock:
                self._every.append(workspace)
        try:
            if workspace.stream is not None and workspace.stream.handle != stream.handle:
                self.driver.wait(stream.handle, workspace.event)
            yield workspace
        except BaseException:
            # Kernels of this call may still use the workspace.
            with contextlib.suppress(TilewrightError):
                self.driver.synchronise_all()
            workspace.stream = None
            raise
        finally:
            with self._lock:
                self._idle.append(workspace)

    def leave_running(self, workspace: Workspace, stream: Stream) -> None:
        """The call returns before it is done: the workspace's next user waits for it, on another stream."""
        if not workspace.arena and not workspace.staging:
            return
        workspace.event = workspace.event or self.driver.new_event()
        self.driver.record(workspace.event, stream.handle)
        workspace.stream = stream

    def staged(self, workspace: Workspace, number: int) -> int:
        """The address of an input or output in staging memory, by its index."""
        if not workspace.staging:
            workspace.staging = self._allocated(self.staging_bytes)
        return workspace.staging + self._places[number]

    def _allocated(self, nbytes: int) -> int:
        try:
            return self.driver.allocate(nbytes)
        except DriverFailure as error:
            raise self.memory_error(error) from None

    def memory_error(self, error: DriverFailure) -> TilewrightError:
        """The error for a failed allocation."""
        if not error.out_of_memory:
            return error
        return self.no_memory(f"{self.driver.free_bytes()} of its {self.device.memory_bytes} bytes are free")

    def no_memory(self, reason: str) -> ResourceExhausted:
        """The error for missing memory."""
        manifest = self.manifest
        arrays = sum(spec.nbytes for spec in (*manifest.inputs, *manifest.outputs))
        constants = sum(constant.nbytes for constant in manifest.constants)
        return ResourceExhausted(
            manifest.with_report(
                f"`{manifest.name}` needs {self.code.arena_bytes} bytes of work memory, {constants} bytes of constants "
                f"and {arrays} bytes of inputs and outputs on cuda:{self.device}: {reason}",
            ),
            help="use smaller arrays, donate inputs, pass arrays that are on the device already, or free memory there",
        )

    # ---- running --------------------------------------------------------------------------------------------------

    def run(self, workspace: Workspace, arrays: tuple[int, ...], stream: Stream) -> None:
        """Launch the program on the addresses of its inputs and outputs.

        Raises:
            DeviceError: a launch fails, or a kernel did while the host waited for what it computes.
        """
        buffers = (*arrays, *self._constants, *(workspace.arena + slot.offset for slot in self.code.arena))
        if self._makes_graphs and not listening(_LAUNCHES_LEVEL):
            graph = self._graph(workspace, arrays, buffers)
            if graph is not None:
                with self.naming("the graph"):
                    self.driver.launch_graph(graph, stream.handle)
                return
        take(self.code.steps, _OnStream(self, buffers, workspace, stream.handle))

    def launch(self, arrays: tuple[int, ...], stream: Stream) -> None:
        """Launch the program on the addresses of its inputs and outputs, and leave it running.

        Raises:
            ResourceExhausted: there is no memory for a workspace.
            DeviceError: a launch fails.
        """
        with self.lease(stream) as workspace:
            self.run(workspace, arrays, stream)
            self.leave_running(workspace, stream)

    def finish(self, workspace: Workspace, stream: Stream) -> None:
        """Wait for what was launched on a stream; nothing uses the workspace any more.

        Raises:
            DeviceError: a kernel failed.
        """
        names = ", ".join(f"`{kernel.name}`" for kernel in self.code.kernels[:4])
        more = len(self.code.kernels) - 4
        with self.naming(f"one of the kernels {names}" + (f" and {more} more" if more > 0 else "")):
            self.driver.synchronise(stream.handle)
        workspace.stream = None

    def _graph(self, workspace: Workspace, arrays: tuple[int, ...], buffers: Sequence[int]) -> int | None:
        """The graph of a call on these addresses, captured when they come the second time."""
        graphs = workspace.graphs
        known = arrays in graphs
        graph = graphs.pop(arrays, None)
        if known and graph is None:
            # The caller's stream may be one that cannot be captured, and nothing of it is wanted here.
            graph = self._captured(buffers, workspace)
            emit("runtime.graph", level=_LAUNCHES_LEVEL, name=self.manifest.name, steps=len(self.code.steps))
        graphs[arrays] = graph
        if len(graphs) > _MOST_GRAPHS:
            _, oldest = graphs.popitem(last=False)
            if oldest is not None:
                self.driver.close_graph(oldest)
        return graph

    def _captured(self, buffers: Sequence[int], workspace: Workspace) -> int:
        stream = own_stream(self.driver, self.device.ordinal).handle
        with capturing(), self.naming("capturing the launches"):
            self.driver.begin_capture(stream)
            try:
                take(self.code.steps, _OnStream(self, buffers, workspace, stream))
            except BaseException:
                with contextlib.suppress(TilewrightError):
                    self.driver.close_graph(self.driver.end_capture(stream))
                raise
            return self.driver.end_capture(stream)

    def launch_kernel(self, step: Launch, buffers: Sequence[int], workspace: Workspace, stream: int) -> None:
        """Launch the kernel of a step.

        Raises:
            DeviceError: the launch fails.
        """
        kernel = self.code.kernels[step.kernel]
        addresses = [buffers[number] for number in step.buffers]
        launch = workspace.launchers.get(step.kernel)
        if launch is None:
            launch = self.driver.launcher(self._functions[step.kernel], kernel)
            workspace.launchers[step.kernel] = launch
        try:
            if listening(_LAUNCHES_LEVEL):
                self._launch_timed(kernel, launch, addresses, stream)
            else:
                launch(addresses, stream)
            if kernel.zones is not None and (path := current().trace_file) is not None:
                self._trace(kernel, kernel.zones, path, addresses[-1], stream)
        except DriverFailure as error:
            raise self._named(f"the kernel `{kernel.name}`", error) from None

    def _trace(self, kernel: Kernel, zones: Zones, path: Path, address: int, stream: int) -> None:
        """Wait for a kernel, and write down what it recorded."""
        records = np.empty(zones.nbytes(kernel.blocks) // 8, np.int64)
        self.driver.copy_out(records.ctypes.data, address, records.nbytes, stream)
        self.driver.synchronise(stream)
        ordinal = self.device.ordinal
        add_launch(path, (ordinal, f"cuda:{ordinal} {self.device.name}"), kernel.name, zones, records)

    def _launch_timed(self, kernel: Kernel, launch: Launcher, addresses: Sequence[int], stream: int) -> None:
        """Launch a kernel and wait for it, so that what fails is known."""
        driver = self.driver
        start, end = driver.new_event(timed=True), driver.new_event(timed=True)
        driver.record(start, stream)
        launch(addresses, stream)
        driver.record(end, stream)
        driver.synchronise(stream)
        seconds = driver.elapsed_s(start, end)
        driver.close_event(start)
        driver.close_event(end)
        emit(
            "runtime.kernel",
            level=_LAUNCHES_LEVEL,
            name=kernel.name,
            program=self.manifest.name,
            blocks=kernel.blocks,
            threads=kernel.threads,
            seconds=seconds,
        )

    @contextlib.contextmanager
    def naming(self, what: str) -> Generator[None]:
        """Raise failures of the driver inside as errors of what fails."""
        try:
            yield
        except DriverFailure as error:
            raise self._named(what, error) from None

    def _named(self, what: str, error: DriverFailure) -> DeviceError:
        message = f"{what} of `{self.manifest.name}` on cuda:{self.device}: {error.message}"
        return DeviceError(message, help=error.help)

    def close(self) -> None:
        """Give everything back; no call is under way."""
        driver = self.driver
        with contextlib.suppress(TilewrightError), driver.context(self.device.ordinal):
            driver.synchronise_all()
            for workspace in self._every:
                for graph in workspace.graphs.values():
                    if graph is not None:
                        driver.close_graph(graph)
                if workspace.event:
                    driver.close_event(workspace.event)
                for address in (workspace.arena, workspace.staging):
                    if address:
                        driver.free(address)
            if self._constants_at:
                driver.free(self._constants_at)
            for module in self._modules:
                driver.unload_module(module)
        self._every, self._idle, self._modules, self._constants_at = [], [], [], 0


def staging_places(manifest: Manifest) -> tuple[tuple[int, ...], int]:
    """Offsets of the inputs and outputs in staging memory, which those that are not used in place are copied through,
    and the bytes of all. A donated input and its output share memory."""
    sources = {alias.output: alias.input for alias in manifest.aliases}
    places: list[int] = []
    end = 0
    for number, spec in enumerate((*manifest.inputs, *manifest.outputs)):
        source = sources.get(number - len(manifest.inputs))
        if source is not None:
            places.append(places[source])
            continue
        places.append(end)
        end += max(1, -(-spec.nbytes // _STAGING_ALIGNMENT_BYTES)) * _STAGING_ALIGNMENT_BYTES
    return tuple(places), end

"""A program for a GPU: call it with arrays of the host or of the device, save it, load it where there is no compiler.

    program = load("attention.twp")
    out = program(q, k, v)

Nothing of a GPU is needed to make, load or save one; the first call looks for a device that it fits. Arrays on a device
are used in place; NumPy arrays are copied there and back.

If all arrays are on the device and the stream is the caller's (`tw.stream`, the argument `stream`, or the current one
of torch or CuPy), a call returns as soon as its kernels are launched. Every other call is done when it returns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import by_name
from tilewright.errors import (
    ArgumentError,
    CompilerBug,
    ResourceUnavailable,
    TilewrightError,
    UnsupportedOnTargetError,
    user_location,
)
from tilewright.events import capturing, emit, listening
from tilewright.locks import Lock
from tilewright.options import Options, current
from tilewright.runtime.arguments import (
    Bounds,
    check_array,
    check_count,
    check_host_output,
    check_overlap,
    host_bounds,
    listed_outputs,
)
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.array import DeviceArray, Memory, device_of, library_stream, on_device
from tilewright.runtime.cuda.driver import DriverFailure
from tilewright.runtime.cuda.loaded import Loaded, Workspace
from tilewright.runtime.cuda.plain_call import PlainCall, is_plain
from tilewright.runtime.cuda.steps import ALIGNMENT_BYTES, DeviceCode
from tilewright.runtime.cuda.stream import Stream, chosen_stream, own_stream, stream_of, when_not_capturing
from tilewright.runtime.manifest import ArraySpec, split_objects
from tilewright.runtime.program_file import UNSETTLED, Array, ProgramFile, Settled

Given = Array | DeviceArray

_NOT_PLAIN: tuple[Options | None, PlainCall | None] = (None, None)


class DeviceProgram(ProgramFile):
    """Kernels with their manifest and constants. Programs are re-entrant: several threads may call one."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.manifest.device is None:
            raise CompilerBug(f"the manifest of `{self.manifest.name}` declares no device")
        self._code: DeviceCode = self.manifest.device
        self._loaded: dict[tuple[cuda_driver.Driver, int | None], Loaded] = {}
        self._lock = Lock()
        # What plain calls under these options use, with results of ours.
        self._plain: tuple[Options, PlainCall] | None = None

    def __del__(self) -> None:
        # At the interpreter's exit the driver may be gone, and all memory with it.
        with contextlib.suppress(AttributeError, TypeError):
            for loaded in {id(each): each for each in self._loaded.values()}.values():
                when_not_capturing(loaded.close)

    def __call__(self, *arrays: Any, out: object = None, stream: object = None) -> Any:
        """Run on the inputs in the manifest's order; return the output, or a tuple unless there is exactly one.

        Results are `DeviceArray`s where an array of the call is on a device, NumPy arrays otherwise. `out` is an array
        to write to, or a sequence of them for several outputs; it is returned. A donated input that can be written
        becomes the output. `stream` is a stream to launch on; by default that of `tw.stream`, then the current stream
        of the library of the first array that is on a device, then one of our own.

        Raises:
            ArgumentError: a wrong number of arrays, an `out` that cannot be written, or no stream.
            DTypeError, ShapeError: an array is not what the manifest states.
            UnsupportedOnTargetError: an array on the device is not contiguous, or the stream is being captured.
            OverlapError: an array that is written overlaps another one.
            ResourceUnavailable: there is no device that the program fits; it states what was found.
            ResourceExhausted: the device has not the memory for the call; nothing has run.
            ProgramFileError: the file's constants are damaged; they are checked at the first call.
            DeviceError: the driver or a kernel failed.
        """
        try:
            check_count(self.manifest, arrays)
            given = [] if out is None else listed_outputs(self.manifest, out)
            options, plain = self._plain or _NOT_PLAIN
            if stream is None and options is current() and not capturing() and plain is not None:
                results = plain.run(arrays, given)
                if results is not None:
                    return results[0] if len(results) == 1 else tuple(results)
            result = self._call(arrays, given, stream)
            self._plain = self._settle(arrays, given, restores=False)
            return result
        except TilewrightError as error:
            error.location = error.location or user_location()
            raise

    @property
    def settled(self) -> Settled:
        """The function that serves plain calls on arrays of the host without this class: none does."""
        return UNSETTLED

    def settled_on_device(self, arrays: Sequence[object], outputs: Sequence[object] = ()) -> Settled:
        """The function that serves plain calls on arrays such as these of a call that was made, with results of the
        kind of the first."""
        found = self._settle(arrays, outputs, restores=True)
        if found is None:
            return UNSETTLED
        return found

    def _settle(
        self, arrays: Sequence[object], outputs: Sequence[object], *, restores: bool
    ) -> tuple[Options, PlainCall] | None:
        """The plain call on arrays such as these, and the options under which it is one."""
        options = current()
        if options.memory_limit_bytes or listening(2):
            return None
        ordinal = self._ordinal_of([*arrays, *outputs])
        if ordinal is None or not is_plain(loaded := self._on(ordinal), [*arrays, *outputs]):
            return None
        # The program's own one must not keep it.
        program = self if restores else None
        plain = PlainCall(loaded, arrays, outputs, restores=restores, program=program)
        return (options, plain) if plain.serves(arrays, outputs) else None

    def _call(self, arrays: Sequence[object], given: Sequence[object], stream: object) -> Any:
        start = time.perf_counter()
        ordinal = self._ordinal_of([*arrays, *given])
        loaded = self._on(ordinal)
        with loaded.driver.context(loaded.device.ordinal):
            chosen = _stream_for(stream, [*arrays, *given]) or own_stream(loaded.driver, loaded.device.ordinal)
            if not chosen.is_own and loaded.driver.is_capturing(chosen.handle):
                raise UnsupportedOnTargetError(
                    f"`{self.manifest.name}` is called on a stream that is being captured",
                    help="call it before or after: it makes a CUDA graph of its own",
                )
            results = _Call(loaded, chosen, ordinal is not None).run(arrays, given)
        emit("runtime.launch", level=2, name=self.manifest.name, seconds=time.perf_counter() - start)
        return results[0] if len(results) == 1 else tuple(results)

    def _ordinal_of(self, arrays: Sequence[object]) -> int | None:
        """The device that arrays are on; None where all are on the host.

        Raises:
            ArgumentError: they are on several.
        """
        found = {ordinal for array in arrays if (ordinal := device_of(array)) is not None}
        if len(found) > 1:
            raise ArgumentError(
                f"the arrays of `{self.manifest.name}` are on several devices: "
                + ", ".join(f"cuda:{ordinal}" for ordinal in sorted(found)),
                help="copy them to one device",
            )
        return found.pop() if found else None

    def _on(self, ordinal: int | None) -> Loaded:
        """The program on a device; by default on the first that it fits."""
        with contextlib.suppress(ResourceUnavailable):
            found = self._loaded.get((cuda_driver.driver(), ordinal))
            if found is not None:
                return found
        device = cuda_driver.device_for(self.manifest.name, self._code.chip, ordinal)
        driver = cuda_driver.driver()
        with self._lock:
            found = self._loaded.get((driver, device.ordinal))
            if found is None:
                self.verify()
                found = self._load(driver, device)
            self._loaded[driver, device.ordinal] = self._loaded[driver, ordinal] = found
        return found

    def _load(self, driver: cuda_driver.Driver, device: cuda_driver.Device) -> Loaded:
        start = time.perf_counter()
        modules = split_objects(self.manifest, self._object_bytes) if self._code.kernels else []
        with driver.context(device.ordinal):
            loaded = Loaded(self.manifest, self._code, driver, device)
            try:
                loaded.load(modules)
                loaded.upload(self._constants)
            except BaseException:
                loaded.close()
                raise
        emit("runtime.bind", name=self.manifest.name, device=str(device), seconds=time.perf_counter() - start)
        return loaded


def _stream_for(asked: object, arrays: Sequence[object]) -> Stream | None:
    if asked is not None:
        return stream_of(asked)
    return chosen_stream() or next(filter(None, map(library_stream, arrays)), None)


@dataclass(frozen=True)
class _Buffer:
    """The device memory of an input or output. It is copied from `source` first, and to `target` in the end."""

    address: int
    source: Given | None = None
    target: Given | None = None


class _Call:
    """One call on a stream, in the device's context."""

    def __init__(self, loaded: Loaded, stream: Stream, results_on_device: bool) -> None:
        self._loaded = loaded
        self._driver = loaded.driver
        self._manifest = loaded.manifest
        self._stream = stream
        self._results_on_device = results_on_device
        self._sources = {alias.output: alias.input for alias in loaded.manifest.aliases}

    def run(self, arrays: Sequence[object], given: Sequence[object]) -> list[Any]:
        """The results: what is given for them, as it is."""
        manifest = self._manifest
        inputs = [self._input(spec, value) for spec, value in zip(manifest.inputs, arrays, strict=True)]
        wanted = given or [None] * len(manifest.outputs)
        self._check_limit(inputs)
        written = [self._output(number, value, inputs) for number, value in enumerate(wanted)]
        check_overlap(manifest, inputs, written, _bounds, in_place=not given)
        is_async = not self._stream.is_own and not any(isinstance(each, np.ndarray) for each in (*inputs, *written))
        with self._loaded.lease(self._stream) as workspace:
            self._launch(workspace, self._buffers(workspace, inputs, written))
            if is_async:
                self._loaded.leave_running(workspace, self._stream)
            else:
                self._loaded.finish(workspace, self._stream)
        for array in written:
            if isinstance(array, DeviceArray):
                array.stream = self._stream if is_async else None
        return [self._result(value, array) for value, array in zip(wanted, written, strict=True)]

    def _launch(self, workspace: Workspace, buffers: Sequence[_Buffer]) -> None:
        stream = self._stream.handle
        for buffer in buffers:
            if isinstance(buffer.source, DeviceArray):
                self._driver.copy(buffer.address, buffer.source.address, buffer.source.nbytes, stream)
            elif buffer.source is not None:
                self._driver.copy_in(buffer.address, buffer.source.ctypes.data, buffer.source.nbytes, stream)
        self._loaded.run(workspace, tuple(buffer.address for buffer in buffers), self._stream)
        for buffer in buffers:
            if isinstance(buffer.target, DeviceArray):
                self._driver.copy(buffer.target.address, buffer.address, buffer.target.nbytes, stream)
            elif buffer.target is not None:
                self._driver.copy_out(buffer.target.ctypes.data, buffer.address, buffer.target.nbytes, stream)

    def _input(self, spec: ArraySpec, value: object) -> Given:
        array = self._array(value, may_copy=True)
        check_array(self._manifest, spec, array)
        return array if isinstance(array, DeviceArray) or is_direct(array) else np.array(array, order="C")

    def _array(self, value: object, may_copy: bool = False) -> Given:
        if device_of(value) is None:
            return np.asarray(value)
        return on_device(value, self._loaded.device.ordinal, self._stream, may_copy=may_copy)

    def _output(self, number: int, value: object, inputs: list[Given]) -> Given:
        """The array to write; a donated input's memory where it can be written."""
        spec, source = self._manifest.outputs[number], self._sources.get(number)
        if value is not None:
            return self._given_output(spec, value)
        if source is not None and _is_writeable(inputs[source]):
            return inputs[source]
        if self._results_on_device:
            return self._new_array(spec)
        return np.empty(spec.shape, by_name(spec.dtype).numpy)

    def _given_output(self, spec: ArraySpec, value: object) -> Given:
        array = self._array(value)
        if isinstance(array, DeviceArray):
            if array.readonly:
                raise ArgumentError(
                    f"`out` for `{spec.name}` of `{self._manifest.name}` is read-only", help="pass an array of your own"
                )
            check_array(self._manifest, spec, array)
            return array
        check_host_output(self._manifest, spec, value)
        return array if is_direct(array) else np.empty(spec.shape, array.dtype)

    def _new_array(self, spec: ArraySpec) -> DeviceArray:
        ordinal = self._loaded.device.ordinal
        try:
            memory = Memory(self._driver, ordinal, spec.nbytes, self._stream)
        except DriverFailure as error:
            raise self._loaded.memory_error(error) from None
        return DeviceArray(memory.address, spec.shape, by_name(spec.dtype).numpy, ordinal, memory)

    def _result(self, value: Any, written: Given) -> Any:
        if value is None:
            return written
        if isinstance(written, np.ndarray) and written is not value:
            np.copyto(value, written)
        return value

    def _check_limit(self, inputs: Sequence[Given]) -> None:
        limit_bytes = current().memory_limit_bytes
        new_bytes = self._manifest.new_output_bytes
        if any(isinstance(array, np.ndarray) for array in inputs):
            new_bytes = self._loaded.staging_bytes
        if limit_bytes and self._loaded.code.arena_bytes + new_bytes > limit_bytes:
            raise self._loaded.no_memory(f"`memory_limit_bytes` is {limit_bytes}")

    def _buffers(self, workspace: Workspace, inputs: Sequence[Given], written: Sequence[Given]) -> list[_Buffer]:
        """One for each input and then each output."""
        places = [self._input_buffer(workspace, number, array) for number, array in enumerate(inputs)]
        results: list[_Buffer] = []
        for number, array in enumerate(written):
            source = self._sources.get(number)
            address = self._own_address(array)
            if source is None:
                place = self._staged(workspace, len(inputs) + number) if address is None else address
                results.append(_Buffer(place, target=array if address is None else None))
                continue
            # The kernels have one buffer for both, whose contents come from the input and go to the output.
            shared = self._staged(workspace, source) if address is None else address
            already = self._own_address(inputs[source]) == shared
            places[source] = _Buffer(shared, source=None if already else inputs[source])
            results.append(_Buffer(shared, target=array if address is None else None))
        return [*places, *results]

    def _input_buffer(self, workspace: Workspace, number: int, array: Given) -> _Buffer:
        address = self._own_address(array)
        return _Buffer(self._staged(workspace, number), source=array) if address is None else _Buffer(address)

    def _staged(self, workspace: Workspace, number: int) -> int:
        return self._loaded.staged(workspace, number)

    @staticmethod
    def _own_address(array: Given) -> int | None:
        """The address of an array that kernels can use in place: one on the device with the alignment that kernels
        require; else None."""
        if array.nbytes == 0:
            return 0
        if isinstance(array, DeviceArray) and array.address % ALIGNMENT_BYTES == 0:
            return array.address
        return None


def is_direct(array: Array) -> bool:
    """Whether an array of the host can be copied as one block."""
    return array.flags.c_contiguous and array.flags.aligned


def _is_writeable(array: Given) -> bool:
    if isinstance(array, DeviceArray):
        return not array.readonly
    return array.flags.writeable and is_direct(array)


def _bounds(array: Given) -> Bounds:
    if isinstance(array, DeviceArray):
        return f"cuda:{array.device}", array.address, array.address + array.nbytes
    return host_bounds(array)

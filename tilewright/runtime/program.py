"""A compiled program: call it with arrays, save it, load it where there is no compiler.

    program = load("attention.twp")
    out = program(q, k, v)

A call with exact arrays (`numpy.ndarray` of the right dtype and shape, contiguous) goes through a native function in a
fraction of a microsecond. Everything else goes the slow way in Python, which copies what must be copied and states what
is wrong with the rest.
"""

from __future__ import annotations

import ctypes
import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from tilewright.dtypes import by_name
from tilewright.errors import ArgumentError, CpuFeatureError, TilewrightError, user_location
from tilewright.events import capturing, emit, listening
from tilewright.locks import Lock
from tilewright.options import Options, current
from tilewright.runtime import container
from tilewright.runtime.abi import MAX_THREADS
from tilewright.runtime.arguments import (
    check_array,
    check_count,
    check_host_output,
    check_overlap,
    host_bounds,
    listed_outputs,
)
from tilewright.runtime.container import Find
from tilewright.runtime.cpu import elf, library_functions
from tilewright.runtime.cpu import features as cpu_features
from tilewright.runtime.cpu.native import MISMATCH, Binding, memory_error
from tilewright.runtime.cpu.pool import load_support
from tilewright.runtime.files import checked_path
from tilewright.runtime.manifest import ArraySpec, Manifest, Place, split_objects
from tilewright.runtime.program_file import UNSETTLED, Array, Buffer, ProgramFile, Settled

if TYPE_CHECKING:
    from tilewright.runtime.cuda.program import DeviceProgram
    from tilewright.runtime.grid.program import GridFile

__all__ = ["MISMATCH", "AnyProgram", "Manifest", "Program", "load"]

AnyProgram: TypeAlias = Union["Program", "DeviceProgram", "GridFile"]


class Program(ProgramFile):
    """Native code with its manifest and constants. Programs are re-entrant: several threads may call one.

    Raises:
        CpuFeatureError: this machine lacks the architecture or a feature that the program needs.
        ResourceUnavailable: a library that it calls is not installed.
        CompilerBug: the manifest contradicts itself or the constants.
    """

    def __init__(
        self,
        manifest: Manifest,
        object_bytes: bytes,
        support_bytes: bytes,
        constants: Sequence[Buffer] = (),
        verify_constants: Callable[[], None] | None = None,
        elsewhere: Sequence[Place] = (),
    ) -> None:
        super().__init__(manifest, object_bytes, support_bytes, constants, verify_constants, elsewhere)
        _check_machine(manifest)
        library_functions.check(manifest.library_functions)
        self._inputs = len(manifest.inputs)
        self._library: elf.Library | None = None
        self._bindings: dict[int, Binding] = {}
        self._lock = Lock()
        # What plain calls with the same options use: nothing to look up, to limit or to report.
        self._settled: Settled = UNSETTLED

    def __call__(self, *arrays: Any, out: object = None, threads: int | None = None) -> Any:
        """Run on the inputs in the manifest's order; return the output, or a tuple unless there is exactly one.

        `out` is an array to write to, or a sequence of them for several outputs; it is returned. `threads` is 1 to 256,
        by default the option `threads`. A donated input that is a contiguous writeable array becomes the output.

        Raises:
            ArgumentError: a wrong number of arrays, an `out` that cannot be written, or a wrong number of threads.
            DTypeError, ShapeError: an array is not what the manifest states.
            OverlapError: an array that is written overlaps another one.
            ResourceExhausted: the call cannot have its memory; nothing has run.
            ProgramFileError: the file's constants are damaged; they are checked at the first call.
            TilewrightError: the program itself failed; the class is the one that its manifest names.
        """
        try:
            options = current()
            settled_options, settled_function = self._settled
            # The native function would take an extra array for an output.
            plain = threads is None and out is None and len(arrays) == self._inputs
            if plain and options is settled_options and not capturing():
                result = settled_function(*arrays)
                if result is not MISMATCH:
                    return result
            return self._call(options, arrays, out, threads)
        except TilewrightError as error:
            error.location = error.location or user_location()
            raise

    def _call(self, options: Options, arrays: tuple[object, ...], out: object, threads: int | None) -> Any:
        """A call that is not settled."""
        count = options.threads or cpu_features.default_threads() if threads is None else threads
        binding = self._bindings.get(count) or self._bind(count)
        if options.memory_limit_bytes:
            self._check_limit(count, options.memory_limit_bytes)
        if not listening(2):
            if threads is None and binding.function is not None:
                self._settled = (options, binding.function)
            return self._invoke(binding, arrays, out)
        start = time.perf_counter()
        result = self._invoke(binding, arrays, out)
        emit(
            "runtime.launch",
            level=2,
            name=self.manifest.name,
            threads=count,
            seconds=time.perf_counter() - start,
            estimated_seconds=self.manifest.estimated_seconds,
        )
        return result

    @property
    def settled(self) -> Settled:
        """The function that serves plain calls without this class."""
        return self._settled

    def function(self, threads: int | None = None) -> Callable[..., Any] | None:
        """The native function for a number of threads: `f(*inputs)` or, without aliases, `f(*inputs, *outputs)`.

        It returns what the program returns, or `MISMATCH` for arguments that only a call of the program handles. None
        where this interpreter's arrays are not the ones that it knows.

        Raises:
            As a call that cannot be prepared does.
        """
        count = current().threads or cpu_features.default_threads() if threads is None else threads
        return (self._bindings.get(count) or self._bind(count)).function

    def _invoke(self, binding: Binding, arrays: tuple[Any, ...], out: Any) -> Any:
        if binding.function is not None and len(arrays) == self._inputs:
            if out is None:
                result = binding.function(*arrays)
            elif isinstance(out, tuple | list):
                result = binding.function(*arrays, *out)
            else:
                result = binding.function(*arrays, out)
            if result is not MISMATCH:
                return result
        return self._call_slowly(binding, arrays, out)

    def _bind(self, threads: object) -> Binding:
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ArgumentError(
                f"`threads` is {threads!r}, but takes an integer from 1 to {MAX_THREADS}",
                help="leave it out for one thread per usable physical core",
            )
        needed, available = self._memory_bytes(threads), cpu_features.usable_memory_bytes()
        if needed > available:
            raise memory_error(self.manifest, threads, f"this machine has {available} bytes for this process")
        with self._lock:
            if threads not in self._bindings:
                self._bindings[threads] = self._make_binding(threads)
            return self._bindings[threads]

    def _make_binding(self, threads: int) -> Binding:
        self.verify()
        start = time.perf_counter()
        if self._library is None:
            self._library = elf.load(
                *split_objects(self.manifest, self._object_bytes), resolve=library_functions.resolve
            )
        support = load_support(self._support_bytes)
        binding = Binding(self.manifest, self._library, support, self._constants, threads)
        emit("runtime.bind", name=self.manifest.name, threads=threads, seconds=time.perf_counter() - start)
        return binding

    def _memory_bytes(self, threads: int) -> int:
        return self.manifest.memory_bytes(threads) + self.manifest.new_output_bytes

    def _check_limit(self, threads: int, limit_bytes: int) -> None:
        if self._memory_bytes(threads) > limit_bytes:
            raise memory_error(self.manifest, threads, f"`memory_limit_bytes` is {limit_bytes}")

    def _call_slowly(self, binding: Binding, arrays: tuple[object, ...], out: Any) -> Any:
        manifest = self.manifest
        check_count(manifest, arrays)
        given = self._given_outputs(out)
        try:
            inputs = [self._input(spec, value) for spec, value in zip(manifest.inputs, arrays, strict=True)]
            if binding.function is not None and out is None and any(map(operator.is_not, inputs, arrays)):
                # Copies are arrays that the function takes.
                result = binding.function(*inputs)
                if result is not MISMATCH:
                    return result
            outputs = self._outputs(inputs, given)
        except MemoryError as error:
            reason = f"the system has no memory for its arrays ({error})"
            raise memory_error(manifest, binding.threads, reason) from None
        check_overlap(manifest, inputs, outputs, host_bounds, in_place=out is None)
        self._copy_donated(inputs, outputs)
        n_buffers = len(inputs) + len(outputs) + len(manifest.constants)
        binding.run((ctypes.c_void_p * n_buffers)(*(array.ctypes.data for array in (*inputs, *outputs))))
        for target, written in zip(given or outputs, outputs, strict=True):
            if target is not written:
                np.copyto(target, written)
        results = given or tuple(outputs)
        return results[0] if len(results) == 1 else results

    def _given_outputs(self, out: object) -> tuple[Array, ...]:
        """The arrays of `out`, checked; empty for None."""
        if out is None:
            return ()
        given = listed_outputs(self.manifest, out)
        for spec, array in zip(self.manifest.outputs, given, strict=True):
            check_host_output(self.manifest, spec, array)
        return tuple(given)

    def _input(self, spec: ArraySpec, value: object) -> Array:
        array = np.asarray(value)
        check_array(self.manifest, spec, array)
        return array if _is_direct(array) else np.array(array, order="C")

    def _outputs(self, inputs: Sequence[Array], given: tuple[Array, ...]) -> list[Array]:
        """The arrays to write, one per output."""
        aliases = {alias.output: alias.input for alias in self.manifest.aliases}
        outputs: list[Array] = []
        for index, spec in enumerate(self.manifest.outputs):
            source = aliases.get(index)
            if given and _is_direct(given[index]):
                outputs.append(given[index])
            elif source is None or given or not inputs[source].flags.writeable:
                outputs.append(np.empty(spec.shape, by_name(spec.dtype).numpy))
            else:
                outputs.append(inputs[source])
        return outputs

    def _copy_donated(self, inputs: list[Array], outputs: Sequence[Array]) -> None:
        """Exchange donated inputs for the outputs that take their memory, with the same contents."""
        for alias in self.manifest.aliases:
            output = outputs[alias.output]
            if not _same_memory(output, inputs[alias.input]):
                np.copyto(output, inputs[alias.input])
            inputs[alias.input] = output


def load(path: str | Path, find: Find | None = None) -> AnyProgram:
    """Load a program that `save` wrote, for this machine's CPU or for a GPU; that for a grid of cores runs where
    `tilewright.driver.saved` opens it. The constants are mapped; the file must not be changed in place. `find` gives
    those that are in the compile cache, by their keys.

    Raises:
        ArgumentError: `path` is no path.
        ProgramFileError: the file is damaged, truncated or from another version.
        CpuFeatureError: this machine lacks the architecture or a feature that the program needs.
        ResourceUnavailable: a library that it calls is not installed.
        OSError: the file cannot be opened.
    """
    contents = container.read(checked_path(path), find)
    return _class_for(contents.manifest)(
        contents.manifest,
        contents.object_bytes,
        contents.support_bytes,
        contents.constants,
        contents.verify_constants,
        [(constant.key, constant.offset) for constant in contents.manifest.constants],
    )


def _class_for(manifest: Manifest) -> type[Program] | type[DeviceProgram] | type[GridFile]:
    if manifest.device is not None:
        from tilewright.runtime.cuda.program import DeviceProgram

        return DeviceProgram
    if manifest.grid is not None:
        from tilewright.runtime.grid.program import GridFile

        return GridFile
    return Program


def _check_machine(manifest: Manifest) -> None:
    host = cpu_features.host()
    architecture = manifest.triple.partition("-")[0]
    if architecture != host.architecture:
        raise CpuFeatureError(
            f"`{manifest.name}` is compiled for {manifest.triple}, this machine is {host.architecture}",
            help="compile it for this machine",
        )
    if lacking := cpu_features.missing(manifest.features):
        raise CpuFeatureError(
            f"`{manifest.name}` is compiled for {manifest.cpu}; this machine ({host.name}) lacks: {', '.join(lacking)}",
            help="compile it for this machine, or for a machine level that both support, such as x86-64-v3",
        )


def _is_direct(array: Array) -> bool:
    """Whether native code can work on the array where it is."""
    return array.flags.c_contiguous and array.flags.aligned


def _same_memory(a: Array, b: Array) -> bool:
    return a.ctypes.data == b.ctypes.data

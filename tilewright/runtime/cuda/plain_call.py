"""Calls on arrays that are on the device already, on a stream of the caller's, with nothing to copy or to wait for.

Any call goes through `DeviceProgram`, which takes the host longer than a GPU needs for a small kernel. A `PlainCall` is
made for the kinds of arrays that such a call had, of ours or torch tensors; it returns `MISMATCH` for others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tilewright.dtypes import by_name
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.cuda.array import DeviceArray, Memory
from tilewright.runtime.cuda.driver import DriverFailure
from tilewright.runtime.cuda.loaded import Loaded
from tilewright.runtime.cuda.steps import ALIGNMENT_BYTES
from tilewright.runtime.cuda.stream import LEGACY_DEFAULT, Stream, chosen_stream
from tilewright.runtime.manifest import ArraySpec

_Read = Callable[[object, int], int]
"""The address of an array that what follows on a stream, given by its handle, can use in place; 0 for any other."""

_Make = Callable[[Stream], tuple[object, int]]
"""A new array for a result, and its address."""


class PlainCall:
    """The call of a loaded program on arrays of the kinds of `arrays`: all are on its device, none is empty. Results
    are of the kind of the first one if `restores`, else ours. `program` closes what is loaded with itself: those who
    keep the call without it have it kept here."""

    def __init__(
        self,
        loaded: Loaded,
        arrays: Sequence[object],
        outputs: Sequence[object],
        *,
        restores: bool,
        program: object = None,
    ) -> None:
        manifest = loaded.manifest
        ordinal = loaded.device.ordinal
        aliases = {alias.output: alias.input for alias in manifest.aliases}
        self._loaded = loaded
        self._program = program
        self._ordinal = ordinal
        self._inputs = tuple(
            _reader(array, spec, ordinal, writes=number in aliases.values())
            for number, (array, spec) in enumerate(zip(arrays, manifest.inputs, strict=True))
        )
        self._outputs = tuple(
            _reader(array, spec, ordinal, writes=True)
            for array, spec in zip(outputs, manifest.outputs, strict=bool(outputs))
        )
        self._sources = tuple(aliases.get(number) for number in range(len(manifest.outputs)))
        self._sizes = tuple(spec.nbytes for spec in (*manifest.inputs, *manifest.outputs))
        self._torch = next((sys.modules["torch"] for array in (*arrays, *outputs) if _is_torch(array)), None)
        gives_torch = restores and _is_torch((*arrays, *outputs)[0])
        maker = partial(_maker_of_torch, ordinal) if gives_torch else self._maker
        self._makers = tuple(map(maker, manifest.outputs))

    def __call__(self, *arrays: object) -> object:
        """The result on the inputs and, where the call had them, outputs, or a tuple unless there is exactly one;
        `MISMATCH` if the call is another."""
        count = len(self._inputs)
        results = self.run(arrays[:count], arrays[count:])
        if results is None:
            return MISMATCH
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, arrays: Sequence[object], outputs: Sequence[object]) -> list[object] | None:
        """The results, which are `outputs` where they are given; None if the call is another.

        Raises:
            DeviceError: the driver or a kernel failed.
        """
        found = self._read(arrays, outputs)
        if found is None:
            return None
        stream, addresses = found
        driver = self._loaded.driver
        with driver.context(self._ordinal):
            if driver.is_capturing(stream.handle):
                return None
            results = list(outputs) or self._made(stream, arrays, addresses)
            if results is None:
                return None
            self._loaded.launch(tuple(addresses), stream)
        for result in results:
            if isinstance(result, DeviceArray):
                result.stream = stream
        return results

    def serves(self, arrays: Sequence[object], outputs: Sequence[object]) -> bool:
        """Whether a call on these arrays would be plain here and now."""
        return self._read(arrays, outputs) is not None

    def _read(self, arrays: Sequence[object], outputs: Sequence[object]) -> tuple[Stream, list[int]] | None:
        """The stream of a call and the addresses of its arrays; None if the call is another."""
        stream = self._stream((*arrays, *outputs))
        if stream is None or len(outputs) != len(self._outputs):
            return None
        addresses: list[int] = []
        for read, array in zip((*self._inputs, *self._outputs), (*arrays, *outputs), strict=True):
            address = read(array, stream.handle)
            if not address:
                return None
            addresses.append(address)
        return None if outputs and self._overlap(addresses) else (stream, addresses)

    def _made(self, stream: Stream, arrays: Sequence[object], addresses: list[int]) -> list[object] | None:
        """New arrays for the results, whose addresses are appended, and donated inputs; None if there is no memory."""
        results: list[object] = []
        try:
            for make, source in zip(self._makers, self._sources, strict=True):
                result, address = make(stream) if source is None else (arrays[source], addresses[source])
                results.append(result)
                addresses.append(address)
        except (DriverFailure, RuntimeError):
            # Of ours or of torch: the call that looks at everything meets it again, and names the arrays.
            return None
        return results

    def _stream(self, arrays: Sequence[object]) -> Stream | None:
        """The stream of the call; None where that is one of our own, or torch uses another one."""
        chosen = chosen_stream()
        if self._torch is not None:
            current = _raw_stream(self._torch, self._ordinal)
            if chosen is None:
                return Stream(current)
            return chosen if chosen.handle == current else None
        first = arrays[0] if arrays else None
        if chosen is None and isinstance(first, DeviceArray):
            chosen = first.stream
        return None if chosen is None or chosen.is_own else chosen

    def _overlap(self, addresses: Sequence[int]) -> bool:
        """Whether an output overlaps another array, but for the input that was donated for it: that has to be at its
        address."""
        inputs = len(self._inputs)
        for number, source in enumerate(self._sources):
            later = inputs + number
            start, end = addresses[later], addresses[later] + self._sizes[later]
            if source is not None and addresses[source] != start:
                return True
            for other in range(later):
                if other != source and start < addresses[other] + self._sizes[other] and addresses[other] < end:
                    return True
        return False

    def _maker(self, spec: ArraySpec) -> _Make:
        driver, ordinal = self._loaded.driver, self._ordinal
        nbytes, shape, dtype = spec.nbytes, spec.shape, by_name(spec.dtype).numpy

        def make(stream: Stream) -> tuple[object, int]:
            memory = Memory(driver, ordinal, nbytes, stream)
            return DeviceArray(memory.address, shape, dtype, ordinal, memory), memory.address

        return make


def is_plain(loaded: Loaded, arrays: Sequence[object]) -> bool:
    """Whether calls on arrays such as these, all that a call has, can be plain: they are on the device, not empty, and
    of ours or torch's; nothing is recorded, and the host decides nothing."""
    specs = (*loaded.manifest.inputs, *loaded.manifest.outputs)
    kinds = all(type(array) is DeviceArray or _is_torch(array) for array in arrays)
    code = loaded.code
    return (
        bool(arrays) and kinds and all(spec.nbytes for spec in specs) and not (code.reads_on_host or code.records_zones)
    )


def _is_torch(array: object) -> bool:
    return type(array).__module__ == "torch" and type(array).__name__ == "Tensor"


def _reader(array: object, spec: ArraySpec, ordinal: int, *, writes: bool) -> _Read:
    return (_read_of_torch if _is_torch(array) else _read_of_ours)(spec, ordinal, writes)


def _read_of_ours(spec: ArraySpec, ordinal: int, writes: bool) -> _Read:
    shape, dtype = spec.shape, by_name(spec.dtype).numpy

    def read(array: object, stream: int) -> int:
        if (
            not isinstance(array, DeviceArray)
            or array.shape != shape
            or array.dtype != dtype
            or array.device != ordinal
        ):
            return 0
        if array.address % ALIGNMENT_BYTES or (writes and array.readonly):
            return 0
        array.ready_on(stream)
        return array.address

    return read


def _read_of_torch(spec: ArraySpec, ordinal: int, writes: bool) -> _Read:
    torch = sys.modules["torch"]
    tensor, dtype, shape = torch.Tensor, _torch_dtype(torch, spec.dtype), spec.shape

    def read(array: Any, stream: int) -> int:
        if type(array) is not tensor or array.dtype is not dtype or array.shape != shape:
            return 0
        if array.get_device() != ordinal or array.requires_grad or not array.is_contiguous() or array.is_neg():
            return 0
        try:
            address = array.data_ptr()
        except RuntimeError:  # torch traces or transforms the caller, and the tensor has no memory
            return 0
        return 0 if address % ALIGNMENT_BYTES else address

    return read


def _maker_of_torch(ordinal: int, spec: ArraySpec) -> _Make:
    torch = sys.modules["torch"]
    dtype, shape, device = _torch_dtype(torch, spec.dtype), spec.shape, torch.device("cuda", ordinal)
    empty = torch.empty

    def make(stream: Stream) -> tuple[object, int]:
        result = empty(shape, dtype=dtype, device=device)
        return result, result.data_ptr()

    return make


def _torch_dtype(torch: ModuleType, name: str) -> object:
    return getattr(torch, by_name(name).numpy.name)


def _raw_stream(torch: ModuleType, ordinal: int) -> int:
    return torch.cuda.current_stream(ordinal).cuda_stream or LEGACY_DEFAULT

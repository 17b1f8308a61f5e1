"""A loaded program bound to a number of threads: its descriptor in memory and the native function over it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import errors
from tilewright.dtypes import by_name
from tilewright.errors import CompilerBug, ResourceExhausted, TilewrightError
from tilewright.runtime import abi
from tilewright.runtime.container import Bytes
from tilewright.runtime.cpu import elf
from tilewright.runtime.cpu.pool import Support
from tilewright.runtime.manifest import ArraySpec, Manifest
from tilewright.runtime.memory import libc, map_pages

MISMATCH = object()
"""What a native function returns for arguments that it does not handle."""

_METH_FASTCALL = 0x80
_GIL_RELEASE_THRESHOLD_S = 1e-6


class _MethodDefinition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Binding:
    """A program with its arena for `threads` threads.

    `function(*inputs)` or `function(*inputs, *outputs)` is the native function, or None where this interpreter's arrays
    are not the ones it knows; `run(buffers)` runs on a table of addresses. Both may run in several threads at a time.
    """

    def __init__(
        self, manifest: Manifest, library: elf.Library, support: Support, constants: Sequence[Bytes], threads: int
    ) -> None:
        self.threads = threads
        self._memory = _Memory(manifest, library, support, constants, threads)
        # A type that looks for an exception when the function returns.
        self._run = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(support.run_unlocked)
        self.function: Callable[..., Any] | None = None
        if _knows_arrays():
            self.function = _make_function(self._memory, support)

    def run(self, buffers: ctypes.Array[ctypes.c_void_p]) -> None:
        """Run on a table of pointers to the inputs and the outputs, with room for the constants after them.

        Raises:
            ResourceExhausted: no memory for the arena.
            TilewrightError: the program itself failed; the class is the one that its manifest names.
        """
        memory = self._memory
        n_arrays = len(buffers) - len(memory.constants)
        buffers[n_arrays:] = memory.constants[:]
        status = self._run(ctypes.byref(memory.descriptor), ctypes.byref(buffers))
        if status != 0:
            raise status_error(memory.manifest, memory.threads, status)


class _Memory:
    """All that native code points at; it goes with the last of the binding and its native function."""

    # What there is to free; nothing until the constructor, which may raise, is done.
    _arenas: Sequence[int | None] = ()

    def __init__(
        self, manifest: Manifest, library: elf.Library, support: Support, constants: Sequence[Bytes], threads: int
    ) -> None:
        self.manifest = manifest
        self.threads = threads
        self.constants = (ctypes.c_void_p * len(constants))(*(constant.ctypes.data for constant in constants))
        self._fail = functools.partial(_raise_status, manifest, threads)
        self._kept: list[object] = [library, constants]
        specs = [self._spec(spec, abi.FLAG_C_CONTIGUOUS | abi.FLAG_ALIGNED) for spec in manifest.inputs]
        outputs = [self._spec(spec, abi.FLAG_C_CONTIGUOUS | abi.FLAG_ALIGNED) for spec in manifest.outputs]
        for alias in manifest.aliases:
            outputs[alias.output].alias = alias.input
            _mark_written(specs[alias.input])
        for spec in outputs:
            _mark_written(spec)
        specs += outputs
        self._specs = (abi.BufferSpec * len(specs))(*specs)
        self.descriptor = abi.Descriptor(
            entry=library.address(abi.ENTRY),
            threads=threads,
            arena_bytes=manifest.memory_bytes(threads),
            releases_gil=manifest.estimated_seconds > _GIL_RELEASE_THRESHOLD_S,
            accepts_out=not manifest.aliases,
            n_inputs=len(manifest.inputs),
            n_outputs=len(manifest.outputs),
            n_constants=len(constants),
            specs=ctypes.addressof(self._specs),
            constants=ctypes.addressof(self.constants),
            array_type=id(np.ndarray),
            new_array=_new_array_function(manifest, support) if _knows_arrays() else None,
            mismatch=id(MISMATCH),
            fail=id(self._fail),
        )
        self._free = libc().free
        self._arenas = self.descriptor.arenas

    def _spec(self, spec: ArraySpec, flags: int) -> abi.BufferSpec:
        dtype = by_name(spec.dtype).numpy
        shape = (ctypes.c_int64 * len(spec.shape))(*spec.shape)
        self._kept += [dtype, shape]
        return abi.BufferSpec(
            descriptor=id(dtype),
            shape=ctypes.addressof(shape),
            nbytes=spec.nbytes,
            alias=-1,
            type_number=dtype.num,
            rank=len(spec.shape),
            array_flags=flags,
        )

    def __del__(self) -> None:
        # Names of modules may be gone at the interpreter's exit.
        for arena in self._arenas:
            if arena:
                self._free(arena)


def _mark_written(spec: abi.BufferSpec) -> None:
    spec.array_flags |= abi.FLAG_WRITEABLE
    spec.written = 1


def _make_function(memory: _Memory, support: Support) -> Callable[..., Any]:
    """A builtin function whose `self` is a capsule of the descriptor.

    Its module slot holds `memory`: the function then keeps alive all that it points at, and nothing there refers back.
    """
    api = ctypes.pythonapi
    new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
        ("PyCFunction_NewEx", api)
    )
    capsule = _new_capsule(ctypes.addressof(memory.descriptor), None)
    return new_function(ctypes.addressof(_method_definition(support.call)), capsule, memory)


@functools.cache
def _method_definition(function: int) -> _MethodDefinition:
    """Cached for good: a builtin function reads its definition as long as it lives."""
    return _MethodDefinition(b"program", function, _METH_FASTCALL, b"A compiled program.")


@functools.cache
def _knows_arrays() -> bool:
    """Whether NumPy's structures are laid out as the native function expects, tried on a live array."""
    if sys.implementation.name != "cpython" or "t" in sys.abiflags or int(np.__version__.partition(".")[0]) != 2:
        return False
    probe = np.zeros((3, 5, 7), np.float32)[1:, ::2, :]
    address, dtype = id(probe), id(probe.dtype)
    flags = abi.FLAG_C_CONTIGUOUS | abi.FLAG_ALIGNED | abi.FLAG_WRITEABLE
    shape = ctypes.c_void_p.from_address(address + abi.ARRAY_SHAPE).value
    return (
        ctypes.c_void_p.from_address(address + abi.OBJECT_TYPE).value == id(np.ndarray)
        and ctypes.c_void_p.from_address(address + abi.ARRAY_DATA).value == probe.ctypes.data
        and ctypes.c_int32.from_address(address + abi.ARRAY_RANK).value == probe.ndim
        and ctypes.c_void_p.from_address(address + abi.ARRAY_DESCRIPTOR).value == dtype
        and ctypes.c_int32.from_address(address + abi.ARRAY_FLAGS).value & flags
        == (abi.FLAG_ALIGNED | abi.FLAG_WRITEABLE)
        and ctypes.c_int32.from_address(dtype + abi.DTYPE_NUMBER).value == probe.dtype.num
        and ctypes.c_char.from_address(dtype + abi.DTYPE_BYTE_ORDER).value == probe.dtype.byteorder.encode()
        and shape is not None
        and tuple((ctypes.c_int64 * probe.ndim).from_address(shape)) == probe.shape
    )


def data_address(array: np.ndarray) -> int:
    """The address of an array's first element, which NumPy's interfaces take microseconds to state."""
    if not _knows_arrays():
        return array.__array_interface__["data"][0]
    return ctypes.c_size_t.from_address(id(array) + abi.ARRAY_DATA).value


def _new_array_function(manifest: Manifest, support: Support) -> int:
    """The address of what makes outputs: NumPy's function, or the support object's where some are not small."""
    if all(spec.nbytes < abi.LEAST_ALIGNED_BYTES for spec in manifest.outputs):
        return _numpy_function(abi.NEW_ARRAY_SLOT)
    _place_handler(support)
    return support.new_array


@functools.cache
def _place_handler(support: Support) -> object:
    """The capsule of a support object's memory handler, which is given to it, with NumPy's functions."""
    # Arrays read the handler when they die, some of them after all modules are gone: its memory is never given back.
    place = map_pages(ctypes.sizeof(abi.BlocksMemory))
    memory = abi.BlocksMemory.from_address(place)
    memory.capsule_name = b"mem_handler"
    memory.handler.name, memory.handler.version = b"tilewright", 1
    memory.handler.context = place + abi.BlocksMemory.state.offset
    memory.handler.functions[:] = (ctypes.c_void_p * 4).from_address(support.block_functions)[:]
    capsule = _new_capsule(place + abi.BlocksMemory.handler.offset, place + abi.BlocksMemory.capsule_name.offset)
    anchor = abi.BlocksAnchor.from_address(support.blocks)
    anchor.new_array = _numpy_function(abi.NEW_ARRAY_SLOT)
    anchor.set_handler = _numpy_function(abi.SET_HANDLER_SLOT)
    anchor.handler = id(capsule)
    return capsule


def _new_capsule(address: int, name: int | None) -> object:
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return new(("PyCapsule_New", ctypes.pythonapi))(address, name, None)


@functools.cache
def _numpy_function(slot: int) -> int:
    """The address of a function of NumPy's interface for C."""
    umath = importlib.import_module("numpy._core._multiarray_umath")
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = get_pointer(umath._ARRAY_API, None)
    pointer_bytes = ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_size_t.from_address(table + slot * pointer_bytes).value


def _raise_status(manifest: Manifest, threads: int, status: int) -> None:
    raise status_error(manifest, threads, status)


def status_error(manifest: Manifest, threads: int, status: int) -> TilewrightError:
    """The error for a non-zero status of a program."""
    if status == abi.STATUS_NO_MEMORY:
        return memory_error(manifest, threads, "the system has no memory for them")
    for message in manifest.messages:
        if message.status == status:
            return _error_class(message.code)(message.text, help=message.help or None)
    return CompilerBug(f"`{manifest.name}` returned status {status}, which its manifest does not explain")


def memory_error(manifest: Manifest, threads: int, reason: str) -> ResourceExhausted:
    """The error for a call that cannot have its memory, with the program's table of large buffers where it has one."""
    arena, outputs = manifest.memory_bytes(threads), manifest.new_output_bytes
    return ResourceExhausted(
        manifest.with_report(
            f"`{manifest.name}` needs {arena} bytes of work memory and {outputs} bytes of outputs on {threads} "
            f"threads: {reason}"
        ),
        help="use smaller arrays or fewer threads, donate inputs, or raise `memory_limit_bytes` if it is set",
    )


@functools.cache
def _error_class(code: str) -> type[TilewrightError]:
    # The one that is defined when it is asked for may not be among the subclasses yet.
    known = (*TilewrightError.__subclasses__(), errors.LinearAlgebraError)
    return next((cls for cls in known if cls.code == code), CompilerBug)

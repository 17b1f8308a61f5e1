"""Arrays in the memory of a GPU: those of other libraries as stored, and our results for any of them to take over.

Exchange is by DLPack (`dlpack.h`, version 0.8, the form without a version that all libraries read) and by the CUDA
Array Interface, version 3.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import EXTENSIONS
from tilewright.errors import ArgumentError, DTypeError, TilewrightError, UnsupportedOnTargetError
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.stream import LEGACY_DEFAULT, Stream, own_stream, stream_of, when_not_capturing

KDLCUDA, KDLCUDA_MANAGED = 2, 13
_CAPSULE = b"dltensor"
# DLDataTypeCode: the codes of each kind of NumPy types, and of types that are not NumPy's own.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_EXTENSION_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


class Memory:
    """Memory that we allocated on a device for use on a stream, given back with the last array on it.

    If another stream has used it, freeing it synchronises the whole device first: no event marks the end of that use.
    """

    def __init__(self, driver: Driver, ordinal: int, nbytes: int, home: Stream) -> None:
        self._driver = driver
        self._ordinal = ordinal
        self.home = home
        self.used_elsewhere = False
        self.address = driver.allocate_on(nbytes, home.handle) if nbytes else 0

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            when_not_capturing(
                partial(_free, self._driver, self._ordinal, self.address, self.home, self.used_elsewhere)
            )


def _free(driver: Driver, ordinal: int, address: int, home: Stream, used_elsewhere: bool) -> None:
    # At the interpreter's exit the driver may be gone, and the memory with it.
    with contextlib.suppress(TilewrightError, AttributeError, TypeError), driver.context(ordinal):
        if used_elsewhere:
            driver.synchronise_all()
        driver.free_on(address, home.handle)


class DeviceArray:
    """A contiguous array on a CUDA device.

    `numpy.asarray(array)` is a copy of it, `torch.from_dlpack(array)` and `cupy.from_dlpack(array)` share its memory.
    `owner` keeps the memory; it is a `Memory` where that is ours. `stream` is the one that what is in it is computed
    on, None where that is done. `readonly` arrays cannot be donated.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        device: int,
        owner: object,
        stream: Stream | None = None,
        readonly: bool = False,
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.owner = owner
        self.stream = stream
        self.readonly = readonly

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}[{', '.join(map(str, self.shape))}] on cuda:{self.device})"

    def ready_on(self, handle: int) -> None:
        """Make later work on another stream wait for the contents, and let it use the memory."""
        if isinstance(self.owner, Memory) and self.owner.home.handle != handle:
            self.owner.used_elsewhere = True
        if self.stream is not None:
            _order(self.device, self.stream.handle, handle)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a device has no NumPy array on its memory")
        result = np.empty(self.shape, self.dtype)
        driver = cuda_driver.driver()
        if result.nbytes:
            with driver.context(self.device):
                stream = (self.stream or own_stream(driver, self.device)).handle
                driver.copy_out(result.ctypes.data, self.address, result.nbytes, stream)
                driver.synchronise(stream)
        return result if dtype is None else result.astype(dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDLCUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> Any:
        """A capsule that shares the memory; what follows on `stream` (None and 1: the legacy default one, -1: the
        caller sees to the order) sees the contents."""
        if stream != -1:
            self.ready_on(stream or LEGACY_DEFAULT)
        elif isinstance(self.owner, Memory):
            self.owner.used_elsewhere = True
        return _exported(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface.

        Raises:
            AttributeError: NumPy has no name of its own for the element type.
        """
        if self.dtype.isbuiltin != 1:
            raise AttributeError(f"the CUDA Array Interface has no {self.dtype}; exchange the array by DLPack")
        if isinstance(self.owner, Memory):
            self.owner.used_elsewhere = True
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, self.readonly),
            "strides": None,
            "stream": None if self.stream is None else self.stream.handle,
            "version": 3,
        }


def _order(ordinal: int, before: int, after: int) -> None:
    """Make later work on a stream wait for work on another one."""
    if before == after:
        return
    driver = cuda_driver.driver()
    with driver.context(ordinal):
        event = driver.new_event()
        driver.record(event, before)
        driver.wait(after, event)
        driver.close_event(event)


def uploaded(array: np.ndarray, ordinal: int, stream: Stream) -> DeviceArray:
    """A copy of an array of the host on a device, whose context is current."""
    driver = cuda_driver.driver()
    content = np.ascontiguousarray(array)
    memory = Memory(driver, ordinal, content.nbytes, stream)
    if content.nbytes:
        driver.copy_in(memory.address, content.ctypes.data, content.nbytes, stream.handle)
        driver.synchronise(stream.handle)
    return DeviceArray(memory.address, array.shape, array.dtype, ordinal, memory)


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_api = ctypes.pythonapi
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
# A destructor is called with a capsule that nobody may hold any more.
_is_valid_dying = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of_dying = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)

# What other libraries hold of ours, by the address of its structure.
_held: dict[int, tuple[_Managed, object, DeviceArray]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    _held.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """Release the contents of a capsule that no consumer has taken."""
    if _is_valid_dying(capsule, _CAPSULE):
        _held.pop(_pointer_of_dying(capsule, _CAPSULE), None)


def _exported(array: DeviceArray) -> Any:
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    code = _EXTENSION_CODES.get(array.dtype.name, _CODES.get(array.dtype.kind))
    if code is None:
        raise DTypeError(f"DLPack has no {array.dtype}", help="convert the result to another type first")
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = array.address
    tensor.device.type, tensor.device.id = KDLCUDA, array.device
    tensor.ndim = array.ndim
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, 8 * array.dtype.itemsize, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    strides = (ctypes.c_int64 * max(1, array.ndim))(*_strides(array.shape))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _held[address] = (managed, (shape, strides), array)
    return _new_capsule(address, _CAPSULE, ctypes.cast(_destroy, ctypes.c_void_p))


def _strides(shape: Sequence[int]) -> list[int]:
    """In elements, of a contiguous array."""
    return [*itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1] if shape else []


def device_of(value: Any) -> int | None:
    """The CUDA device that an array is on; None for what is not on one."""
    if isinstance(value, DeviceArray):
        return value.device
    if isinstance(value, np.ndarray | np.generic):
        return None
    find: Callable[[], tuple[Any, int]] | None = getattr(value, "__dlpack_device__", None)
    if find is not None:
        kind, ordinal = find()
        return int(ordinal) if int(kind) in (KDLCUDA, KDLCUDA_MANAGED) else None
    if hasattr(value, "__cuda_array_interface__"):
        return cuda_driver.driver().device_of(value.__cuda_array_interface__["data"][0])
    return None


def library_stream(value: Any) -> Stream | None:
    """The stream that the library of an array on a device would use now, if it states; that of our own results."""
    if isinstance(value, DeviceArray):
        return None if value.stream is None or value.stream.is_own else value.stream
    if device_of(value) is None:
        return None
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        return stream_of(sys.modules["torch"].cuda.current_stream(value.device))
    if library == "cupy":
        return stream_of(sys.modules["cupy"].cuda.get_current_stream())
    return None


def on_device(value: Any, ordinal: int, stream: Stream, *, may_copy: bool = False) -> DeviceArray:
    """An array of any library, which is on a device, on its memory; what follows on the stream sees its contents. Of a
    torch tensor that is not contiguous it is a copy, if that `may_copy`.

    Raises:
        UnsupportedOnTargetError: its elements are not one after the other.
        DTypeError: its element type is none of ours.
        ArgumentError: its library does not give it.
    """
    if isinstance(value, DeviceArray):
        value.ready_on(stream.handle)
        return value
    if may_copy and type(value).__module__.partition(".")[0] == "torch":
        value = value.contiguous()
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, stream)
    return _from_interface(value, ordinal, stream)


def _from_dlpack(value: Any, stream: Stream) -> DeviceArray:
    try:
        capsule = value.__dlpack__(stream=stream.handle)
    except Exception as error:  # each library has its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ArgumentError(
            f"a {type(value).__name__} does not give its memory by DLPack: {reason}", help="copy it to NumPy first"
        ) from error
    if not _is_valid(capsule, _CAPSULE):
        raise ArgumentError(f"a {type(value).__name__} gives no DLPack tensor", help="copy it to NumPy first")
    # A capsule whose tensor nobody takes owns it: it is what keeps the memory.
    tensor = _Managed.from_address(_pointer_of(capsule, _CAPSULE)).tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        _check_contiguous(shape, tensor.strides[: tensor.ndim])
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(address, shape, _dtype_of(tensor.dtype), tensor.device.id, (capsule, value), stream)


def _dtype_of(given: _DataType) -> np.dtype:
    extensions = {code: EXTENSIONS[name] for name, code in _EXTENSION_CODES.items()}
    if given.code in extensions and given.bits == extensions[given.code].bits and given.lanes == 1:
        return extensions[given.code].numpy
    kinds = {code: kind for kind, code in _CODES.items()}
    if given.code not in kinds or given.lanes != 1:
        message = f"an array of DLPack type {given.code} with {given.bits} bits has no element type of ours"
        raise DTypeError(message, help="convert it first")
    return np.dtype(f"{kinds[given.code]}{given.bits // 8}")


def _check_contiguous(shape: Sequence[int], strides: Sequence[int]) -> None:
    wanted = _strides(shape)
    if 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, wanted, strict=True)):
        return
    raise UnsupportedOnTargetError(
        f"an array on a device has the strides {tuple(strides)} where {tuple(wanted)} are taken",
        help="pass `x.contiguous()`, or what the library calls a contiguous copy",
    )


def _from_interface(value: Any, ordinal: int, stream: Stream) -> DeviceArray:
    found = value.__cuda_array_interface__
    shape = tuple(found["shape"])
    try:
        dtype = np.dtype(found["typestr"])
    except TypeError as error:
        raise DTypeError(f"NumPy has no type `{found['typestr']}`", help="convert the array first") from error
    if (strides := found.get("strides")) is not None:
        _check_contiguous(shape, [stride // dtype.itemsize for stride in strides])
    address, readonly = found["data"]
    if (theirs := found.get("stream")) is not None:
        _order(ordinal, theirs, stream.handle)
    return DeviceArray(address or 0, shape, dtype, ordinal, value, stream, bool(readonly))

"""Arrays of other libraries as NumPy arrays on the same memory, and back.

`to_numpy` never copies, except conjugates that torch has not computed yet. Arrays that it cannot share are refused:
arrays on another device, sparse arrays, tensors that record gradients. Arrays on CUDA devices are left as they are:
`on_cuda` states what they hold, and the programs that take them share their memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import ArgumentError, DTypeError, TilewrightError, UnsupportedOnTargetError

Tensor = np.ndarray[Any, Any]
Foreign: TypeAlias = Any  # an array of another library
Restore = Callable[[Tensor], Any]
RestoreDevice = Callable[[Any], Any]
Convert = Callable[[Any], tuple[Tensor, Restore]]
Reader = Callable[[Any], Tensor]

_CPU_DEVICE_TYPE = 1  # kDLCPU in dlpack.h


def to_numpy(array: object) -> tuple[Tensor, Restore]:
    """A NumPy array on the memory of `array`, and the function that gives a NumPy array the kind of `array`.

    Raises:
        ArgumentError: `array` is no array, or one whose memory is not a plain block.
        DTypeError: its element type has no NumPy form.
        UnsupportedOnTargetError: it is not in the memory of the CPU.
    """
    if isinstance(array, np.ndarray):
        return _plain_numpy(array), _identity
    if isinstance(array, np.generic):
        return np.asarray(array), _identity
    convert = _LIBRARIES.get(_library(_kind_of(array))) or (_from_standard if hasattr(array, "__dlpack__") else None)
    if convert is not None:
        help = _WITHOUT_CONTENTS_HELP.get(_library(_kind_of(array)), "convert it to NumPy first")
        return _converted(array, convert, help)
    raise ArgumentError(
        f"a value of type {type(array).__name__} is not an array",
        help="pass NumPy, torch, JAX or other DLPack arrays, or Python numbers",
    )


# `type`, but with a result whose attributes a type checker does not ask about.
_kind_of: Callable[[Any], Any] = type


@functools.lru_cache(256)
def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def reader(array: Foreign) -> Reader | None:
    """A function that reads arrays like `array` as `to_numpy` does, but quickly: it raises for those of another class
    or on another device, and for tensors that record gradients. None for kinds that have no such function."""
    kind = _kind_of(array)
    if kind is np.ndarray:
        return _read_numpy
    make = _READERS.get(_library(kind))
    try:
        return None if make is None else make(array, kind)
    except Exception:  # tracers have no device
        return None


def restorer(array: object) -> Restore:
    """The function that gives a NumPy array the kind of one that `reader` knows."""
    make = _RESTORERS.get(_library(_kind_of(array)))
    return _identity if make is None else make()


def _converted(array: object, convert: Convert, help: str) -> tuple[Tensor, Restore]:
    try:
        return convert(array)
    except TilewrightError:
        raise
    except Exception as error:  # each library has its own for arrays without contents
        reason = (str(error) or type(error).__name__).splitlines()[0]
        message = f"a value of type {type(array).__name__} does not give its contents: {reason}"
        raise ArgumentError(message, help=help) from error


def _identity(array: Tensor) -> Tensor:
    return array


def _plain_numpy(array: Tensor) -> Tensor:
    # Looking for masked arrays must not import them: that costs a tenth of a second. While another thread does, the
    # module has no such class yet, and nobody such arrays.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        raise ArgumentError("a masked array has no traced form", help="pass `x.filled(value)`")
    return np.asarray(array)


def _check_on_cpu(on_cpu: bool, where: object, help: str) -> None:
    if not on_cpu:
        raise UnsupportedOnTargetError(f"an argument is on the device `{where}`, not in CPU memory", help=help)


@functools.cache
def use_threads_of_torch() -> None:
    """Run programs on the threads of torch's OpenMP runtime from now on: they spin between its operators, and would
    take cores from workers of the pool. Nothing changes if torch has no such threads."""
    from tilewright.runtime.cpu.pool import Team, run_in

    folder = Path(sys.modules["torch"].__file__ or "").parent
    team = Team.of(str(folder / "lib" / "libtorch_cpu.so"))
    if team is not None:
        run_in(team)


def _from_torch(tensor: Foreign) -> tuple[Tensor, Restore]:
    use_threads_of_torch()
    # Each attribute of a tensor takes a tenth of a microsecond.
    if not tensor.is_cpu:
        _check_on_cpu(False, tensor.device, "pass `x.cpu()`")
    torch = sys.modules["torch"]
    if tensor.requires_grad:
        raise ArgumentError("a tensor that records gradients would lose them", help="pass `x.detach()`")
    if tensor.layout != torch.strided:
        raise ArgumentError(f"a tensor of layout {tensor.layout} is not a plain block", help="pass `x.to_dense()`")
    extension = _extension_of_torch(tensor.dtype)
    if extension is not None:
        # NumPy's DLPack has no such type, and ml_dtypes no DLPack: the bits travel as integers.
        return tensor.view(getattr(torch, f"int{8 * extension.itemsize}")).numpy().view(extension), _to_torch
    try:
        return tensor.numpy(), _to_torch
    except (TypeError, RuntimeError) as error:
        if tensor.is_conj():  # the memory holds the conjugates
            return tensor.resolve_conj().numpy(), _to_torch
        raise DTypeError(f"torch cannot share a tensor of {tensor.dtype}: {error}", help="convert it first") from error


def _read_numpy(array: Foreign) -> Tensor:
    if type(array) is not np.ndarray:
        raise TypeError
    return array


def _tensor_reader(tensor: Foreign, kind: type) -> Reader:
    extension, dtype = _extension_of_torch(tensor.dtype), tensor.dtype
    if extension is not None:
        bits = getattr(sys.modules["torch"], f"int{8 * extension.itemsize}")

        def read_bits(tensor: Foreign) -> Tensor:
            if type(tensor) is not kind or tensor.requires_grad or tensor.dtype != dtype:
                raise TypeError
            return tensor.view(bits).numpy().view(extension)

        return read_bits

    def read(tensor: Foreign) -> Tensor:
        # torch gives the memory of tensors that record gradients where its own recording is off. It refuses tensors on
        # devices, and those that are no plain block.
        if type(tensor) is not kind or tensor.requires_grad:
            raise TypeError
        return tensor.numpy()

    return read


def _to_torch(array: Tensor) -> Foreign:
    return _tensor_maker(array.dtype)(array)


@functools.lru_cache(256)
def _tensor_maker(dtype: np.dtype) -> Restore:
    """The function that gives the tensor on the memory of an array of this type."""
    torch = sys.modules["torch"]
    if _extension(dtype.name) is None:
        return torch.from_numpy
    # A type that NumPy has from `ml_dtypes` is called as in torch.
    bits, theirs = f"i{dtype.itemsize}", getattr(torch, dtype.name)
    return lambda array: torch.from_numpy(array.view(bits)).view(theirs)


@functools.cache
def _extension_of_torch(dtype: object) -> np.dtype | None:
    return _extension(str(dtype).removeprefix("torch."))


def _from_jax(array: Foreign) -> tuple[Tensor, Restore]:
    platforms = {device.platform for device in array.devices()}
    _check_on_cpu(platforms == {"cpu"}, ", ".join(sorted(platforms)), "pass `jax.device_get(x)`")
    # JAX gives a read-only view of a CPU array, with ml_dtypes where NumPy has no type of its own.
    return np.asarray(array), _asarray_of_jax()


def _jax_reader(array: Foreign, kind: type) -> Reader | None:
    sharding = array.sharding
    if [device.platform for device in sharding.device_set] != ["cpu"]:
        return None

    def read(array: Foreign) -> Tensor:
        # Most arrays have the same object, and comparing two takes longer.
        if type(array) is not kind or ((own := array.sharding) is not sharding and own != sharding):
            raise TypeError
        return np.asarray(array)

    return read


@functools.cache
def _asarray_of_jax() -> Restore:
    """`jax.numpy.asarray`, under `jax.jit`: a call costs a third of one of the bare function."""
    jax = sys.modules["jax"]
    return jax.jit(jax.numpy.asarray)


def _from_standard(array: Foreign) -> tuple[Tensor, Restore]:
    """Any array with the DLPack methods of the Array API."""
    device_type, device_number = array.__dlpack_device__()
    device = f"DLPack type {int(device_type)}, number {device_number}"
    _check_on_cpu(int(device_type) == _CPU_DEVICE_TYPE, device, "copy it to the CPU first")
    try:
        shared = np.from_dlpack(array)
    except (BufferError, TypeError, RuntimeError) as error:
        raise DTypeError(
            f"NumPy cannot share the array by DLPack: {error}", help="convert it to NumPy first"
        ) from error
    if not hasattr(array, "__array_namespace__"):
        return shared, _identity
    namespace = array.__array_namespace__()
    return shared, lambda result: namespace.from_dlpack(result)


def _extension(name: str) -> np.dtype | None:
    """A type that NumPy has from `ml_dtypes`, by its name there."""
    from tilewright.dtypes import EXTENSIONS

    return EXTENSIONS[name].numpy if name in EXTENSIONS else None


_LIBRARIES: dict[str, Convert] = {
    "torch": _from_torch,
    "jax": _from_jax,
    "jaxlib": _from_jax,
}
_READERS: dict[str, Callable[[Any, type], Reader | None]] = {
    "torch": _tensor_reader,
    "jax": _jax_reader,
    "jaxlib": _jax_reader,
}
_RESTORERS: dict[str, Callable[[], Restore]] = {
    "torch": lambda: _to_torch,
    "jax": _asarray_of_jax,
    "jaxlib": _asarray_of_jax,
}
_WITHOUT_CONTENTS_HELP = {
    "jax": "call the function outside `jax.jit`, `jax.grad` and `jax.vmap`; of a key, pass `jax.random.key_data(key)`",
}


def on_cuda(array: Foreign) -> tuple[tuple[int, ...], np.dtype, RestoreDevice] | None:
    """Shape and type of an array on a CUDA device, and the function that gives our results the kind of `array`; None
    for any other value.

    Raises:
        ArgumentError: a tensor that records gradients.
        DTypeError: its element type is none of ours.
    """
    if isinstance(array, np.ndarray | np.generic) or not hasattr(array, "shape"):
        return None
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return _on_cuda_of_torch(array) if array.device.type == "cuda" else None
    from tilewright.runtime.cuda.array import DeviceArray, device_of

    try:
        if device_of(array) is None:
            return None
    except TilewrightError:
        raise
    except Exception:  # tracers and sparse arrays of other libraries, of which `to_numpy` says what they are
        return None
    shape, dtype = tuple(map(int, array.shape)), _numpy_type(array.dtype)
    if isinstance(array, DeviceArray):
        return shape, dtype, _identity
    if library in ("jax", "jaxlib"):
        return shape, dtype, lambda result: sys.modules["jax"].dlpack.from_dlpack(result)
    if hasattr(array, "__array_namespace__"):
        namespace = array.__array_namespace__()
        return shape, dtype, lambda result: namespace.from_dlpack(result)
    module = sys.modules.get(library)
    restore = getattr(module, "from_dlpack", None)
    return shape, dtype, restore if restore is not None else _identity


def is_readonly(array: object) -> bool:
    """Whether an array on a device must not be written."""
    from tilewright.runtime.cuda.array import DeviceArray

    if isinstance(array, DeviceArray):
        return array.readonly
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _on_cuda_of_torch(tensor: Foreign) -> tuple[tuple[int, ...], np.dtype, RestoreDevice]:
    torch = sys.modules["torch"]
    if tensor.requires_grad:
        raise ArgumentError("a tensor that records gradients would lose them", help="pass `x.detach()`")
    return tuple(tensor.shape), _numpy_type(str(tensor.dtype).removeprefix("torch.")), torch.from_dlpack


def _numpy_type(given: Foreign) -> np.dtype:
    try:
        extension = _extension(str(given))
        return np.dtype(given) if extension is None else extension
    except TypeError as error:
        raise DTypeError(f"no element type of ours is {given}", help="convert the array first") from error

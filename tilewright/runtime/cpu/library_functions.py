"""The library functions that native code calls, found by the names that compiled programs have for them.

    lapack.dgetrf                SciPy's `scipy.linalg.cython_lapack`: the Fortran interface, integers of 32 bits
    blas.dtrsm                   SciPy's `scipy.linalg.cython_blas`
    pocketfft.fft.f64            the loop of NumPy's ufunc `numpy.fft._pocketfft_umath.fft` over doubles
    pocketfft.fft.f64.data       the pointer that the loop takes as its last argument

SciPy exports its functions as capsules, for native calls without the interpreter's lock. NumPy's loops take the lock
only to report an error. They are reached through the public structure `PyUFuncObject` and tried once before they are
used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from tilewright.errors import CompilerBug, ResourceUnavailable
from tilewright.runtime.cpu import elf

_SCIPY_MODULES = {"lapack": "scipy.linalg.cython_lapack", "blas": "scipy.linalg.cython_blas"}
_FOURIER = "pocketfft"

# Of NumPy's `PyUFuncObject`, after the object's head: numpy/ufuncobject.h.
_UFUNC_ARGUMENTS, _UFUNC_FUNCTIONS, _UFUNC_DATA, _UFUNC_TYPE_COUNT, _UFUNC_TYPES = 16, 32, 40, 48, 64
_LOOP = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def check(names: Iterable[str]) -> None:
    """Find the functions of a program now rather than at its first call.

    Raises:
        ResourceUnavailable: a library is not installed, or not in a version that has them.
    """
    for name in names:
        address(name)


def resolve(name: str) -> int | None:
    """The address of an external name of compiled code: a library function, or what this process has."""
    library = name.partition(".")[0]
    return address(name) if library in _SCIPY_MODULES or library == _FOURIER else elf.process_symbol(name)


@functools.cache
def address(name: str) -> int:
    """The address of a library function.

    Raises:
        ResourceUnavailable: its library is not installed, or not in a version that has it.
    """
    library, _, function = name.partition(".")
    if library == _FOURIER:
        transform, dtype, *data = function.split(".")
        return _fourier_loop(transform, dtype)[len(data)]
    if library not in _SCIPY_MODULES:
        raise CompilerBug(f"there is no library of functions `{library}`")
    return _capsule(_SCIPY_MODULES[library], function)


def scipy_module(name: str) -> Any:
    """A module of SciPy.

    Raises:
        ResourceUnavailable: SciPy is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ResourceUnavailable(
            f"linear algebra calls LAPACK through SciPy, which cannot be imported: {error}",
            help="pip install 'tilewright[linalg]'",
        ) from error


def _capsule(module: str, function: str) -> int:
    capsule = getattr(scipy_module(module), "__pyx_capi__", {}).get(function)
    # Integers of 64 bits would be read past the ones that programs pass.
    if capsule is None or not _capsule_name(capsule).startswith(b"void (") or b"int *" not in _capsule_name(capsule):
        raise ResourceUnavailable(
            f"`{module}` of this SciPy has no `{function}` with integers of 32 bits",
            help="pip install --upgrade 'tilewright[linalg]'",
        )
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return get(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, _capsule_name(capsule))


def _capsule_name(capsule: object) -> bytes:
    get = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    return get(("PyCapsule_GetName", ctypes.pythonapi))(capsule)


@functools.cache
def _fourier_loop(transform: str, dtype: str) -> tuple[int, int]:
    """The loop of a ufunc of NumPy's FFT for an element type, and its data."""
    try:
        ufunc = getattr(importlib.import_module("numpy.fft._pocketfft_umath"), transform)
        pair = _loop_of(ufunc, np.float32 if dtype == "f32" else np.float64)
    except (ImportError, AttributeError, ValueError):
        pair = None
    if pair is None or not _works(pair, transform, np.float32 if dtype == "f32" else np.float64):
        raise ResourceUnavailable(
            f"NumPy {np.__version__} has no loop of `{transform}` of {dtype} that can be called",
            help='pip install "numpy>=2.0", or run the transform with target="interp"',
        )
    return pair


def _loop_of(ufunc: Any, dtype: type[np.floating[Any]]) -> tuple[int, int] | None:
    """Function and data of the loop whose second operand, the factor, has an element type; None where the structure is
    not the one that NumPy 2 has."""
    base = id(ufunc)
    arguments = (ctypes.c_int * 3).from_address(base + _UFUNC_ARGUMENTS)
    count = ctypes.c_int.from_address(base + _UFUNC_TYPE_COUNT).value
    if not isinstance(ufunc, np.ufunc) or tuple(arguments) != (2, 1, 3) or count != len(ufunc.types):
        return None
    types = ctypes.c_void_p.from_address(base + _UFUNC_TYPES).value
    functions = ctypes.c_void_p.from_address(base + _UFUNC_FUNCTIONS).value
    data = ctypes.c_void_p.from_address(base + _UFUNC_DATA).value
    if types is None or functions is None:
        return None
    numbers = (ctypes.c_char * (3 * count)).from_address(types).raw
    position = [numbers[3 * n + 1] for n in range(count)].index(np.dtype(dtype).num)
    function = (ctypes.c_size_t * count).from_address(functions)[position]
    return function, (ctypes.c_size_t * count).from_address(data)[position] if data is not None else 0


def _works(pair: tuple[int, int], transform: str, dtype: type[np.floating[Any]]) -> bool:
    """Whether a loop transforms two lines of two or three elements as NumPy does."""
    real, number = np.dtype(dtype), np.result_type(dtype, np.complex64)
    size = 3 if transform.endswith("odd") else 2
    given = np.arange(2 * size).reshape(2, size).astype(real if transform.startswith("rfft") else number)
    factor = np.array(0.5, real)
    expected = {"fft": np.fft.fft, "ifft": functools.partial(np.fft.ifft, norm="forward")}.get(transform)
    if expected is None and transform == "irfft":
        expected = functools.partial(np.fft.irfft, n=size, norm="forward")
    wanted: np.ndarray[Any, Any] = (expected or np.fft.rfft)(given) / 2
    result: np.ndarray[Any, Any] = np.zeros(wanted.shape, real if transform == "irfft" else number)
    arrays = (given, factor, result)
    addresses = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in arrays))
    dims = (ctypes.c_ssize_t * 3)(2, size, result.shape[-1])
    steps = (ctypes.c_ssize_t * 5)(given.strides[0], 0, result.strides[0], given.itemsize, result.itemsize)
    _LOOP(pair[0])(ctypes.addressof(addresses), ctypes.addressof(dims), ctypes.addressof(steps), pair[1])
    return bool(np.allclose(result, wanted))

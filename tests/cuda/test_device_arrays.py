"""Arrays of other libraries on a device, and ours for them: DLPack and the CUDA Array Interface."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.running import CHIP, Foreign, Tensor, X, compiled
from tests.emulators.cuda_driver import LEGACY, FakeDriver
from tilewright import dtypes
from tilewright.errors import ArgumentError, UnsupportedOnTargetError
from tilewright.runtime.cuda.array import DeviceArray

pytestmark = pytest.mark.usefixtures("no_assembler")


def test_device_arrays_are_used_where_they_lie(driver: FakeDriver) -> None:
    program = compiled(lambda x: x + 1, X)
    program(X)
    copies = driver.count("copy_in"), driver.count("copy_out"), driver.count("copy")
    x = Foreign(driver, X)
    result = program(x)
    assert (driver.count("copy_in"), driver.count("copy_out"), driver.count("copy")) == copies
    assert isinstance(result, DeviceArray)
    assert result.shape == X.shape
    np.testing.assert_array_equal(np.asarray(result), X + 1)
    np.testing.assert_array_equal(np.asarray(program(result)), X + 2)
    del result
    x.free()


def test_results_are_of_the_kind_of_the_first_array(driver: FakeDriver) -> None:
    program = compiled(lambda x, y: x + y, X, X)
    y = Foreign(driver, X)
    assert isinstance(program(X, y), np.ndarray)
    assert isinstance(program(y, X), DeviceArray)
    np.testing.assert_array_equal(np.asarray(program(y, X)), 2 * X)
    y.free()


def test_results_come_back_by_way_of_their_library(driver: FakeDriver) -> None:
    class Library:
        @staticmethod
        def from_dlpack(result: Any) -> tuple[str, Any]:
            return "theirs", result.__dlpack__(stream=None)

    class Array(Foreign):
        def __array_namespace__(self) -> type[Library]:
            return Library

    x = Array(driver, X)
    kind, capsule = tw.jit(lambda x: x + 1, target=CHIP)(x)
    assert kind == "theirs"
    assert tensor_of(capsule).shape[:2] == [4, 6]
    del capsule
    x.free()


def test_donated_device_arrays_become_the_output(driver: FakeDriver) -> None:
    program = compiled(lambda x: x * 2, X, donate="x")
    x = Foreign(driver, X)
    result = program(x)
    assert result.address == x.array.address
    np.testing.assert_array_equal(x.numpy(), X * 2)
    x.free()


@pytest.mark.parametrize("donate", ["", "x"])
def test_arrays_that_begin_between_vectors_are_copied(driver: FakeDriver, donate: str) -> None:
    program = compiled(lambda x: x * 2, X, donate=donate or ()).executable.program
    x, out = Foreign(driver, X, offset=4), Foreign(driver, np.zeros_like(X), offset=12)
    found = program(x)
    np.testing.assert_array_equal(np.asarray(found), X * 2)
    if donate:
        np.testing.assert_array_equal(x.numpy(), X * 2)
    else:
        assert program(x, out=out) is out
        np.testing.assert_array_equal(out.numpy(), X * 2)
    del found
    x.free()
    out.free()


def test_read_only_inputs_are_not_overwritten(driver: FakeDriver) -> None:
    program = compiled(lambda x: x * 2, X, donate="x").executable.program
    x = Foreign(driver, X)
    x.array.readonly = True
    result = program(x.array)
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(np.asarray(result), X * 2)
    with pytest.raises(ArgumentError, match="donated, but its memory is read-only"):
        compiled(lambda x: x * 2, X, donate="x")(x.array)
    with pytest.raises(ArgumentError, match="is read-only"):
        program(X, out=x.array)
    del result
    x.array.owner = None
    x.free()


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "bf16", "f16", "f64", "i8", "u32", "bool"])
def test_every_type_goes_through_dlpack(driver: FakeDriver, dtype: str) -> None:
    content = np.array([[1, 0, 3]]).astype(dtypes.by_name(dtype).numpy)
    x = Foreign(driver, content)
    result = compiled(lambda x: tw.where(x == x, x, x), content)(x)
    assert result.dtype == content.dtype
    np.testing.assert_array_equal(np.asarray(result), content)
    del result
    x.free()


def tensor_of(capsule: Any) -> Any:
    from tilewright.runtime.cuda import array as cuda_array

    return cuda_array._Managed.from_address(cuda_array._pointer_of(capsule, b"dltensor")).tensor


def test_memory_lives_as_long_as_a_capsule_or_its_taker(driver: FakeDriver) -> None:
    x = Foreign(driver, X)
    program = compiled(lambda x: x + 1, X)
    result = program(x)
    address = result.address
    capsule = result.__dlpack__(stream=LEGACY)
    del result
    gc.collect()
    assert address in driver.allocations
    tensor = tensor_of(capsule)
    assert (tensor.data, tensor.device.type, tensor.ndim, tensor.dtype.bits) == (address, 2, 2, 32)
    assert tensor.strides[:2] == [6, 1]
    del capsule
    gc.collect()
    assert address not in driver.allocations
    # A taker renames the capsule, and calls the deleter when it is done.
    result = program(x)
    address = result.address
    capsule = result.__dlpack__(stream=-1)
    managed = ctypes.pythonapi.PyCapsule_GetPointer
    managed.restype, managed.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    place = managed(capsule, b"dltensor")
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = b"used_dltensor"
    rename(capsule, used)
    deleter = ctypes.c_void_p.from_address(place + ctypes.sizeof(ctypes.c_void_p) * 7).value
    del capsule, result
    gc.collect()
    assert address in driver.allocations
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(place)
    gc.collect()
    assert address not in driver.allocations
    x.free()


def test_results_are_ordered_before_their_readers(driver: FakeDriver) -> None:
    """A reader on another stream waits for the kernels; memory it may still read is not given to others."""
    with driver.context(0):
        ours, theirs = driver.new_stream(), driver.new_stream()
        place = driver.allocate(X.nbytes)
    x = Foreign(driver, X)
    # Kept: a program that goes waits for the device.
    program = compiled(lambda x: x + 1, X).executable.program
    result = program(x, stream=ours)
    result.__dlpack__(stream=theirs)
    with driver.context(0):
        driver.copy(place, result.address, X.nbytes, theirs)
    del result
    gc.collect()
    with driver.context(0):
        driver.synchronise(theirs)
        np.testing.assert_array_equal(driver.contents(place, X.nbytes).view(np.float32).reshape(X.shape), X + 1)
        driver.free(place)
    x.free()


class Interfaced:
    """An array that offers the CUDA Array Interface alone, with its own stream."""

    def __init__(self, driver: FakeDriver, content: Tensor, stream: int, strides: Any = None) -> None:
        self.address = driver.array(content)
        self.shape, self.dtype = content.shape, content.dtype
        data = (self.address, False)
        self.__cuda_array_interface__ = {
            "shape": content.shape, "typestr": content.dtype.str, "data": data, "strides": strides, "stream": stream,
            "version": 3,
        }  # fmt: skip


def test_the_cuda_array_interface_is_read_and_offered(driver: FakeDriver) -> None:
    with driver.context(0):
        stream = driver.new_stream()
    x = Interfaced(driver, X, stream)
    result = compiled(lambda x: x + 1, X).executable.program(x)
    np.testing.assert_array_equal(np.asarray(result), X + 1)
    offered = result.__cuda_array_interface__
    assert (offered["shape"], offered["typestr"], offered["data"]) == ((4, 6), "<f4", (result.address, False))
    again = compiled(lambda x: x + 1, X).executable.program(Interfaced(driver, X, stream, (24, 4)))
    with pytest.raises(UnsupportedOnTargetError, match="strides"):
        compiled(lambda x: x + 1, X).executable.program(Interfaced(driver, X, stream, (4, 16)))
    del result, again
    with driver.context(0):
        driver.synchronise_all()
        for address in [*driver.allocations]:
            if driver.allocations[address].stream is None and driver.allocations[address].data.size == X.nbytes:
                driver.free(address)

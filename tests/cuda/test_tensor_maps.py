"""Tensor maps from a program to its launch: emulated, in saved programs, and as NVIDIA's driver gets them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tests.cuda.running import Foreign
from tests.cuda.test_pipeline import operands, product
from tests.emulators.cuda_driver import FakeDriver
from tests.passes.warps.test_scheduled_specialize_warps import SMALL
from tilewright.errors import CompilerBug
from tilewright.runtime.cuda.driver import BindingsDriver
from tilewright.runtime.cuda.steps import DeviceCode, Kernel, TensorMap, check_device

MAP = TensorMap(parameter=1, dtype="bf16", shape=(64, 8, 2), strides=(128, 1024), box=(64, 8, 1), swizzle=128)


def test_programs_with_tensor_maps_run(by_warpgroups: Callable[..., Any], driver: FakeDriver) -> None:
    """The second call captures a graph, the third launches it; others come with other addresses."""
    a, b, exact = operands("nn", "f16", 72, 40, 136)
    program = by_warpgroups(SMALL, product("nn", "f16"), a, b)
    for _ in range(3):
        np.testing.assert_array_equal(program(a, b)[0], exact.astype(np.float16))
    left, right = Foreign(driver, a), Foreign(driver, b)
    result = program(left, right)[0]
    np.testing.assert_array_equal(np.asarray(result), exact.astype(np.float16))
    del result
    for each in (left, right):
        each.free()


def test_programs_are_saved_with_their_tensor_maps(
    by_warpgroups: Callable[..., Any], driver: FakeDriver, tmp_path: Path
) -> None:
    a, b, exact = operands("nt", "bf16", 72, 40, 136)
    program = by_warpgroups(SMALL, product("nt", "bf16"), a, b)
    path = str(tmp_path / "product.twp")
    program.save(path)
    np.testing.assert_array_equal(tw.load(path)(a, b), exact.astype(a.dtype))


def code_with(tensor_map: TensorMap) -> DeviceCode:
    kernel = Kernel(name="k", blocks=1, threads=160, shared_bytes=0, parameters=(64, 2048), tensor_maps=(tensor_map,))
    return DeviceCode(chip="sm_90a", kernels=(kernel,), arena=(), steps=())


def test_a_description_that_contradicts_itself_is_refused() -> None:
    check_device("program", code_with(MAP), [64, 2048])
    for wrong in (msgspec.structs.replace(MAP, parameter=2), msgspec.structs.replace(MAP, strides=(128, 1040))):
        with pytest.raises(CompilerBug, match="TensorMap"):
            check_device("program", code_with(wrong), [64, 2048])


class Recorder:
    """The calls of `cuda.bindings.driver` that a launch makes, with its own types."""

    def __init__(self) -> None:
        import cuda.bindings.driver as api

        self.api = api
        self.encoded: list[tuple[Any, ...]] = []
        self.launched: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def CUlaunchConfig(self) -> SimpleNamespace:
        return SimpleNamespace()

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[Any, Any]:
        self.encoded.append(arguments)
        words = [(len(self.encoded) << 32) + number for number in range(16)]
        return self.api.CUresult.CUDA_SUCCESS, SimpleNamespace(opaque=words)

    def cuLaunchKernelEx(self, config: Any, function: int, parameters: int, extra: int) -> tuple[Any]:
        pointers = (ctypes.c_void_p * 3).from_address(parameters)
        sizes = (8, 8, 128)
        self.launched = [ctypes.string_at(place or 0, size) for place, size in zip(pointers, sizes, strict=True)]
        return (self.api.CUresult.CUDA_SUCCESS,)


@pytest.mark.parametrize(("dtype", "encoded"), [("bf16", "BFLOAT16"), ("f16", "FLOAT16"), ("f8e4m3fn", "UINT8")])
def test_the_driver_is_told_the_type(dtype: str, encoded: str) -> None:
    driver, recorder = object.__new__(BindingsDriver), Recorder()
    driver.api = recorder
    driver.launcher(7, code_with(msgspec.structs.replace(MAP, dtype=dtype)).kernels[0])([0x1000, 0x2000], 0)
    assert recorder.encoded[0][0].name == f"CU_TENSOR_MAP_DATA_TYPE_{encoded}"


def test_the_driver_gets_addresses_and_then_tensor_maps() -> None:
    driver, recorder = object.__new__(BindingsDriver), Recorder()
    driver.api = recorder
    kernel = code_with(MAP).kernels[0]
    for _ in range(2):
        driver.launcher(7, kernel)([0x1000, 0x2000], 0)
    ((dtype, rank, address, shape, strides, box, steps, interleave, swizzle, promotion, fill),) = recorder.encoded
    api = recorder.api
    assert (dtype, rank, address) == (api.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, 0x2000)
    assert [[int(each) for each in numbers] for numbers in (shape, strides, box, steps)] == [
        [64, 8, 2],
        [128, 1024],
        [64, 8, 1],
        [1, 1, 1],
    ]
    assert swizzle == api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    assert (interleave.value, promotion.value, fill.value) == (0, 2, 0)
    assert [int.from_bytes(each, "little") for each in recorder.launched[:2]] == [0x1000, 0x2000]
    assert list(np.frombuffer(recorder.launched[2], np.uint64)) == [(1 << 32) + number for number in range(16)]

"""What is said when there is no device for a program, no memory on it, or a call that fails."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.running import Foreign, X, compiled, two_kernels
from tests.emulators.cuda_driver import A100, H200, FakeDriver
from tilewright.cli.doctor import cuda
from tilewright.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    OverlapError,
    ResourceExhausted,
    ResourceUnavailable,
    ShapeError,
    TargetError,
    UnsupportedOnTargetError,
)
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.driver import Device
from tilewright.targets.cuda import chip_of, machine_named

pytestmark = pytest.mark.usefixtures("no_assembler")


def test_wrong_arrays_are_named(driver: FakeDriver) -> None:
    program = compiled(lambda x, y: x + y, X, X).executable.program
    x = Foreign(driver, X.astype(np.float64))
    with pytest.raises(ArgumentError, match="takes 2 arrays"):
        program(X)
    with pytest.raises(ShapeError, match="got shape"):
        program(X, X[:2])
    with pytest.raises(DTypeError, match="got dtype float64"):
        program(X, x)
    with pytest.raises(ArgumentError, match="`out` holds 2"):
        program(X, X, out=[X, X])
    with pytest.raises(ArgumentError, match="not a writeable NumPy array"):
        program(X, X, out=[3])
    x.free()


def test_arrays_that_overlap_are_refused(driver: FakeDriver) -> None:
    program = compiled(lambda x: x.T + 1, tw.ShapeDtype((4, 4), tw.f32)).executable.program
    host = np.zeros((4, 4), np.float32)
    x = Foreign(driver, host)
    for array in (host, x):
        with pytest.raises(OverlapError, match="overlaps"):
            program(array, out=array)
    x.free()


def test_arrays_on_two_devices_are_refused() -> None:
    fake = FakeDriver(H200, Device(1, "Second", (9, 0), 1 << 30, 132, 232448))
    with cuda_driver.replaced(fake):
        x, y = Foreign(fake, X), Foreign(fake, X, device=1)
        program = compiled(lambda x, y: x + y, X, X).executable.program
        with pytest.raises(ArgumentError, match="several devices: cuda:0, cuda:1"):
            program(x, y)
        result = program(y, y)
        assert result.device == 1
        np.testing.assert_array_equal(np.asarray(result), 2 * X)


def test_other_targets_take_no_device_arrays(driver: FakeDriver) -> None:
    x = Foreign(driver, X)
    for target in ("cpu", "interp"):
        with pytest.raises(UnsupportedOnTargetError, match="on the device `cuda:0`, not in CPU memory"):
            tw.jit(lambda x: x + 1, target=target)(x)
        with pytest.raises(UnsupportedOnTargetError, match="not in CPU memory"):
            tw.jit(lambda x: x + 1).lower(X).compile(target)(x)
    x.free()


class NoDriver:
    """What the bindings say where there is no driver."""

    def __init__(self) -> None:
        raise ResourceUnavailable("NVIDIA's driver is not there: no libcuda", help=cuda_driver.INSTALL)


def test_without_a_driver_nothing_runs_and_what_was_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_bindings", NoDriver)
    program = compiled(lambda x: x + 1, X)
    with pytest.raises(ResourceUnavailable, match=r"needs an NVIDIA GPU .*driver is not there") as found:
        program(X)
    assert "display driver" in str(found.value.help)
    assert found.value.code == "TW0504"
    assert found.value.location is not None


def test_without_a_device_that_is_said() -> None:
    fake = FakeDriver()
    fake._devices = ()
    with cuda_driver.replaced(fake), pytest.raises(ResourceUnavailable, match=r"CUDA 13\.0, and no device"):
        compiled(lambda x: x + 1, X)(X)


@pytest.mark.parametrize(
    ("chip", "capability", "runs"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (8, 0), False),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_103a", (10, 3), True),
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_80", (9, 0), False),
        ("sm_86", (8, 0), False),
        ("sm_89", (8, 9), True),
        ("sm_120a", (12, 1), False),
    ],
)
def test_chips_fit_devices(chip: str, capability: tuple[int, int], runs: bool) -> None:
    assert Device(0, "any", capability, 1, 1, 1).runs(chip) is runs


def test_a_device_that_does_not_fit_is_named() -> None:
    program = compiled(lambda x: x + 1, X)
    message = r"for sm_90a, .* Emulated A100, compute capability 8\.0"
    with cuda_driver.replaced(FakeDriver(A100)), pytest.raises(ResourceUnavailable, match=message):
        program(X)


def test_the_first_device_that_fits_is_taken() -> None:
    second = Device(1, "Second", (9, 0), 1 << 30, 132, 232448)
    fake = FakeDriver(A100, second)
    with cuda_driver.replaced(fake):
        np.testing.assert_array_equal(compiled(lambda x: x + 1, X)(X), X + 1)
        assert {each.device for each in fake.allocations.values()} <= {1}


def test_memory_that_is_not_there_is_said_with_the_table(driver: FakeDriver) -> None:
    x = tw.ShapeDtype((4096, 4096), tw.f32)
    program = compiled(lambda x: two_kernels(x @ x), x)
    small = Device(0, "Small", (9, 0), 1 << 20, 132, 232448)
    with cuda_driver.replaced(FakeDriver(small)):
        with pytest.raises(ResourceExhausted, match="bytes of work memory") as found:
            program(np.zeros((4096, 4096), np.float32))
        assert "f32[4096, 4096]" in str(found.value)
        assert "cuda:0: Small" in str(found.value)


def test_an_allocation_that_fails_runs_nothing(driver: FakeDriver) -> None:
    program = compiled(two_kernels, X)
    program(X)
    launches = driver.count("launch")
    x = Foreign(driver, X)
    for call, array in (("allocate_on", x), ("allocate", X)):
        fresh = compiled(two_kernels, X)
        driver.fail(call, "CUDA_ERROR_OUT_OF_MEMORY")
        with pytest.raises(ResourceExhausted, match="are free"):
            fresh(array)
    assert driver.count("launch") == launches
    x.free()


def test_the_limit_of_the_options_counts(driver: FakeDriver) -> None:
    program = compiled(two_kernels, X)
    with tw.options(memory_limit_bytes=64), pytest.raises(ResourceExhausted, match="`memory_limit_bytes` is 64"):
        program(X)
    assert driver.count("launch") == 0


@pytest.mark.parametrize("call", ["load_module", "function", "launch", "synchronise"])
def test_failures_of_the_driver_name_the_kernel(driver: FakeDriver, call: str) -> None:
    program = compiled(two_kernels, X)
    if call in ("launch", "synchronise"):
        program(X)
    driver.fail(call, "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(DeviceError, match=r"kernels? `\w+`.*CUDA_ERROR_ILLEGAL_ADDRESS") as found:
        program(X)
    assert "start it again" in str(found.value.help)
    assert program(X).shape == (6,)


def test_more_shared_memory_than_a_block_has_is_refused(driver: FakeDriver) -> None:
    program = compiled(lambda x, y: x @ y, tw.ShapeDtype((256, 256), tw.f32), tw.ShapeDtype((256, 256), tw.f32))
    little = Device(0, "Little", (9, 0), 1 << 30, 132, 1024)
    with cuda_driver.replaced(FakeDriver(little)), pytest.raises(ResourceExhausted, match="of shared memory"):
        program(*[np.zeros((256, 256), np.float32)] * 2)


def test_doctor_finds_the_driver(driver: FakeDriver) -> None:
    assert str(cuda_driver.found()) == "a driver for CUDA 13.0, and 0: Emulated H200, compute capability 9.0"


def test_doctor_tells_the_target_of_each_device(driver: FakeDriver) -> None:
    found = cuda()
    assert found["devices"][0]["target"] == "cuda:sm_90a"
    with cuda_driver.replaced(FakeDriver(A100, Device(1, "New", (8, 7), 1, 1, 1), Device(2, "Old", (7, 0), 1, 1, 1))):
        targets = [device["target"] for device in cuda()["devices"]]
    assert targets == ["cuda:sm_80", "cuda:sm_86", None]


def test_the_target_without_a_chip_is_that_of_the_first_device(driver: FakeDriver) -> None:
    np.testing.assert_array_equal(tw.jit(lambda x: x + 1, target="cuda")(X), X + 1)
    assert machine_named("").name == "sm_90a"
    with cuda_driver.replaced(FakeDriver(A100, H200)):
        assert machine_named("").name == "sm_80"


def test_the_target_without_a_chip_needs_a_device_with_one() -> None:
    old = Device(0, "Old", (7, 0), 1, 1, 1)
    with cuda_driver.replaced(FakeDriver(old)):
        with pytest.raises(ResourceUnavailable, match=r"0: Old, compute capability 7\.0") as caught:
            machine_named("")
        assert "cuda:CHIP with one of sm_100a" in str(caught.value.help)
        assert chip_of(old) is None
    with pytest.raises(TargetError, match="no NVIDIA chip `sm_70`"):
        machine_named("sm_70")

"""Tile kernels that are called with arrays on a device, which they read and write where they are."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.running import CHIP, Foreign, X
from tests.emulators.cuda_driver import FakeDriver
from tilewright.errors import ArgumentError, OverlapError, UnsupportedOnTargetError
from tilewright.runtime.cuda.array import DeviceArray

pytestmark = pytest.mark.usefixtures("no_assembler")


@pytest.fixture
def scale(driver: FakeDriver) -> Iterator[Any]:
    """A kernel whose programs are closed with the test."""

    @tw.kernel(target=CHIP)
    def scale(x: tw.In["M N"], y: tw.InOut["M N"], z: tw.Out["M N"], *, factor: float = 2.0):
        for i, j in tw.grid(z, (4, 8)):
            z[i, j] = x[i, j] * factor
            y[i, j] = y[i, j] + x[i, j]

    yield scale
    scale._compiled.clear()
    gc.collect()


def arrays(driver: FakeDriver, *contents: np.ndarray) -> list[Foreign]:
    return [Foreign(driver, content) for content in contents]


def copies_of(driver: FakeDriver) -> tuple[int, ...]:
    return tuple(driver.count(kind) for kind in ("copy_in", "copy_out", "copy"))


def test_arrays_on_a_device_are_read_and_written_in_place(driver: FakeDriver, scale: Any) -> None:
    scale(X, X.copy(), np.empty_like(X))
    x, y, z = arrays(driver, X, 10 * X, np.zeros_like(X))
    before = copies_of(driver)
    assert scale(x, y, z) is None
    assert copies_of(driver) == before
    np.testing.assert_array_equal(y.numpy(), 11 * X)
    np.testing.assert_array_equal(z.numpy(), 2 * X)
    for each in (x, y, z):
        each.free()


def test_results_of_a_kernel_are_on_the_device(driver: FakeDriver, scale: Any) -> None:
    x, y = arrays(driver, X, X)
    result = scale(x, y)
    assert isinstance(result, DeviceArray)
    np.testing.assert_array_equal(np.asarray(result), 2 * X)
    np.testing.assert_array_equal(y.numpy(), 2 * X)
    del result
    x.free()
    y.free()


def test_a_compiled_kernel_takes_arrays_of_both_places(driver: FakeDriver, scale: Any) -> None:
    (x,), y, z = arrays(driver, X), X.copy(), np.empty_like(X)
    compiled = scale.lower(x, y, z).compile()
    compiled(x, y, z)
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(z, 2 * X)
    x.free()


def test_read_only_arrays_are_not_written(driver: FakeDriver, scale: Any) -> None:
    (x, y) = arrays(driver, X, X)
    y.array.readonly = True
    with pytest.raises(ArgumentError, match="`y` is InOut, but its memory is read-only"):
        scale(x, y.array)
    np.testing.assert_array_equal(y.numpy(), X)
    y.array.owner = None
    x.free()
    y.free()


def test_arrays_that_overlap_are_refused(driver: FakeDriver, scale: Any) -> None:
    x, z = arrays(driver, X, X)
    with pytest.raises(OverlapError):
        scale(x, x, z)
    np.testing.assert_array_equal(x.numpy(), X)
    x.free()
    z.free()


@pytest.mark.parametrize("target", ["cpu", "interp", "grid:wormhole"])
def test_other_targets_take_no_arrays_on_a_device(driver: FakeDriver, scale: Any, target: str) -> None:
    (x,) = arrays(driver, X)
    y: Any = X.copy()
    compiled = scale.lower(x, y, X.copy()).compile(target)
    with pytest.raises(UnsupportedOnTargetError, match="is on the device `cuda:0`"):
        compiled(x, y, X.copy())
    x.free()

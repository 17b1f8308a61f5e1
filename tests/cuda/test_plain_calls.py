"""Calls whose arrays are all on the device, on the caller's stream: after the first one nothing but a launch is left,
and what is another call than the one before is still noticed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.running import CHIP, X, two_kernels
from tests.emulators.cuda_driver import FakeDriver
from tilewright.errors import OverlapError, ResourceExhausted, ShapeError, UnsupportedOnTargetError
from tilewright.runtime.cuda.array import DeviceArray, uploaded
from tilewright.runtime.cuda.program import DeviceProgram
from tilewright.runtime.cuda.stream import Stream, own_stream

pytestmark = pytest.mark.usefixtures("no_assembler")


@pytest.fixture
def stream(driver: FakeDriver) -> Iterator[Stream]:
    with driver.context(0):
        on = Stream(driver.new_stream())
    with tw.stream(on):
        yield on
    with driver.context(0):
        driver.synchronise_all()
    gc.collect()


def on_device(driver: FakeDriver, stream: Stream, x: np.ndarray[Any, Any]) -> DeviceArray:
    with driver.context(0):
        return uploaded(x, 0, stream)


class SlowCalls:
    """Counts calls that look at everything."""

    def __enter__(self) -> SlowCalls:
        self.count = 0
        call = DeviceProgram._call

        def counted(program: DeviceProgram, *arguments: Any) -> Any:
            self.count += 1
            return call(program, *arguments)

        self._patch = patch.object(DeviceProgram, "_call", counted)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def test_calls_after_the_first_are_plain(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(lambda x, y: (x + y, x * y), target=CHIP)
    x, y = on_device(driver, stream, X), on_device(driver, stream, X + 1)
    with SlowCalls() as slow:
        for _ in range(4):
            total, product = function(x, y)
            np.testing.assert_array_equal(np.asarray(total), 2 * X + 1)
            np.testing.assert_array_equal(np.asarray(product), X * (X + 1))
    assert slow.count == 1
    assert isinstance(total, DeviceArray)
    assert total.stream == stream
    del function, total, product, x, y


def test_types_may_alternate(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(lambda x: x + x, target=CHIP)
    kinds = [X, X[:3], X.astype(np.int32), X.reshape(-1)]
    given = [on_device(driver, stream, kind) for kind in kinds]
    with SlowCalls() as slow:
        for _ in range(3):
            for x, kind in zip(given, kinds, strict=True):
                found = np.asarray(function(x))
                assert found.dtype == kind.dtype
                np.testing.assert_array_equal(found, 2 * kind)
    assert slow.count == len(kinds)
    del function, given, x


def test_programs_of_several_kernels(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(two_kernels, target=CHIP)
    expected = function(X)
    x = on_device(driver, stream, X)
    with SlowCalls() as slow:
        for _ in range(5):
            np.testing.assert_allclose(np.asarray(function(x)), expected, rtol=1e-6)
    assert slow.count == 1
    del function, x


def test_what_is_another_call_is_one(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(lambda x, y: x - y, target=CHIP)
    x = on_device(driver, stream, X)
    for _ in range(2):
        function(x, x)
    on_host = function(x, X)
    np.testing.assert_array_equal(np.asarray(on_host), 0 * X)
    with pytest.raises(ShapeError):
        function(x, on_device(driver, stream, X[:3]))
    np.testing.assert_array_equal(function(X, X + 1), 0 * X - 1)
    with tw.stream(None):
        np.testing.assert_array_equal(np.asarray(function(x, x)), 0 * X)
    with tw.options(memory_limit_bytes=8), pytest.raises(ResourceExhausted):
        function(x, x)
    np.testing.assert_array_equal(np.asarray(function(x, x)), 0 * X)
    del function, x, on_host


def test_calls_that_cannot_be_plain_are_not_kept(driver: FakeDriver) -> None:
    """On a stream of our own, each call is waited for."""
    function = tw.jit(lambda x: x + 1, target=CHIP)
    with driver.context(0):
        x = on_device(driver, own_stream(driver, 0), X)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(function(x)), X + 1)
    assert function._on_device == []
    with driver.context(0):
        chosen = Stream(driver.new_stream())
    with tw.stream(chosen):
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(function(x)), X + 1)
    assert len(function._on_device) == 1
    del function, x
    gc.collect()


def test_a_stream_that_is_captured_is_refused(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(lambda x: x + 1, target=CHIP)
    x = on_device(driver, stream, X)
    for _ in range(2):
        function(x)
    with driver.context(0):
        driver.synchronise_all()
        driver.begin_capture(stream.handle)
        with pytest.raises(UnsupportedOnTargetError, match="is being captured"):
            function(x)
        driver.close_graph(driver.end_capture(stream.handle))
    np.testing.assert_array_equal(np.asarray(function(x)), X + 1)
    del function, x


def test_memory_that_runs_out_is_reported(driver: FakeDriver, stream: Stream) -> None:
    function = tw.jit(lambda x: x + 1, target=CHIP)
    x = on_device(driver, stream, X)
    for _ in range(2):
        function(x)
    with patch.object(driver, "allocate_on", side_effect=_out_of_memory), pytest.raises(ResourceExhausted):
        function(x)
    np.testing.assert_array_equal(np.asarray(function(x)), X + 1)
    del function, x


def _out_of_memory(*_: object) -> int:
    from tilewright.runtime.cuda.driver import DriverFailure

    raise DriverFailure("cu_allocate", "CUDA_ERROR_OUT_OF_MEMORY", "none is left")


def test_arrays_of_another_stream_are_waited_for(driver: FakeDriver, stream: Stream) -> None:
    """The emulated driver reports arrays that two streams touch without an event between."""
    function = tw.jit(lambda x: x + 1, target=CHIP)
    with driver.context(0):
        other = Stream(driver.new_stream())
    y = on_device(driver, stream, X)
    for _ in range(3):
        with tw.stream(other):
            y = function(y)
        with tw.stream(stream):
            y = function(y)
    np.testing.assert_array_equal(np.asarray(y), X + 6)
    del function, y


def test_kernels_are_plain(driver: FakeDriver, stream: Stream) -> None:
    @tw.kernel(target=CHIP)
    def scale(x: tw.In["M N"], y: tw.InOut["M N"], z: tw.Out["M N"], *, factor: float = 2.0):
        for i, j in tw.grid(z, (4, 8)):
            z[i, j] = x[i, j] * factor
            y[i, j] = y[i, j] + x[i, j]

    x, y, z = (on_device(driver, stream, each) for each in (X, X, 0 * X))
    with SlowCalls() as slow:
        for count in range(1, 4):
            assert scale(x, y, z) is None
            np.testing.assert_array_equal(np.asarray(z), 2 * X)
            np.testing.assert_array_equal(np.asarray(y), (1 + count) * X)
        assert slow.count == 1
        for factor in (3.0, 3, 3.0, 3):
            found = scale(x, y, factor=factor)
            np.testing.assert_array_equal(np.asarray(found), 3 * X)
        assert slow.count == 3
    with pytest.raises(OverlapError):
        scale(x, y, y)
    with pytest.raises(OverlapError):
        scale(x, x, z)
    scale._compiled.clear()
    scale._plain.clear()
    del scale, x, y, z, found


def test_a_call_outlives_the_function_that_made_it(driver: FakeDriver, stream: Stream) -> None:
    x = on_device(driver, stream, X)
    executable = tw.jit(lambda x: x + 1).lower(x).compile(CHIP).executable
    executable(x)
    options, call = executable.settled_on_device([x])
    assert options is not None
    del executable
    gc.collect()
    np.testing.assert_array_equal(np.asarray(call(x)), X + 1)
    del call, x


def test_threads_share_a_plain_call(driver: FakeDriver) -> None:
    function = tw.jit(two_kernels, target=CHIP)
    expected = function(X)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with driver.context(0):
                on = Stream(driver.new_stream())
            with tw.stream(on):
                x = on_device(driver, on, X)
                for _ in range(8):
                    np.testing.assert_allclose(np.asarray(function(x)), expected, rtol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    del function
    gc.collect()

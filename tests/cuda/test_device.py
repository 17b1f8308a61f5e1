"""Programs on the GPU of this machine. Not collected where there is none: `pytest tests/cuda/test_device.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.numerics.test_phases import close, expected_of
from tests.programs import PROGRAMS
from tilewright import events
from tilewright.cli.doctor import cuda
from tilewright.driver.compile import compile_graph
from tilewright.errors import ResourceExhausted
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.array import DeviceArray, uploaded
from tilewright.runtime.cuda.stream import Stream, own_stream

TARGET = next(device["target"] for device in cuda()["devices"] if device["target"] is not None)
UNSUPPORTED = ("ordered", "ordered_long")
SUPPORTED = [make for make in PROGRAMS if make.__name__ not in UNSUPPORTED]
X = np.random.default_rng(0).standard_normal((257, 300)).astype(np.float32)


def two_kernels(x: Any) -> Any:
    return tw.sum(tw.nn.softmax(x, axis=-1), axis=0)


def expected_sum(x: Any) -> Any:
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).sum(0)


def on_device(x: Any, stream: int | None = None) -> DeviceArray:
    driver = cuda_driver.driver()
    device = cuda_driver.device_for("test", TARGET.partition(":")[2]).ordinal
    with driver.context(device):
        return uploaded(x, device, own_stream(driver, device) if stream is None else Stream(stream))


@pytest.mark.parametrize("make", SUPPORTED, ids=lambda make: make.__name__)
def test_programs_agree_with_numpy(make: Callable[..., Any]) -> None:
    program, arrays, expected = expected_of(make)
    executable = compile_graph(program, TARGET)
    for _ in range(4):
        close(executable(*arrays), expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (300, 200, 500), (1, 128, 77), (1024, 1024, 1024)], ids=str)
def test_products(dtype: str, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    generator = np.random.default_rng(1)
    kind = getattr(tw, dtype).numpy
    a, b = (generator.integers(-4, 5, s).astype(kind) for s in ((rows, depth), (depth, columns)))
    found = tw.jit(lambda x, y: x @ y, target=TARGET)(a, b)
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(kind)
    np.testing.assert_array_equal(found, exact)


def test_graphs_give_what_launches_give() -> None:
    x = on_device(X)
    program = tw.jit(two_kernels).lower(X).compile(TARGET).executable.program
    out = on_device(np.zeros(300, np.float32))
    for _ in range(5):
        program(x, out=out)
        np.testing.assert_allclose(np.asarray(out), expected_sum(X), rtol=1e-5)


def test_a_stream_of_the_callers() -> None:
    driver = cuda_driver.driver()
    x = on_device(X)
    with driver.context(x.device):
        stream = driver.new_stream()
    with tw.stream(stream):
        y = tw.jit(lambda x: x * 2 + 1, target=TARGET)(x)
        for _ in range(50):
            y = tw.jit(lambda x: x * 1, target=TARGET)(y)
    np.testing.assert_allclose(np.asarray(y), X * 2 + 1, rtol=1e-6)


def test_donated_arrays_are_updated_where_they_lie() -> None:
    step = tw.jit(lambda x: x + 1, target=TARGET, donate="x")
    x = on_device(X)
    address = x.address
    for _ in range(20):
        x = step(x)
    assert x.address == address
    np.testing.assert_allclose(np.asarray(x), X + 20, rtol=1e-5)


def test_threads_share_a_program() -> None:
    program = tw.jit(two_kernels).lower(X).compile(TARGET)
    failures: list[BaseException] = []

    def work(scale: int) -> None:
        try:
            for _ in range(50):
                np.testing.assert_allclose(program(X * scale), expected_sum(X * scale), rtol=1e-4, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_saved_program_runs_in_another_process(tmp_path: Path) -> None:
    tw.jit(two_kernels).lower(X).compile(TARGET).save(str(tmp_path / "program.twp"))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        f"y = tw.load({str(tmp_path / 'program.twp')!r})(np.load({str(tmp_path / 'x.npy')!r}))\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, y)\n"
        "assert not {'xdsl', 'llvmlite'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected_sum(X), rtol=1e-5)


def test_memory_that_is_not_there() -> None:
    """Programs, each with a workspace of its own, until the device is full."""
    lowered = tw.jit(two_kernels).lower(X)
    driver = cuda_driver.driver()
    programs: list[Any] = []
    with driver.context(cuda_driver.device_for("test", TARGET.partition(":")[2]).ordinal):
        kept = driver.allocate(driver.free_bytes() - (1 << 24))
        try:
            with pytest.raises(ResourceExhausted, match="are free"):
                fill(lowered, programs)
        finally:
            driver.free(kept)
    np.testing.assert_allclose(programs[-1](X), expected_sum(X), rtol=1e-5)


def fill(lowered: Any, programs: list[Any]) -> None:
    for _ in range(200):
        programs.append(lowered.compile(TARGET))
        programs[-1](X)


def test_kernels_are_timed() -> None:
    program = tw.jit(two_kernels).lower(X).compile(TARGET)
    with events.capture() as records:
        program(X)
    seconds = [record["seconds"] for record in records if record["kind"] == "runtime.kernel"]
    assert seconds
    assert all(0 < each < 0.1 for each in seconds)


@tw.kernel
def doubled(x: tw.In["M N"], y: tw.Out["M N"], *, rows: int = 4):
    for i in tw.grid(x, rows):
        with tw.zone("load"):
            tile = x[i, :]
        y[i, :] = tile + tile


def test_zones_are_within_their_kernels(tmp_path: Path) -> None:
    x, path = np.arange(4096, dtype=np.float32).reshape(64, 64), tmp_path / "trace.json"
    y = np.empty_like(x)
    with tw.options(trace_file=path):
        doubled.lower(x, y).compile(TARGET)(x, y)
    np.testing.assert_array_equal(y, 2 * x)
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    by_block = [[each for each in slices if each["args"]["block"] == block] for block in range(16)]
    for whole, zone in by_block:
        assert (whole["cat"], zone["name"], zone["tid"]) == ("kernel", "load", whole["tid"])
        assert 0 < zone["dur"] <= whole["dur"] < 1e5
        assert whole["ts"] <= zone["ts"]

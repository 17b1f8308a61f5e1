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


# ---- arrays of torch -------------------------------------------------------------------------------------------------


def test_tensors_of_torch_are_used_in_place_on_its_stream() -> None:
    torch = pytest.importorskip("torch")
    function = tw.jit(lambda x, y: (x + y, x * y), target=TARGET)
    x, y = torch.randn(300, 257, device="cuda"), torch.randn(300, 257, device="cuda")
    side = torch.cuda.Stream()
    for number in range(40):
        with torch.cuda.stream(side if number % 3 == 2 else torch.cuda.default_stream()):
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            total, product = function(x, y)
            assert isinstance(total, torch.Tensor)
            torch.testing.assert_close(total, x + y)
            torch.testing.assert_close(product, x * y)
            x = total / 2
    transposed = function(x.T, y.T)[0]
    torch.testing.assert_close(transposed, (x + y).T)
    assert function(x[:3], y[:3])[0].shape == (3, 257)
    misaligned = torch.randn(300 * 257 + 1, device="cuda")[1:].view(300, 257)
    torch.testing.assert_close(function(misaligned, y)[0], misaligned + y)


def test_kernels_write_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")

    @tw.kernel(target=TARGET)
    def axpy(x: tw.In["M N"], y: tw.InOut["M N"], z: tw.Out["M N"], *, a: float = 2.0):
        for i, j in tw.grid(z, (16, 64)):
            z[i, j] = x[i, j] * a
            y[i, j] = y[i, j] + x[i, j]

    x, y, z = (torch.randn(200, 130, device="cuda") for _ in range(3))
    for a in (2.0, 3.0, 2.0, 2.0):
        before = y.clone()
        assert axpy(x, y, z, a=a) is None
        torch.testing.assert_close(z, x * a)
        torch.testing.assert_close(y, before + x)


# ---- kernels that only a device measures ----------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ((2, 3, 512, 64), (2, 3, 512, 64)),
        ((1, 2, 300, 128), (1, 2, 300, 128)),
        ((1, 8, 256, 64), (1, 2, 256, 64)),
        ((1, 1, 1000, 96), (1, 1, 1000, 96)),
        ((1, 2, 130, 256), (1, 2, 130, 256)),
        ((1, 2, 40, 32), (1, 2, 500, 32)),
    ],
    ids=str,
)
def test_attention(dtype: str, causal: bool, queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    if causal and queries[2] != keys[2]:
        causal = False
    generator = np.random.default_rng(3)
    kind = getattr(tw, dtype).numpy
    q, k, v = ((3 * generator.standard_normal(s)).astype(kind) for s in (queries, keys, keys))
    found = tw.jit(lambda q, k, v: tw.nn.attention(q, k, v, causal=causal), target=TARGET)(q, k, v)
    wide = [each.astype(np.float64) for each in (q, k, v)]
    shared = queries[1] // keys[1]
    wide[1:] = [np.repeat(each, shared, axis=1) for each in wide[1:]]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) / np.sqrt(queries[-1])
    if causal:
        scores = np.where(np.tri(queries[2], keys[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ wide[2]
    bound = 2.0**-8 if dtype == "bf16" else 2.0**-10
    assert np.abs(found.astype(np.float64) - exact).max() <= 2 * bound * np.abs(exact).max()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64", "i64"])
@pytest.mark.parametrize("shape", [(64, 64), (1000, 333), (7, 4000), (3, 257, 129)], ids=str)
def test_transposes(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).integers(-100, 100, shape).astype(getattr(tw, dtype).numpy)
    np.testing.assert_array_equal(tw.jit(lambda x: x.mT, target=TARGET)(x), x.swapaxes(-1, -2))


def test_sums_in_parts() -> None:
    x = np.random.default_rng(5).integers(-8, 9, (8192, 4096)).astype(np.float32)
    np.testing.assert_array_equal(tw.jit(lambda x: tw.sum(x, axis=0), target=TARGET)(x), x.sum(0))
    np.testing.assert_array_equal(tw.jit(lambda x: tw.max(x, axis=0), target=TARGET)(x), x.max(0))


def test_maxima_of_nan() -> None:
    x = np.array([1.0, np.nan, -np.inf, np.inf, -0.0], np.float32)
    for function, reference in ((tw.maximum, np.maximum), (tw.minimum, np.minimum)):
        found = tw.jit(lambda x, y, f=function: f(x, y), target=TARGET)(x[:, None], x[None])
        np.testing.assert_array_equal(found, reference(x[:, None], x[None]))


@pytest.mark.parametrize("shape", [(512, 512, 512), (1000, 516, 300), (4096, 64, 1024)], ids=str)
def test_products_in_tf32(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    generator = np.random.default_rng(6)
    a, b = (generator.integers(-64, 65, s).astype(np.float32) for s in ((rows, depth), (columns, depth)))
    found = tw.jit(lambda x, y: tw.matmul(x, y.T, precision="tf32"), target=TARGET)(a, b)
    np.testing.assert_array_equal(found, a @ b.T)  # whole numbers that tf32 holds


@pytest.mark.parametrize("shape", [(4001, 4003, 3999), (2049, 1023, 2047), (600, 4095, 4096)], ids=str)
def test_products_of_rows_that_begin_anywhere(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    generator = np.random.default_rng(7)
    a, b = (generator.integers(-2, 3, s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
    kind = tw.bf16.numpy
    found = tw.jit(lambda x, y: x @ y, target=TARGET)(a.astype(kind), b.astype(kind))
    np.testing.assert_array_equal(found, (a @ b).astype(kind))


def test_profiles() -> None:
    x = on_device(np.ones((4096, 4096), np.float32))
    times = tw.jit(two_kernels).lower(x).compile(TARGET).profile(x, repeat=5)
    assert [each.calls for each in times] == [1.0] * len(times)
    assert all(1e-6 < each.seconds < 1e-2 for each in times)

"""Programs for cuda run through the public interface, on an emulated device: results, streams, graphs, threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.running import CHIP, Foreign, X, compiled, two_kernels, unassembled
from tests.emulators.cuda_driver import LEGACY, FakeDriver, Misuse
from tests.numerics.test_phases import close, expected_of
from tests.programs import PROGRAMS
from tests.sampling import ALL
from tilewright import events
from tilewright.driver.compile import compile_graph
from tilewright.errors import ArgumentError, UnsupportedOnTargetError
from tilewright.passes.program_memory import plan_memory
from tilewright.targets.cuda import target as cuda_target

pytestmark = pytest.mark.usefixtures("no_assembler")


UNSUPPORTED = ("ordered", "ordered_long")
SUPPORTED = [make for make in PROGRAMS if make.__name__ not in UNSUPPORTED]
# What the emulator takes long for: what differs from call to call the others show.
LONG = ("softmax_long_rows", "matmul_epilogue", "attention", "causal_attention", "product_in_parts", "convolution")
QUICK = [make for make in SUPPORTED if make.__name__ not in LONG]
# A third of a minute each: products and attention are emulated by tests of their own.
LONGEST = ("matmul_epilogue", "attention", "causal_attention")
CALLED = [make for make in SUPPORTED if ALL or make.__name__ not in LONGEST]


# ---- programs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", CALLED, ids=lambda make: make.__name__)
def test_programs_agree_with_numpy_however_often_they_are_called(make: Callable[..., Any], driver: FakeDriver) -> None:
    """The second call captures what it does into a graph, the third launches that."""
    program, arrays, expected = expected_of(make)
    executable = compile_graph(program, CHIP)
    for _ in range(3 if make in QUICK else 0):
        close(executable(*arrays), expected)
    close(executable(*arrays, out=[np.empty_like(array) for array in expected]), expected)


@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_saved_programs_run_where_there_is_no_compiler(make: Callable[..., Any], tmp_path: Path) -> None:
    program, arrays, expected = expected_of(make)
    compile_graph(program, CHIP).save(str(tmp_path / "program.twp"))
    np.savez(tmp_path / "inputs.npz", *arrays)
    command = [sys.executable, "-c", RUN_SAVED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    results = np.load(tmp_path / "results.npz")
    close([results[name] for name in results.files], expected)


RUN_SAVED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xdsl", "llvmlite", "cuda"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import numpy as np
import tilewright as tw
from tests.emulators.cuda_driver import FakeDriver
from tilewright.runtime.cuda import driver as cuda_driver
folder = sys.argv[1]
program = tw.load(f"{folder}/program.twp")
inputs = np.load(f"{folder}/inputs.npz")
fake = FakeDriver()
with cuda_driver.replaced(fake):
    results = program(*(inputs[name] for name in inputs.files))
    np.savez(f"{folder}/results.npz", *(results if isinstance(results, tuple) else [results]))
    del program
    fake.check_nothing_left()
"""


def test_jit_calls_run_on_the_device(driver: FakeDriver) -> None:
    f = tw.jit(lambda x, y: {"sum": x + y, "scaled": x * 2}, target=CHIP)
    for scale in (1, 2, 3):
        found = f(X * scale, X)
        np.testing.assert_array_equal(found["sum"], X * scale + X)
        np.testing.assert_array_equal(found["scaled"], X * scale * 2)
    assert driver.count("load_module") == len({name for _, name in driver.functions.values()})


def test_arguments_are_copied_when_they_are_not_contiguous(driver: FakeDriver) -> None:
    program = compiled(lambda x: x + 1, X.T)
    np.testing.assert_array_equal(program(X.T), X.T + 1)


def test_outputs_that_are_given_are_written(driver: FakeDriver) -> None:
    program = compiled(lambda x: x + 1, X).executable
    out, turned = np.zeros_like(X), np.zeros_like(X.T.copy()).T
    for each in (out, turned):
        (found,) = program(X, out=[each])
        assert found is each
        np.testing.assert_array_equal(each, X + 1)


def test_donated_inputs_become_the_output(driver: FakeDriver) -> None:
    program = compiled(lambda x: tw.nn.softmax(x, axis=-1) + 1, X, donate="x")
    expected = np.exp(X) / np.exp(X).sum(-1, keepdims=True) + 1
    for _ in range(3):
        given = X.copy()
        found = program(given)
        assert found is given
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("axis", "shape", "copies"), [(-1, (64, 300), 0), (0, (5, 7), 1)])
def test_no_thread_writes_what_another_may_still_read(axis: int, shape: tuple[int, ...], copies: int) -> None:
    """The memory of a donated input is written by the kernel that reads it only if each thread writes what it read."""
    lowered = tw.jit(lambda x: tw.nn.softmax(x, axis=axis), donate="x").lower(tw.ShapeDtype(shape, tw.f32))
    assert len(plan_memory(built(lowered, CHIP).unit).copies) == copies


def test_constants_are_uploaded_once(driver: FakeDriver) -> None:
    weights = np.arange(30, dtype=np.float32).reshape(6, 5)
    program = compiled(lambda x: x @ weights, X)
    for _ in range(3):
        np.testing.assert_array_equal(program(X), X @ weights)
    assert driver.count("copy_in") == 1 + 3


def test_a_second_compile_comes_from_the_cache(driver: FakeDriver) -> None:
    first, second = (tw.jit(two_kernels).lower(X).compile(CHIP) for _ in range(2))
    assert (first.executable.cache_state, second.executable.cache_state) == ("miss", "hit")
    np.testing.assert_array_equal(first(X), second(X))
    assert second.ir("ptx") == first.ir("ptx")


def test_machine_code_is_assembled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two programs with the same kernel, one asks the assembler."""
    from tilewright.targets.cuda import cubin_cache

    asked: list[str] = []
    assembler = lambda name, ptx, machine: asked.append(name) or unassembled(name, ptx, machine)  # noqa: E731
    monkeypatch.setattr(cuda_target, "cubin", cubin_cache.cubin)
    monkeypatch.setattr(cubin_cache.COMPILER, "cubin", assembler)
    for name in ("one", "other"):
        function = lambda x: x * 3 - 1  # noqa: E731
        function.__name__ = name
        tw.jit(function).lower(X).compile(CHIP)
    assert len(asked) == 1


@pytest.mark.parametrize("content", [b"", b"\x81\xa1x" + b"\x91" * 100_000])
def test_machine_code_in_a_damaged_file_is_assembled_again(tmp_path: Path, content: bytes) -> None:
    from tilewright.targets.cuda import cubin_cache

    (tmp_path / "code").write_bytes(content)
    assert cubin_cache._read(tmp_path / "code", "key") is None


@pytest.mark.timeout(60)
def test_the_best_of_an_enormous_axis_is_refused_at_once() -> None:
    lowered = tw.jit(lambda x: tw.argmax(tw.broadcast_to(x, (4, 2**40)), axis=1)).lower(np.ones((4, 1), np.float32))
    with pytest.raises(UnsupportedOnTargetError, match="`arg_reduce` of 1099511627776 elements"):
        lowered.compile(CHIP)


# ---- streams, graphs and threads ------------------------------------------------------------------------------------


def test_a_graph_is_made_where_addresses_come_again(driver: FakeDriver) -> None:
    program = compiled(two_kernels, X)
    expected = program(X)
    assert (driver.count("begin_capture"), driver.count("launch_graph")) == (0, 0)
    for calls in (1, 2, 3):
        np.testing.assert_array_equal(program(X), expected)
        assert (driver.count("begin_capture"), driver.count("launch_graph")) == (1, calls)


def test_programs_that_read_on_the_host_make_no_graph(driver: FakeDriver) -> None:
    def halved(x: Any) -> Any:
        return tw.while_loop(lambda s: tw.max(s) > 1, lambda s: s / 2, x)

    program = compiled(halved, X)
    for _ in range(3):
        np.testing.assert_array_equal(program(X), X / 32)
    assert driver.count("begin_capture") == 0


def test_other_addresses_make_other_graphs_and_the_oldest_go(driver: FakeDriver) -> None:
    program = compiled(two_kernels, X)
    expected = program(X)
    arrays = [Foreign(driver, X) for _ in range(12)]
    outs = [Foreign(driver, np.zeros_like(expected)) for _ in range(12)]
    for array, out in zip(arrays, outs, strict=True):
        for _ in range(2):
            program.executable.program(array, out=out)
        np.testing.assert_array_equal(out.numpy(), expected)
    assert driver.count("begin_capture") == 12
    assert len(driver.graphs) <= 8
    for each in (*arrays, *outs):
        each.free()


def test_two_threads_call_one_program(driver: FakeDriver) -> None:
    weights = np.arange(30, dtype=np.float32).reshape(6, 5)
    program = compiled(lambda x: two_kernels(x @ weights), X)
    failures: list[BaseException] = []
    start = threading.Barrier(2)

    def work(scale: int) -> None:
        try:
            start.wait()
            for _ in range(4):
                x = X * scale / 100
                y = x @ weights
                powers = np.exp(y - y.max(-1, keepdims=True))
                expected = (powers / powers.sum(-1, keepdims=True)).sum(0)
                with tw.options(cache=False):
                    np.testing.assert_allclose(program(x), expected, rtol=1e-5, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_calls_on_the_callers_stream_return_at_once(driver: FakeDriver) -> None:
    with driver.context(0):
        stream = driver.new_stream()
    x = Foreign(driver, X)
    program = compiled(two_kernels, X).executable.program
    expected = program(X)
    waits = driver.count("synchronise")
    with tw.stream(stream):
        result = program(x)
    assert x.asked == [stream]
    assert driver.count("synchronise") == waits
    assert driver.streams[stream].pending
    np.testing.assert_array_equal(np.asarray(result), expected)
    again = program(x, stream=stream)
    np.testing.assert_array_equal(np.asarray(again), expected)
    del result, again
    x.free()


def test_streams_that_share_a_program_wait_for_each_other(driver: FakeDriver) -> None:
    """The workspace goes from one to the other: without an event between, the emulation would say so."""
    with driver.context(0):
        streams = [driver.new_stream() for _ in range(2)]
    arrays = [Foreign(driver, X * scale) for scale in (1, 2)]
    program = compiled(two_kernels, X).executable.program
    expected = [program(X * scale) for scale in (1, 2)]
    for _ in range(3):
        results = [program(array, stream=stream) for array, stream in zip(arrays, streams, strict=True)]
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(result), wanted)
    del results, result
    for array in arrays:
        array.free()


def test_the_emulation_notices_two_streams_on_one_array(driver: FakeDriver) -> None:
    with driver.context(0):
        first, second = driver.new_stream(), driver.new_stream()
        place = driver.allocate(256)
        driver.copy_in(place, X.ctypes.data, X.nbytes, first)
        with pytest.raises(Misuse, match="may still be using"):
            driver.copy(place + 128, place, 16, second)
        event = driver.new_event()
        driver.record(event, first)
        driver.wait(second, event)
        driver.copy(place + 128, place, 16, second)
        driver.synchronise(second)
        driver.close_event(event)
        driver.free(place)
    driver.misuses.clear()


def test_a_stream_that_is_captured_is_refused(driver: FakeDriver) -> None:
    with driver.context(0):
        stream = driver.new_stream()
        driver.begin_capture(stream)
    x = Foreign(driver, X)
    program = compiled(two_kernels, X).executable.program
    with pytest.raises(UnsupportedOnTargetError, match="being captured"):
        program(x, stream=stream)
    with driver.context(0):
        driver.close_graph(driver.end_capture(stream))
    x.free()


@pytest.mark.parametrize("given", [1.5, "x", True, -3], ids=repr)
def test_what_is_no_stream_is_refused(given: object) -> None:
    with pytest.raises(ArgumentError, match="not a CUDA stream") as raised, tw.stream(given):
        pass
    assert raised.value.location is not None
    assert raised.value.location.file == __file__


def test_streams_of_other_libraries_are_read() -> None:
    from tilewright.runtime.cuda.stream import stream_of

    class Torch:
        cuda_stream = 77

    class Cupy:
        ptr = 0

    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 99

    assert [stream_of(each).handle for each in (Torch(), Cupy(), Core(), 5, 0)] == [77, LEGACY, 99, 5, LEGACY]


def test_launches_are_timed_one_by_one_for_those_who_look(driver: FakeDriver) -> None:
    program = compiled(two_kernels, X)
    with events.capture() as records:
        for _ in range(3):
            program(X)
    kernels = [record["name"] for record in records if record["kind"] == "runtime.kernel"]
    assert len(kernels) == 3 * len(set(kernels))
    assert driver.count("begin_capture") == 0
    assert [record["kind"] for record in records].count("runtime.launch") == 3


def test_profiles_are_times_between_events(driver: FakeDriver) -> None:
    """The emulated driver counts a microsecond for each launch."""
    program = compiled(two_kernels, X)
    times = program.profile(X, repeat=3)
    assert sorted(each.name for each in times) == sorted(program.cost().kernels)
    assert len(times) == 2
    for each in times:
        assert (each.calls, each.seconds) == (1.0, pytest.approx(1e-6))
        assert each.estimated_s == program.cost().kernels[each.name].seconds
        assert each.bytes > 0

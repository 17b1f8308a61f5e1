"""`tilewright bench` on a device: cases, times by events, peers on our arrays and our stream, and what is refused."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import tilewright as tw
from tests.cuda.running import X, two_kernels
from tests.emulators.cuda_driver import A100, H200, FakeDriver
from tests.sampling import sampled
from tilewright.cli import bench, bench_device, bench_device_peers, bench_worker, main
from tilewright.cli.bench_suites import load_cases
from tilewright.cli.bench_suites.case import Case, DeviceCase, picked
from tilewright.cli.bench_worker import Request
from tilewright.errors import ResourceUnavailable
from tilewright.machines import machine as machines
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.array import DeviceArray, uploaded
from tilewright.runtime.cuda.stream import Stream, chosen_stream

pytestmark = pytest.mark.usefixtures("no_assembler")

SUITES = ("gemm", "attention", "ops")
QUICK = [(suite, case.name) for suite in SUITES for case in load_cases(suite, True, on_device=True)]


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {"suite": "ops", "case": None, "peers": (), "threads": 1, "repeat": 1, "quick": True}
    return Request(**(fields | {"block_s": 0.0, "gap_s": 0.0} | changes))


def reference(numpy: Any, x: Any) -> Any:
    powers = numpy.exp(x - x.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).sum(0)


def made_up(peers: dict[str, Any], **changes: Any) -> DeviceCase:
    fields: dict[str, Any] = {"flops": 1e3, "bytes": 1e3, "tolerance": 1e-6, "reference": reference}
    return DeviceCase(
        name="made up", make_inputs=lambda generator: (X,), ours=tw.jit(two_kernels), peers=peers, **(fields | changes)
    )


def measured(case: Case, **changes: Any) -> dict[str, Any]:
    with tw.options(target="cuda"):
        return bench_worker.measure(case, request(**changes))


# ---- cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suite", "name"), sampled(QUICK, 2), ids=lambda value: value)
def test_tiny_cases_agree_with_their_references(driver: FakeDriver, suite: str, name: str) -> None:
    (case,) = (case for case in load_cases(suite, True, on_device=True) if case.name == name)
    assert isinstance(case, DeviceCase)
    # Compiled anew: the suite's own function keeps its program for as long as the process lives.
    record = measured(replace(case, ours=tw.jit(case.ours.__wrapped__)))
    assert record["agrees"], record["max_difference"]
    assert record["measured_on"]["device"] == H200.name
    assert (record["bound"] == "memory") or case.multiplies is not None


@pytest.mark.parametrize("suite", SUITES)
def test_work_of_cases_is_what_the_shapes_say(suite: str) -> None:
    cases = load_cases(suite, False, on_device=True)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert isinstance(case, DeviceCase)
        assert case.peers.keys() == {"torch", "triton"}
        assert 0 <= case.tolerance <= 2.0**-5
        assert case.bytes > 5e7
        assert (case.multiplies is None) == (suite == "ops")
    work = {case.name: (case.flops, case.bytes) for case in cases}
    expected = {
        "gemm": ("bf16 64 of 1024x1024x1024", 64 * 2 * 2**30, 64 * 3 * 2 * 2**20),
        "attention": ("bf16 2x32/8x8192x128 causal", 4 * 2 * 32 * 8192 * 8193 / 2 * 128, 2 * 80 * 8192 * 128 * 2),
        "ops": ("bf16 gelu 16384x8192", 4 * 2**27, 2 * 2**28),
    }
    name, flops, nbytes = expected[suite]
    assert work[name] == (flops, nbytes)


def test_a_case_without_a_device_s_form_is_measured_too(driver: FakeDriver) -> None:
    case = Case("made up", lambda generator: (X,), tw.jit(two_kernels), {}, 1e3, 1e3, 1e-6, reference=reference)
    record = measured(case, peers=("numpy", "torch"))
    assert record["agrees"]
    assert record["absent"] == dict.fromkeys(("numpy", "torch"), "is measured on the host only")
    assert driver.count("launch_graph") > 0


def test_picked_indices_reach_both_ends() -> None:
    assert picked(3).tolist() == [0, 1, 2]
    found = picked(4001)
    assert (found[0], found[-1], len(found)) == (0, 4000, 64)


# ---- times ----------------------------------------------------------------------------------------------------------


def test_a_time_is_that_of_the_work_between_two_events(driver: FakeDriver) -> None:
    """A microsecond each: memory for the result, and two kernels."""
    assert measured(made_up({}))["ours_s"] == pytest.approx(3e-6)


def test_calls_are_made_in_batches_between_events(driver: FakeDriver) -> None:
    with driver.context(0):
        on, place = Stream(driver.new_stream()), driver.allocate(256)
        called: list[int] = []

        def call() -> None:
            called.append(driver.count("synchronise"))
            driver.copy(place, place + 128, 128, on.handle)

        times = bench_device.block_times(driver, on, call, 1e-3)
        driver.free(place)
    assert all(each == pytest.approx(1e-6) for each in times)
    assert len(times) >= 3
    # The first batch has one call, from which the length of the others follows: a tenth of a turn.
    sizes = [called.count(waits) for waits in sorted(set(called))]
    assert sizes[0] == 3 + 1
    assert set(sizes[1:]) == {100}
    assert not driver.events


def test_an_event_that_is_not_over_has_no_time(driver: FakeDriver) -> None:
    with driver.context(0):
        stream, place = driver.new_stream(), driver.allocate(16)
        events = [driver.new_event(timed=True) for _ in range(2)]
        driver.record(events[0], stream)
        driver.copy(place, place + 8, 8, stream)
        driver.record(events[1], stream)
        with pytest.raises(cuda_driver.DriverFailure, match="NOT_READY"):
            driver.elapsed_s(*events)
        driver.synchronise(stream)
        assert driver.elapsed_s(*events) == pytest.approx(1e-6)
        for event in events:
            driver.close_event(event)
        driver.free(place)


def test_a_record_says_what_its_figures_hold_for(driver: FakeDriver) -> None:
    record = measured(made_up({}, multiplies="bf16", flops=1e9, bytes=1e6))
    # 4096 operations a cycle of each of 132 multiprocessors.
    assert record["peak_gflops"] == pytest.approx(4096 * 1.755 * 132)
    assert record["gbytes_per_s"] == pytest.approx(1e6 / record["ours_s"] / 1e9)
    # A copy of half of 2^20 bytes in a microsecond.
    assert record["copy_gbytes_per_s"] == pytest.approx(2**20 / 1e-6 / 1e9)
    assert record["peak_fraction"] == pytest.approx(1e9 / (record["peak_gflops"] * 1e9) / record["ours_s"])
    assert record["bound"] == "compute"
    found = record["measured_on"]
    assert (found["device"], found["chip"], found["driver"]) == (H200.name, "sm_90a", "CUDA 13.0")
    assert found["versions"]["tilewright"] == tw.__version__
    assert found["date"].startswith("20")


@pytest.mark.parametrize(("chip", "operands", "flops"), [("sm_90a", "f8e4m3fn", 8192), ("sm_100a", "tf32", 4096)])
def test_peaks_are_those_of_the_fastest_instruction(chip: str, operands: str, flops: float) -> None:
    machine = machines.load(chip)
    assert machine.matrix_peak_flops(operands) == pytest.approx(flops * machine.clock_hertz)
    assert machines.load("sm_80").matrix_peak_flops("f8e4m3fn") is None


# ---- peers ----------------------------------------------------------------------------------------------------------


class Torch:
    """What is used of torch: tensors are our arrays, and functions are ours, on the stream that it was given."""

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.float8_e4m3fn = "float8_e4m3fn"
        self.cuda = types.SimpleNamespace(
            ExternalStream=lambda handle, device: handle, set_stream=self.streams.append, synchronize=lambda: None
        )

    @staticmethod
    def from_dlpack(array: DeviceArray) -> Any:
        if array.dtype == np.uint8:
            return types.SimpleNamespace(view=lambda name: (name, array))
        return array

    @staticmethod
    def softmax_sums(x: DeviceArray) -> DeviceArray:
        return tw.jit(two_kernels, target="cuda")(x)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    """In place of torch, which is there as a module to import."""
    stub = Torch()
    library = bench_device_peers._Library(("numpy",), "numpy")
    monkeypatch.setattr(bench_device_peers, "_LIBRARIES", {"torch": library, "triton": library})
    monkeypatch.setattr(bench_device_peers, "_torch", lambda: stub)
    monkeypatch.setattr(bench_device_peers, "torch_to_numpy", lambda module, result: np.asarray(result))
    return stub


def test_peers_have_our_arrays_and_our_stream(driver: FakeDriver, torch: Torch) -> None:
    seen: list[Any] = []

    def peer(functions: Any, x: DeviceArray) -> Any:
        stream = chosen_stream()
        seen.append(stream.handle if stream is not None else None)
        return torch.softmax_sums(x)

    record = measured(made_up({"torch": peer}), peers=("torch", "triton", "jax"))
    assert set(seen) == set(torch.streams)
    assert len(torch.streams) == 1
    assert record["agrees"]
    assert record["peer_differences"] == {}
    assert record["ratios"] == {"torch": pytest.approx(record["peers"]["torch"] / record["ours_s"])}
    assert (record["best_peer"], record["ratio"]) == ("torch", record["ratios"]["torch"])
    assert record["absent"] == {"triton": "has no form of this case", "jax": "is measured on the host only"}


def test_the_ways_of_a_peer_that_work_are_enough(driver: FakeDriver, torch: Torch) -> None:
    def fails(functions: Any, x: DeviceArray) -> Any:
        raise RuntimeError("no kernel for this\nat all")

    ways = {"first": fails, "second": lambda functions, x: torch.softmax_sums(x)}
    record = measured(made_up({"torch": ways, "triton": fails}), peers=("torch", "triton"))
    assert record["ways"] == {"torch": "second"}
    assert record["absent"] == {"triton": "RuntimeError: no kernel for this"}


def test_a_peer_that_is_wrong_is_told(driver: FakeDriver, torch: Torch) -> None:
    double = tw.jit(lambda x: two_kernels(x) * 2, target="cuda")
    record = measured(made_up({"torch": lambda functions, x: double(x)}), peers=("torch",))
    assert record["agrees"]
    assert record["peer_differences"] == {"torch": pytest.approx(1.0)}


def test_peers_that_are_not_there_have_reasons(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    library = bench_device_peers._Library(("no_such_module",), "no_such_module")
    monkeypatch.setattr(bench_device_peers, "_LIBRARIES", {"torch": library})
    record = measured(made_up({"torch": reference}), peers=("torch",))
    assert record["absent"] == {"torch": "no_such_module is not installed"}


def test_floats_of_8_bits_go_by_way_of_bytes(driver: FakeDriver, torch: Torch) -> None:
    with driver.context(0):
        stream = Stream(driver.new_stream())
        array = uploaded(X.astype(tw.f8e4m3fn.numpy), 0, stream)
    name, as_bytes = bench_device_peers.tensor_of(torch, array)
    assert name == "float8_e4m3fn"
    assert (as_bytes.address, as_bytes.shape, as_bytes.owner) == (array.address, array.shape, array)
    assert bench_device_peers.tensor_of(torch, as_bytes).view("again")[1] is not None


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would not have the emulated driver."""

    def records(request: Request) -> Iterator[dict[str, Any]]:
        for case in bench_worker.selected(structs.replace(request, block_s=0.0)):
            assert isinstance(case, DeviceCase)
            ours = tw.jit(case.ours.__wrapped__)
            yield bench_worker.measured_or_failed(replace(case, ours=ours), structs.replace(request, block_s=0.0))

    monkeypatch.setattr(bench, "_run_worker", records)
    # Where torch is, it would take addresses of the emulation for a device's.
    monkeypatch.setattr(bench_device_peers, "_LIBRARIES", {})


@pytest.mark.usefixtures("in_this_process")
def test_the_command_measures_the_first_device(driver: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "ops", "--quick", "--case", "f32 row sum", "--target", "cuda", "--vs", "torch,triton"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (record,) = document["cases"]
    assert record["case"] == "f32 row sum 32x32"
    assert record["measured_on"]["chip"] == "sm_90a"
    assert record["absent"].keys() == {"torch", "triton"}
    assert {"torch", "triton"} <= document["versions"].keys()
    assert main(command) == 0
    assert "ops: Emulated H200, CUDA 13.0" in capsys.readouterr().out


# ---- what is refused -------------------------------------------------------------------------------------------------


def bench_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["bench", *arguments]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("target", ["cuda", "cuda:sm_90a"])
@pytest.mark.parametrize("suite", [*SUITES, "models"])
def test_no_device_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suite: str, target: str
) -> None:
    monkeypatch.setattr(cuda_driver, "found", lambda: cuda_driver.Found(problem="NVIDIA's driver is not there"))
    said = bench_here(capsys, suite, "--target", target)
    assert ResourceUnavailable.code in said
    assert "found: NVIDIA's driver is not there" in said


def test_another_chip_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with cuda_driver.replaced(FakeDriver(A100)):
        said = bench_here(capsys, "gemm", "--target", "cuda:sm_90a")
    assert "compiled for sm_90a, which no device here is, but: 0: Emulated A100" in said


def test_suites_of_the_host_are_refused(driver: FakeDriver, capsys: pytest.CaptureFixture[str]) -> None:
    assert "measures the host's threads" in bench_here(capsys, "scaling", "--target", "cuda")

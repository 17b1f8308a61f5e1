"""Measuring a case on a GPU: arrays that are there already, times by the device's own events."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli import bench_device_peers, bench_worker
from tilewright.cli.bench_peers import PeerUnavailable, Runner
from tilewright.cli.bench_suites.case import DeviceCase, first
from tilewright.cli.doctor import versions
from tilewright.options import current
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.array import DeviceArray, uploaded
from tilewright.runtime.cuda.stream import Stream, stream
from tilewright.targets.base import target_named

if TYPE_CHECKING:
    from tilewright.cli.bench_suites.case import Case
    from tilewright.cli.bench_worker import Key, Request
    from tilewright.machines.machine import Machine
    from tilewright.runtime.cuda.driver import Device, Driver

# The first launches the kernels, the second makes a graph of them, from the third on that is launched.
_WARM_UP_CALLS = 3
_LEAST_BATCHES = 3
# A batch takes this part of a turn, so that what an event costs and how long the first launch takes does not count.
_BATCHES_OF_A_TURN = 10
_VERSIONS = ("tilewright", "torch", "triton")


def device_here(name: str) -> tuple[Machine, Device]:
    """Find the target's chip and the first device that runs its code.

    Raises:
        TargetError: the target is none.
        ResourceUnavailable: there is no device for it; the message lists the devices that were found.
    """
    manifest, machine_name = target_named(current().target)
    machine = manifest.machine_named(machine_name)
    return machine, cuda_driver.device_for(name, machine.llvm_cpu)


def measure(case: Case, request: Request) -> dict[str, Any]:
    """The record of one case: ours and its peers on the device, in turn with a copy there.

    Raises:
        ResourceUnavailable: there is no device for the target.
    """
    machine, device = device_here(case.name)
    driver = cuda_driver.driver()
    with driver.context(device.ordinal):
        on = Stream(driver.new_stream())
        inputs = case.make_inputs(np.random.default_rng(0))
        arrays = tuple(uploaded(array, device.ordinal, on) for array in inputs)
        runners: dict[Key, Runner] = {bench_worker.OURS: _ours(case, arrays)}
        absent: dict[str, str] = {}
        with stream(on):
            for peer in request.peers:
                try:
                    ways = bench_device_peers.prepare(peer, case, arrays, on.handle)
                    runners |= {(peer, way): runner for way, runner in ways.items()}
                except PeerUnavailable as reason:
                    absent[peer] = str(reason)
            differences = bench_worker.compare(case, runners, inputs)
            times, bandwidth = _times(driver, on, case, runners, request)
        driver.synchronise_all()
    peak = _peak_flops(case, machine, device)
    record = bench_worker.describe(case, request, times, differences, absent, peak, bandwidth)
    return record | _more_of(case, record, peak, bandwidth) | {"measured_on": _place(machine, device)}


def _ours(case: Case, arrays: tuple[DeviceArray, ...]) -> Runner:
    return Runner(lambda: case.ours(*arrays), lambda result: np.asarray(first(result)))


def _times(
    driver: Driver, on: Stream, case: Case, runners: dict[Key, Runner], request: Request
) -> tuple[dict[Key, float], float]:
    """Median seconds of a call of each, and the bytes per second that a copy between them reads and writes."""
    nbytes = bench_worker.footprint(case.bytes) // 2
    place = driver.allocate(2 * nbytes)
    calls: dict[Key, Callable[[], object]] = {
        bench_worker.COPY: lambda: driver.copy(place, place + nbytes, nbytes, on.handle),
        **{key: runner.call for key, runner in runners.items()},
    }
    try:
        blocks = {key: partial(block_times, driver, on, call, request.block_s) for key, call in calls.items()}
        times = bench_worker.in_turns(blocks, request)
        driver.synchronise(on.handle)
    finally:
        driver.free(place)
    return times, 2 * nbytes / times.pop(bench_worker.COPY)


def block_times(driver: Driver, on: Stream, call: Callable[[], object], block_s: float) -> list[float]:
    """Seconds of single calls on a stream, each the mean of a batch that follows one event and is followed by another,
    for `block_s` after some to warm up. A batch is launched as a whole before it is waited for: what the host does for
    one call, the device does not wait for while it is busy with those before."""
    for _ in range(_WARM_UP_CALLS):
        call()
    start, end = driver.new_event(timed=True), driver.new_event(timed=True)

    def batch_s(count: int) -> float:
        driver.record(start, on.handle)
        for _ in range(count):
            call()
        driver.record(end, on.handle)
        driver.synchronise(on.handle)
        return driver.elapsed_s(start, end) / count

    try:
        count = max(1, int(block_s / _BATCHES_OF_A_TURN / batch_s(1)))
        times: list[float] = []
        until = time.perf_counter() + block_s
        while len(times) < _LEAST_BATCHES or time.perf_counter() < until:
            times.append(batch_s(count))
    finally:
        driver.close_event(start)
        driver.close_event(end)
    return times


def _peak_flops(case: Case, machine: Machine, device: Device) -> float | None:
    """Operations per second of the device's matrix instructions, as the machine file has those of a multiprocessor;
    None for what they do not do."""
    if not isinstance(case, DeviceCase) or case.multiplies is None:
        return None
    of_one = machine.matrix_peak_flops(case.multiplies)
    return None if of_one is None else of_one * device.multiprocessors


def _more_of(case: Case, record: dict[str, Any], peak: float | None, bandwidth: float) -> dict[str, Any]:
    return {
        "ratios": {peer: seconds / record["ours_s"] for peer, seconds in record["peers"].items()},
        "gbytes_per_s": case.bytes / record["ours_s"] / 1e9,
        "peak_gflops": None if peak is None else peak / 1e9,
        "copy_gbytes_per_s": bandwidth / 1e9,
    }


def _place(machine: Machine, device: Device) -> dict[str, Any]:
    """The conditions of a record's figures: device, driver, libraries and time."""
    found = versions()
    return {
        "device": device.name,
        "chip": machine.name,
        "driver": f"CUDA {cuda_driver.found().version}",
        "versions": {name: found[name] for name in _VERSIONS},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }

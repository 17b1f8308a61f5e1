"""Measuring a case on a GPU: arrays that are there already, times by the device's own events."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli import bench_worker
from tilewright.cli.bench_suites.case import first
from tilewright.options import current
from tilewright.runtime import cuda_driver
from tilewright.runtime.cuda_array import uploaded
from tilewright.runtime.cuda_stream import Stream, stream
from tilewright.targets.base import target_named

if TYPE_CHECKING:
    from tilewright.cli.bench_peers import Runner
    from tilewright.cli.bench_suites.case import Case
    from tilewright.cli.bench_worker import Request
    from tilewright.runtime.cuda_driver import Driver

_LEAST_CALLS = 3
# The first launches the kernels, the second makes a graph of them, from the third on that is launched.
_WARM_UP_CALLS = 3


def measure(case: Case, request: Request) -> dict[str, Any]:
    """The record of one case: ours on the device, in turn with a copy there, which is the only peak. Peers are not
    measured: their arrays are the host's.

    Raises:
        ResourceUnavailable: there is no device for the target.
    """
    manifest, machine_name = target_named(current().target)
    device = cuda_driver.device_for(case.name, manifest.machine_named(machine_name).llvm_cpu)
    driver = cuda_driver.driver()
    with driver.context(device.ordinal):
        handle = Stream(driver.new_stream())
        arrays = case.make_inputs(np.random.default_rng(0))
        inputs = tuple(uploaded(array, device.ordinal, handle) for array in arrays)
        nbytes = bench_worker.footprint(case.bytes) // 2
        place = driver.allocate(2 * nbytes)
        with stream(handle):
            runner = _runner(case, inputs)
            differences = bench_worker.compare(case, {bench_worker.OURS: runner}, arrays)
            timed = {
                bench_worker.COPY: lambda: driver.copy(place, place + nbytes, nbytes, handle.handle),
                bench_worker.OURS: runner.call,
            }
            blocks = {key: partial(block_times, driver, handle, call, request.block_s) for key, call in timed.items()}
            times = bench_worker.in_turns(blocks, request)
        driver.synchronise_all()
        driver.free(place)
    bandwidth = 2 * nbytes / times.pop(bench_worker.COPY)
    absent = dict.fromkeys(request.peers, "is measured on the host only")
    return bench_worker.describe(case, request, times, differences, absent, None, bandwidth)


def _runner(case: Case, inputs: tuple[Any, ...]) -> Runner:
    from tilewright.cli.bench_peers import Runner

    return Runner(lambda: case.ours(*inputs), lambda result: np.asarray(first(result)))


def block_times(driver: Driver, on: Stream, call: Callable[[], object], block_s: float) -> list[float]:
    """Seconds of single calls on a stream, made for `block_s` after some to warm up."""
    for _ in range(_WARM_UP_CALLS):
        call()
    driver.synchronise(on.handle)
    start, end = driver.new_event(timed=True), driver.new_event(timed=True)
    times: list[float] = []
    until = time.perf_counter() + block_s
    while len(times) < _LEAST_CALLS or time.perf_counter() < until:
        driver.record(start, on.handle)
        call()
        driver.record(end, on.handle)
        driver.synchronise(on.handle)
        times.append(driver.elapsed_s(start, end))
    driver.close_event(start)
    driver.close_event(end)
    return times

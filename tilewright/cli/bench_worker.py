"""The process in which a suite is measured, started by `bench.py` with the request as its first argument.

It is started with every library's thread variables set, limits itself to as many CPUs, and writes one JSON object a
line: `{"case": ...}` for a measured case, `{"error": ...}` for a mistake in the request.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tilewright.cli import worker_process
from tilewright.errors import ArgumentError, ResourceExhausted, TilewrightError

if TYPE_CHECKING:
    from tilewright.cli.bench_peers import Runner
    from tilewright.cli.bench_suites.case import AnyCase, Array, Case, CompilerCase

IDLE_GAP_S = 0.25
"""Between libraries on the host: the worker threads of one spin for a while after a call and would slow the next."""

_WARM_UP_S = 0.01
_LEAST_CALLS = 3

Key: TypeAlias = tuple[str, str]
"""A library, or "ours", and the name of its way of doing the case, mostly ""."""

OURS: Key = ("ours", "")
COPY: Key = ("copy", "")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for measurements. `block_s` is how long each library runs in one turn, of `repeat` turns."""

    suite: str
    case: str | None
    peers: tuple[str, ...]
    threads: int
    repeat: int
    block_s: float
    gap_s: float
    quick: bool


def main() -> int:
    """Serve the request in the first argument."""
    worker_process.take_interrupts()
    try:
        return _serve()
    except (KeyboardInterrupt, BrokenPipeError):
        # The process that asked was interrupted, too, and reports it, or is gone.
        return 1


def _serve() -> int:
    request = msgspec.json.decode(sys.argv[1], type=Request)
    # Libraries print on stdout, which is for results alone here.
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from tilewright.runtime.cpu.features import cpu_order

    cpus = cpu_order()
    if request.threads <= len(cpus):
        os.sched_setaffinity(0, cpus[: request.threads])
    try:
        for case in selected(request):
            channel.write(msgspec.json.encode({"case": measured_or_failed(case, request)}) + b"\n")
    except TilewrightError as error:
        described = {"code": error.code, "message": error.message, "help": error.help}
        channel.write(msgspec.json.encode({"error": described}) + b"\n")
        return 1
    return 0


def selected(request: Request) -> list[AnyCase]:
    """The cases whose name contains the requested text.

    Raises:
        ArgumentError: none does.
    """
    from tilewright.cli.bench_suites import load_cases
    from tilewright.options import current
    from tilewright.targets.base import target_named

    cases = load_cases(request.suite, request.quick, target_named(current().target)[0].device_arrays)
    found = [case for case in cases if request.case is None or request.case in case.name]
    if not found:
        names = ", ".join(repr(case.name) for case in cases)
        raise ArgumentError(f"the suite `{request.suite}` has no case {request.case!r}", help=f"the cases are {names}")
    return found


def measured_or_failed(case: AnyCase, request: Request) -> dict[str, Any]:
    """The record of a case; one that we cannot compile or run is a result too, and the others still count."""
    from tilewright.cli.bench_scaling import measure_scaling
    from tilewright.cli.bench_schedules import measure_schedules
    from tilewright.cli.bench_suites.case import CompilerCase, ScalingCase, ScheduleCase

    try:
        if isinstance(case, CompilerCase):
            return measure_compiler(case, request)
        if isinstance(case, ScheduleCase):
            return measure_schedules(case, request)
        if isinstance(case, ScalingCase):
            return measure_scaling(case.case, request)
        return measure(case, request)
    except TilewrightError as error:
        return {"case": case.name, "error": str(error), "agrees": False, "peers": {}, "absent": {}}


def measure(case: Case, request: Request) -> dict[str, Any]:
    """One case: times of all libraries, differences between their results, and our part of the machine's peak."""
    import numpy as np

    from tilewright.cli import bench_device, bench_peers
    from tilewright.cli.measure import copy_of, fma_peak
    from tilewright.options import current, options
    from tilewright.targets.base import target_named

    if target_named(current().target)[0].device_arrays:
        return bench_device.measure(case, request)
    with _within_memory(case.bytes), options(threads=request.threads):
        copy = copy_of(footprint(case.bytes), request.threads)
        inputs = case.make_inputs(np.random.default_rng(0))
        runners = {OURS: bench_peers.ours(case, inputs)}
        absent: dict[str, str] = {}
        for peer in request.peers:
            try:
                ways = bench_peers.prepare(peer, case, inputs, request.threads)
                runners |= {(peer, way): runner for way, runner in ways.items()}
            except bench_peers.PeerUnavailable as reason:
                absent[peer] = str(reason)
        differences = compare(case, runners, inputs)
        calls = {COPY: copy.call} | {key: runner.call for key, runner in runners.items()}
        times = alternate(calls, request)
    copy_bandwidth = copy.nbytes / times.pop(COPY)
    peak = fma_peak("f64" if case.dtype == "f64" else "f32", request.threads)
    described = describe(case, request, times, differences, absent, peak, copy_bandwidth)
    return described if case.compile_s is None else described | {"compile_s": case.compile_s(inputs)}


@contextmanager
def _within_memory(nbytes: float) -> Generator[None]:
    """Refuse a case that needs more than the machine's memory, for its arrays and the copy that takes turns with the
    libraries: the system may grant memory that it does not have, and end the process that uses it.

    Raises:
        ResourceExhausted: they are, or the system has no memory for them.
    """
    from tilewright.runtime.cpu.features import usable_memory_bytes

    help = "measure smaller arrays"
    needed = nbytes + footprint(nbytes)
    if needed > usable_memory_bytes():
        message = f"the case takes {needed:.0f} bytes, this machine has {usable_memory_bytes()} for this process"
        raise ResourceExhausted(message, help=help)
    try:
        yield
    except MemoryError as error:
        raise ResourceExhausted(f"the system has no memory for the case: {error}", help=help) from None


def measure_compiler(case: CompilerCase, request: Request) -> dict[str, Any]:
    """One case of the compiler itself: the median time of its turns, and its figures."""
    times: list[float] = []
    result: Any = None
    for _ in range(request.repeat):
        start = time.perf_counter()
        result = case.run()
        times.append(time.perf_counter() - start)
    ours_s = median(times)
    return {
        "case": case.name,
        "ours_s": ours_s,
        "limit_s": case.limit_s,
        "figures": dict(case.figures(result)),
        "agrees": request.quick or ours_s <= case.limit_s,
        "peers": {},
        "absent": {},
    }


def compare(case: Case, runners: Mapping[Key, Runner], inputs: tuple[Array, ...]) -> dict[Key, float]:
    """The difference of each library's result from the reference, relative to the largest element; infinite where its
    shape, type or NaNs are not as they should be."""
    import numpy as np

    from tilewright.cli.check import relative_difference
    from tilewright.dtypes import by_name

    expected = case.expected(inputs).astype(np.float64)

    def difference(runner: Runner) -> float:
        found = case.compared(runner.to_numpy(runner.call()))
        if found.dtype != by_name(case.dtype).numpy:
            return math.inf
        return relative_difference(found.astype(np.float64), expected)

    return {key: difference(runner) for key, runner in runners.items()}


def alternate(calls: Mapping[Key, Callable[[], object]], request: Request) -> dict[Key, float]:
    """Median seconds of a call for each library, measured in turns with idle gaps between."""
    return in_turns({key: partial(block_times, call, request.block_s) for key, call in calls.items()}, request)


def in_turns(blocks: Mapping[Key, Callable[[], list[float]]], request: Request) -> dict[Key, float]:
    """Median seconds of a call of each; `blocks` make some and time them."""
    times: dict[Key, list[float]] = {key: [] for key in blocks}
    for _ in range(request.repeat):
        for key, block in blocks.items():
            time.sleep(request.gap_s)
            times[key] += block()
    return {key: median(found) for key, found in times.items()}


def block_times(call: Callable[[], object], block_s: float) -> list[float]:
    """Seconds of single calls, made for `block_s` after some to warm up."""
    clock = time.perf_counter
    begin = clock()
    call()
    # A call longer than the turn warms up enough and is timed once more.
    least = 1 if clock() - begin > block_s else _LEAST_CALLS
    while clock() < begin + min(_WARM_UP_S, block_s):
        call()
    times: list[float] = []
    end = clock() + block_s
    while len(times) < least or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def describe(
    case: Case,
    request: Request,
    times: Mapping[Key, float],
    differences: Mapping[Key, float],
    absent: Mapping[str, str],
    peak_flops: float | None,
    copy_bandwidth: float,
) -> dict[str, Any]:
    """The record of one case, with the peak of the machine if it is known; `copy_bandwidth` is that of a copy that took
    turns with the libraries."""
    compute_s = case.flops / peak_flops if peak_flops is not None else 0.0
    memory_s = case.bytes / copy_bandwidth
    ours_s = times[OURS]
    counted: dict[str, Key] = {}
    for key in sorted(times, key=lambda key: times[key]):
        if key != OURS:
            counted.setdefault(key[0], key)
    peers = {peer: times[counted[peer]] for peer in request.peers if peer in counted}
    best = min(peers, key=lambda peer: peers[peer]) if peers else None
    return {
        "case": case.name,
        "ours_s": ours_s,
        "peers": peers,
        "ways": {peer: counted[peer][1] for peer in peers if counted[peer][1]},
        "best_peer": best,
        "ratio": peers[best] / ours_s if best else None,
        "gflops": case.flops / ours_s / 1e9,
        "peak_fraction": max(compute_s, memory_s) / ours_s,
        "bound": "compute" if compute_s >= memory_s else "memory",
        "max_difference": finite(differences[OURS]),
        "tolerance": case.tolerance,
        "agrees": differences[OURS] <= case.tolerance,
        "peer_differences": {
            peer: finite(differences[counted[peer]]) for peer in peers if differences[counted[peer]] > case.tolerance
        },
        "absent": dict(absent),
    }


def finite(difference: float) -> float | None:
    """JSON has no infinity: results that differ in shape, type or NaNs have no number."""
    return difference if math.isfinite(difference) else None


def footprint(nbytes: float) -> int:
    """The power of two at or above a number of bytes, at least 32 KiB: cases of like size share one measurement."""
    return 1 << max(15, int(nbytes - 1).bit_length())

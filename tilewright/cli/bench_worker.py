"""The process in which a suite is measured: `python -m tilewright.cli.bench_worker REQUEST`.

It is started with every library's thread variables set, limits itself to as many CPUs, and writes one JSON object a
line: `{"case": ...}` for a measured case, `{"error": ...}` for a mistake in the request.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from tilewright.errors import ArgumentError, TilewrightError

if TYPE_CHECKING:
    from tilewright.cli.bench_peers import Runner
    from tilewright.cli.bench_suites.case import Case, CompilerCase

IDLE_GAP_S = 0.25
"""Between libraries: the worker threads of one spin for a while after a call and would slow the next."""

_WARM_UP_S = 0.01
_LEAST_CALLS = 3


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `block_s` is how long each library runs in one turn, of `repeat` turns."""

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
    request = msgspec.json.decode(sys.argv[1], type=Request)
    # Libraries print on stdout, which is for results alone here.
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from tilewright.runtime.cpu_features import cpu_order

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


def selected(request: Request) -> list[Case | CompilerCase]:
    """The cases whose name contains the requested text.

    Raises:
        ArgumentError: none does.
    """
    from tilewright.cli.bench_suites import load_cases

    cases = load_cases(request.suite, request.quick)
    found = [case for case in cases if request.case is None or request.case in case.name]
    if not found:
        names = ", ".join(repr(case.name) for case in cases)
        raise ArgumentError(f"the suite `{request.suite}` has no case {request.case!r}", help=f"its cases are {names}")
    return found


def measured_or_failed(case: Case | CompilerCase, request: Request) -> dict[str, Any]:
    """The record of a case; one that we cannot compile or run is a result too, and the others still count."""
    from tilewright.cli.bench_suites.case import CompilerCase

    try:
        return measure_compiler(case, request) if isinstance(case, CompilerCase) else measure(case, request)
    except TilewrightError as error:
        return {"case": case.name, "error": str(error), "agrees": False, "peers": {}, "absent": {}}


def measure(case: Case, request: Request) -> dict[str, Any]:
    """One case: times of all libraries, differences between their results, and our part of the machine's peak."""
    import numpy as np

    from tilewright.cli import bench_peers
    from tilewright.options import options

    with options(threads=request.threads):
        inputs = case.make_inputs(np.random.default_rng(0))
        runners = {"ours": bench_peers.ours(case, inputs)}
        absent: dict[str, str] = {}
        for peer in request.peers:
            try:
                runners[peer] = bench_peers.prepare(peer, case, inputs, request.threads)
            except bench_peers.PeerUnavailable as reason:
                absent[peer] = str(reason)
        # NumPy's result is compared with even where its time is of no interest.
        compared = dict(runners)
        if "numpy" not in request.peers:
            compared["numpy"] = bench_peers.prepare("numpy", case, inputs, request.threads)
        differences = compare(compared)
        times = alternate({name: runner.call for name, runner in runners.items()}, request)
    return describe(case, request, times, differences, absent)


def measure_compiler(case: CompilerCase, request: Request) -> dict[str, Any]:
    """One case of the compiler itself: the median time of its turns, and its figures."""
    times: list[float] = []
    figures: Mapping[str, float] = {}
    for _ in range(request.repeat):
        start = time.perf_counter()
        figures = case.run()
        times.append(time.perf_counter() - start)
    ours_s = median(times)
    return {
        "case": case.name,
        "ours_s": ours_s,
        "limit_s": case.limit_s,
        "figures": dict(figures),
        "agrees": request.quick or ours_s <= case.limit_s,
        "peers": {},
        "absent": {},
    }


def compare(runners: Mapping[str, Runner]) -> dict[str, float]:
    """The difference of our result from each peer's, relative to the largest element of the peer's."""
    from tilewright.cli.check import relative_difference

    results = {name: runner.to_numpy(runner.call()) for name, runner in runners.items()}
    return {name: relative_difference(results["ours"], found) for name, found in results.items() if name != "ours"}


def alternate(calls: Mapping[str, Callable[[], Any]], request: Request) -> dict[str, float]:
    """Median seconds of a call for each library, measured in turns with idle gaps between."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(request.repeat):
        for name, call in calls.items():
            time.sleep(request.gap_s)
            times[name] += _block(call, request.block_s)
    return {name: median(found) for name, found in times.items()}


def _block(call: Callable[[], Any], block_s: float) -> list[float]:
    clock = time.perf_counter
    end = clock() + min(_WARM_UP_S, block_s)
    call()
    while clock() < end:
        call()
    times: list[float] = []
    end = clock() + block_s
    while len(times) < _LEAST_CALLS or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def describe(
    case: Case,
    request: Request,
    times: Mapping[str, float],
    differences: Mapping[str, float],
    absent: Mapping[str, str],
) -> dict[str, Any]:
    """The record of one case. `bound_s` is the least time that the measured peaks allow."""
    from tilewright.cli import measure as machine

    peak_dtype = "f64" if case.dtype == "f64" else "f32"
    compute_s = case.flops / machine.fma_peak(peak_dtype, request.threads)
    memory_s = case.bytes / machine.copy_bandwidth(footprint(case.bytes), request.threads)
    ours_s = times["ours"]
    peers = {name: seconds for name, seconds in times.items() if name != "ours"}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    largest = max(differences.values())
    return {
        "case": case.name,
        "ours_s": ours_s,
        "peers": peers,
        "best_peer": best,
        "ratio": peers[best] / ours_s if best else None,
        "gflops": case.flops / ours_s / 1e9,
        "peak_fraction": max(compute_s, memory_s) / ours_s,
        "bound": "compute" if compute_s >= memory_s else "memory",
        # JSON has no infinity: results that differ in shape, type or NaNs have no number.
        "max_difference": largest if math.isfinite(largest) else None,
        "tolerance": case.tolerance,
        "agrees": largest <= case.tolerance,
        "absent": dict(absent),
    }


def footprint(nbytes: float) -> int:
    """The power of two at or above a number of bytes, at least 32 KiB: cases of like size share one measurement."""
    return 1 << max(15, int(nbytes - 1).bit_length())


if __name__ == "__main__":
    sys.exit(main())

"""Implementation of `tilewright run model.onnx`: the model on arrays, its slowest kernels, comparison with another
library."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli.report import make_table, seconds_text
from tilewright.errors import ArgumentError, ResourceUnavailable
from tilewright.records import dataclass

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.interop.onnx import OnnxModel
    from tilewright.interop.stablehlo.model import StableHloModel
    from tilewright.targets.base import KernelTime

LIBRARIES = ("onnxruntime",)
# So many kernels are shown; the document has all.
SHOWN_KERNELS = 10
# How far results may be apart, of the largest element or of 1.
TOLERANCE = 1e-3
# As the threads of one library spin for a while after a call.
_GAP_S = 0.05


@dataclass(frozen=True)
class Compared:
    """Another library's median time, in turns with ours, and how far apart the results are: the largest difference of
    an output, of its largest element or of 1."""

    library: str
    version: str
    ours_s: float
    median_s: float
    difference: float

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    def document(self) -> dict[str, Any]:
        return {
            "library": self.library,
            "version": self.version,
            "ours_s": self.ours_s,
            "median_s": self.median_s,
            "ratio": self.median_s / self.ours_s,
            "max_difference": self.difference,
            "tolerance": TOLERANCE,
            "agrees": self.agrees,
        }

    def text(self) -> str:
        verdict = "agrees" if self.agrees else f"DIFFERS by more than {TOLERANCE:g}"
        times = f"median {seconds_text(self.median_s)}, ours {seconds_text(self.ours_s)} in turns"
        return f"{times}, ratio {self.median_s / self.ours_s:.2f}; {verdict} (largest difference {self.difference:.1e})"


def check_library(name: str) -> None:
    """Refuse a library that models cannot be compared with.

    Raises:
        ArgumentError: it is not known here.
        ResourceUnavailable: it is not installed.
    """
    if name not in LIBRARIES:
        message = f"models are not compared with {name!r}"
        raise ArgumentError(message, help=f"use --compare {' or '.join(LIBRARIES)}")
    if importlib.util.find_spec(name) is None:
        raise ResourceUnavailable(f"{name} is not installed", help=f"pip install {name}")


def compare(
    file: Path,
    model: OnnxModel | StableHloModel,
    arrays: Sequence[object],
    results: Sequence[object],
    repeat: int,
    threads: int,
) -> Compared:
    """Run a model by ONNX Runtime, on the CPU and with as many threads, in turns with ours.

    Raises:
        ArgumentError: it does not run the model.
    """
    onnxruntime: Any = importlib.import_module("onnxruntime")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    feeds = {spec.name: array for spec, array in zip(model.inputs, arrays, strict=True)}
    try:
        session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        theirs = session.run([spec.name for spec in model.outputs], feeds)
    except Exception as error:  # its classes have no ancestor of their own
        reason = str(error).splitlines()[0][:500] if str(error) else type(error).__name__
        message = f"onnxruntime does not run this model: {reason}"
        raise ArgumentError(message, help="run it without `--compare`") from error
    ours_s, theirs_s = _in_turns([lambda: model(*arrays), lambda: session.run(None, feeds)], repeat)
    difference = max((_difference(a, b) for a, b in zip(results, theirs, strict=True)), default=0.0)
    return Compared("onnxruntime", onnxruntime.__version__, ours_s, theirs_s, difference)


def _in_turns(calls: Sequence[Callable[[], object]], repeat: int) -> list[float]:
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(3):
        for call, found in zip(calls, times, strict=True):
            time.sleep(_GAP_S)
            call()
            for _ in range(-(-repeat // 3)):
                start = time.perf_counter()
                call()
                found.append(time.perf_counter() - start)
    return [median(found) for found in times]


def _difference(ours: Any, theirs: Any) -> float:
    """Infinite where shapes, NaNs or strings are not the same."""
    if np.asarray(ours).dtype.kind in "OU":
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    a, b = (np.asarray(array, np.float64) for array in (ours, theirs))
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    with np.errstate(invalid="ignore"):  # of equal infinities
        apart = np.abs(np.where(a == b, 0, a - b))
    return float(np.nanmax(apart, initial=0.0) / max(1.0, float(np.nanmax(np.abs(b), initial=0.0))))


def kernel_documents(times: Sequence[KernelTime], threads: int) -> list[dict[str, Any]]:
    """A document for each kernel, the slowest first. `roofline` is the part of what this machine does at most, at the
    peak of its multiply-adds or at the speed of a copy of as many bytes, as measured now."""
    from tilewright.cli.bench_worker import footprint
    from tilewright.cli.measure import copy_of, fma_peak, time_calls

    peak_flops = fma_peak("f32", threads)
    total = sum(each.seconds for each in times)
    bandwidths: dict[int, float] = {}

    def bound_s(each: KernelTime) -> float:
        nbytes = footprint(each.bytes / max(1.0, each.calls))
        if nbytes not in bandwidths:
            copy = copy_of(nbytes, threads)
            bandwidths[nbytes] = copy.nbytes / time_calls(copy.call, 0.01).median_s
        memory_s = each.bytes / bandwidths[nbytes]
        return max(memory_s, each.flops / peak_flops if peak_flops else 0.0)

    return [
        {
            "name": each.name,
            "calls": each.calls,
            "seconds": each.seconds,
            "share": each.seconds / total if total else 0.0,
            "gflops": each.flops / each.seconds / 1e9 if each.seconds else 0.0,
            "roofline": bound_s(each) / each.seconds if each.seconds else 0.0,
            "estimated_s": each.estimated_s,
        }
        for each in times
    ]


def show_kernels(console: Console, kernels: Sequence[Mapping[str, Any]]) -> None:
    """The slowest kernels as a table."""
    rows = [
        [
            each["name"],
            f"{each['calls']:g}",
            seconds_text(each["seconds"]),
            f"{each['share']:.0%}",
            f"{each['gflops']:.1f}",
            f"{each['roofline']:.0%}",
        ]
        for each in kernels[:SHOWN_KERNELS]
    ]
    title = f"slowest of {len(kernels)} kernels"
    console.print(make_table(title, ["kernel", "calls", "time", "of all", "GFLOP/s", "of roofline"], rows))

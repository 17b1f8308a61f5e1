"""`tilewright bench`: ours and other libraries on the same inputs, alternating in one process."""

from __future__ import annotations

import difflib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilewright.cli import worker_process
from tilewright.cli.bench_suites import PEERS, SUITES
from tilewright.cli.flags import Flags
from tilewright.cli.report import Report, make_console, make_table, seconds_text
from tilewright.errors import ArgumentError, ToolFailure

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.cli.bench_worker import Request

_BLOCK_S = 0.1
_QUICK_BLOCK_S = 0.002

# Suites that nothing on a device is measured by, and those that run programs on the target.
_HUNT = "hunt"
_OF_THE_HOST = ("scaling", "schedules", "found", "operators", "recurrences", _HUNT)
_ON_THE_TARGET = ("gemm", "ops", "attention", "models")

# In the summary: a case below this ratio is named, and one above this counts as this in the mean.
_LEAST_RATIO = 0.95
_MOST_IN_MEAN = 2.0


def bench(
    suite: str,
    /,
    *,
    case: str | None = None,
    vs: str = "numpy",
    repeat: int = 5,
    quick: Annotated[bool, Parameter(negative="")] = False,
    compare: Path | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    corpus: Path | None = None,
    flags: Flags | None = None,
) -> Report:
    """Measure a suite, ours and other libraries alternately in one process, and compare the results.

    Times are medians; every library has the same threads and the same inputs. `ratio` is the fastest peer's time over
    ours. `peak` is the part of the machine's measured peak (multiply-adds or copying, whichever bounds the case) that
    ours reaches. Exits with 1 when a case fails or our result differs from its reference, in f64, by more than its
    tolerance.

    For example:

        tilewright bench gemm --vs numpy,torch --threads 2
        tilewright bench ops --case softmax --json > base.json
        tilewright bench ops --case softmax --compare base.json
        tilewright bench gemm --target cuda --vs torch,triton
        tilewright bench hunt --seconds 600 --seed 7 --vs torch,jax,numpy --corpus benchmarks/hunt

    Parameters
    ----------
    suite
        gemm, ops, operators, recurrences, attention, models, or, without peers, layout (the compiler's own time),
        schedules (those that the cost model chooses, against others), scaling (one thread against all), cuda-static
        (what kernels for NVIDIA chips are made of, and how long compiling them takes; no GPU is used) and grid (cycles
        of programs for grids of cores on the simulator, and how fast that is). Two more are about slow programs: hunt
        searches for them among random ones, makes them as small as they can be and groups them by what their time goes
        to; found measures the corpus of such programs in `benchmarks/hunt`.
    case
        Only the cases whose name contains this.
    vs
        The peers, with commas between: numpy, torch, onnxruntime, jax; on a GPU torch, triton.
    repeat
        Turns of each library.
    quick
        Tiny sizes and one short turn, to see that everything works.
    compare
        The document of an earlier run, written with `--json`.
    seconds
        How long hunt searches; it takes as long again, at most, to make what it found small.
    seed
        The random programs of hunt: others for each seed.
    corpus
        Where hunt keeps the slow programs; nowhere without it.
    """
    if suite not in (*SUITES, _HUNT):
        raise ArgumentError(f"there is no suite `{suite}`", help=_suggestion(suite, (*SUITES, _HUNT)))
    if repeat < 1:
        raise ArgumentError(f"`--repeat` is {repeat}", help="give each library at least one turn")
    if not 0 < seconds < math.inf:  # false for NaN, too
        raise ArgumentError(f"`--seconds` is {seconds}", help="give a hunt a finite time above 0")
    from tilewright.options import current
    from tilewright.targets.base import target_named

    base = _read_base(compare, suite) if compare is not None else {}
    on_device = target_named(current().target)[0].device_arrays
    request = _request(suite, case, _peers(vs), repeat, quick, on_device)
    if on_device:
        _check_device(suite)
    if suite == "scaling" and request.threads == 1:
        raise ArgumentError("one thread cannot be compared with itself", help="give `--threads` 2 or more")
    quiet = flags is not None and flags.json
    if suite == _HUNT:
        return _hunted(request, seed, seconds, corpus, quiet=quiet)
    document = _measure(request, quiet=quiet)
    for found in document["cases"]:
        base_s = base.get(found["case"])
        if base_s is not None and "error" not in found:
            found["base_s"] = base_s
            found["speedup"] = base_s / found["ours_s"]
    exit_code = 0 if all(found["agrees"] for found in document["cases"]) else 1
    return Report(document, lambda console: _show(console, document, request.peers), exit_code)


def _hunted(request: Request, seed: int, seconds: float, corpus: Path | None, *, quiet: bool) -> Report:
    from tilewright.cli.hunt.command import Hunt, report
    from tilewright.cli.hunt.corpus import prepare

    if not request.peers:
        raise ArgumentError("a hunt needs a peer", help="name peers, such as `--vs torch,jax,numpy`")
    if corpus is not None:
        prepare(corpus)
    with _status("hunting", quiet) as tell:
        return report(Hunt(seed, seconds, request, corpus, tell).run())


def _check_device(suite: str) -> None:
    if suite in _OF_THE_HOST:
        raise ArgumentError(f"`{suite}` measures the host's threads", help=f"use {', '.join(_ON_THE_TARGET)}")
    if suite in _ON_THE_TARGET:
        from tilewright.cli.bench_device import device_here

        device_here(f"bench {suite}")


def _suggestion(given: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {near[0]}?" if near else f"use {', '.join(names)}"


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in PEERS:
            raise ArgumentError(f"there is no peer `{name}`", help=_suggestion(name, PEERS))
    return names


def _request(
    suite: str, case: str | None, peers: tuple[str, ...], repeat: int, quick: bool, on_device: bool
) -> Request:
    from tilewright.cli.bench_worker import IDLE_GAP_S, Request
    from tilewright.options import current
    from tilewright.runtime.cpu.features import default_threads

    return Request(
        suite=suite,
        case=case,
        peers=peers,
        threads=current().threads or default_threads(),
        repeat=1 if quick else repeat,
        block_s=_QUICK_BLOCK_S if quick else _BLOCK_S,
        # A device does what is on one stream only, and its clock falls when it is idle.
        gap_s=0.0 if quick or on_device else IDLE_GAP_S,
        quick=quick,
    )


def _measure(request: Request, *, quiet: bool) -> dict[str, Any]:
    from tilewright.cli.doctor import versions

    load = list(os.getloadavg())
    cases = list(_with_progress(_run_worker(request), request.suite, quiet))
    return {
        "suite": request.suite,
        "threads": request.threads,
        "repeat": request.repeat,
        "quick": request.quick,
        "load": load,
        "versions": versions(),
        "cases": cases,
        "summary": _summary(request, cases),
    }


def _summary(request: Request, cases: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    from tilewright.cli.bench_scaling import scaling_summary
    from tilewright.cli.bench_schedules import schedule_summary

    if request.suite == "schedules":
        return schedule_summary(cases)
    if request.suite == "scaling":
        return scaling_summary(cases, request.threads)
    return summary(cases)


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How our times stand against the best peers'. A single case counts at most twofold in the mean; one that failed or
    has a wrong result counts in nothing but the failures."""
    ratios = {case["case"]: case["ratio"] for case in cases if case["agrees"] and case.get("ratio")}
    logarithms = [math.log(min(ratio, _MOST_IN_MEAN)) for ratio in ratios.values()]
    return {
        "compared": len(ratios),
        "at_least_1": sum(ratio >= 1 for ratio in ratios.values()),
        "below_0.95": [name for name, ratio in ratios.items() if ratio < _LEAST_RATIO],
        "failed": [case["case"] for case in cases if not case["agrees"]],
        "geometric_mean": math.exp(fmean(logarithms)) if logarithms else None,
    }


def _run_worker(request: Request) -> Iterator[dict[str, Any]]:
    """The records of the cases, as the worker gives them."""
    import msgspec

    command = worker_process.command("tilewright.cli.bench_worker", request)
    environment = worker_process.environment(request)
    worker: subprocess.Popen[bytes] | None = None
    try:
        with worker_process.interrupts_held():
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        for line in worker.stdout or ():
            record = msgspec.json.decode(line)
            if "error" in record:
                raise _error(record["error"])
            yield record["case"]
        status = worker.wait()
    except BaseException:
        if worker is not None:
            worker_process.stop(worker)
        raise
    finally:
        if worker is not None and worker.stdout is not None:
            worker.stdout.close()
    if status:
        raise ToolFailure(
            f"the measuring process ended with status {status}",
            help="read its last lines above for the reason; `--case NAME` measures a single case",
        )


def _error(record: Mapping[str, Any]) -> Exception:
    from tilewright import errors

    for found in vars(errors).values():
        if isinstance(found, type) and issubclass(found, errors.TilewrightError) and found.code == record["code"]:
            return found(record["message"], help=record["help"])
    return ToolFailure(record["message"], help=record["help"])


def _with_progress(cases: Iterator[dict[str, Any]], suite: str, quiet: bool) -> Iterator[dict[str, Any]]:
    with _status(f"measuring {suite}", quiet) as tell:
        for count, found in enumerate(cases, 1):
            tell(f"{count} done, last {found['case']}")
            yield found


@contextmanager
def _status(title: str, quiet: bool) -> Generator[Callable[[str], None]]:
    """A line on the terminal that shows the progress, if there is one."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from tilewright.options import current

    with make_console(current().color, stderr=True).status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


def _read_base(path: Path, suite: str) -> dict[str, float]:
    """Our times of the cases of an earlier run that did not fail."""
    import msgspec

    try:
        document = msgspec.json.decode(path.read_bytes())
        times = {case["case"]: float(case["ours_s"]) for case in document["cases"] if "error" not in case}
        found_suite = document["suite"]
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"{str(path)!r} is not the document of an earlier run: {error}"
        raise ArgumentError(message, help=f"write one with `tilewright bench {suite} --json > base.json`") from None
    if found_suite != suite:
        raise ArgumentError(f"{str(path)!r} is of the suite `{found_suite}`", help=f"give one of `{suite}`")
    return times


def _show_compiler(console: Console, document: dict[str, Any]) -> None:
    cases = [case for case in document["cases"] if "error" not in case]
    names = list(dict.fromkeys(name for case in cases for name in case["figures"]))
    rows = [
        [case["case"], seconds_text(case["ours_s"]), seconds_text(case["limit_s"])]
        + [f"{case['figures'].get(name, 0):g}" for name in names]
        for case in cases
    ]
    console.print(make_table(document["suite"], ["case", "time", "limit", *names], rows))
    _show_failures(console, document)


def _show_schedules(console: Console, document: dict[str, Any]) -> None:
    rows = [
        [
            case["case"],
            seconds_text(case["ours_s"]),
            seconds_text(case["best_s"]),
            f"{case['ratio']:.2f}",
            case["chosen"],
            case["best"],
        ]
        for case in document["cases"]
        if "error" not in case
    ]
    title = f"schedules: threads {document['threads']}, load {document['load'][0]:.1f} at the start"
    console.print(make_table(title, ["case", "chosen", "best", "ratio", "chosen schedule", "best schedule"], rows))
    found = document["summary"]
    if found["compared"]:
        text = f"{found['near_the_best']} of {found['compared']} within 10 % of the best, geometric mean "
        text += f"{found['geometric_mean']:.3f}, worst {found['worst_ratio']:.2f} ({found['worst']})"
        console.print(text, markup=False, soft_wrap=True)
    _show_failures(console, document)


def _show_scaling(console: Console, document: dict[str, Any]) -> None:
    threads = document["threads"]
    rows = [
        [
            case["case"],
            seconds_text(case["one_thread_s"]),
            seconds_text(case["ours_s"]),
            f"{case['ratio']:.2f}",
            f"{case['machine_ratio']:.2f}",
        ]
        for case in document["cases"]
        if "error" not in case
    ]
    title = f"scaling: load {document['load'][0]:.1f} at the start"
    console.print(make_table(title, ["case", "1 thread", f"{threads} threads", "ratio", "machine"], rows))
    found = document["summary"]
    if found["compared"]:
        text = f"{found['at_least_good']} of {found['compared']} at a ratio of {found['good']:g} or more, least "
        text += f"{found['worst_ratio']:.2f} ({found['worst']}); multiply-adds alone reach {found['machine_ratio']:.2f}"
        console.print(text, markup=False, soft_wrap=True)
    _show_failures(console, document)


def _show(console: Console, document: dict[str, Any], peers: tuple[str, ...]) -> None:
    if document["suite"] == "schedules":
        _show_schedules(console, document)
        return
    if document["suite"] == "scaling":
        _show_scaling(console, document)
        return
    if any("figures" in case for case in document["cases"]):
        _show_compiler(console, document)
        return
    compared, timed = (any(name in case for case in document["cases"]) for name in ("speedup", "compile_s"))
    columns = [
        "case",
        "ours",
        *peers,
        "ratio",
        "GFLOP/s",
        "peak",
        "difference",
        *(["against base"] if compared else []),
        *(["compile"] if timed else []),
    ]
    console.print(
        make_table(_title(document), columns, [_row(case, peers, compared, timed) for case in document["cases"]])
    )
    reasons = {(peer, reason) for case in document["cases"] for peer, reason in case["absent"].items()}
    for peer, reason in sorted(reasons):
        console.print(f"{peer}: {reason}", markup=False, soft_wrap=True)
    _show_peers(console, document)
    _show_summary(console, document["summary"])
    _show_failures(console, document)


def _title(document: dict[str, Any]) -> str:
    places = [case["measured_on"] for case in document["cases"] if "measured_on" in case]
    if places:
        return f"{document['suite']}: {places[0]['device']}, {places[0]['driver']}, {places[0]['date']}"
    return f"{document['suite']}: threads {document['threads']}, load {document['load'][0]:.1f} at the start"


def _show_peers(console: Console, document: dict[str, Any]) -> None:
    for case in document["cases"]:
        for peer, way in case.get("ways", {}).items():
            console.print(f"{case['case']}: {peer} is fastest {way}", markup=False, soft_wrap=True)
        for peer, difference in case.get("peer_differences", {}).items():
            found = "has another shape or type" if difference is None else f"differs by {difference:.1e}"
            console.print(f"{case['case']}: the result of {peer} {found}", markup=False, soft_wrap=True)


def _show_summary(console: Console, found: Mapping[str, Any]) -> None:
    if not found["compared"]:
        return
    text = f"{found['at_least_1']} of {found['compared']} cases at a ratio of 1 or more, geometric mean "
    text += f"{found['geometric_mean']:.3f} (each at most {_MOST_IN_MEAN:g})"
    if found["below_0.95"]:
        text += f"; below {_LEAST_RATIO}: {', '.join(found['below_0.95'])}"
    console.print(text, markup=False, soft_wrap=True)


def _show_failures(console: Console, document: dict[str, Any]) -> None:
    for case in document["cases"]:
        if "error" in case:
            console.print(f"FAILED {case['case']}: {case['error']}", markup=False, soft_wrap=True)
        elif case.get("wrong"):
            text = f"MISMATCH in {case['case']}: by {'; '.join(case['wrong'])}"
            console.print(text, markup=False, soft_wrap=True)
        elif not case["agrees"] and "limit_s" in case:
            console.print(f"SLOW {case['case']}: over its limit", markup=False, soft_wrap=True)
        elif not case["agrees"]:
            text = f"MISMATCH in {case['case']}: the result differs by more than {case['tolerance']:.1e}"
            console.print(text, markup=False, soft_wrap=True)


def _row(case: dict[str, Any], peers: tuple[str, ...], compared: bool, timed: bool) -> list[str]:
    if "error" in case:
        return [case["case"], "failed"]
    ratio = "-" if case["ratio"] is None else f"{case['ratio']:.2f}"
    difference = "-" if case["max_difference"] is None else f"{case['max_difference']:.1e}"
    row = [case["case"], seconds_text(case["ours_s"])]
    row += [seconds_text(case["peers"].get(peer)) for peer in peers]
    row += [ratio, f"{case['gflops']:.1f}", f"{case['peak_fraction']:.0%} {case['bound']}", difference]
    if compared:
        row.append(f"{case['speedup']:.2f}x" if "speedup" in case else "-")
    if timed:
        row.append(seconds_text(case.get("compile_s")))
    return row

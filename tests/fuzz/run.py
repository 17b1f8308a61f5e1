"""The fuzzer: `python -m tests.fuzz.run --programs 2000 --seed 1 --jobs 2`.

With `--target grid:wormhole` programs run on simulated cores, with `--target cuda:sm_90a` on an emulated GPU.

Programs are compiled in worker processes: one that crashes or hangs is reported with its seed and a new worker goes on
with the next. Failures are shrunk and printed as tests for `tests/bugs`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.fuzz.check import Outcome, check
from tests.fuzz.emulated import check_on, generate_for
from tests.fuzz.generate import Case, generate
from tests.fuzz.printing import source_of
from tests.fuzz.shrink import shrink

PATIENCE_S = 120.0
SHRINK_S = 60.0


@dataclass
class Summary:
    """Counts over a run, and the failures: seed, kind, message, source."""

    programs: int = 0
    elements: int = 0
    unknown: int = 0
    seconds: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        ops = ", ".join(f"{name} {count}" for name, count in self.operations.most_common())
        share = self.unknown / max(1, self.elements)
        rate = self.programs / max(1e-9, self.seconds)
        refused = "".join(f"\n{count:6d} refused: {reason}" for reason, count in self.refused.most_common())
        return (
            f"{self.programs} programs in {self.seconds:.0f} s ({rate:.2f} per second), {self.elements} elements, "
            f"{share:.3%} unknown, {self.refused.total()} refused, {len(self.failures)} failures{refused}\n{ops}"
        )


@dataclass(frozen=True)
class Finding:
    """What one seed showed: its outcome, the small source of a failure, the operations that its program had."""

    outcome: Outcome
    source: str = ""
    operations: tuple[str, ...] = ()


# Generates and checks the program of a seed; shrinks a failure if told to. Found by its name in worker processes.
Examine = Callable[[int, bool], Finding]


@dataclass(frozen=True)
class _Message:
    """From a worker: it starts a seed, or has finished it."""

    seed: int
    finding: Finding | None = None


def run_seed(seed: int) -> tuple[Case, Outcome]:
    """Generate and check one program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = generate(seed)
        return case, check(case)


def examine(seed: int, shrinks: bool) -> Finding:
    """Try the array program of a seed."""
    case, outcome = run_seed(seed)
    source = ""
    if outcome.kind and shrinks:
        source = source_of(shrink(case, lambda c: check(c).kind == outcome.kind, SHRINK_S))
    return Finding(outcome, source, tuple(_name(n) for n in case.graph.walk()))


def examine_on(target: str, seed: int, shrinks: bool) -> Finding:
    """Try the array program of a seed on a target that this machine lacks."""
    case = generate_for(target, seed)
    outcome = check_on(case, target)
    source = ""
    if outcome.kind and shrinks:
        source = source_of(shrink(case, lambda c: check_on(c, target).kind == outcome.kind, SHRINK_S))
    return Finding(outcome, source, tuple(_name(n) for n in case.graph.walk()))


def _work(connection: Connection, examine: Examine, seeds: list[int], shrinks: bool) -> None:
    warnings.simplefilter("ignore")
    gc.disable()  # IR is full of cycles: collecting now and then is cheaper than often
    for count, seed in enumerate(seeds):
        if count % 8 == 7:
            gc.collect()
        connection.send(_Message(seed))
        connection.send(_Message(seed, examine(seed, shrinks)))
    connection.close()


def _name(node: Any) -> str:
    return node.op if node.op != "map" else f"map.{node.attributes['fn']}"


class _Worker:
    """A process that works through seeds."""

    def __init__(self, examine: Examine, seeds: list[int], shrinks: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self.examine = examine
        self.seeds = seeds
        self.shrinks = shrinks
        self.current: int | None = None
        self.since = time.monotonic()
        self.process = context.Process(target=_work, args=(theirs, examine, seeds, shrinks), daemon=True)
        self.process.start()
        theirs.close()

    def rest(self) -> list[int]:
        """Seeds after the one in work."""
        return self.seeds[self.seeds.index(self.current) + 1 :] if self.current is not None else []

    def successors(self) -> list[_Worker]:
        """A new process for the seeds that are left, if any."""
        return [_Worker(self.examine, self.rest(), self.shrinks)] if self.rest() else []

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(
    programs: int,
    seed: int,
    jobs: int = 1,
    minutes: float = 1e9,
    shrinks: bool = True,
    echo: Callable[[str], object] = print,
    examine: Examine = examine,
) -> Summary:
    """Fuzz with seeds `seed`, `seed + 1`, ... in worker processes."""
    summary = Summary()
    start = time.monotonic()
    seeds = list(range(seed, seed + programs))
    workers = [_Worker(examine, seeds[j::jobs], shrinks) for j in range(jobs)]
    try:
        while workers and time.monotonic() < start + 60 * minutes:
            workers = [w for worker in workers for w in _advance(worker, summary, echo)]
    finally:
        for worker in workers:
            worker.stop()
    summary.seconds = time.monotonic() - start
    return summary


def _advance(worker: _Worker, summary: Summary, echo: Callable[[str], object]) -> Iterator[_Worker]:
    """Take one message of a worker; gives the worker, its successor after a crash, or nothing when it is done."""
    limit = PATIENCE_S + (SHRINK_S if worker.shrinks else 0)
    if not wait([worker.connection], timeout=0.2):
        if time.monotonic() - worker.since < limit:
            yield worker
            return
        _record(summary, echo, worker.current, "hang", f"no answer within {limit:.0f} s", "")
        worker.stop()
        yield from worker.successors()
        return
    try:
        message: _Message = worker.connection.recv()
    except EOFError:
        worker.process.join()
        if worker.process.exitcode == 0 and not worker.rest():
            return
        _record(summary, echo, worker.current, "crash", f"exit code {worker.process.exitcode}", "")
        yield from worker.successors()
        return
    worker.current, worker.since = message.seed, time.monotonic()
    if message.finding is not None:
        outcome = message.finding.outcome
        summary.programs += 1
        summary.elements += outcome.elements
        summary.unknown += outcome.unknown
        summary.operations.update(message.finding.operations)
        if outcome.refused:
            summary.refused[outcome.refused] += 1
        if outcome.kind:
            _record(summary, echo, message.seed, outcome.kind, outcome.message, message.finding.source)
    yield worker


def _record(
    summary: Summary, echo: Callable[[str], object], seed: int | None, kind: str, message: str, source: str
) -> None:
    summary.failures.append((seed or 0, kind, message, source))
    echo(f"seed {seed}: {kind}: {message}\n{source}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--target", default="cpu")
    arguments = parser.parse_args()
    print(f"seeds {arguments.seed} to {arguments.seed + arguments.programs - 1}", flush=True)
    echo = lambda text: print(text, flush=True)  # noqa: E731
    tried = examine if arguments.target == "cpu" else partial(examine_on, arguments.target)
    shrinks = not arguments.no_shrink
    summary = run(arguments.programs, arguments.seed, arguments.jobs, arguments.minutes, shrinks, echo, tried)
    print(summary)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())

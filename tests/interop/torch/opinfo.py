"""Run the operators of torch's OpInfo database on their samples and count.

    python -m tests.interop.torch.opinfo [--dtype float32] [--match attention] [--samples 4] [--core] [--target interp]

Forward, and backward where the operator has gradients, against eager torch. Of operators that eager torch runs as one
of the core of ATen, all samples of float32 are run, of others at most `--samples`. Operators run in processes of their
own, which are started again after some, as the programs that they compiled stay in their memory, and where an operator
kills one or takes too long. `--results` names a file to which each outcome is added: a run that ended early goes on
from there.
Without `--match` and `--dtype` the table of support is written to `docs/reference/torch.md`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.interop.torch.samples import Outcome, core_samples, operators, run, states
from tilewright.interop.torch import BackendOptions

DTYPES = ("float32", "int64", "bool")
_SECONDS_PER_SAMPLE = 120
_OPERATORS_PER_PROCESS = 40
_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "torch.md"


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="all by default")
    parser.add_argument("--match", default="", help="a regular expression for the names of operators")
    parser.add_argument("--samples", type=int, default=4, help="how many samples of an operator outside the core")
    parser.add_argument("--core", action="store_true", help="only operators of the core, and float32")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--results", type=Path, help="a file of outcomes to go on from and to add to")
    parser.add_argument("--slow", type=float, default=20.0, help="print operators that take more seconds than this")
    parser.add_argument("--verbose", action="store_true", help="print each operator that is not right")
    given = parser.parse_args()
    names = [name for name in operators() if re.search(given.match, name)]
    core = [name for name in core_samples(torch.float32) if name in names]
    found: dict[str, list[Outcome]] = {}
    for dtype in ("float32",) if given.core else given.dtype or DTYPES:
        start = time.perf_counter()
        whole = core if dtype == "float32" else []
        asked = _Asked(dtype, given.samples, given.target)
        found[dtype] = _run(whole, dataclasses.replace(asked, samples=None), given)
        if not given.core:
            found[dtype] += _run([name for name in names if name not in whole], asked, given)
        text = f"{states(found[dtype])}, {sum(outcome.samples for outcome in found[dtype])} samples"
        print(f"{dtype}: {text} in {time.perf_counter() - start:.0f} s", flush=True)
    if not (given.match or given.dtype or given.core):
        from tests.interop.torch.page import page

        _PAGE.write_text(page(found, core, given.samples))
        print(f"wrote {_PAGE}")


def _run(names: list[str], asked: _Asked, given: argparse.Namespace) -> list[Outcome]:
    """Outcomes of operators, by `--results` where they are known."""
    known = _read(given.results, asked)
    found = [known[name] for name in names if name in known]
    for outcome, seconds in outcomes([name for name in names if name not in known], asked, given.jobs):
        found.append(outcome)
        _add(given.results, outcome, asked)
        if seconds > given.slow:
            print(f"{outcome.name}: {outcome.samples} samples in {seconds:.0f} s", flush=True)
        if outcome.wrong or (given.verbose and outcome.state != "right"):
            print(f"{outcome.name}: {outcome.state}: {outcome.wrong or outcome.in_torch}", flush=True)
    return found


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What operators are run with; all their samples for None."""

    dtype: str
    samples: int | None
    target: str


def _read(path: Path | None, asked: _Asked) -> dict[str, Outcome]:
    """Outcomes that a file has of the same question, by operator."""
    if path is None or not path.exists():
        return {}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [_outcome(record["outcome"]) for record in records if record["asked"] == dataclasses.asdict(asked)]
    return {outcome.name: outcome for outcome in kept}


def _outcome(record: dict[str, Any]) -> Outcome:
    in_torch = tuple((name, reason) for name, reason in record.pop("in_torch"))
    lists = {name: tuple(record.pop(name)) for name in ("wrong", "compiled_operators")}
    return Outcome(**record, in_torch=in_torch, **lists)


def _add(path: Path | None, outcome: Outcome, asked: _Asked) -> None:
    if path is not None:
        record = {"asked": dataclasses.asdict(asked), "outcome": dataclasses.asdict(outcome)}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _work(connection: Any, asked: _Asked) -> None:
    torch.set_num_threads(1)
    options = BackendOptions(target=asked.target)
    while True:
        name = connection.recv()
        connection.send(run(name, asked.dtype, asked.samples, options, lambda: connection.send(None)))


class _Worker:
    """A process that runs operators one after another."""

    def __init__(self, asked: _Asked) -> None:
        context = multiprocessing.get_context("forkserver")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, asked), daemon=True)
        self._process.start()
        there.close()
        self.done = 0

    def ask(self, name: str) -> Outcome | None:
        """The outcome of an operator; None where a sample took too long, or the process ended."""
        self.done += 1
        try:
            self._here.send(name)
            while self._here.poll(_SECONDS_PER_SAMPLE):
                outcome = self._here.recv()
                if outcome is not None:  # else a sample began
                    return outcome
        except (EOFError, OSError):
            pass
        return None

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._here.close()


def outcomes(names: list[str], asked: _Asked, jobs: int) -> Iterator[tuple[Outcome, float]]:
    """The outcome of each operator, and the seconds it took, as they come."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        runs = [pool.submit(_one, name, asked, idle) for name in names]
        for done in concurrent.futures.as_completed(runs):
            yield done.result()
        while not idle.empty():
            idle.get().stop()


def _one(name: str, asked: _Asked, idle: queue.SimpleQueue[_Worker]) -> tuple[Outcome, float]:
    try:
        worker = idle.get_nowait()
    except queue.Empty:
        worker = _Worker(asked)
    start = time.perf_counter()
    outcome = worker.ask(name)
    if outcome is None or worker.done == _OPERATORS_PER_PROCESS:
        worker.stop()
    else:
        idle.put(worker)
    outcome = outcome or Outcome(name, asked.dtype, 0, 0, 0, (), ("killed, or longer than the limit",))
    return outcome, time.perf_counter() - start


if __name__ == "__main__":
    main()

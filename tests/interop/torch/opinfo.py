"""Run the operators of torch's OpInfo database on their samples and count.

    python -m tests.interop.torch.opinfo [--dtype float32] [--match attention] [--samples 4] [--target interp]

Forward, and backward where the operator has gradients, against eager torch. Operators run in a process of their own,
which is started again after some, as the programs that it compiled stay in its memory, and where an operator kills it
or takes too long. `--results` names a file to which each outcome is added: a run that ended early goes on from there.
Without `--match` and `--dtype` the table of support is written to `docs/reference/torch.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.interop.torch.samples import Outcome, operators, run, states
from tilewright.interop.torch import BackendOptions

DTYPES = ("float32", "int64", "bool")
_SECONDS_PER_OPERATOR = 240
_OPERATORS_PER_PROCESS = 40
_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "torch.md"


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="all by default")
    parser.add_argument("--match", default="", help="a regular expression for the names of operators")
    parser.add_argument("--samples", type=int, default=4, help="how many samples of an operator, at most")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--results", type=Path, help="a file of outcomes to go on from and to add to")
    parser.add_argument("--slow", type=float, default=20.0, help="print operators that take more seconds than this")
    parser.add_argument("--verbose", action="store_true", help="print each operator that is not right")
    given = parser.parse_args()
    names = [name for name in operators() if re.search(given.match, name)]
    found: dict[str, list[Outcome]] = {}
    for dtype in given.dtype or DTYPES:
        start = time.perf_counter()
        asked = _Asked(dtype, given.samples, given.target)
        known = _read(given.results, asked)
        found[dtype] = [known[name] for name in names if name in known]
        for outcome, seconds in outcomes([name for name in names if name not in known], asked):
            found[dtype].append(outcome)
            _add(given.results, outcome, asked)
            if seconds > given.slow:
                print(f"{outcome.name}: {seconds:.0f} s", flush=True)
            if outcome.wrong or (given.verbose and outcome.state != "right"):
                print(f"{outcome.name}: {outcome.state}: {outcome.wrong or outcome.in_torch}", flush=True)
        print(f"{dtype}: {states(found[dtype])} in {time.perf_counter() - start:.0f} s", flush=True)
    if not given.match and not given.dtype:
        from tests.interop.torch.page import page

        _PAGE.write_text(page(found, given.samples))
        print(f"wrote {_PAGE}")


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What operators are run with."""

    dtype: str
    samples: int
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
    return Outcome(**{**record, "in_torch": in_torch, "wrong": tuple(record["wrong"])})


def _add(path: Path | None, outcome: Outcome, asked: _Asked) -> None:
    if path is not None:
        record = {"asked": dataclasses.asdict(asked), "outcome": dataclasses.asdict(outcome)}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _work(connection: Any, asked: _Asked) -> None:
    torch.set_num_threads(1)
    while True:
        name = connection.recv()
        connection.send(run(name, asked.dtype, asked.samples, BackendOptions(target=asked.target)))


class _Worker:
    """A process that runs operators one after another."""

    def __init__(self, asked: _Asked) -> None:
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, asked), daemon=True)
        self._process.start()
        there.close()
        self.done = 0

    def ask(self, name: str) -> Outcome | None:
        """The outcome of an operator; None where it took too long, or the process ended."""
        self.done += 1
        try:
            self._here.send(name)
            return self._here.recv() if self._here.poll(_SECONDS_PER_OPERATOR) else None
        except (EOFError, OSError):
            return None

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._here.close()


def outcomes(names: list[str], asked: _Asked) -> Iterator[tuple[Outcome, float]]:
    """The outcome of each operator, and the seconds it took."""
    worker = None
    for name in names:
        worker = worker or _Worker(asked)
        start = time.perf_counter()
        outcome = worker.ask(name)
        if outcome is None or worker.done == _OPERATORS_PER_PROCESS:
            worker.stop()
            worker = None
        outcome = outcome or Outcome(name, asked.dtype, 0, 0, 0, (), ("killed, or longer than the limit",))
        yield outcome, time.perf_counter() - start
    if worker is not None:
        worker.stop()


if __name__ == "__main__":
    main()

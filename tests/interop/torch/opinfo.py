"""Run the operators of torch's OpInfo database on their samples and count.

    python -m tests.interop.torch.opinfo [--dtype float32] [--match attention] [--samples 4] [--target interp]

Forward, and backward where the operator has gradients, against eager torch. Operators run in a process of their own,
which is started again where one kills it or takes too long. Without `--match` and `--dtype` the table of support is
written to `docs/reference/torch.md`.
"""

from __future__ import annotations

import argparse
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
_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "torch.md"


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="all by default")
    parser.add_argument("--match", default="", help="a regular expression for the names of operators")
    parser.add_argument("--samples", type=int, default=4, help="how many samples of an operator, at most")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="print each operator that is not right")
    given = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    for dtype in given.dtype or DTYPES:
        start = time.perf_counter()
        found[dtype] = []
        for outcome in outcomes(dtype, given.match, given.samples, given.target):
            found[dtype].append(outcome)
            if outcome.wrong or (given.verbose and outcome.state != "right"):
                print(f"{outcome.name}: {outcome.state}: {outcome.wrong or outcome.in_torch}", flush=True)
        print(f"{dtype}: {states(found[dtype])} in {time.perf_counter() - start:.0f} s", flush=True)
    if not given.match and not given.dtype:
        from tests.interop.torch.page import page

        _PAGE.write_text(page(found, given.samples))
        print(f"wrote {_PAGE}")


def _work(connection: Any, dtype: str, samples: int, target: str) -> None:
    torch.set_num_threads(1)
    while True:
        connection.send(run(connection.recv(), dtype, samples, BackendOptions(target=target)))


def outcomes(dtype: str, match: str, samples: int, target: str) -> Iterator[Outcome]:
    """The outcome of each operator whose name matches."""
    context = multiprocessing.get_context("fork")
    process, here = None, None
    for name in operators():
        if not re.search(match, name):
            continue
        if process is None:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, dtype, samples, target), daemon=True)
            process.start()
            there.close()
        outcome = _ask(here, name, dtype)
        if outcome is None:
            process.kill()
            process.join()
            process = None
            outcome = Outcome(name, dtype, 0, 0, 0, (), ("killed, or longer than the limit",))
        yield outcome
    if process is not None:
        process.kill()


def _ask(connection: Any, name: str, dtype: str) -> Outcome | None:
    try:
        connection.send(name)
        return connection.recv() if connection.poll(_SECONDS_PER_OPERATOR) else None
    except (EOFError, OSError):
        return None


if __name__ == "__main__":
    main()

"""Run the backend tests of the `onnx` package and count.

    python -m tests.interop.onnx.suite --kind node --match attention
    python -m tests.interop.onnx.suite --target grid:blackhole --every 15
    python -m tests.interop.onnx.suite --target cuda:sm_90a --every 15

Tests run in a process of their own, which is started again where one kills it. Without options the table of
support is written to `docs/reference/onnx.md`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.interop.onnx.cases import KINDS, Outcome, cases, run_case
from tests.interop.targets import CPU, STATES, running, short

_SECONDS_PER_TEST = 120
_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "onnx.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="all kinds by default")
    parser.add_argument("--match", default="", help="a regular expression for the names of tests")
    parser.add_argument("--verbose", action="store_true", help="print each test that does not pass")
    parser.add_argument("--target", default=CPU, help="grid:wormhole, cuda:sm_90a (emulated), ...; cpu by default")
    parser.add_argument("--every", type=int, default=1, help="of how many tests one is run")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    given = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    for kind in given.kind or KINDS:
        start = time.perf_counter()
        found[kind] = list(_run(kind, given))
        print(f"{kind}: {_counts(found[kind])} in {time.perf_counter() - start:.0f} s", flush=True)
        _print_reasons(found[kind])
    if not given.match and not given.kind and given.target == CPU and given.every == 1:
        from tests.interop.onnx.page import page

        _PAGE.write_text(page(found))
        print(f"wrote {_PAGE}")


@functools.cache
def _loaded(kind: str) -> dict[str, Any]:
    return {case.name: case for case in cases(kind)}


def _work(kind: str, target: str, connection: Any) -> None:
    loaded = _loaded(kind)
    with running(target):
        while True:
            connection.send(run_case(loaded[connection.recv()], target))


def _run(kind: str, given: argparse.Namespace) -> Iterator[Outcome]:
    context = multiprocessing.get_context("fork")
    names = [name for name in _loaded(kind) if re.search(given.match, name)][given.first :: given.every]
    process, here = None, None
    for name in names:
        if process is None:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(kind, given.target, there), daemon=True)
            process.start()
            there.close()
        outcome = _ask(here, name)
        if outcome.state in ("killed", "hung"):
            process.kill()
            process.join()
            process = None
        if given.verbose and outcome.state != "passed":
            print(f"{name}: {outcome.state}: {outcome.reason}", flush=True)
        yield outcome
    if process is not None:
        process.kill()


def _ask(connection: Any, name: str) -> Outcome:
    try:
        connection.send(name)
        if connection.poll(_SECONDS_PER_TEST):
            return connection.recv()
        return Outcome(name, "hung", f"not done in {_SECONDS_PER_TEST} s")
    except (EOFError, OSError):
        return Outcome(name, "killed", "the process died")


def _counts(outcomes: Sequence[Outcome]) -> str:
    counts = collections.Counter(outcome.state for outcome in outcomes)
    return ", ".join(f"{counts[s]} {s}" for s in STATES)


def _print_reasons(outcomes: Sequence[Outcome]) -> None:
    groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome.state != "passed":
            groups[outcome.state, short(outcome.reason)].append(outcome.name)
    for (state, reason), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names):4d} {state}: {reason}  [{names[0]}]")


if __name__ == "__main__":
    main()

"""Run the whole table of cases, on the cpu those on a mesh too, and count.

python -m tests.interop.stablehlo.suite --match scatter
python -m tests.interop.stablehlo.suite --target grid:wormhole --every 15
"""

from __future__ import annotations

import argparse
import collections
import itertools
import re
import time

from tests.interop.stablehlo.cases import run_case
from tests.interop.stablehlo.mesh_cases import outcomes
from tests.interop.stablehlo.table import all_cases
from tests.interop.targets import CPU, running, short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="a regular expression for the names of cases")
    parser.add_argument("--target", default=CPU, help="grid:wormhole, cuda:sm_90a (emulated), ...; cpu by default")
    parser.add_argument("--every", type=int, default=1, help="of how many cases one is run")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    given = parser.parse_args()
    with running(given.target):
        _count(given)


def _count(given: argparse.Namespace) -> None:
    start = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    cases = [case for case in all_cases() if re.search(given.match, case.name)][given.first :: given.every]
    table = (run_case(case, given.target) for case in cases)
    reasons: collections.Counter[str] = collections.Counter()
    for outcome in itertools.chain(table, outcomes(given.match) if given.target == CPU else ()):
        counts[outcome.state] += 1
        if outcome.state == "unsupported" and given.target != CPU:
            reasons[short(outcome.reason)] += 1
        elif outcome.state != "passed":
            print(f"{outcome.state}: {outcome.name}: {outcome.reason}", flush=True)
    for reason, count in reasons.most_common():
        print(f"  {count:4d} unsupported: {reason}")
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

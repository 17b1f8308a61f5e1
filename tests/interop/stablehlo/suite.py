"""Run the whole table of cases, those on a mesh too, and count.

python -m tests.interop.stablehlo.suite --match scatter --verbose
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="a regular expression for the names of cases")
    given = parser.parse_args()
    start = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    table = (run_case(case) for case in all_cases() if re.search(given.match, case.name))
    for outcome in itertools.chain(table, outcomes(given.match)):
        counts[outcome.state] += 1
        if outcome.state != "passed":
            print(f"{outcome.state}: {outcome.name}: {outcome.reason}", flush=True)
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

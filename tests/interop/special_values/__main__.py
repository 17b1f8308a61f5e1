"""Compare the rules of the front ends with their own frameworks on special values, and count.

    python -m tests.interop.special_values [--framework torch,onnx,stablehlo] [--op NAME] [--verbose]

Every elementwise, reduction and cast rule runs for each element type on NaN, infinities, zeros of both signs, extremes,
subnormals, halves and all integers of 8 bits, in pairs for operators of two operands. "Unsettled" are elements for
which the framework itself gives different results on its paths, one of which we give.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Iterator

import numpy as np

from tests.interop.special_values.compare import Case, Outcome, run, summary

FRAMEWORKS = ("torch", "onnx", "stablehlo")


def cases(framework: str, match: str = "") -> Iterator[Case]:
    """The cases of a framework whose rules have `match` in their names."""
    module = importlib.import_module(f"tests.interop.special_values.{framework}_rules")
    yield from module.cases(match)


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default=",".join(FRAMEWORKS))
    parser.add_argument("--op", default="", help="a part of the names of rules")
    parser.add_argument("--verbose", action="store_true", help="print what is unsettled or refused too")
    parser.add_argument("--progress", action="store_true", help="print each rule that was compared")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    start = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for framework in given.framework.split(","):
            for case in cases(framework, given.op):
                outcomes.append(run(case))
                _print(outcomes[-1], given.verbose)
                if given.progress and (len(outcomes) == 1 or outcomes[-2].case.op != case.op):
                    print(f"{time.perf_counter() - start:.0f} s: {case.op}", flush=True)
    print(summary(outcomes))
    print(f"{time.perf_counter() - start:.0f} s")
    raise SystemExit(any(o.wrong for o in outcomes))


def _print(outcome: Outcome, verbose: bool) -> None:
    case = outcome.case
    if outcome.wrong or (verbose and (outcome.unsettled or outcome.refused)):
        counts = f"{outcome.right} right, {outcome.unsettled} unsettled, {outcome.wrong} wrong {outcome.refused}"
        print(f"{case.op} {case.dtype}: {counts}", *outcome.examples, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()

"""Runs all programs, or those that are named, and prints a table."""

from __future__ import annotations

import sys
from collections import Counter

from tests.interop.stablehlo.programs.compare import outcome, programs


def main(names: list[str]) -> int:
    """The exit status: 0 where every program agrees with JAX."""
    known = programs()
    counts: Counter[str] = Counter()
    print(f"{'program':24} {'outcome':9} {'difference':>10} {'bound':>8} {'seconds':>8}")
    for name in names or sorted(known):
        found = outcome(known[name])
        counts[found.status] += 1
        row = f"{name:24} {found.status:9} {found.difference:10.1e} {known[name].bound:8.0e} {found.seconds:8.2f}"
        print(row, found.message.splitlines()[0] if found.message else "", flush=True)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return 0 if set(counts) <= {"agrees"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measuring a case with one thread and with all of them, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.options import options

if TYPE_CHECKING:
    from tilewright.cli.bench_suites.case import Case
    from tilewright.cli.bench_worker import Key, Request

GOOD = 0.9
"""The part of the threads by which a case that scales well is faster."""

_ALONE: Key = ("ours", "alone")
_TOGETHER: Key = ("ours", "together")
_MACHINE_ALONE: Key = ("machine", "alone")
_MACHINE_TOGETHER: Key = ("machine", "together")


def measure_scaling(case: Case, request: Request) -> dict[str, Any]:
    """The record of a case: its times, how many times faster all threads are, and the same of a loop of multiply-adds
    that touches no memory, which takes turns with it."""
    import numpy as np

    from tilewright.cli import bench_peers
    from tilewright.cli.bench_worker import block_times, compare, finite, in_turns
    from tilewright.cli.measure import multiply_adds

    counts = {_ALONE: 1, _TOGETHER: request.threads}
    loops = {_MACHINE_ALONE: multiply_adds("f32", 1), _MACHINE_TOGETHER: multiply_adds("f32", request.threads)}
    inputs = case.make_inputs(np.random.default_rng(0))
    blocks: dict[Key, Callable[[], list[float]]] = {
        key: partial(block_times, loop.call, request.block_s) for key, loop in loops.items()
    }
    differences: dict[Key, float] = {}
    for key, threads in counts.items():
        with options(threads=threads):
            runner = bench_peers.ours(case, inputs)
            differences |= compare(case, {key: runner}, inputs)
        blocks[key] = partial(_block_times, runner.call, request.block_s, threads)
    times = in_turns(blocks, request)
    rates = {key: loop.flops / times[key] for key, loop in loops.items()}
    difference = max(differences.values())
    return {
        "case": case.name,
        "one_thread_s": times[_ALONE],
        "ours_s": times[_TOGETHER],
        "ratio": times[_ALONE] / times[_TOGETHER],
        "machine_ratio": rates[_MACHINE_TOGETHER] / rates[_MACHINE_ALONE],
        "max_difference": finite(difference),
        "tolerance": case.tolerance,
        "agrees": difference <= case.tolerance,
        "peers": {},
        "absent": {},
    }


def _block_times(call: Callable[[], object], block_s: float, threads: int) -> list[float]:
    """Which threads a program gets is asked at each call."""
    from tilewright.cli.bench_worker import block_times

    with options(threads=threads):
        return block_times(call, block_s)


def scaling_summary(cases: Sequence[Mapping[str, Any]], threads: int) -> dict[str, Any]:
    """How many cases scale well and the least ratio; failed cases count in nothing but the failures."""
    counted = [case for case in cases if case["agrees"]]
    ratios = {case["case"]: case["ratio"] for case in counted}
    good = sum(ratio >= GOOD * threads for ratio in ratios.values())
    worst = min(ratios, key=lambda name: ratios[name], default=None)
    return {
        "compared": len(ratios),
        "good": GOOD * threads,
        "at_least_good": good,
        "share_good": good / len(ratios) if ratios else None,
        "worst": worst,
        "worst_ratio": ratios[worst] if worst is not None else None,
        "machine_ratio": median(case["machine_ratio"] for case in counted) if counted else None,
        "failed": [case["case"] for case in cases if not case["agrees"]],
    }

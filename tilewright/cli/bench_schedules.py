"""Measure the schedule that the cost model chooses against others, all compiled in advance by worker processes."""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.cli.bench_suites.case import Array, ScheduleCase
    from tilewright.cli.bench_worker import Request
    from tilewright.runtime.program import Program
    from tilewright.schedules import Schedule

TURN_S = 0.006
"""How long a schedule runs in one turn."""

NEAR = 1.1
"""A time up to this many times the best one is as good as that."""

# Turns of one schedule that are further apart than this were disturbed, and schedules whose times are within the other
# are measured once more to tell which is the best.
_DISTURBED = 1.2
_CLOSE = 1.2
# The least of many figures is one that happened to be low: so many of the best run against the chosen one at the end,
# for so many times as many turns.
_FINALISTS, _FINAL_ROUNDS = 3, 3

_CHOSEN = ""


@dataclass
class Candidate:
    """A schedule and the medians of its turns."""

    call: Callable[[], Any]
    turns_s: list[float]

    @property
    def seconds(self) -> float:
        return median(self.turns_s)

    @property
    def is_disturbed(self) -> bool:
        return max(self.turns_s) > _DISTURBED * min(self.turns_s)


def measure_schedules(case: ScheduleCase, request: Request) -> dict[str, Any]:
    """The record of a case: time of the chosen schedule and of the best, and of all that were tried. The chosen one is
    compiled without being given, so that the record shows what users get; it is among the given ones too."""
    import numpy as np

    alternatives = case.alternatives(request.threads)
    with TemporaryDirectory() as folder:
        requests = {_CHOSEN: None} | {text: each.schedules for text, each in alternatives.items()}
        programs = _compiled(case, requests, request.threads, Path(folder))
        generator = np.random.default_rng(0)
        inputs = tuple(generator.random(shape, dtype=np.float32) for shape in case.shapes)
        differences = _differences(case, programs, inputs, request.threads)
        result = np.empty(case.result, np.float32)
        candidates = {
            text: Candidate(partial(program, *inputs, out=result, threads=request.threads), [])
            for text, program in programs.items()
        }
        finalists = _measure(candidates, request)
    best = min(finalists, key=lambda text: candidates[text].seconds)
    ours_s, best_s = candidates[_CHOSEN].seconds, candidates[best].seconds
    chosen = next(iter(alternatives))
    wrong = [text or chosen for text, difference in differences.items() if not difference <= case.tolerance]
    return {
        "case": case.name,
        "ours_s": ours_s,
        "best_s": best_s,
        "ratio": best_s / ours_s,
        "chosen": chosen,
        "best": best or chosen,
        "schedules": [
            {
                "schedule": text,
                "seconds": candidates[text].seconds,
                "predicted_s": alternative.predicted_s,
            }
            for text, alternative in alternatives.items()
        ],
        "wrong": wrong,
        "tolerance": case.tolerance,
        "agrees": not wrong,
        "peers": {},
        "absent": {},
    }


@cache
def _workers(threads: int) -> ProcessPoolExecutor:
    """Processes that compile, kept from case to case: each has the compiler to import."""
    return ProcessPoolExecutor(threads, multiprocessing.get_context("spawn"))


def _compiled(
    case: ScheduleCase, requests: Mapping[str, Mapping[str, Schedule] | None], threads: int, folder: Path
) -> dict[str, Program]:
    from tilewright.runtime.program import load
    from tilewright.schedules import to_json

    paths = [folder / f"{n}.twp" for n in range(len(requests))]
    texts = [None if request is None else to_json(request) for request in requests.values()]
    compile_one = partial(_compile, case.ours, case.shapes, threads)
    list(_workers(threads).map(compile_one, texts, paths))
    return {name: cast("Program", load(path)) for name, path in zip(requests, paths, strict=True)}


def _compile(
    function: Callable[..., object], shapes: Sequence[tuple[int, ...]], threads: int, schedule: str | None, path: Path
) -> None:
    """Compile a function of f32 arrays by schedules in JSON, into a file. Each is compiled once: no cache keeps it."""
    import tilewright as tw

    with tw.options(threads=threads, cache=False):
        arguments = (tw.ShapeDtype(shape, tw.f32) for shape in shapes)
        request = None if schedule is None else tw.schedules.from_json(schedule)
        tw.jit(function).lower(*arguments).compile("cpu", schedule=request).save(str(path))


def _differences(
    case: ScheduleCase, programs: Mapping[str, Program], inputs: tuple[Array, ...], threads: int
) -> dict[str, float]:
    import numpy as np

    from tilewright.cli.check import relative_difference

    expected = np.asarray(case.reference(*(x.astype(np.float64) for x in inputs)))
    return {
        text: relative_difference(np.asarray(program(*inputs, threads=threads)).astype(np.float64), expected)
        for text, program in programs.items()
    }


def _measure(candidates: Mapping[str, Candidate], request: Request) -> list[str]:
    """All in turns; again those that something disturbed; then, anew, those close to the best and the chosen one, both
    as usual and given: these come first. The best of them and the chosen one, which are returned, once more: what both
    forms of this took counts for either, since they are the same schedule."""
    everyone = list(candidates.values())
    _take_turns(everyone, request)
    _take_turns([each for each in everyone if each.is_disturbed], request)
    least = min(each.seconds for each in everyone)
    close = [text for n, text in enumerate(candidates) if n < 2 or candidates[text].seconds <= _CLOSE * least]
    _take_turns_anew([candidates[text] for text in close], request, 2)
    best = sorted(close, key=lambda text: candidates[text].seconds)[:_FINALISTS]
    finalists = list(dict.fromkeys([*close[:2], *best]))
    _take_turns_anew([candidates[text] for text in finalists], request, _FINAL_ROUNDS)
    usual, given = everyone[:2]
    usual.turns_s = given.turns_s = [*usual.turns_s, *given.turns_s]
    return finalists


def _take_turns_anew(candidates: Sequence[Candidate], request: Request, rounds: int) -> None:
    for each in candidates:
        each.turns_s.clear()
    for _ in range(rounds):
        _take_turns(candidates, request)


def _take_turns(candidates: Sequence[Candidate], request: Request) -> None:
    from tilewright.cli.bench_worker import block_times

    order = random.Random(0)
    for _ in range(request.repeat):
        for each in order.sample(candidates, len(candidates)):
            each.turns_s.append(median(block_times(each.call, min(TURN_S, request.block_s))))


def schedule_summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How near the chosen schedules come to the best; failed cases count in nothing but the failures."""
    ratios = {case["case"]: case["ratio"] for case in cases if case["agrees"]}
    near = sum(ratio * NEAR >= 1 for ratio in ratios.values())
    worst = min(ratios, key=lambda name: ratios[name], default=None)
    return {
        "compared": len(ratios),
        "near_the_best": near,
        "share_near": near / len(ratios) if ratios else None,
        "worst": worst,
        "worst_ratio": ratios[worst] if worst is not None else None,
        "failed": [case["case"] for case in cases if not case["agrees"]],
        "geometric_mean": math.exp(fmean(map(math.log, ratios.values()))) if ratios else None,
    }

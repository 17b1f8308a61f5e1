"""The search: random programs until the time is over, then the slow ones again, made small and put into groups."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from tilewright.cli.hunt.causes import Slow, by_cause, slow_of
from tilewright.cli.hunt.corpus import keep
from tilewright.cli.hunt.draw import draw
from tilewright.cli.hunt.measurer import Measurer
from tilewright.cli.hunt.program import Program, Record
from tilewright.cli.hunt.shrink import shrunk
from tilewright.cli.report import Report, make_table, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.cli.bench_worker import Request

# Seeds of hunts are far from each other: program n of a hunt has the seed `_SEEDS * seed + n`.
_SEEDS = 1_000_000
# A program counts as slow below this ratio, twice; so many of the slowest are made small.
_SLOW, _MOST_SLOW = 0.95, 12
_LIMIT_S = 60.0
# Turns of a library when programs are searched, and when the slow ones are measured again.
_SEARCH, _AGAIN = {"repeat": 2, "block_s": 0.02, "gap_s": 0.05}, {"repeat": 5, "block_s": 0.05, "gap_s": 0.25}
_MOST_IN_MEAN = 2.0
_LEAST = 0.7


@dataclass(frozen=True)
class Hunt:
    """A search of some seconds; `corpus` is where slow programs are kept, None: nowhere."""

    seed: int
    seconds: float
    request: Request
    corpus: Path | None
    tell: Callable[[str], None]

    def run(self) -> Record:
        """The document of the search."""
        records = list(self._searched())
        slow = self._slow(records)
        groups = by_cause(slow)
        if self.corpus is not None:
            for each in slow:
                keep(self.corpus, each)
        return {
            "suite": "hunt",
            "seed": self.seed,
            "summary": _summary([record for _, record in records]),
            "below_1": _below_1([record for _, record in records]),
            "failed": [_failure(record) for _, record in records if not record["agrees"]],
            "causes": {cause: [_document(each) for each in found] for cause, found in groups.items()},
        }

    def _measurer(self, turns: Mapping[str, float]) -> Measurer:
        return Measurer(msgspec.structs.replace(self.request, **turns), _LIMIT_S)

    def _searched(self) -> Iterator[tuple[Program, Record]]:
        end, number = time.monotonic() + self.seconds, 0
        with self._measurer(_SEARCH) as measurer:
            while time.monotonic() < end:
                program = draw(_SEEDS * self.seed + number)
                yield program, measurer.record(program)
                number += 1
                self.tell(f"{number} programs")

    def _slow(self, records: Sequence[tuple[Program, Record]]) -> list[Slow]:
        """The slowest programs that are slow when they are measured again, made small: for as long as the search took
        at most, after which they stay as they are, and further ones are left out."""
        found = [(program, record) for program, record in records if _ratio(record) < _SLOW]
        found.sort(key=lambda pair: _ratio(pair[1]))
        kept: dict[str, Slow] = {}
        end = time.monotonic() + self.seconds
        with self._measurer(_AGAIN) as measurer:
            known: dict[str, Record] = {}

            def measured(program: Program) -> float | None:
                text = str(program)
                if text not in known and time.monotonic() > end:
                    return None
                known[text] = known.get(text) or measurer.record(program)
                ratio = _ratio(known[text])
                return None if math.isinf(ratio) else ratio

            for number, (program, _) in enumerate(found[:_MOST_SLOW], 1):
                self.tell(f"slow program {number} of {min(len(found), _MOST_SLOW)}")
                ratio = measured(program)
                if ratio is not None and ratio < _SLOW:
                    small, _ = shrunk(program, ratio, measured)
                    kept.setdefault(str(small), slow_of(small, known[str(small)]))
        return list(kept.values())


def _document(slow: Slow) -> Record:
    return msgspec.to_builtins(slow) | {"text": str(slow.program)}


def _ratio(record: Record) -> float:
    """The best peer's time over ours; infinite where there is none, or the result is not right."""
    return record["ratio"] if record["agrees"] and record.get("ratio") else math.inf


def _below_1(records: Sequence[Record]) -> list[Record]:
    """The programs in which a peer is faster, the slowest first, as the search measured them."""
    found = sorted((record for record in records if _ratio(record) < 1), key=_ratio)
    return [{key: record[key] for key in ("case", "ratio", "ours_s", "best_peer")} for record in found]


def _failure(record: Record) -> Record:
    if "error" in record:
        return {"case": record["case"], "reason": record["error"]}
    return {
        "case": record["case"],
        "reason": f"differs by {record['max_difference']}, of {record['tolerance']} at most",
    }


def _summary(records: Sequence[Record]) -> Record:
    """How ours stands against the best peers; a program counts at most twofold in the mean."""
    ratios = [ratio for record in records if not math.isinf(ratio := _ratio(record))]
    logarithms = [math.log(min(ratio, _MOST_IN_MEAN)) for ratio in ratios]
    return {
        "programs": len(records),
        "compared": len(ratios),
        "at_least_1": sum(ratio >= 1 for ratio in ratios) / len(ratios) if ratios else None,
        f"below_{_LEAST}": sum(ratio < _LEAST for ratio in ratios),
        "least": min(ratios, default=None),
        "geometric_mean": math.exp(fmean(logarithms)) if logarithms else None,
    }


def report(document: Record) -> Report:
    """The report of a search; it fails where a result is wrong."""
    return Report(dict(document), lambda console: _show(console, document), 1 if document["failed"] else 0)


def _show(console: Console, document: Record) -> None:
    found = document["summary"]
    for cause, programs in document["causes"].items():
        rows = [
            [f"{each['ratio']:.2f}", seconds_text(each["ours_s"]), each["best_peer"], each["text"]] for each in programs
        ]
        console.print(make_table(cause, ["ratio", "ours", "peer", "program"], rows))
    for failure in document["failed"]:
        console.print(f"failed: {failure['case']}: {failure['reason']}", markup=False, soft_wrap=True)
    if found["compared"]:
        text = (
            f"{found['compared']} of {found['programs']} programs compared: {found['at_least_1']:.0%} at 1.0 or more, "
        )
        text += f"{found[f'below_{_LEAST}']} below {_LEAST}, the least {found['least']:.2f}, geometric mean "
        text += f"{found['geometric_mean']:.2f} (ratios of 2 at most)"
        console.print(text, markup=False, soft_wrap=True)

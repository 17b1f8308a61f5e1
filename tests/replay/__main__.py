"""Record the code that the compiler generates for a corpus of programs, or compare it with a recorded one.

    python -m tests.replay record DIRECTORY                    the whole corpus: about an hour on two cores
    python -m tests.replay compare DIRECTORY                   the programs that were recorded, by another version
    python -m tests.replay record DIRECTORY --every 10         each tenth program
    python -m tests.replay compare DIRECTORY --group onnx --target cuda:sm_90a

A change that moves or renames code leaves every text as it was; one that changes code generation has its differences
listed: how many programs by target and by the first phase that differs, and a few unified diffs. `compare` exits with 1
where anything differs. A recording that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.replay.corpus import GROUPS, programs
from tests.replay.digests import TARGETS, Record, Store, Task, record_part

_INDEX, _TEXTS = "index.jsonl", "texts"
# Tasks after which a worker process is replaced: compiled programs of one process share nothing that is wanted.
_TASKS_PER_WORKER = 20
_CHUNK = 5
_KERNEL_DIGEST = re.compile(r"(?<=_)[0-9a-f]{12}(?![0-9A-Za-z])")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.directory.mkdir(parents=True, exist_ok=True)
    return _record(given) if given.verb == "record" else _compare(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("directory", type=Path, help="where the recorded corpus is kept")
    parser.add_argument("--group", choices=GROUPS, action="append", help="all groups by default")
    parser.add_argument("--target", choices=TARGETS, action="append", help="all targets by default")
    parser.add_argument("--match", default="", help="a regular expression for the names of programs")
    parser.add_argument("--every", type=int, default=1, help="of how many programs one is compiled")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--show", type=int, default=3, help="how many unified diffs are printed")
    return parser


# ---- compiling ------------------------------------------------------------------------------------------------------


def _results(given: argparse.Namespace, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Record]]:
    """Compile the chosen programs whose names are wanted; yields names and records."""
    tasks: list[Task] = []
    targets, folder = tuple(given.target or TARGETS), str(given.directory / _TEXTS)
    for group in given.group or GROUPS:
        chosen = [
            n
            for n, program in enumerate(programs(group))
            if re.search(given.match, program.name) and not n % given.every and wanted(f"{group}: {program.name}")
        ]
        tasks += [(group, tuple(part), targets, folder) for part in _chunks(chosen)]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=_TASKS_PER_WORKER) as workers:
        for records in workers.imap(record_part, tasks):
            yield from records


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    yield from (numbers[n : n + _CHUNK] for n in range(0, len(numbers), _CHUNK))


# ---- the two verbs --------------------------------------------------------------------------------------------------


def _record(given: argparse.Namespace) -> int:
    index = _recorded(given.directory)
    with (given.directory / _INDEX).open("a") as file:
        for name, found in _results(given, lambda name: name not in index):
            index[name] = asdict(found)
            file.write(json.dumps({"name": name, **index[name]}) + "\n")
            file.flush()
            print(f"{name}: {sum(found.seconds.values()):.1f} s", flush=True)
    texts = sum(len(phases) for each in index.values() for phases in each["digests"].values())
    print(f"{len(index)} programs, {texts} texts recorded in {given.directory}")
    return 0


def _recorded(directory: Path) -> dict[str, Any]:
    """The records of a directory by the names of programs; none where nothing was recorded."""
    path = directory / _INDEX
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {line["name"]: line for line in lines}


def _compare(given: argparse.Namespace) -> int:
    known = _recorded(given.directory)
    store = Store(given.directory / _TEXTS)
    compared, texts, shown = 0, 0, 0
    before_s, after_s = Counter[str](), Counter[str]()
    differing: Counter[tuple[str, str]] = Counter()
    for name, found in _results(given, known.__contains__):
        compared += 1
        recorded = known[name]
        for target, phases in found.digests.items():
            texts += len(phases)
            before_s[target] += recorded["seconds"].get(target, 0.0)
            after_s[target] += found.seconds.get(target, 0.0)
            earlier = recorded["digests"].get(target, {})
            phase = first_difference(earlier, phases, store)
            if phase is None:
                continue
            differing[target, phase] += 1
            print(f"differs: {name}, {target}, {phase}", flush=True)
            if shown < given.show:
                shown += 1
                _show(store.get(earlier.get(phase, "absent")), store.get(phases.get(phase, "absent")))
    for (target, phase), count in sorted(differing.items()):
        print(f"{count:5d} programs differ on {target}, first in {phase}")
    times = ", ".join(f"{target} {after_s[target] / before_s[target]:.2f}" for target in before_s if before_s[target])
    print(f"compile times against the recorded ones: {times}")
    print(f"{compared} programs, {texts} texts compared, {sum(differing.values())} differ")
    return 1 if differing or not compared else 0


def first_difference(earlier: Mapping[str, str], later: Mapping[str, str], store: Store) -> str | None:
    """The first phase whose text is another one; None where all are equal."""
    phases = (phase for phase in {**later, **earlier} if earlier.get(phase) != later.get(phase))
    return next((phase for phase in phases if _differ(earlier.get(phase), later.get(phase), store)), None)


def _differ(earlier: str | None, later: str | None, store: Store) -> bool:
    """Whether two digests are of different texts, aside from digests of source files in names of kernels."""
    if earlier is None or later is None:
        return True
    return _KERNEL_DIGEST.sub("", store.get(earlier)) != _KERNEL_DIGEST.sub("", store.get(later))


def _show(earlier: str, later: str) -> None:
    lines = difflib.unified_diff(earlier.splitlines(), later.splitlines(), "recorded", "now", lineterm="", n=2)
    print("\n".join(line[:400] for line in itertools.islice(lines, 40)), flush=True)


if __name__ == "__main__":
    sys.exit(main())

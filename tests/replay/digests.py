"""The texts that a program becomes on a target, as digests, and the store that keeps the texts themselves."""

from __future__ import annotations

import gzip
import hashlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.replay.corpus import Donations, Program, programs
from tilewright.driver.compile import build_executable
from tilewright.frontend.trace import Graph
from tilewright.options import options

# The machines that code is generated for, and the phases whose texts are compared. The host is not among them: what it
# is would decide what is generated.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "cpu:x86-64-v3": ("tile", "scheduled", "llvm"),
    "cpu:x86-64-v4": ("tile", "scheduled", "llvm"),
    **dict.fromkeys(
        ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120a"), ("tile", "scheduled", "llvm", "ptx")
    ),
    "grid:wormhole": ("tile", "scheduled", "cpp"),
    "grid:blackhole": ("tile", "scheduled", "cpp"),
}
_THREADS = 4
_REFUSED = "refused"
_DIGEST_BYTES = 12

# A group of the corpus, the positions of some of its programs, the names of targets, and the folder of the store.
Task = tuple[str, tuple[int, ...], tuple[str, ...], str]


@dataclass
class Record:
    """The digests of a program by target and phase, and how long its compilation took on each target.

    A phase that is refused, or fails, has the name of the error's class in place of a digest.
    """

    digests: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])


class Store:
    """The texts of a recorded corpus by their digests, compressed, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, text: str) -> str:
        """Keep a text; returns its digest."""
        digest = digest_of(text)
        path = self._path(digest)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
        return digest

    def get(self, digest: str) -> str:
        """The text of a digest; the digest itself where it stands for an error."""
        path = self._path(digest)
        return gzip.decompress(path.read_bytes()).decode() if path.exists() else digest

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / f"{digest}.gz"


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def record(program: Program, targets: Mapping[str, tuple[str, ...]], store: Store) -> Record:
    """Compile a program for each target and keep the texts of its phases."""
    found = Record()
    with warnings.catch_warnings(), options(threads=_THREADS):
        warnings.simplefilter("ignore")
        try:
            graph, donated = program.trace()
        except Exception as error:
            found.digests["trace"] = {_REFUSED: type(error).__name__}
            return found
        for target, phases in targets.items():
            start = time.perf_counter()
            found.digests[target] = _digests(graph, donated, target, phases, store)
            found.seconds[target] = time.perf_counter() - start
    return found


def _digests(graph: Graph, donated: Donations, target: str, phases: tuple[str, ...], store: Store) -> dict[str, str]:
    try:
        built: Any = build_executable(graph, target, donated)
    except Exception as error:  # a failure of the compiler is what it makes of the program, too
        return {_REFUSED: type(error).__name__}
    found: dict[str, str] = {}
    for phase in phases:
        try:
            found[phase] = store.put(built.ir(phase))
        except Exception as error:
            found[phase] = type(error).__name__
    return found


def record_part(task: Task) -> list[tuple[str, Record]]:
    """Compile some programs of a group in a worker process; returns their names with what was recorded."""
    group, positions, names, folder = task
    targets = {name: TARGETS[name] for name in names}
    listed, store = programs(group), Store(Path(folder))
    return [(f"{group}: {listed[n].name}", record(listed[n], targets, store)) for n in positions]

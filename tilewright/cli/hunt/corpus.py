"""The corpus of slow programs that hunts found: a JSON file for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tilewright.cli.hunt.causes import Slow
from tilewright.cli.hunt.program import Program, read_program
from tilewright.errors import ArgumentError

FOLDER = Path("benchmarks/hunt")


def keep(folder: Path, found: Slow) -> Path:
    """Write a program; one that is known keeps its file.

    Raises:
        ArgumentError: the folder does not let it.
    """
    text = msgspec.json.format(msgspec.json.encode(found.program), indent=1)
    digest = hashlib.blake2b(text, digest_size=4).hexdigest()
    path = folder / f"{'-'.join(step.op for step in found.program.steps)[:60]}-{digest}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text + b"\n")
    except OSError as error:
        message = f"the corpus cannot be written: {error}"
        raise ArgumentError(message, help="give another folder by `--corpus`") from None
    return path


def programs(folder: Path = FOLDER) -> Iterator[tuple[str, Program]]:
    """The programs of a corpus, by the names of their files.

    Raises:
        ArgumentError: there is no corpus, or a file is no program.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        message = f"there is no corpus in `{folder}`"
        raise ArgumentError(message, help="run this where the repository is, or a hunt first")
    for file in files:
        yield file.stem, read_program(file.read_bytes())

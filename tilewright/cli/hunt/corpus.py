"""The corpus of slow programs that hunts found: a JSON file for each."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from tilewright.cli.hunt.causes import Slow
from tilewright.cli.hunt.program import Program, read_program
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.runtime.files import checked_path, make_folders, replacing

FOLDER = Path("benchmarks/hunt")


def prepare(folder: Path) -> None:
    """Make the folder of a corpus where there is none, before a search that would be lost without it.

    Raises:
        ArgumentError: it cannot be made or written to.
    """
    with _writing():
        make_folders(checked_path(folder))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {str(folder)!r}")


def keep(folder: Path, found: Slow) -> Path:
    """Write a program; one that is known keeps its file.

    Raises:
        ArgumentError: the folder does not let it.
    """
    text = msgspec.json.format(msgspec.json.encode(found.program), indent=1)
    digest = hashlib.blake2b(text, digest_size=4).hexdigest()
    path = folder / f"{'-'.join(step.op for step in found.program.steps)[:60]}-{digest}.json"
    with _writing():
        make_folders(folder)
        with replacing(path) as temporary:
            temporary.write_bytes(text + b"\n")
    return path


@contextlib.contextmanager
def _writing() -> Generator[None]:
    try:
        yield
    except OSError as error:
        message = f"the corpus cannot be written: {error}"
        raise ArgumentError(message, help="give another folder by `--corpus`") from None


def programs(folder: Path = FOLDER) -> Iterator[tuple[Path, Program]]:
    """The programs of a corpus with their files.

    Raises:
        ArgumentError: there is no corpus, or a file is no program.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        message = f"there is no corpus in `{folder}`"
        raise ArgumentError(message, help="run this where the repository is, or a hunt first")
    for file in files:
        with naming(file):
            program = read_program(file.read_bytes())
        yield file, program


@contextlib.contextmanager
def naming(file: Path) -> Generator[None]:
    """Let an error about a program of the corpus name its file.

    Raises:
        ArgumentError: for the error.
    """
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"`{file}` cannot be read: {error}", help="remove it from the corpus") from None
    except TilewrightError as error:
        raise ArgumentError(f"`{file}`: {error.message}", help=error.help or "remove it from the corpus") from None

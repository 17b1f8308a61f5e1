"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from pathlib import Path

from tilewright.errors import OptionError


class IrregularFileError(OSError):
    """A path that leads to no regular file."""


TEMPORARY_SUFFIX = ".tmp"


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor. Pipes are rejected without blocking on their writer.

    Raises:
        OSError: it cannot be opened.
        IrregularFileError: it is a pipe, a device or a directory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularFileError(f"{path} is not a regular file")
    return descriptor


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Generator[Path]:
    """Write the yielded temporary file; on leaving it is synced and renamed to `path`, on an error it is removed.

    Without `sync` a machine that loses power may keep the name and lose the contents.

    A process killed in between leaves a file that ends in `TEMPORARY_SUFFIX`, and `path` as it was.

    Raises:
        OSError: the directory or the disk does not let it.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        if sync:
            _sync(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)
        raise
    if sync:
        _sync(path.parent)


def dump(folder: Path, name: str, text: str) -> None:
    """Write a text for people to read, under the folder of the option `dump_dir`.

    Raises:
        OptionError: the folder does not let it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    except OSError as error:
        raise OptionError(
            f"`dump_dir` cannot be written: {error}", help="name a folder that you may write to, or unset TW_DUMP_DIR"
        ) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from pathlib import Path

from tilewright.errors import ArgumentError, OptionError, user_location


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
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            _name_file(error, temporary, path)
        raise
    if sync:
        _sync(path.parent)


def _name_file(error: OSError, temporary: Path, path: Path) -> None:
    """Let an error of the system name the file that was to be written; a full disk names none."""
    if error.filename == str(temporary) or (error.filename is None and error.errno is not None):
        error.filename = str(path)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that the caller gave.

    Raises:
        ArgumentError: it is no path, or the system has no such names.
    """
    try:
        if "\0" not in os.fspath(path):
            return Path(path)
    except TypeError:
        pass
    message = f"{path!r} is no path of a file"
    raise ArgumentError(message, location=user_location(), help="give a `str` or a `pathlib.Path`")


def make_folders(path: Path, mode: int = 0o777) -> None:
    """Make a folder with those above it that are missing; only the folder gets `mode`.

    Raises:
        OSError: the system does not let it.
    """
    # `Path.mkdir(parents=True)` recurses, which a long path takes beyond the limit of Python.
    for folder in reversed(path.parents):
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)


def dump(folder: Path, name: str, text: str) -> None:
    """Write a text for people to read, under the folder of the option `dump_dir`.

    Raises:
        OptionError: the folder does not let it.
    """
    try:
        make_folders(folder)
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

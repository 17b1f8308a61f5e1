"""The directory of the compile cache: which one is ours, and which files in it are.

A directory is ours when a marker file states it. A new directory, or an empty one that no other user can enter, gets
the marker; any other directory keeps its mode and its files, and the cache lives in a directory `tilewright` inside it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import OptionError
from tilewright.runtime.files import make_folders, replacing

# Programs for backups leave directories with such a file out: Cache Directory Tagging Specification.
MARKER = "CACHEDIR.TAG"
_MARKER_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This directory belongs to the compile cache of Tilewright: `tilewright cache clear` empties it.\n"
)
_FILE = re.compile(r"([0-9a-f]+)-[0-9a-f]{8}\.twp(\.[0-9]+\.[0-9a-f]{8}\.tmp)?")
_LOCK = re.compile(r"[0-9a-f]+\.lock")


def claimed(directory: Path) -> Path:
    """The directory to keep the cache in: the one that was named, or `tilewright` inside it.

    Raises:
        OSError: it cannot be made or read.
        OptionError: another user may write to it, or it holds files that are not the cache's.
    """
    for candidate in (directory, directory / "tilewright"):
        if _is_ours(candidate):
            return candidate
    what = f"{directory / 'tilewright'} holds files that are not the cache's"
    raise OptionError(what, help="name another directory with `cache_dir`")


def _is_ours(directory: Path) -> bool:
    made = not directory.exists()
    make_folders(directory, 0o700)
    status = directory.stat()
    is_marked = _has_marker(directory)
    is_free = made or is_marked or (_is_private(status) and _is_empty(directory))
    # Another thread or process may have claimed it in between: its marker is there before anything else.
    if not is_free and not _has_marker(directory):
        return False
    _check_writers(directory, status)
    for name in ("files", "locks"):
        path = directory / name
        if path.is_symlink():
            raise OptionError(
                f"{path} is a symbolic link", help="remove it, or name another directory with `cache_dir`"
            )
    if not is_marked:
        with replacing(directory / MARKER) as temporary:
            temporary.write_text(_MARKER_TEXT)
    return True


def _has_marker(directory: Path) -> bool:
    marker = directory / MARKER
    return not marker.is_symlink() and marker.is_file() and marker.read_text(errors="replace") == _MARKER_TEXT


def _is_empty(directory: Path) -> bool:
    """Whether nothing is there but the marker that another process is writing."""
    return all(child.name.startswith(MARKER) for child in directory.iterdir())


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _check_writers(directory: Path, status: os.stat_result) -> None:
    """Refuse a directory that cannot be trusted with native code."""
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_write or status.st_uid not in (os.geteuid(), 0):
        raise OptionError(
            f"another user can write to {directory}", help="name a directory of your own with `cache_dir`"
        )


def is_entry_file(name: object, key: str) -> bool:
    """Whether a file's name is one that the cache gives to the entry of a key."""
    match = _FILE.fullmatch(name) if isinstance(name, str) else None
    return match is not None and match[1] == key and match[2] is None


def own_files(directory: Path) -> Iterator[Path]:
    """Files of the cache, locks and what killed processes have left included; never what somebody else put there."""
    for folder, pattern in (("files", _FILE), ("locks", _LOCK)):
        path = directory / folder
        if path.is_symlink() or not path.is_dir():
            continue
        for child in path.iterdir():
            if pattern.fullmatch(child.name) and not child.is_dir():
                yield child

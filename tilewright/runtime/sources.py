"""The digest of the compiler's own sources, part of every cache key: a changed compiler finds nothing stale."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tilewright.runtime.files import replacing

_PACKAGE = Path(__file__).parent.parent
_SUFFIXES = (".py", ".toml")
_MEMO = "sources.json"


@functools.cache
def source_digest(memo_directory: Path | None = None, package: Path = _PACKAGE) -> str:
    """BLAKE2b over the names and contents of the package's `.py` and `.toml` files, once per process, in hex.

    The digest is remembered in `memo_directory` beside the sizes and times of all files, so that a later process only
    looks at those. A directory that cannot be written costs the reading of all files, nothing else.
    """
    files = sorted(_source_files(package))
    stamp = hashlib.blake2b(digest_size=32)
    for name, status in files:
        stamp.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\0".encode())
    memo = memo_directory / _MEMO if memo_directory is not None else None
    remembered = _read_memo(memo) if memo is not None else {}
    if digest := remembered.get(stamp.hexdigest()):
        return digest
    digest = _hash_contents(package, [name for name, _ in files])
    if memo is not None:
        with contextlib.suppress(OSError), replacing(memo) as temporary:
            temporary.write_bytes(msgspec.json.encode({stamp.hexdigest(): digest}))
    return digest


def _source_files(package: Path) -> Iterator[tuple[str, os.stat_result]]:
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(package / folder) as children:
            for child in children:
                name = f"{folder}{child.name}"
                if child.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                elif name.endswith(_SUFFIXES):
                    yield name, child.stat()


def _hash_contents(package: Path, names: list[str]) -> str:
    hashed = hashlib.blake2b(digest_size=32)
    for name in names:
        content = (package / name).read_bytes()
        hashed.update(f"{name}\0{len(content)}\0".encode())
        hashed.update(content)
    return hashed.hexdigest()


def _read_memo(memo: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(memo.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}

"""Large constants of compiled programs: each is kept once in the compile cache, and mapped by all that have it.

A constant's name says what it should hold: the digest of a captured array, and how that is packed. So the programs of
one model, such as one that reads a prompt and one that adds a token, share their weights, on disk and in memory.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.cache import CompileCache
from tilewright.runtime.container import Bytes
from tilewright.runtime.memory import libc

# Smaller ones stay in the program's file: an entry costs half a millisecond.
SHARED_BYTES = 2**18
# What the record of an entry says in place of a program's target.
CONSTANT = "constant"

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class KeptConstant:
    """A constant's contents, which nobody writes to, and the key of the entry that holds them, or nothing."""

    content: Array
    key: str


class SharedConstants:
    """The constants in a cache."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        self._added: list[str] = []

    def keep(self, name: str, array: Array) -> KeptConstant:
        """The contents of an array by this name from the cache, put there where they are missing."""
        if array.nbytes < SHARED_BYTES:
            return KeptConstant(array.copy(), "")
        key = hashlib.blake2b(f"constant {name}".encode(), digest_size=20).hexdigest()
        array = np.ascontiguousarray(array)
        content = self.find(key)
        if content is None or not _equal(content, array):
            content = self._put(key, name, array)
        return KeptConstant(array.copy(), "") if content is None else KeptConstant(content, key)

    def find(self, key: str) -> Bytes | None:
        """The bytes of an entry, mapped."""
        path = self._cache.find(key)
        return None if path is None else _mapped(path)

    def discard(self) -> None:
        """Remove what this object has put."""
        for key in self._added:
            self._cache.remove(key)

    def _put(self, key: str, name: str, array: Array) -> Bytes | None:
        def write(path: Path) -> None:
            path.write_bytes(array.reshape(-1).view(np.uint8).data)

        # Not synced: a program's checksum covers its constants wherever they lie.
        path = self._cache.put(key, write, {"name": name, "target": CONSTANT}, sync=False)
        self._added.append(key)
        return None if path is None else _mapped(path)


def _equal(content: Bytes, array: Array) -> bool:
    if len(content) != array.nbytes:
        return False
    return libc().memcmp(content.ctypes.data, array.ctypes.data, array.nbytes) == 0


def _mapped(path: Path) -> Bytes | None:
    """A file's bytes; None where another process has removed it."""
    try:
        with open(path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return None

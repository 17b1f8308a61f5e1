"""Large constants of compiled programs: each is kept once in the compile cache, and mapped by all that have it.

A constant's name states what it should hold: the digest of a captured array, and how that is packed. So the programs of
one model, such as one that reads a prompt and one that adds a token, share their weights, on disk and in memory. A
program adds its constants as one entry, a pack: they are adjacent, as near to each other as in a program's own file.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tilewright.runtime.cache import CompileCache
from tilewright.runtime.container import Bytes
from tilewright.runtime.manifest import Constant, place_constants
from tilewright.runtime.memory import libc

# Smaller ones stay in the program's file.
SHARED_BYTES = 2**16
# What the record of a pack says in place of a program's target.
CONSTANTS = "constants"

Array = np.ndarray[Any, np.dtype[Any]]


class KeptConstant(msgspec.Struct, frozen=True):
    """The read-only contents of a constant, and the key of the pack that holds them with their offset in it, or an
    empty key."""

    content: Array
    key: str = ""
    offset: int = 0


# Takes constants by name, gives them as they are kept.
Keep = Callable[[dict[str, Array]], list[KeptConstant]]


def keep_in_memory(constants: dict[str, Array]) -> list[KeptConstant]:
    return [KeptConstant(array) for array in constants.values()]


class SharedConstants:
    """The constants in a cache."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        self._added = ""
        self.find = functools.cache(self._map)

    def keep(self, constants: dict[str, Array]) -> list[KeptConstant]:
        """Constants as packs of the cache have them; those that none has become a pack. Small ones are copied, and so
        are all where the cache cannot be written."""
        found = self._found(constants)
        missing = {n: a for n, a in constants.items() if n not in found and a.nbytes >= SHARED_BYTES}
        if missing:
            found |= self._put(missing)
        return [found.get(name) or KeptConstant(array.copy()) for name, array in constants.items()]

    def discard(self) -> None:
        """Remove what this object has put."""
        if self._added:
            self._cache.remove(self._added)

    def _known(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Keys of packs and offsets in them by the names of constants, of those that packs hold."""
        holders = self._cache.holders(names)
        offsets = {key: self._offsets(key) for key in set(holders.values())}
        return {name: (key, offsets[key][name]) for name, key in holders.items() if name in offsets[key]}

    def _offsets(self, key: str) -> dict[str, int]:
        """The offsets in a pack by the names of constants; one whose record does not state them is removed."""
        try:
            return msgspec.convert(self._cache.record(key).get("offsets"), type=dict[str, int])
        except msgspec.ValidationError:
            self._cache.remove(key)
            return {}

    def _found(self, constants: dict[str, Array]) -> dict[str, KeptConstant]:
        """The constants that packs hold. A pack that does not hold what it should is removed."""
        known = self._known([name for name, array in constants.items() if array.nbytes >= SHARED_BYTES])
        found: dict[str, KeptConstant] = {}
        damaged: set[str] = set()
        for name, array in constants.items():
            key, offset = known.get(name, ("", 0))
            content = self.find(key) if key else None
            if content is not None and _equal(part := content[offset : offset + array.nbytes], array):
                found[name] = KeptConstant(part, key, offset)
            elif key:
                damaged.add(key)
        for key in damaged:
            self._cache.remove(key)
        return {name: constant for name, constant in found.items() if constant.key not in damaged}

    def _put(self, missing: dict[str, Array]) -> dict[str, KeptConstant]:
        placed = place_constants([array.nbytes for array in missing.values()])
        key = hashlib.blake2b("\n".join(missing).encode(), digest_size=20).hexdigest()
        offsets = {name: constant.offset for name, constant in zip(missing, placed, strict=True)}
        record = {"name": f"{len(missing)} constants", "target": CONSTANTS, "offsets": offsets}
        # Not synced: a program's checksum covers its constants wherever they lie.
        path = self._cache.put(
            key, lambda path: _write(path, placed, [*missing.values()]), record, sync=False, names=list(missing)
        )
        content = None if path is None else _mapped(path)
        if content is None:
            return {}
        self._added = key
        parts = (content[constant.offset : constant.offset + constant.nbytes] for constant in placed)
        return {n: KeptConstant(part, key, offsets[n]) for n, part in zip(missing, parts, strict=True)}

    def _map(self, key: str) -> Bytes | None:
        path = self._cache.find(key)
        return None if path is None else _mapped(path)


def _write(path: Path, placed: Sequence[Constant], arrays: Sequence[Array]) -> None:
    with open(path, "wb") as file:
        for constant, array in zip(placed, arrays, strict=True):
            file.write(bytes(constant.offset - file.tell()))
            file.write(array.reshape(-1).view(np.uint8).data)


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

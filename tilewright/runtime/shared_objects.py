"""Machine code of kernels in the compile cache, by the content of what it was compiled from: a program whose kernels
another one has compiles only those that none has, in any process.

The objects that a program adds are one entry, a pack, whose record states the offset, the size and the digest of each.
An object is compared with its digest when it is read: one that is not as it was put is compiled again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tilewright.events import emit
from tilewright.runtime.cache import CompileCache

# Fewer bytes of text are compiled sooner than they are worth an entry of the cache.
WORTH_KEEPING_BYTES = 50_000
# What the record of a pack says in place of a program's target.
OBJECTS = "objects"
_DIGEST_BYTES = 20


class StoredObject(msgspec.Struct, frozen=True):
    """The position of an object in a pack, and its digest."""

    offset: int
    nbytes: int
    digest: str


class _Pack(msgspec.Struct, frozen=True):
    """The objects of a program, and their positions by name."""

    content: bytes
    objects: dict[str, StoredObject]


class SharedObjects:
    """The objects of kernels in a cache. `compiler` states everything but the text of a kernel that decides its object,
    such as the version of the compiler and the processor."""

    def __init__(self, cache: CompileCache, compiler: str) -> None:
        self._cache = cache
        self._compiler = hashlib.blake2b(compiler.encode(), digest_size=_DIGEST_BYTES).digest()
        self._packs: dict[str, _Pack] = {}

    def find(self, text: str) -> bytes | None:
        """The object that was compiled from a text; None where there is none. A pack that is damaged is removed."""
        name = self._name(text)
        key = self._cache.holders([name]).get(name)
        if key is None:
            return None
        pack = self._pack(key)
        stored = pack.objects.get(name)
        if stored is not None:
            content = pack.content[stored.offset : stored.offset + stored.nbytes]
            if _digest(content) == stored.digest:
                return content
        if pack.content:
            self._drop(key)
        return None

    def put(self, compiled: Mapping[str, bytes]) -> None:
        """Keep the objects of some texts, if there is enough of these."""
        if not compiled or sum(map(len, compiled)) < WORTH_KEEPING_BYTES:
            return
        offset = 0
        objects: dict[str, dict[str, int | str]] = {}
        for text, content in compiled.items():
            stored = StoredObject(offset, len(content), _digest(content))
            objects[self._name(text)] = msgspec.to_builtins(stored)
            offset += len(content)
        content = b"".join(compiled.values())
        key = hashlib.blake2b("\n".join(objects).encode(), digest_size=_DIGEST_BYTES).hexdigest()
        record = {"name": f"{len(objects)} kernels", "target": OBJECTS, "objects": objects}
        # Not synced: each object is compared with its digest before it is used.
        self._cache.put(key, lambda path: path.write_bytes(content), record, sync=False, names=list(objects))

    def _name(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._compiler, digest_size=_DIGEST_BYTES).hexdigest()

    def _pack(self, key: str) -> _Pack:
        """A pack; an empty one where another process has removed it."""
        if key not in self._packs:
            path = self._cache.find(key)
            try:
                objects = msgspec.convert(self._cache.record(key).get("objects", {}), type=dict[str, StoredObject])
            except msgspec.ValidationError:
                objects = dict[str, StoredObject]()
            self._packs[key] = _Pack(b"" if path is None else _content(path), objects)
        return self._packs[key]

    def _drop(self, key: str) -> None:
        emit("cache.damaged", key=key, help="the entry is dropped and compiled again")
        self._cache.remove(key)
        self._packs[key] = _Pack(b"", {})


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()

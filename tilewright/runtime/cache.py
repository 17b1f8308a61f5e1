"""The compile cache: compiled programs on disk by the digest of what they were compiled from.

    with cache.lock(key):
        path = cache.get(key) or cache.put(key, program.save, {"name": program.manifest.name})

Each entry is a file, written in full under a unique name, synced and renamed, then entered in an sqlite index, which
alone states what is an entry. A process killed at any moment leaves at most a file without an entry, which `prune`
sweeps. Several processes may use one directory. A cache that cannot be used costs events, never an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tilewright.errors import ArgumentError
from tilewright.events import emit
from tilewright.options import current
from tilewright.runtime.cache_directory import own_files
from tilewright.runtime.cache_index import CacheIndex, Row
from tilewright.runtime.container import constants_digest
from tilewright.runtime.files import replacing

if TYPE_CHECKING:
    from filelock import BaseFileLock

_ALWAYS_HASHED_BYTES = 2**20
_USE_RESOLUTION_S = 600.0
_ORPHAN_AGE_S = 3600.0
# The part of the limit that is kept when the cache is beyond it.
_KEPT = 0.9
# The lowest level of the `debug` ladder that shows what happens while a program is compiled.
_COMPILING_LEVEL = 3


class CacheEntry(msgspec.Struct, frozen=True):
    """One entry of the index. Times are seconds since the epoch; `used_s` is exact to ten minutes."""

    key: str
    path: Path
    nbytes: int
    created_s: float
    used_s: float
    record: dict[str, Any]


class CacheStats(msgspec.Struct, frozen=True):
    """The cache's size, and how often this object found or missed an entry. `usable` is False without an index."""

    directory: Path
    usable: bool
    entries: int
    nbytes: int
    hits: int
    misses: int


class CompileCache:
    """A cache in `directory`, created with mode 0700 on first use; a directory that holds something else gets a
    directory `tilewright` for the cache. Above `limit_bytes` (0: never) old entries go."""

    def __init__(self, directory: str | Path, limit_bytes: int = 0) -> None:
        self.directory = Path(directory)
        # Later changes of the working directory must not move it; one that was removed has no name.
        with contextlib.suppress(FileNotFoundError):
            self.directory = self.directory.absolute()
        self.limit_bytes = limit_bytes
        self._index = CacheIndex(self.directory)
        # Keys that threads of this process have locked: a signal handler may come back for one.
        self._held: set[tuple[int, int, str]] = set()
        self._hits = 0
        self._misses = 0

    @property
    def home(self) -> Path:
        """The directory that is the cache's own."""
        return self._index.home

    def get(self, key: str) -> Path | None:
        """The entry's file, or None. The file may be pruned by another process before it is opened.

        A file that is not what was put is reported, dropped and missed. Files over a mebibyte are hashed again only
        when their size or time changed; their own format carries checksums too.
        """
        _check_key(key)
        path = self.find(key)
        self._hits += path is not None
        self._misses += path is None
        emit("cache.hit" if path else "cache.miss", key=key)
        return path

    def put(
        self,
        key: str,
        write: Callable[[Path], object],
        record: Mapping[str, object],
        *,
        sync: bool = True,
        names: Sequence[str] = (),
    ) -> Path | None:
        """Let `write` write a temporary file and make it the entry; `record` must be serialisable as JSON. Without
        `sync` the reader must notice contents that were lost with the machine's power. `names` are what the entry
        holds, for `holders`.

        None when the cache cannot be written. Exceptions of `write`, other than OSError, are passed on.
        """
        _check_key(key)
        if not self._index.is_writeable:
            return None
        try:
            path, row = self._write_file(key, write, record, sync)
        except OSError as error:
            emit("cache.write_failed", key=key, reason=str(error))
            return None
        old = self._index.row(key)
        if not self._index.put(row):
            return None
        self._index.hold(key, names)
        if old is not None and old.file != row.file:
            _unlink(self._path(old))
        emit("cache.put", key=key, nbytes=row.nbytes)
        if self.limit_bytes and self._index.size()[1] > self.limit_bytes:
            # With room for more, as it looks at all entries.
            self._evict(int(self.limit_bytes * _KEPT), keep=key)
        return path

    def holders(self, names: Sequence[str]) -> dict[str, str]:
        """The keys of the entries that hold contents, by the names of these."""
        return self._index.holders(names)

    def record(self, key: str) -> Mapping[str, object]:
        """The record of an entry; empty where there is none."""
        row = self._index.row(key)
        return {} if row is None else row.record

    @contextlib.contextmanager
    def lock(self, key: str) -> Generator[None]:
        """Hold the key among all processes and threads, so that one compiles and the others find it. A thread that
        holds the key already continues."""
        _check_key(key)
        mine = (os.getpid(), threading.get_ident(), key)
        if mine in self._held:
            yield
            return
        lock = self._acquire(key)
        self._held.add(mine)
        try:
            yield
        finally:
            self._held.discard(mine)
            if lock is not None:
                # Whoever waits for this file sees that it is gone, and makes another.
                _unlink(Path(lock.lock_file))
                lock.release()

    def entries(self) -> list[CacheEntry]:
        """All entries, the most recently used first."""
        folder = self.home / "files"
        return [
            CacheEntry(row.key, folder / row.file, row.nbytes, row.created_s, row.used_s, row.record)
            for row in self._index.rows()
        ]

    def remove(self, key: str) -> bool:
        """Drop an entry; False when there was none."""
        _check_key(key)
        row = self._index.row(key)
        if not self._index.remove(key):
            return False
        if row is not None:
            _unlink(self._path(row))
        return True

    def clear(self) -> int:
        """Drop all entries and leftovers; return how many entries there were. Files that are not the cache's stay."""
        count = self._index.clear()
        if self._index.is_writeable:
            for path in own_files(self.home):
                _unlink(path)
        return count

    def prune(self, max_bytes: int) -> int:
        """Drop the least recently used entries until at most `max_bytes` remain; return how many were dropped.

        Also sweeps what killed processes left.
        """
        self._sweep()
        return self._evict(max_bytes)

    def stats(self) -> CacheStats:
        count, nbytes = self._index.size()
        return CacheStats(self.home, self._index.is_usable, count, nbytes, self._hits, self._misses)

    def find(self, key: str) -> Path | None:
        """`get` that counts and reports neither hits nor misses."""
        # Twice: a concurrent `put` may replace the file between the look at the index and the look at the file.
        for _ in range(2):
            row = self._index.row(key)
            if row is None:
                return None
            path = self._path(row)
            try:
                status = path.stat()
                same = status.st_size == row.nbytes
                if same and (row.nbytes <= _ALWAYS_HASHED_BYTES or status.st_mtime_ns != row.modified_ns):
                    same = _digest(path) == row.digest
            except OSError:
                continue
            if not same:
                break
            if time.time() - row.used_s > _USE_RESOLUTION_S:
                self._index.mark_used(key)
            return path
        emit("cache.damaged", key=key, help="the entry is dropped and compiled again")
        if self._index.is_writeable:
            self.remove(key)
        return None

    def _path(self, row: Row) -> Path:
        return self.home / "files" / row.file

    def _write_file(
        self, key: str, write: Callable[[Path], object], record: Mapping[str, object], sync: bool
    ) -> tuple[Path, Row]:
        """Write the entry's file under a name of its own, so that readers of an older one are not disturbed."""
        folder = self.home / "files"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{key}-{os.urandom(4).hex()}.twp"
        with replacing(path, sync=sync) as temporary:
            write(temporary)
            digest = _digest(temporary)
        status, now = path.stat(), time.time()
        return path, Row(key, path.name, status.st_size, status.st_mtime_ns, digest, now, now, dict(record))

    def _acquire(self, key: str) -> BaseFileLock | None:
        if not self._index.is_writeable:
            return None
        from filelock import FileLock

        path = self.home / "locks" / f"{key}.lock"
        lock = FileLock(path, thread_local=False)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            while True:
                before = _inode_of_lock(path)
                self._wait(lock, key)
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_ino == before:
                        return lock
                # The one who held the key has removed the file since.
                lock.release()
        except OSError as error:
            emit("cache.lock_failed", key=key, reason=str(error))
            return None

    def _wait(self, lock: BaseFileLock, key: str) -> None:
        from filelock import Timeout

        try:
            lock.acquire(timeout=0)
        except Timeout:
            emit("cache.wait", key=key)
            lock.acquire()

    def _evict(self, max_bytes: int, keep: str = "") -> int:
        remaining, dropped = self._index.size()[1], 0
        for key, nbytes in self._index.oldest() if remaining > max_bytes else ():
            if remaining <= max_bytes:
                break
            if key != keep and self.remove(key):
                remaining -= nbytes
                dropped += 1
        emit("cache.prune", dropped=dropped, nbytes=remaining)
        return dropped

    def _sweep(self) -> None:
        if not self._index.is_writeable:
            return
        known = {entry.path for entry in self.entries()}
        horizon = time.time() - _ORPHAN_AGE_S
        for path in own_files(self.home):
            with contextlib.suppress(FileNotFoundError):
                if path not in known and path.lstat().st_mtime < horizon:
                    _unlink(path)


def _inode_of_lock(path: Path) -> int:
    """The inode of a lock file, created if it is missing. In one step: its holder may remove it at any time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def _check_key(key: str) -> None:
    if not key or not set(key) <= set("0123456789abcdef"):
        raise ArgumentError(f"a cache key is a digest in lower-case hex digits, not {key!r}", help="use `hexdigest()`")


def _digest(path: Path) -> bytes:
    """Large files get a checksum that runs at memory speed."""
    with open(path, "rb") as file:
        if path.stat().st_size > _ALWAYS_HASHED_BYTES:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return constants_digest([np.frombuffer(content, np.uint8)])
        return hashlib.file_digest(file, functools.partial(hashlib.blake2b, digest_size=32)).digest()


def _unlink(path: Path) -> None:
    """Remove a file. One that cannot be removed, such as a directory in its position, is reported."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        emit("cache.remove_failed", path=path, reason=str(error))


def default_directory() -> Path:
    """The option `cache_dir`, or the user's cache directory for Tilewright."""
    chosen = current().cache_dir
    if chosen is not None:
        return chosen
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tilewright"))


def default_cache() -> CompileCache | None:
    """The cache that the options ask for; None when they switch it off."""
    options = current()
    return _shared_cache(default_directory(), options.cache_limit_bytes) if options.cache else None


def unwatched_cache() -> CompileCache | None:
    """The cache that the options ask for; None where they show what happens while a program is compiled: whoever wants
    to see that must not be given what was compiled before."""
    is_watched = current().debug >= _COMPILING_LEVEL or current().dump_dir is not None
    return None if is_watched else default_cache()


@functools.lru_cache(maxsize=8)
def _shared_cache(directory: Path, limit_bytes: int) -> CompileCache:
    return CompileCache(directory, limit_bytes)

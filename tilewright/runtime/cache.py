"""The compile cache: compiled programs on disk by the digest of what they were compiled from.

    with cache.lock(key):
        path = cache.get(key) or cache.put(key, program.save, {"name": program.manifest.name})

Each entry is a file, written whole under a name that nobody has, synced and renamed, then entered in an sqlite index,
which alone says what is an entry. A process killed at any moment leaves at most a file without an entry, which `prune`
sweeps. Several processes may use one directory. A cache that cannot be used costs events, never an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tilewright.errors import ArgumentError
from tilewright.events import emit
from tilewright.options import current
from tilewright.runtime.container import constants_digest
from tilewright.runtime.files import replacing

if TYPE_CHECKING:
    from filelock import BaseFileLock

_INDEX = "index.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, file TEXT NOT NULL, nbytes INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
    digest BLOB NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL, record BLOB NOT NULL
) WITHOUT ROWID
"""
_BUSY_TIMEOUT_S = 20.0
_ALWAYS_HASHED_BYTES = 2**20
_USE_RESOLUTION_S = 600.0
_ORPHAN_AGE_S = 3600.0

# A connection inherited over a fork must not be closed in the child: that would drop the parent's file locks.
_inherited_connections: list[sqlite3.Connection | None] = []


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the index. Times are seconds since the epoch; `used_s` is exact to ten minutes."""

    key: str
    path: Path
    nbytes: int
    created_s: float
    used_s: float
    record: dict[str, Any]


@dataclass(frozen=True)
class CacheStats:
    """The cache's size, and how often this object found or missed an entry. `usable` is False without an index."""

    directory: Path
    usable: bool
    entries: int
    nbytes: int
    hits: int
    misses: int


@dataclass
class _Index:
    connection: sqlite3.Connection | None
    read_only: bool
    process_id: int
    lock: threading.RLock = field(default_factory=threading.RLock)


class CompileCache:
    """A cache in `directory`, created with mode 0700 on first use; above `limit_bytes` (0: never) old entries go."""

    def __init__(self, directory: str | Path, limit_bytes: int = 0) -> None:
        self.directory = Path(directory)
        self.limit_bytes = limit_bytes
        self._files = self.directory / "files"
        self._locks = self.directory / "locks"
        self._index: _Index | None = None
        self._hits = 0
        self._misses = 0

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
        self, key: str, write: Callable[[Path], object], record: Mapping[str, object], *, sync: bool = True
    ) -> Path | None:
        """Let `write` write a temporary file and make it the entry; `record` must be what JSON can hold. Without `sync`
        the reader must notice contents that were lost with the machine's power.

        None when the cache cannot be written. What `write` raises, other than OSError, comes through.
        """
        _check_key(key)
        index = self._open()
        if index.connection is None or index.read_only:
            return None
        try:
            path, row = self._write_file(key, write, sync)
        except OSError as error:
            emit("cache.write_failed", key=key, reason=str(error))
            return None
        old = self._execute("SELECT file FROM entries WHERE key = ?", key)
        values = (key, *row, time.time(), time.time(), msgspec.json.encode(dict(record)))
        if self._execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values) is None:
            return None
        for (file,) in old or ():
            if file != row[0]:
                _unlink(self._files / file)
        emit("cache.put", key=key, nbytes=row[1])
        if self.limit_bytes and self.stats().nbytes > self.limit_bytes:
            self._evict(self.limit_bytes, keep=key)
        return path

    @contextlib.contextmanager
    def lock(self, key: str) -> Generator[None]:
        """Hold the key among all processes and threads, so that one compiles and the others find it. Not re-entrant."""
        _check_key(key)
        lock = self._acquire(key)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def entries(self) -> list[CacheEntry]:
        """All entries, the most recently used first."""
        rows = self._execute("SELECT key, file, nbytes, created_s, used_s, record FROM entries ORDER BY used_s DESC")
        return [
            CacheEntry(key, self._files / file, nbytes, created_s, used_s, msgspec.json.decode(record))
            for key, file, nbytes, created_s, used_s, record in rows or ()
        ]

    def remove(self, key: str) -> bool:
        """Drop an entry; False when there was none."""
        _check_key(key)
        rows = self._execute("DELETE FROM entries WHERE key = ? RETURNING file", key) or []
        for (file,) in rows:
            _unlink(self._files / file)
        return bool(rows)

    def clear(self) -> int:
        """Drop all entries and leftovers; return how many entries there were."""
        rows = self._execute("DELETE FROM entries RETURNING file") or []
        for path in [*self._files.glob("*"), *self._locks.glob("*")]:
            _unlink(path)
        return len(rows)

    def prune(self, max_bytes: int) -> int:
        """Drop the least recently used entries until at most `max_bytes` remain; return how many were dropped.

        Also sweeps what killed processes left behind.
        """
        self._sweep()
        return self._evict(max_bytes)

    def stats(self) -> CacheStats:
        rows = self._execute("SELECT COUNT(*), COALESCE(SUM(nbytes), 0) FROM entries")
        count, nbytes = rows[0] if rows else (0, 0)
        usable = self._open().connection is not None
        return CacheStats(self.directory, usable, count, nbytes, self._hits, self._misses)

    def find(self, key: str) -> Path | None:
        """`get` that counts and reports neither hits nor misses."""
        # Twice: a concurrent `put` may replace the file between the look at the index and the look at the file.
        for _ in range(2):
            rows = self._execute("SELECT file, nbytes, modified_ns, digest, used_s FROM entries WHERE key = ?", key)
            if not rows:
                return None
            file, nbytes, modified_ns, digest, used_s = rows[0]
            path = self._files / file
            try:
                status = path.stat()
                same = status.st_size == nbytes
                if same and (nbytes <= _ALWAYS_HASHED_BYTES or status.st_mtime_ns != modified_ns):
                    same = _digest(path) == digest
            except OSError:
                continue
            if not same:
                break
            if time.time() - used_s > _USE_RESOLUTION_S and not self._open().read_only:
                self._execute("UPDATE entries SET used_s = ? WHERE key = ?", time.time(), key)
            return path
        emit("cache.damaged", key=key, help="the entry is dropped and compiled again")
        if not self._open().read_only:
            self.remove(key)
        return None

    def _write_file(
        self, key: str, write: Callable[[Path], object], sync: bool
    ) -> tuple[Path, tuple[str, int, int, bytes]]:
        """Write the entry's file under a name of its own, so that readers of an older one are not disturbed."""
        self._files.mkdir(mode=0o700, exist_ok=True)
        path = self._files / f"{key}-{os.urandom(4).hex()}.twp"
        with replacing(path, sync=sync) as temporary:
            write(temporary)
            digest = _digest(temporary)
        status = path.stat()
        return path, (path.name, status.st_size, status.st_mtime_ns, digest)

    def _acquire(self, key: str) -> BaseFileLock | None:
        index = self._open()
        if index.connection is None or index.read_only:
            return None
        from filelock import FileLock, Timeout

        lock = FileLock(self._locks / f"{key}.lock", thread_local=False)
        try:
            self._locks.mkdir(mode=0o700, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                emit("cache.wait", key=key)
                lock.acquire()
        except OSError as error:
            emit("cache.lock_failed", key=key, reason=str(error))
            return None
        return lock

    def _evict(self, max_bytes: int, keep: str = "") -> int:
        remaining, dropped = self.stats().nbytes, 0
        for entry in reversed(self.entries()):
            if remaining <= max_bytes:
                break
            if entry.key != keep and self.remove(entry.key):
                remaining -= entry.nbytes
                dropped += 1
        emit("cache.prune", dropped=dropped, nbytes=remaining)
        return dropped

    def _sweep(self) -> None:
        known = {entry.path for entry in self.entries()}
        horizon = time.time() - _ORPHAN_AGE_S
        for path in [*self._files.glob("*"), *self._locks.glob("*")]:
            with contextlib.suppress(FileNotFoundError):
                if path not in known and path.stat().st_mtime < horizon:
                    _unlink(path)

    def _execute(self, statement: str, *values: object) -> list[Any] | None:
        """Run one statement in a transaction of its own; None, reported, when the index does not allow it."""
        index = self._open()
        if index.connection is None:
            return None
        with index.lock:
            try:
                return index.connection.execute(statement, values).fetchall()
            except sqlite3.DatabaseError as error:
                emit("cache.index_failed", directory=self.directory, reason=str(error))
                if _is_damaged(error):
                    self._index = None
                    _remove_index(index.connection, self.directory / _INDEX)
                return None

    def _open(self) -> _Index:
        index = self._index
        if index is not None and index.process_id == os.getpid():
            return index
        if index is not None:
            _inherited_connections.append(index.connection)
        self._index = self._connect()
        return self._index

    def _connect(self) -> _Index:
        path = self.directory / _INDEX
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if reason := _make_private(self.directory):
                emit("cache.unusable", directory=self.directory, reason=reason)
                return _Index(None, True, os.getpid())
            return _Index(_connect_writable(path), False, os.getpid())
        except (OSError, sqlite3.Error) as error:
            reason = str(error)
        # A cache on a read-only disk, such as one baked into an image, still serves what it holds.
        connection = _connect_read_only(path) if path.exists() else None
        emit("cache.unusable" if connection is None else "cache.read_only", directory=path.parent, reason=reason)
        return _Index(connection, True, os.getpid())


def _connect_writable(path: Path) -> sqlite3.Connection:
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_SCHEMA)
            return connection
        except sqlite3.DatabaseError as error:
            # Switching a new file to WAL does not wait for another process that does the same.
            busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            if time.monotonic() > deadline or not (busy or _is_damaged(error)):
                connection.close()
                raise
            if busy:
                connection.close()
                time.sleep(0.01)
                continue
            emit("cache.index_failed", directory=path.parent, reason=str(error))
            _remove_index(connection, path)


def _connect_read_only(path: Path) -> sqlite3.Connection | None:
    try:
        return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, check_same_thread=False)
    except sqlite3.Error:
        return None


def _is_damaged(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _remove_index(connection: sqlite3.Connection, path: Path) -> None:
    """Start over without the entries: their files are swept later."""
    connection.close()
    for suffix in ("", "-wal", "-shm"):
        _unlink(path.with_name(path.name + suffix))


def _make_private(directory: Path) -> str:
    """Close the directory to other users; the reason why it cannot be trusted with native code, or nothing."""
    status = directory.stat()
    if status.st_uid == os.geteuid():
        if stat.S_IMODE(status.st_mode) != 0o700:
            directory.chmod(0o700)
        return ""
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "another user can write to it"
    return ""


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
    """Remove a file, or a directory that somebody put in its place. What cannot be removed is reported."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        if path.is_dir():
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        if path.exists():
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


@functools.lru_cache(maxsize=8)
def _shared_cache(directory: Path, limit_bytes: int) -> CompileCache:
    return CompileCache(directory, limit_bytes)

"""The index of the compile cache, an sqlite database: rows come out with the types that they were put with, or not at
all.

A row that is damaged is dropped and reported; a database that is damaged is removed and begun again. Queries
of a compile take the same time however many entries there are, but for the size of the cache, read from an index.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from tilewright.errors import OptionError
from tilewright.events import emit
from tilewright.locks import ForkBarrier, Lock
from tilewright.runtime.cache_directory import claimed, is_entry_file

INDEX = "index.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, file TEXT NOT NULL, nbytes INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
    digest BLOB NOT NULL, created_s REAL NOT NULL, used_s REAL NOT NULL, record BLOB NOT NULL
) WITHOUT ROWID
"""
# What entries hold for others, by name.
_CONTENTS = "CREATE TABLE IF NOT EXISTS contents (name TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID"
# Whether a cell holds a key, rather than what damage left.
_IS_KEY = "typeof(key) = 'text' AND key != '' AND key NOT GLOB '*[^0-9a-f]*'"
_COLUMNS = "key, file, nbytes, modified_ns, digest, created_s, used_s, record"
_PREPARATION = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    _SCHEMA,
    _CONTENTS,
    "CREATE INDEX IF NOT EXISTS entries_by_size ON entries (nbytes)",
    "CREATE INDEX IF NOT EXISTS contents_by_key ON contents (key)",
    f"SELECT {_COLUMNS} FROM entries LIMIT 0",
    "SELECT name, key FROM contents LIMIT 0",
)
_BUSY_TIMEOUT_S = 20.0
# Names in one statement: SQLite takes 999 values in its oldest versions.
_MOST_NAMES = 400

# SQLite holds locks of the process while it works, which a forked child would wait for.
_SQLITE = ForkBarrier()


class _Database(sqlite3.Connection):
    """An SQLite connection whose close no fork interrupts. One inherited over a fork stays open: closing it in the
    child would release the parent's file locks."""

    _inherited: ClassVar[list[_Database]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._process_id: int | None = None
        super().__init__(*arguments, **options, isolation_level=None, check_same_thread=False)
        self.text_factory = _text
        self._process_id = os.getpid()

    def close(self) -> None:
        with _SQLITE:
            super().close()

    def __del__(self) -> None:
        if self._process_id == os.getpid():
            self.close()
        elif self._process_id is not None:
            self._inherited.append(self)


class Row(msgspec.Struct, frozen=True):
    """One entry of the index."""

    key: str
    file: str
    nbytes: int
    modified_ns: int
    digest: bytes
    created_s: float
    used_s: float
    record: dict[str, Any]


class _Connection(msgspec.Struct):
    database: _Database | None
    home: Path
    read_only: bool
    process_id: int
    lock: Lock = msgspec.field(default_factory=Lock)


class CacheIndex:
    """The index of the cache in a directory, opened on first use and again in a forked child."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._connection: _Connection | None = None
        self._opening = Lock()

    @property
    def home(self) -> Path:
        """The directory that is the cache's, in the one that was named or that itself."""
        return self._open().home

    @property
    def is_usable(self) -> bool:
        return self._open().database is not None

    @property
    def is_writeable(self) -> bool:
        return self.is_usable and not self._open().read_only

    def row(self, key: str) -> Row | None:
        """The entry of a key. A damaged one is dropped."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM entries WHERE key = ?", key)
        return rows[0] if rows else None

    def rows(self) -> list[Row]:
        """All entries, the most recently used first. Damaged ones are dropped."""
        return sorted(self._rows(f"SELECT {_COLUMNS} FROM entries"), key=lambda row: -row.used_s)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        found = self._execute("SELECT count(*), total(nbytes) FROM entries")
        count, nbytes = found[0] if found else (0, 0.0)
        return count, int(nbytes)

    def oldest(self) -> list[tuple[str, int]]:
        """The keys and bytes of all entries, the least recently used first."""
        whole = f"typeof(nbytes) = 'integer' AND {_IS_KEY}"
        return self._execute(f"SELECT key, nbytes FROM entries WHERE {whole} ORDER BY used_s") or []

    def holders(self, names: Sequence[str]) -> dict[str, str]:
        """The keys of the entries that hold contents, by the names of these."""
        found: dict[str, str] = {}
        for start in range(0, len(names), _MOST_NAMES):
            some = names[start : start + _MOST_NAMES]
            places = ", ".join("?" * len(some))
            where = f"name IN ({places}) AND {_IS_KEY}"
            found |= dict(self._execute(f"SELECT name, key FROM contents WHERE {where}", *some) or [])
        return found

    def hold(self, key: str, names: Sequence[str]) -> None:
        """Note that an entry holds contents."""
        for start in range(0, len(names), _MOST_NAMES):
            some = names[start : start + _MOST_NAMES]
            places = ", ".join(["(?, ?)"] * len(some))
            values = [each for name in some for each in (name, key)]
            self._execute(f"INSERT OR REPLACE INTO contents VALUES {places}", *values)

    def put(self, row: Row) -> bool:
        """Enter a row in place of the key's earlier one; whether the database allows it."""
        values = (row.key, row.file, row.nbytes, row.modified_ns, row.digest, row.created_s, row.used_s)
        record = msgspec.json.encode(row.record)
        places = ", ".join("?" * 8)
        return self._execute(f"INSERT OR REPLACE INTO entries VALUES ({places})", *values, record) is not None

    def mark_used(self, key: str) -> None:
        """Note that an entry is used now."""
        if self.is_writeable:
            self._execute("UPDATE entries SET used_s = ? WHERE key = ?", time.time(), key)

    def remove(self, key: str) -> bool:
        """Drop a row; whether there was one."""
        self._execute("DELETE FROM contents WHERE key = ?", key)
        return bool(self._execute("DELETE FROM entries WHERE key = ? RETURNING 1", key))

    def clear(self) -> int:
        """Drop all rows; how many there were."""
        self._execute("DELETE FROM contents")
        return len(self._execute("DELETE FROM entries RETURNING 1") or [])

    def _rows(self, statement: str, *values: object) -> list[Row]:
        rows: list[Row] = []
        for cells in self._execute(statement, *values) or []:
            row = _checked(cells)
            if row is not None:
                rows.append(row)
                continue
            emit("cache.damaged", key=repr(cells[0]), help="the entry is dropped and compiled again")
            if self.is_writeable:
                self._execute("DELETE FROM entries WHERE key IS ?", cells[0])
        return rows

    def _execute(self, statement: str, *values: object) -> list[Any] | None:
        """Run one statement in a transaction of its own; None, reported, when the index does not allow it."""
        connection = self._open()
        if connection.database is None:
            return None
        with connection.lock:
            try:
                with _SQLITE:
                    return connection.database.execute(statement, values).fetchall()
            except (sqlite3.Error, UnicodeError) as error:
                emit("cache.index_failed", directory=connection.home, reason=str(error))
                if _is_damaged(error) and not connection.read_only:
                    self._connection = None
                    _remove_index(connection.database, connection.home / INDEX)
                return None

    def _open(self) -> _Connection:
        with self._opening:
            connection = self._connection
            if connection is not None and connection.process_id == os.getpid():
                return connection
            self._connection = opened = self._connect()
            return opened

    def _connect(self) -> _Connection:
        home = self._directory
        try:
            home = claimed(self._directory)
            return _Connection(_connect_writable(home / INDEX), home, False, os.getpid())
        except OptionError as error:
            emit("cache.unusable", directory=self._directory, reason=error.message)
            return _Connection(None, home, True, os.getpid())
        except (OSError, sqlite3.Error) as error:
            reason = str(error)
        # A cache on a read-only disk, such as one baked into an image, still serves what it holds.
        path = home / INDEX
        database = _connect_read_only(path) if os.path.exists(path) else None
        emit("cache.unusable" if database is None else "cache.read_only", directory=home, reason=reason)
        return _Connection(database, home, True, os.getpid())


def _checked(cells: tuple[Any, ...]) -> Row | None:
    """A row whose cells have the types that were put; None where one was damaged."""
    *plain, record = cells
    try:
        values = (*plain, msgspec.json.decode(record, type=dict[str, Any]))
        checked = msgspec.convert(dict(zip(Row.__struct_fields__, values, strict=True)), type=Row)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
    return checked if is_entry_file(checked.file, checked.key) else None


def _connect_writable(path: Path) -> _Database:
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            return _connect_once(path)
        except sqlite3.DatabaseError as error:
            # Switching a new file to WAL does not wait for another process that does the same.
            busy, is_damaged = error.sqlite_errorcode == sqlite3.SQLITE_BUSY, _is_damaged(error)
            # Outside the barrier: a listener may use the cache.
            if is_damaged:
                emit("cache.index_failed", directory=path.parent, reason=str(error))
            if time.monotonic() > deadline or not (busy or is_damaged):
                raise
        time.sleep(0.01)


def _connect_once(path: Path) -> _Database:
    """Open the database; one that is damaged is removed."""
    with _SQLITE:
        database = _Database(path, timeout=_BUSY_TIMEOUT_S)
        try:
            for statement in _PREPARATION:
                database.execute(statement)
            return database
        except sqlite3.DatabaseError as error:
            if _is_damaged(error):
                _remove_index(database, path)
            else:
                database.close()
            raise


def _connect_read_only(path: Path) -> _Database | None:
    try:
        with _SQLITE:
            return _Database(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    except sqlite3.Error:
        return None


def _text(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


def _is_damaged(error: Exception) -> bool:
    """Whether the database has to be begun again: it is none, or its tables are not ours."""
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return True
    return code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such", "table ", "malformed"))


def _remove_index(database: _Database, path: Path) -> None:
    """Start over without the entries: their files are swept later."""
    database.close()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)

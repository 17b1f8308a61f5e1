"""The compile cache: entries, damage, limits, and directories that cannot be used."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cache_entries import KEY, OTHER, THIRD, kinds, writes
from runtime_programs import make_add

from tilewright.errors import ArgumentError
from tilewright.events import capture
from tilewright.options import current, options
from tilewright.runtime import cache_index
from tilewright.runtime.cache import CompileCache, default_cache, default_directory
from tilewright.runtime.program import load


def test_what_is_put_is_found_by_every_later_object(cache):
    assert cache.get(KEY) is None
    path = cache.put(KEY, writes(b"one"), {"name": "f", "seconds": 1.5})
    for reader in (cache, CompileCache(cache.directory)):
        assert reader.get(KEY) == path
        assert path.read_bytes() == b"one"
    (entry,) = cache.entries()
    assert (entry.key, entry.path, entry.nbytes) == (KEY, path, 3)
    assert entry.record == {"name": "f", "seconds": 1.5}
    assert abs(entry.created_s - time.time()) < 60
    assert (cache.stats().entries, cache.stats().nbytes, cache.stats().hits, cache.stats().misses) == (1, 3, 1, 1)


def test_programs_are_what_it_is_for(cache):
    program = make_add(4)
    path = cache.put(KEY, program.save, {})
    x = np.ones(4, np.float32)
    assert (load(path)(x, x) == 2).all()


def test_a_second_put_replaces_the_first(cache):
    first = cache.put(KEY, writes(b"one"), {})
    second = cache.put(KEY, writes(b"two!"), {"n": 2})
    assert cache.get(KEY) == second
    assert second.read_bytes() == b"two!"
    assert not first.exists()
    assert [entry.nbytes for entry in cache.entries()] == [4]


@pytest.mark.parametrize("state", ["missing", "empty", "marked"])
def test_a_directory_that_is_ours_is_private(tmp_path, state):
    directory = tmp_path / "cache"
    if state == "empty":
        directory.mkdir(mode=0o700)
    if state == "marked":
        CompileCache(directory).put(OTHER, writes(b"y"), {})
    cache = CompileCache(directory)
    cache.put(KEY, writes(b"x"), {})
    assert cache.home == directory
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o700])
def test_a_directory_of_somebody_else_keeps_its_mode_and_files(tmp_path, mode):
    directory = tmp_path / "shared"
    (directory / "files" / "photos").mkdir(parents=True)
    (directory / "locks").mkdir()
    theirs = [
        directory / name for name in ("a.txt", "files/b.twp", "files/photos/c.jpg", "locks/d.lock", "index.sqlite")
    ]
    for path in theirs:
        path.write_text("theirs")
    directory.chmod(mode)
    cache = CompileCache(directory)
    path = cache.put(KEY, writes(b"x"), {})
    assert path.is_relative_to(directory / "tilewright")
    assert CompileCache(directory).get(KEY) == path
    assert cache.clear() == 1
    assert cache.prune(0) == 0
    assert not path.exists()
    assert [path.read_text() for path in theirs] == ["theirs"] * 5
    assert stat.S_IMODE(directory.stat().st_mode) == mode


def test_the_inner_directory_of_somebody_else_is_not_used(tmp_path):
    (tmp_path / "tilewright").mkdir()
    (tmp_path / "tilewright" / "notes.txt").write_text("theirs")
    cache = CompileCache(tmp_path)
    with capture() as records:
        assert cache.put(KEY, writes(b"x"), {}) is None
    assert kinds(records) == ["cache.unusable"]
    assert [path.name for path in (tmp_path / "tilewright").iterdir()] == ["notes.txt"]


def test_a_directory_whose_name_is_too_long_is_not_used(tmp_path):
    cache = CompileCache(tmp_path / ("a" * 300))
    with capture() as records:
        assert cache.put(KEY, writes(b"x"), {}) is None
        assert cache.get(KEY) is None
    assert "cache.unusable" in kinds(records)


def test_clear_follows_no_link_and_removes_no_file_of_another_name(tmp_path):
    cache = CompileCache(tmp_path / "cache")
    path = cache.put(KEY, writes(b"x"), {})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / path.name).write_text("theirs")
    (path.parent / "notes.twp").write_text("theirs")
    (path.parent / f"{OTHER}-00000000.twp").symlink_to(outside / path.name)
    assert cache.clear() == 1
    assert (outside / path.name).read_text() == "theirs"
    assert [child.name for child in path.parent.iterdir()] == ["notes.twp"]
    path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(outside)
    with capture() as records:
        assert CompileCache(tmp_path / "cache").clear() == 0
    assert kinds(records) == ["cache.unusable"]
    assert (outside / path.name).read_text() == "theirs"


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = CompileCache("cache")
    monkeypatch.chdir(tmp_path / "other")
    path = cache.put(KEY, writes(b"x"), {})
    assert path.is_relative_to(tmp_path / "cache")
    assert list((tmp_path / "other").iterdir()) == []


CELLS = {
    "file": [
        "CAST(x'ff41' AS TEXT)",
        "'../../outside.twp'",
        "'a' || char(0) || 'b'",
        "7",
        "x'00'",
        f"'{OTHER}-00000000.twp'",
    ],
    "record": [
        "x'00'",
        "'[1]'",
        """'{"target":"constants"}'""",
        "'{\"a\":'",
        "1.5",
        "''",
        '\'{"a":' + "[" * 100_000 + "'",
    ],
    "nbytes": ["'abc'", "-1", "1.5", "x'00'", "9223372036854775807"],
    "modified_ns": ["'abc'", "x'ff'"],
    "used_s": ["'abc'", "x'ff'", "1e400"],
    "created_s": ["'abc'", "x'ff'"],
    "digest": ["'abc'", "x''", "7"],
    "key": ["CAST(x'ff41' AS TEXT)", "'ABC'", "''"],
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column in CELLS for value in CELLS[column]])
def test_a_damaged_cell_of_the_index_costs_its_entry_alone(cache, tmp_path, column, value):
    (tmp_path / "outside.twp").write_text("theirs")
    cache.put(KEY, writes(b"one"), {"target": "cpu"})
    kept = cache.put(OTHER, writes(b"two"), {"target": "cpu"})
    with sqlite3.connect(cache.directory / "index.sqlite") as connection:
        connection.execute(f"UPDATE entries SET {column} = {value} WHERE key = ?", (KEY,))
    connection.close()
    reader = CompileCache(cache.directory)
    assert reader.get(OTHER) == kept
    reader.get(KEY)
    assert OTHER in {entry.key for entry in reader.entries()}
    reader.stats()
    reader.prune(10**12)
    assert reader.put(KEY, writes(b"new"), {}).read_bytes() == b"new"
    assert reader.get(KEY).read_bytes() == b"new"
    assert (tmp_path / "outside.twp").read_text() == "theirs"
    reader.prune(0)
    assert reader.entries() == []


@pytest.mark.parametrize("statement", ["DROP TABLE entries", "ALTER TABLE entries RENAME COLUMN digest TO other"])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_index_with_other_tables_is_started_over(cache, statement, is_open):
    cache.put(KEY, writes(b"one"), {})
    reader = cache if is_open else CompileCache(cache.directory)
    with sqlite3.connect(cache.directory / "index.sqlite") as connection:
        connection.execute(statement)
    connection.close()
    assert reader.get(KEY) is None
    assert reader.put(KEY, writes(b"two"), {}) is not None
    assert CompileCache(cache.directory).get(KEY) is not None


def test_a_lock_leaves_no_file_and_excludes_all_the_same(cache):
    inside, most, done = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, done
        for _ in range(25):
            with cache.lock(KEY):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with guard:
                    inside -= 1
                    done += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 100)
    assert list((cache.directory / "locks").iterdir()) == []


def test_a_thread_that_holds_a_key_may_come_back_for_it(cache):
    with cache.lock(KEY), cache.lock(OTHER), cache.lock(KEY):
        assert cache.put(KEY, writes(b"x"), {}) is not None


def test_a_directory_that_others_may_write_is_not_trusted(tmp_path, monkeypatch):
    cache = CompileCache(tmp_path / "cache")
    cache.put(KEY, writes(b"x"), {})
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with capture() as records:
        stranger = CompileCache(tmp_path / "cache")
        assert stranger.get(KEY) is None
        assert stranger.put(OTHER, writes(b"y"), {}) is None
    assert "cache.unusable" in kinds(records)


@pytest.mark.parametrize("key", ["", "ABCD", "../x", "xyz", "ab/cd"])
def test_keys_are_hex_digests(cache, key):
    for call in (cache.get, cache.remove, lambda key: cache.put(key, writes(b""), {})):
        with pytest.raises(ArgumentError, match="digest"):
            call(key)
    with pytest.raises(ArgumentError), cache.lock(key):
        pass


@pytest.mark.parametrize("nbytes", [1, 100, 3_000_000])
@pytest.mark.parametrize("damage", ["flip first", "flip last", "truncate", "extend", "empty", "remove", "directory"])
def test_a_damaged_entry_is_reported_dropped_and_can_be_put_again(cache, damage, nbytes):
    content = os.urandom(nbytes)
    path = cache.put(KEY, writes(content), {})
    damaged = {
        "flip first": bytes([content[0] ^ 1]) + content[1:],
        "flip last": content[:-1] + bytes([content[-1] ^ 128]),
        "truncate": content[:-1],
        "extend": content + b"x",
        "empty": b"",
    }
    if damage in damaged:
        path.write_bytes(damaged[damage])
    else:
        path.unlink()
    if damage == "directory":
        (path / "inner").mkdir(parents=True)
    with capture() as records:
        assert cache.get(KEY) is None
        assert cache.get(KEY) is None
    # A directory in the place of a file is somebody else's.
    failed = ["cache.remove_failed"] if damage == "directory" else []
    assert kinds(records) == ["cache.damaged", *failed, "cache.miss", "cache.miss"]
    assert path.is_dir() if damage == "directory" else not path.exists()
    assert cache.get(KEY) is None
    assert cache.put(KEY, writes(content), {}).read_bytes() == content
    assert cache.get(KEY) is not None


def test_a_directory_among_the_files_stays(cache):
    path = cache.put(KEY, writes(b"one"), {})
    (path.parent / f"{OTHER}-00000000.twp").mkdir()
    assert cache.clear() == 1
    assert [child.is_dir() for child in path.parent.iterdir()] == [True]


def test_what_cannot_be_removed_is_reported(cache, monkeypatch):
    path = cache.put(KEY, writes(b"one"), {})

    def refuse(self, missing_ok=False):
        raise PermissionError("it is in use")

    monkeypatch.setattr(Path, "unlink", refuse)
    with capture() as records:
        assert cache.remove(KEY)
    assert [(r["kind"], r["reason"]) for r in records] == [("cache.remove_failed", "it is in use")]
    assert path.exists()
    assert cache.get(KEY) is None


def test_small_damage_is_found_although_size_and_time_are_kept(cache):
    path = cache.put(KEY, writes(b"abcdef"), {})
    status = path.stat()
    path.write_bytes(b"abcdeg")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.get(KEY) is None


def test_an_entry_survives_a_copy_of_the_directory(cache, tmp_path):
    path = cache.put(KEY, writes(os.urandom(2_000_000)), {})
    os.utime(path, (1, 1))
    assert cache.get(KEY) == path


def test_remove_and_clear_delete_the_files(cache):
    paths = [cache.put(key, writes(b"x"), {}) for key in (KEY, OTHER, THIRD)]
    assert cache.remove(KEY)
    assert not cache.remove(KEY)
    with cache.lock(KEY):
        pass
    assert cache.clear() == 2
    assert not any(path.exists() for path in paths)
    assert cache.entries() == []
    left = {path.name for path in cache.directory.rglob("*") if path.is_file() and "index" not in path.name}
    assert left == {"CACHEDIR.TAG"}


def age(cache: CompileCache, key: str, seconds: float) -> None:
    with sqlite3.connect(cache.directory / "index.sqlite") as connection:
        connection.execute("UPDATE entries SET used_s = used_s - ? WHERE key = ?", (seconds, key))


def test_prune_drops_the_least_recently_used(cache):
    for seconds, key in [(3000, KEY), (9000, OTHER), (6000, THIRD)]:
        cache.put(key, writes(b"x" * 100), {})
        age(cache, key, seconds)
    cache.get(OTHER)
    assert [entry.key for entry in cache.entries()] == [OTHER, KEY, THIRD]
    assert cache.prune(250) == 1
    assert [entry.key for entry in cache.entries()] == [OTHER, KEY]
    assert cache.prune(250) == 0
    assert cache.prune(0) == 2
    assert cache.stats().nbytes == 0


def test_prune_sweeps_old_leftovers_only(cache):
    path = cache.put(KEY, writes(b"x"), {})
    old, young = (path.with_name(f"{OTHER}-{n}.twp.1.{n}.tmp") for n in ("00000001", "00000002"))
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (1, 1))
    os.utime(path, (1, 1))
    cache.prune(10**9)
    assert (old.exists(), young.exists(), path.exists()) == (False, True, True)


def test_a_limit_evicts_old_entries_but_never_the_new_one(tmp_path):
    cache = CompileCache(tmp_path / "cache", limit_bytes=250)
    for seconds, key in [(5000, KEY), (4000, OTHER), (0, THIRD)]:
        cache.put(key, writes(b"x" * 100), {})
        age(cache, key, seconds)
    assert {entry.key for entry in cache.entries()} == {OTHER, THIRD}
    path = cache.put(KEY, writes(b"x" * 1000), {})
    assert [entry.key for entry in cache.entries()] == [KEY]
    assert path.exists()


def test_what_write_raises_comes_through_and_leaves_nothing(cache):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cache.put(KEY, fail, {})
    assert cache.get(KEY) is None
    assert list((cache.directory / "files").iterdir()) == []


def test_a_full_disk_costs_an_event(cache):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with capture() as records:
        assert cache.put(KEY, fail, {}) is None
    assert kinds(records) == ["cache.write_failed"]
    assert "No space left" in records[0]["reason"]
    assert list((cache.directory / "files").iterdir()) == []
    assert cache.put(KEY, writes(b"x"), {}) is not None


# `/proc` refuses new files even to root, and a file is no directory for anyone.
@pytest.mark.parametrize("where", ["/proc/tilewright", "file/cache"])
def test_a_directory_that_cannot_be_made_costs_an_event(tmp_path, where):
    (tmp_path / "file").write_bytes(b"")
    with capture() as records:
        cache = CompileCache(where if where.startswith("/") else tmp_path / where)
        assert cache.get(KEY) is None
        assert cache.put(KEY, writes(b"x"), {}) is None
        with cache.lock(KEY):
            pass
        assert (cache.entries(), cache.remove(KEY), cache.clear(), cache.prune(0)) == ([], False, 0, 0)
        assert not cache.stats().usable
    assert kinds(records).count("cache.unusable") == 1


def test_a_read_only_cache_still_serves(cache, monkeypatch):
    path = cache.put(KEY, writes(b"x"), {})
    age(cache, KEY, 90_000)
    with sqlite3.connect(cache.directory / "index.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def refuse(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(cache_index, "_connect_writable", refuse)
    reader = CompileCache(cache.directory)
    with capture() as records:
        assert reader.get(KEY) == path
        assert reader.put(OTHER, writes(b"y"), {}) is None
        with reader.lock(KEY):
            pass
    assert kinds(records) == ["cache.read_only", "cache.hit"]


@pytest.mark.parametrize("garbage", [b"this is not a database" * 100, b"SQLite format 3\0" + bytes(range(256)) * 40])
def test_a_damaged_index_is_reported_and_started_over(cache, garbage):
    cache.put(KEY, writes(b"x"), {})
    cache._index._open().database.close()
    for suffix in ("-wal", "-shm"):
        (cache.directory / f"index.sqlite{suffix}").unlink(missing_ok=True)
    (cache.directory / "index.sqlite").write_bytes(garbage)
    fresh = CompileCache(cache.directory)
    with capture() as records:
        assert fresh.get(KEY) is None
    assert "cache.index_failed" in kinds(records)
    assert fresh.put(KEY, writes(b"x"), {}) is not None
    assert CompileCache(cache.directory).get(KEY) is not None


def test_an_index_damaged_while_it_is_open_is_started_over(cache):
    for number in range(200):
        cache.put(f"{number:08x}", writes(b"x"), {"padding": "p" * 500})
    cache._index._execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(cache.directory / "index.sqlite", "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(40_000))
    reader = CompileCache(cache.directory)
    with capture() as records:
        for number in range(200):
            reader.get(f"{number:08x}")
    assert "cache.index_failed" in kinds(records)
    assert reader.put(KEY, writes(b"x"), {}) is not None
    assert reader.get(KEY) is not None


def test_the_options_choose_the_cache(tmp_path):
    with options(cache_dir=tmp_path / "mine", cache_limit_bytes="1MiB"):
        assert default_directory() == tmp_path / "mine"
        assert default_cache() is default_cache()
        assert default_cache().limit_bytes == 2**20
        with options(cache="off"):
            assert default_cache() is None
    in_force = current().cache_dir
    assert default_directory() == in_force or (in_force is None and default_directory().name == "tilewright")

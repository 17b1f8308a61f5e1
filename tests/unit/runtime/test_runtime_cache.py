"""The compile cache: entries, damage, limits, several processes, sudden death, and directories that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from runtime_programs import make_add

from tests.effort import is_within
from tilewright.errors import ArgumentError
from tilewright.events import capture
from tilewright.options import current, options
from tilewright.runtime import cache as cache_module
from tilewright.runtime import cache_index
from tilewright.runtime.cache import CompileCache, default_cache, default_directory
from tilewright.runtime.program import load
from tilewright.runtime.sources import COMPILER, Sources

KEY, OTHER, THIRD = "ab12" * 8, "cd34" * 8, "ef56" * 8


@pytest.fixture
def cache(tmp_path) -> CompileCache:
    return CompileCache(tmp_path / "cache")


def writes(content: bytes):
    return lambda path: path.write_bytes(content)


def kinds(records) -> list[str]:
    return [record["kind"] for record in records]


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
    "record": ["x'00'", "'[1]'", """'{"target":"constants"}'""", "'{\"a\":'", "1.5", "''"],
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


def test_threads_may_share_one_object(cache):
    def work(worker: int) -> int:
        for i in range(15):
            key = f"{worker:02x}{i:02x}"
            cache.put(key, writes(key.encode()), {})
            assert cache.get(key).read_bytes() == key.encode()
        return worker

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(work, range(4))) == [0, 1, 2, 3]
    assert cache.stats().entries == 60


def test_the_lock_keeps_threads_apart(cache):
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with cache.lock(KEY):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    with cache.lock(OTHER):
        pass
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_forked_child_uses_the_cache_on_its_own(cache):
    cache.put(KEY, writes(b"x"), {})
    pid = os.fork()
    if pid == 0:
        good = cache.get(KEY) is not None and cache.put(OTHER, writes(b"y"), {}) is not None
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.get(OTHER).read_bytes() == b"y"


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


COMPILE_ONCE = """
import os, sys, time
from pathlib import Path
from tilewright.runtime.cache import CompileCache

directory, key, log = sys.argv[1:]
cache = CompileCache(directory)

def compile_and_write(path):
    with open(log, "a") as file:
        file.write("compiled\\n")
    time.sleep(0.3)
    path.write_bytes(b"code")

with cache.lock(key):
    path = cache.get(key) or cache.put(key, compile_and_write, {"pid": os.getpid()})
print(path.read_bytes().decode())
"""


def test_processes_that_want_the_same_key_compile_it_once(cache, tmp_path):
    processes = [start(COMPILE_ONCE, cache.directory, KEY, tmp_path / "log") for _ in range(3)]
    results = [process.communicate(timeout=60) for process in processes]
    assert results == [("code\n", "")] * 3
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert len(cache.entries()) == 1


WRITE_FOREVER = """
import itertools, os, random, sys
from tilewright.runtime.cache import CompileCache

cache = CompileCache(sys.argv[1])
rng = random.Random(os.getpid())

def write(path, content):
    with open(path, "wb") as file:
        for part in range(0, len(content), 1000):
            file.write(content[part : part + 1000])
            file.flush()

print("ready", flush=True)
for i in itertools.count():
    key = f"{rng.randrange(6):04x}"
    # The content tells whether it is whole: its length, then that many equal bytes.
    length = rng.randrange(20_000)
    content = length.to_bytes(4, "little") + bytes([i % 256]) * length
    cache.put(key, lambda path: write(path, content), {"length": length})
    found = cache.get(key)
    if i % 7 == 0:
        cache.remove(key)
    if i % 50 == 0:
        cache.prune(50_000)
"""


def assert_whole(cache: CompileCache) -> None:
    for entry in cache.entries():
        with capture() as records:
            path = cache.get(entry.key)
        assert "cache.damaged" not in kinds(records)
        content = path.read_bytes()
        length = int.from_bytes(content[:4], "little")
        assert len(content) == 4 + length
        assert len(set(content[4:])) <= 1
        assert entry.record == {"length": length}


def test_killed_writers_never_leave_a_broken_entry(cache):
    for round_number in range(8):
        process = start(WRITE_FOREVER, cache.directory)
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.026 * round_number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert_whole(cache)
    assert cache.put(KEY, writes(b"\0\0\0\0"), {"length": 0}) is not None
    assert_whole(cache)


def test_concurrent_writers_and_readers_never_see_damage(cache, tmp_path):
    code = WRITE_FOREVER.replace("itertools.count()", "range(60)").replace("cache.prune(50_000)", "cache.prune(10**9)")
    log = tmp_path / "events"
    environment = os.environ | {"TW_EVENTS_FILE": str(log)}
    commands = [[sys.executable, "-c", code, str(cache.directory)] for _ in range(3)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    seen = {json.loads(line)["kind"] for line in log.read_text().splitlines()}
    assert {"cache.put", "cache.hit"} <= seen
    assert not seen & {"cache.index_failed", "cache.write_failed", "cache.unusable"}, seen
    assert_whole(cache)


def test_the_options_choose_the_cache(tmp_path):
    with options(cache_dir=tmp_path / "mine", cache_limit_bytes="1MiB"):
        assert default_directory() == tmp_path / "mine"
        assert default_cache() is default_cache()
        assert default_cache().limit_bytes == 2**20
        with options(cache="off"):
            assert default_cache() is None
    in_force = current().cache_dir
    assert default_directory() == in_force or (in_force is None and default_directory().name == "tilewright")


def make_package(root: Path) -> Path:
    for name, text in {"a.py": "x = 1\n", "sub/b.py": "y\n", "sub/m.toml": "z = 3\n", "sub/c.txt": "no\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def fresh_digest(memo: Path | None, package: Path) -> str:
    digest = Sources(str(package)).digest(memo)
    assert digest is not None
    return digest


def test_the_source_digest_follows_names_and_contents_of_sources_only(tmp_path):
    package, memo = make_package(tmp_path / "package"), tmp_path
    first = fresh_digest(memo, package)
    assert len(first) == 64
    assert fresh_digest(memo, package) == fresh_digest(None, package) == first
    (package / "sub/c.txt").write_text("changed\n")
    assert fresh_digest(memo, package) == first
    seen = {first}
    (package / "a.py").write_text("x = 2\n")
    seen.add(fresh_digest(memo, package))
    (package / "sub/m.toml").write_text("z = 4\n")
    seen.add(fresh_digest(memo, package))
    (package / "a.py").rename(package / "sub/a.py")
    seen.add(fresh_digest(memo, package))
    (package / "new.py").write_text("")
    seen.add(fresh_digest(memo, package))
    assert len(seen) == 5
    assert fresh_digest(None, make_package(tmp_path / "twin")) == first


def test_the_source_digest_is_remembered_over_processes_and_costs_little(tmp_path):
    package = Path(cache_module.__file__).parent.parent
    digest = fresh_digest(tmp_path, package)
    assert digest == COMPILER.digest(tmp_path)

    def again() -> None:
        assert fresh_digest(tmp_path, package) == digest

    assert is_within(0.02, again, attempts=100)


def test_files_that_changed_after_the_import_have_no_digest(tmp_path):
    package = make_package(tmp_path / "package")
    sources = Sources(str(package))
    assert sources.are_as_imported()
    assert sources.digest()
    (package / "sub/c.txt").write_text("changed\n")
    assert sources.digest()
    (package / "a.py").write_text("x = 3\n")
    assert not sources.are_as_imported()
    assert sources.digest() is None
    assert Sources(str(tmp_path / "missing")).digest() is None


def test_a_package_of_compiled_files_or_in_an_archive_has_a_digest_of_these(tmp_path):
    compiled = tmp_path / "compiled"
    (compiled / "__pycache__").mkdir(parents=True)
    (compiled / "a.pyc").write_bytes(b"1")
    first = fresh_digest(None, compiled)
    (compiled / "__pycache__/a.pyc").write_bytes(b"3")
    assert fresh_digest(None, compiled) == first
    (compiled / "a.pyc").write_bytes(b"2")
    assert fresh_digest(None, compiled) != first
    archive = tmp_path / "package.zip"
    archive.write_bytes(b"1")
    inside = fresh_digest(None, archive / "tilewright")
    archive.write_bytes(b"2")
    assert fresh_digest(None, archive / "tilewright") not in (inside, first)


def test_a_broken_or_unwritable_memo_costs_nothing_but_time(tmp_path):
    package = make_package(tmp_path / "package")
    expected = fresh_digest(None, package)
    (tmp_path / "sources.json").write_text("{broken")
    assert fresh_digest(tmp_path, package) == expected
    assert fresh_digest(Path("/proc/none"), package) == expected

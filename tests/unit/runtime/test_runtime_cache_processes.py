"""The compile cache: several threads and processes, and sudden death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cache_entries import KEY, OTHER, kinds, writes

from tilewright.events import capture
from tilewright.runtime.cache import CompileCache


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


def test_threads_may_be_the_first_to_use_a_directory(tmp_path):
    """Through one object and through one each, as processes have them: all of them claim the same directory."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for n in range(20):
            directory = tmp_path / str(n)
            directory.mkdir(mode=0o700)
            shared = CompileCache(directory)
            caches = [shared, shared, CompileCache(directory), CompileCache(directory)]

            def work(worker: int, caches: list[CompileCache] = caches) -> bytes:
                key = f"{worker:02x}"
                caches[worker].put(key, writes(key.encode()), {})
                return caches[worker].get(key).read_bytes()

            with ThreadPoolExecutor(4) as executor:
                assert list(executor.map(work, range(4))) == [b"00", b"01", b"02", b"03"]
            assert {cache.home for cache in caches} == {directory}
    finally:
        sys.setswitchinterval(interval)


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


def test_forks_wait_for_threads_that_open_an_index(tmp_path: Path) -> None:
    """SQLite keeps locks of the process while it works."""
    script = """
        import os, signal, sys, threading
        from pathlib import Path
        from tilewright.runtime.cache_index import CacheIndex, Row

        folder, done = Path(sys.argv[1]), threading.Event()
        row = Row("a" * 64, "a" * 64 + "-01234567.twp", 1, 1, b"", 0.0, 0.0, {})

        def work(number):
            count = 0
            while not done.is_set():
                CacheIndex(folder / f"{number}.{count}").put(row)
                count += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        endings = []
        for number in range(60):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                os._exit(0 if CacheIndex(folder / f"child.{number}").put(row) else 1)
            endings.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if endings[-1]:
                break
        done.set()
        for thread in threads:
            thread.join()
        sys.exit(0 if not any(endings) else 1)
    """
    line = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    assert subprocess.run(line, timeout=100).returncode == 0

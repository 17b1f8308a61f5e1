"""The thread pool: every chunk once, workers never shared, nested and concurrent callers, fork, idling, exit."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from runtime_programs import in_child, make_add, make_meeting, make_nested, make_record

from tilewright.errors import UnsupportedOnTargetError
from tilewright.runtime.abi import BRIEF_JOBS_A_WAKE, SPIN_NS, PoolState, WorkerLine
from tilewright.runtime.cpu import elf
from tilewright.runtime.cpu.pool import load_support
from tilewright.targets.cpu.support import support_ir, support_object

SIZE = 5000
X = np.arange(SIZE, dtype=np.float32)
Y = np.linspace(-3, 3, SIZE, dtype=np.float32)


@pytest.fixture(scope="module")
def add():
    return make_add(SIZE)


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3, 17, 300])
def test_every_chunk_runs_once_on_a_worker_that_nobody_else_uses(threads, chunks, brief):
    record = make_record(chunks, brief=brief)
    for _ in range(20):
        runs, workers, clashes = record(threads=threads)
        assert (runs == 1).all()
        assert (workers >= 0).all()
        assert (workers < threads).all()
        assert not clashes.any()


@pytest.mark.parametrize("threads", [2, 4])
def test_workers_run_at_the_same_time(threads):
    meeting = make_meeting(threads)
    for pause_s in (0, 0, 5 * SPIN_NS / 1e9):
        time.sleep(pause_s)
        assert sorted(meeting(threads=threads)) == list(range(threads))


def test_a_brief_job_does_without_workers_that_sleep_until_many_have_come():
    brief = make_record(8, sleep_us=200, brief=True)

    def is_shared():
        return set(brief(threads=2)[1]) == {0, 1}

    def is_soon_shared():
        return any(is_shared() for _ in range(3 * BRIEF_JOBS_A_WAKE))

    assert is_soon_shared(), "now and then one wakes the worker, which is awake for those that follow"
    time.sleep(20 * SPIN_NS / 1e9)
    assert not any(is_shared() for _ in range(BRIEF_JOBS_A_WAKE - 1))
    assert is_soon_shared()


def test_a_worker_beyond_the_number_of_threads_gets_no_chunk():
    wide, narrow = make_record(64, sleep_us=50), make_record(64, sleep_us=50)
    for _ in range(10):
        assert set(wide(threads=8)[1]) <= set(range(8))
        assert set(narrow(threads=2)[1]) <= {0, 1}


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_nested_job_runs_serially_where_it_is(threads):
    nested = make_nested(9, 11)
    for _ in range(10):
        # Each inner chunk adds 1 + its worker's number, which is 0 in a serial run.
        assert (nested(threads=threads) == 1).all()


def test_sums_are_right_for_any_number_of_threads_hot_and_after_sleep(add):
    for threads in (1, 2, 4, 7):
        for pause_s in (0, 0, 3 * SPIN_NS / 1e9):
            time.sleep(pause_s)
            np.testing.assert_array_equal(add(X, Y, threads=threads), X + Y)


def test_several_python_threads_call_programs_at_one_time(add):
    record = make_record(50, sleep_us=20)

    def work(seed: int) -> bool:
        x = np.full(SIZE, seed, np.float32)
        good = True
        for _ in range(50):
            good &= bool((add(x, Y, threads=2) == x + Y).all())
            runs, _, clashes = record(threads=2)
            good &= bool((runs == 1).all() and not clashes.any())
        return good

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(work, range(4))) == [True] * 4


def worker_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_forked_child_starts_its_own_workers(add):
    meeting = make_meeting(2)

    def child() -> bool:
        alone = worker_threads() == 1
        right = bool((add(X, Y, threads=2) == X + Y).all())
        return alone and right and sorted(meeting(threads=2)) == [0, 1] and worker_threads() == 2

    for _ in range(20):
        np.testing.assert_array_equal(add(X, Y, threads=2), X + Y)
        assert in_child(child) == 0
    np.testing.assert_array_equal(add(X, Y, threads=2), X + Y)


def test_a_fork_in_the_middle_of_a_job_harms_neither_side(add):
    slow = make_record(60, sleep_us=1500)
    slow(threads=2)
    forks_in_a_job = 0
    for _ in range(20):
        results = []
        thread = threading.Thread(target=lambda results=results: results.append(slow(threads=2)))
        thread.start()
        time.sleep(0.003)
        forks_in_a_job += thread.is_alive()
        assert in_child(lambda: bool((add(X, Y, threads=2) == X + Y).all())) == 0
        thread.join()
        assert (results[0][0] == 1).all()
    assert forks_in_a_job >= 10


def test_idle_workers_burn_no_cpu(add):
    def used_while_idle_s() -> float:
        add(X, Y, threads=4)
        time.sleep(20 * SPIN_NS / 1e9)
        before = time.process_time()
        time.sleep(0.3)
        return time.process_time() - before

    # One of several: a virtual machine's pauses are billed to whoever was spinning then.
    assert any(used_while_idle_s() < 0.005 for _ in range(10))


def test_the_state_is_all_zero_in_a_child_and_the_structures_are_whole_lines(add):
    add(X, Y, threads=2)
    state = load_support(support_object()).state
    assert PoolState.from_address(state).started > 0
    assert in_child(lambda: PoolState.from_address(state).started == 0) == 0
    sizes = [ctypes.sizeof(PoolState), ctypes.sizeof(WorkerLine)]
    words = [PoolState.busy, PoolState.done, PoolState.function, WorkerLine.claim]
    assert [number % 64 for number in (state, *sizes, *(word.offset for word in words))] == [0] * (3 + len(words))


REPIN = """
import os, sys, time
sys.path.insert(0, {tests!r})
from runtime_programs import make_record
from tilewright.runtime.abi import PoolState, WorkerLine
from tilewright.runtime.cpu.pool import load_support
from tilewright.targets.cpu.support import support_object
import ctypes

record = make_record(4, sleep_us=100)
everywhere = os.sched_getaffinity(0)
first, second = sorted(everywhere)[:2]
move_to = lambda cpu: (os.sched_setaffinity(0, {{cpu}}), os.sched_setaffinity(0, everywhere))
move_to(first)
caller = os.getpid()
before = set(os.listdir("/proc/self/task"))
record(threads=2)
(worker,) = set(os.listdir("/proc/self/task")) - before
line = load_support(support_object()).state + ctypes.sizeof(PoolState) + ctypes.sizeof(WorkerLine)
for _ in range(100):
    while not WorkerLine.from_address(line).sleeping:
        time.sleep(0.001)
    (cpu,) = os.sched_getaffinity(int(worker))
    # Stay on the worker's CPU over the call: this is the collision that the pool must undo.
    os.sched_setaffinity(0, {{cpu}})
    record(threads=2)
    os.sched_setaffinity(0, everywhere)
    assert os.sched_getaffinity(int(worker)) != {{cpu}}
"""


def run_python(code: str, **keywords) -> subprocess.CompletedProcess[str]:
    code = code.replace("{tests!r}", repr(str(Path(__file__).parent))).replace("{{", "{").replace("}}", "}")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **keywords)


def test_a_worker_makes_way_for_a_caller_that_the_kernel_moved_to_its_cpu():
    run = run_python(REPIN)
    # With a single CPU there is nothing to keep apart, and the script ends where it takes two.
    assert run.returncode == 0 or (len(os.sched_getaffinity(0)) == 1 and "not enough values" in run.stderr), run.stderr


EXIT = """
import sys, threading, time
sys.path.insert(0, {tests!r})
import numpy as np
from runtime_programs import make_add, make_record

x = np.ones(5000, np.float32)
add = make_add(5000)
if sys.argv[1:] == ["daemon"]:
    record = make_record(20, sleep_us=100)
    def forever():
        while True:
            record(threads=2)
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.05)
for _ in range(100):
    assert (add(x, x, threads=2) == 2).all()
print("done")
"""


@pytest.mark.parametrize("how", ["hot", "idle", "daemon"])
def test_the_interpreter_exits_cleanly_with_workers_alive(how):
    code = EXIT.replace("sys.argv[1:]", repr([how])) + ("time.sleep(0.02)\n" if how == "idle" else "")
    for _ in range(2):
        run = run_python(code)
        assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def _blocked_by_workers() -> list[int]:
    """The signals that threads block which block the one of Ctrl-C."""
    masks = []
    for task in os.listdir("/proc/self/task"):
        status = Path(f"/proc/self/task/{task}/status").read_text()
        (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
        masks.append(mask)
    return [mask for mask in masks if mask >> (signal.SIGINT - 1) & 1]


def test_signals_are_left_to_the_threads_of_python(add):
    add(X, Y, threads=4)
    deadline = time.monotonic() + 5
    # A thread that has just begun blocks all signals for a moment.
    blocked = _blocked_by_workers()
    while any(mask >> (signal.SIGSEGV - 1) & 1 for mask in blocked):
        assert time.monotonic() < deadline
        blocked = _blocked_by_workers()
    assert len(blocked) >= 3


def test_the_support_object_is_made_for_both_architectures():
    for triple, machine in [("x86_64-unknown-linux-gnu", 62), ("aarch64-unknown-linux-gnu", 183)]:
        parsed = elf.Object(support_object(triple))
        assert parsed.machine == machine
        linked = parsed.link(1 << 40, lambda name: 1 << 41)
        assert {"tw_pool", "tw_parallel", "tw_run", "tw_call"} <= linked.addresses.keys()
    assert "llvm.aarch64.hint" in support_ir("aarch64-unknown-linux-gnu")


@pytest.mark.parametrize("triple", ["riscv64-unknown-linux-gnu", "arm64-apple-darwin"])
def test_other_machines_are_refused(triple):
    with pytest.raises(UnsupportedOnTargetError, match=triple):
        support_object(triple)


def test_a_support_object_is_loaded_once():
    assert load_support(support_object()) is load_support(bytes(support_object()))

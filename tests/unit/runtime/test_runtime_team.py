"""Jobs of the pool on the threads of an OpenMP runtime: torch's own, and a stand-in whose threads come late."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from runtime_programs import in_child, make_record

import tilewright as tw
from tilewright.runtime.abi import TEAM_AWAKE_NS, PoolState
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.pool import Team, load_support
from tilewright.targets.cpu.support import support_object

_MEMBER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_COUNT = ctypes.CFUNCTYPE(ctypes.c_int)


class StandIn:
    """An OpenMP runtime in Python: each region starts `size` threads, the last of which end `late_s` after the job."""

    def __init__(self, size: int, late_s: float = 0.0) -> None:
        self.regions = 0
        self.size = size
        self._late_s = late_s
        self._local = threading.local()
        self._functions = (_RUN(self._run), _COUNT(self._rank), _COUNT(lambda: self.size))

    def team(self) -> Team:
        return Team(*(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._functions))

    def _rank(self) -> int:
        return getattr(self._local, "rank", 0)

    def _member(self, rank: int, member: int, data: int) -> None:
        self._local.rank = rank
        _MEMBER(member)(data)

    def _run(self, member: int, data: int, threads: int, flags: int) -> None:
        self.regions += 1
        others = [threading.Thread(target=self._member, args=(n, member, data)) for n in range(1, self.size)]
        for each in others:
            each.start()
        self._member(0, member, data)
        for each in others:
            each.join()
        time.sleep(self._late_s)


def state_of_pool() -> PoolState:
    return PoolState.from_address(load_support(support_object()).state)


def test_members_of_a_team_run_each_chunk_once() -> None:
    record = make_record(40, sleep_us=200)

    def child() -> bool:
        stand_in = StandIn(4)
        pool.run_in(stand_in.team())
        good, shared = True, False
        for threads in (2, 3, 4) * 5:
            state_of_pool().team_after_ns = 0  # the end of the region before may have been late
            runs, workers, clashes = record(threads=threads)
            good &= bool((runs == 1).all() and not clashes.any() and (workers < threads).all())
            shared |= len(set(workers)) > 1
        state_of_pool().team_after_ns = 0
        # More threads than the team has: the pool's own workers run them.
        runs, _, clashes = record(threads=5)
        return good and shared and stand_in.regions == 15 and bool((runs == 1).all() and not clashes.any())

    assert in_child(child) == 0


def test_a_team_of_one_thread_is_not_used() -> None:
    record = make_record(40, sleep_us=200)

    def child() -> bool:
        stand_in = StandIn(2)
        pool.run_in(stand_in.team())
        record(threads=2)
        state_of_pool().team_after_ns = 0
        stand_in.size = 1
        runs, _, _ = record(threads=2)
        return bool((runs == 1).all()) and stand_in.regions == 1

    assert in_child(child) == 0


def test_a_team_that_comes_late_is_left_alone_for_a_while() -> None:
    record = make_record(8, sleep_us=100)

    def child() -> bool:
        stand_in = StandIn(2, late_s=0.02)
        pool.run_in(stand_in.team())
        state = state_of_pool()
        record(threads=2)
        until_ns = state.team_after_ns - time.monotonic_ns()
        # Sixteen times as long as the wait, which is at least 20 ms.
        pauses = 0.2e9 < until_ns < 60e9
        runs, _, _ = record(threads=2)
        own = bool((runs == 1).all()) and stand_in.regions == 1
        state.team_after_ns = time.monotonic_ns() - 1
        record(threads=2)
        return pauses and own and stand_in.regions == 2

    assert in_child(child) == 0


def test_workers_that_spin_take_no_chunks_of_a_team() -> None:
    record = make_record(40, sleep_us=20)

    def child() -> bool:
        stand_in = StandIn(2)
        team, good = stand_in.team(), True
        for _ in range(200):
            pool.run_in(None)
            record(threads=2)
            pool.run_in(team)
            state_of_pool().team_after_ns = 0
            runs, _, clashes = record(threads=2)
            good &= bool((runs == 1).all() and not clashes.any())
        return good and stand_in.regions == 200 and state_of_pool().started == 1

    assert in_child(child) == 0


def test_a_brief_job_is_shared_with_a_team_that_has_just_run_one() -> None:
    record, brief = make_record(8, sleep_us=100), make_record(8, sleep_us=100, brief=True)

    def child() -> bool:
        stand_in = StandIn(2)
        pool.run_in(stand_in.team())
        time.sleep(10 * TEAM_AWAKE_NS / 1e9)
        alone = set(brief(threads=2)[1]) == {0} and stand_in.regions == 0
        record(threads=2)
        # However slow this machine is, the job was just now and its end not late.
        state = state_of_pool()
        state.team_last_ns, state.team_after_ns = time.monotonic_ns() + int(1e9), 0
        alone_again = set(brief(threads=2)[1]) == {0}
        state.team_last_ns = time.monotonic_ns()
        brief(threads=2)
        return alone and alone_again and stand_in.regions == 2

    assert in_child(child) == 0


def test_workers_of_the_pool_run_jobs_again_without_a_team() -> None:
    record = make_record(40, sleep_us=200)

    def child() -> bool:
        stand_in = StandIn(2)
        pool.run_in(stand_in.team())
        pool.run_in(None)
        runs, _, _ = record(threads=2)
        return bool((runs == 1).all()) and stand_in.regions == 0

    assert in_child(child) == 0


TORCH = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np, torch
from runtime_programs import in_child, make_record
import tilewright as tw
from tilewright.runtime.cpu import pool

torch.set_num_threads(2)
x = torch.arange(1 << 18, dtype=torch.float32)
f = tw.jit(lambda x: x * 2 + 1)
with tw.options(threads=2):
    for _ in range(50):
        assert torch.equal(f(x), x * 2 + 1)
assert pool._team is not None
threads = len(os.listdir("/proc/self/task"))
record = make_record(40, sleep_us=200)
seen = set()
for _ in range(20):
    runs, workers, clashes = record(threads=2)
    assert (runs == 1).all() and not clashes.any()
    seen |= set(workers)
assert seen == {{0, 1}}, seen
print(len(os.listdir("/proc/self/task")) - threads)
pid = os.fork()
if pid == 0:
    runs, workers, clashes = record(threads=2)
    os._exit(0 if (runs == 1).all() and pool._team is None else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_programs_on_tensors_run_on_the_threads_of_torch() -> None:
    code = TORCH.replace("{tests!r}", repr(str(Path(__file__).parent))).replace("{{", "{").replace("}}", "}")
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= 1, "a worker of the pool's own at most, where a thread of torch's came late"


def test_a_library_that_is_not_loaded_or_has_no_openmp_gives_no_team() -> None:
    assert Team.of("/nowhere/libtorch_cpu.so") is None
    assert Team.of("libc.so.6") is None


def test_results_are_of_the_usual_rounding_on_members() -> None:
    """Members that flush subnormal numbers compute with them in a job."""
    x = np.full(1 << 18, 1e-39, np.float32)
    torch.set_flush_denormal(True)
    try:
        with tw.options(threads=2):
            found = tw.jit(lambda x: x + x)(torch.from_numpy(x)).numpy()
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(found, x + x)

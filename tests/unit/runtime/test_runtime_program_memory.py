"""Memory, threads and references of programs that are called."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from runtime_programs import (
    STATUS_IR,
    THREADS_IR,
    X,
    Y,
    make_add,
    make_copy,
    make_in_place_add,
    make_program,
    make_record,
    spec,
)

from tilewright.errors import (
    CompilerBug,
    ResourceExhausted,
)
from tilewright.options import options
from tilewright.runtime.cpu import features as cpu_features
from tilewright.runtime.program import Program


def make_threads_program(**fields) -> Program:
    return make_program(THREADS_IR, inputs=(), outputs=(spec("y", 2, dtype="i64"),), **fields)


def test_threads_come_from_the_call_then_the_option_then_the_machine(way_in):
    program = make_threads_program()
    assert program(threads=5)[0] == 5
    with options(threads=3):
        assert program()[0] == 3
        assert program(threads=2)[0] == 2
        assert program()[0] == 3
    assert program()[0] == cpu_features.default_threads()


def test_arenas_are_aligned_kept_and_leased_to_one_call_at_a_time(way_in):
    program = make_threads_program(arena_bytes=100, worker_scratch_bytes=1)
    addresses = {int(program(threads=2)[1]) for _ in range(10)}
    assert len(addresses) == 1
    assert addresses.pop() % 64 == 0
    assert make_threads_program()()[1] == 0
    record = make_record(30, sleep_us=100)
    results: list[tuple[np.ndarray, ...]] = []
    # More callers than an arena's slots: the surplus is allocated and freed. A shared arena would show as a clash.
    threads = [threading.Thread(target=lambda: results.append(record(threads=1))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    assert all((runs == 1).all() and not clashes.any() for runs, _, clashes in results)


def test_the_lock_of_the_interpreter_is_released_for_long_programs_only():
    def longest_pause_s(estimated_seconds: float) -> float:
        program = make_program_of_sleep(estimated_seconds)
        ticks, stop = [], threading.Event()

        def tick() -> None:
            while not stop.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        time.sleep(0.02)
        program.function(1)()
        stop.set()
        thread.join()
        return max(b - a for a, b in itertools.pairwise(ticks))

    def make_program_of_sleep(estimated_seconds: float) -> Program:
        ir = "declare i32 @usleep(i32)\n" + THREADS_IR.replace("ret i32 0", "call i32 @usleep(i32 300000)\n  ret i32 0")
        return make_program(ir, inputs=(), outputs=(spec("y", 2, dtype="i64"),), estimated_seconds=estimated_seconds)

    assert longest_pause_s(1e-7) > 0.25
    assert any(longest_pause_s(0.3) < 0.15 for _ in range(10))


def test_a_call_beyond_the_memory_limit_is_refused_before_it_runs(way_in):
    program = make_threads_program(arena_bytes=10_000, worker_scratch_bytes=1000, metadata={"memory_report": "x: 9 kB"})
    needed = 10048 + 2 * 1024 + 16
    with options(memory_limit_bytes=needed):
        assert program(threads=2)[0] == 2
    with options(memory_limit_bytes=needed - 1), pytest.raises(ResourceExhausted) as caught:
        program(threads=2)
    assert "12096 bytes of work memory and 16 bytes of outputs" in caught.value.message
    assert "x: 9 kB" in caught.value.message
    with options(memory_limit_bytes=needed - 1):
        assert program(threads=1)[0] == 1
    for _ in range(2):
        program()
        with options(memory_limit_bytes=100), pytest.raises(ResourceExhausted):
            program()


def test_a_program_larger_than_the_machine_is_refused():
    with pytest.raises(ResourceExhausted, match="this machine has"):
        make_threads_program(arena_bytes=1 << 60)()


@pytest.mark.parametrize("fields", [{"arena_bytes": 1 << 46}, {"outputs": (spec("y", 1 << 44, dtype="i64"),)}])
def test_memory_that_the_system_refuses_is_an_error_not_a_crash(fields, monkeypatch, way_in):
    monkeypatch.setattr(cpu_features, "usable_memory_bytes", lambda: 1 << 62)
    program = make_program(THREADS_IR, **({"inputs": (), "outputs": (spec("y", 2, dtype="i64"),)} | fields))
    for _ in range(3):
        with pytest.raises(ResourceExhausted, match="no memory"):
            program(threads=1)


def test_references_are_balanced_and_nothing_leaks(add):
    inplace, x = make_in_place_add(), X.copy()
    out = np.empty(4, np.float32)
    dtype = np.dtype(np.float32)
    status = make_program(STATUS_IR, inputs=(spec("x", 1, dtype="i32"),), outputs=(spec("y", 5),))
    bad = np.array([7], np.int32)
    pair = make_copy(spec("a", 4), spec("b", 4))

    def call_all() -> None:
        add(X, Y)
        add(X, Y, out=out)
        inplace(x, Y)
        pair(X, Y)
        with pytest.raises(CompilerBug):
            status(bad)

    call_all()
    watched = [X, Y, x, out, dtype, bad]
    gc.collect()
    before = [sys.getrefcount(item) for item in watched]
    for _ in range(500):
        call_all()
    gc.collect()
    # The dtype's own count moves with what else is alive; a leak would show as hundreds.
    after = [sys.getrefcount(item) for item in watched]
    assert all(abs(new - old) < 20 for new, old in zip(after, before, strict=True)), (before, after)
    assert after[0] == before[0]
    assert sys.getrefcount(add(X, Y)) == sys.getrefcount(np.empty(4))


def test_memory_does_not_grow_over_many_calls():
    big = make_copy(spec("x", 1 << 18), arena_bytes=1 << 20)
    x = np.ones(1 << 18, np.float32)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(20):
        big(x)
    before = resident_bytes()
    for _ in range(300):
        big(x)
        make_copy(spec("x", 1 << 18), arena_bytes=1 << 20)(x)
    assert resident_bytes() - before < 60e6


def test_the_native_function_outlives_its_program():
    program = make_add(4)
    reference = weakref.ref(program)
    function = program.function()
    del program
    gc.collect()
    assert reference() is None
    np.testing.assert_array_equal(function(X, Y), X + Y)

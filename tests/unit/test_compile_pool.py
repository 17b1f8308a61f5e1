"""Modules compiled in this process and in compiler processes: equal code, errors that say what happened."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import events
from tilewright.errors import ToolFailure
from tilewright.machines.machine import load
from tilewright.targets.cpu import compile_pool
from tilewright.targets.cpu.codegen import compile_object
from tilewright.targets.cpu.compile_pool import CompilePool

MACHINE = load("x86-64-v3")


def text(number: int, operations: int = 3) -> str:
    lines = [f"  %v{i + 1} = add i64 %v{i}, {number}" for i in range(operations)]
    body = "\n".join(lines)
    return (
        f'target triple = "x86_64-unknown-linux-gnu"\ndefine i64 @f(i64 %v0) {{\n{body}\n  ret i64 %v{operations}\n}}\n'
    )


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started for anything, and given the time to start."""
    monkeypatch.setattr(compile_pool, "WORTH_A_PROCESS_BYTES", 0)


def replace_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    script = tmp_path / "compiler.py"
    script.write_text(code)
    monkeypatch.setattr(compile_pool.compiler, "__file__", str(script))


def wait_until_processes_took(pool: Any) -> None:
    limit = time.monotonic() + 30
    while pool._waiting and time.monotonic() < limit:
        time.sleep(0.01)


@pytest.mark.usefixtures("eager")
def test_processes_and_this_one_make_the_same_objects() -> None:
    texts = [text(n) for n in range(20)]
    with CompilePool(MACHINE, 3) as pool:
        assert [pool.submit(f"k{n}", t) for n, t in enumerate(texts)] == list(range(20))
        wait_until_processes_took(pool)
        compiled = pool.finish()
    assert [each.object_bytes for each in compiled] == [compile_object(t, MACHINE) for t in texts]
    assert all(each.seconds > 0 for each in compiled)


def test_equal_modules_are_compiled_once() -> None:
    with CompilePool(MACHINE, 1) as pool:
        assert [pool.submit(name, text(n)) for name, n in (("a", 1), ("b", 2), ("c", 1))] == [0, 1, 0]
        assert len(pool.finish()) == 2


def test_little_text_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "ToolProcess", lambda script: pytest.fail("a process was started"))
    with CompilePool(MACHINE, 8) as pool:
        for n in range(10):
            pool.submit(f"k{n}", text(n))
        assert len(pool.finish()) == 10


def test_one_thread_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "ToolProcess", lambda script: pytest.fail("a process was started"))
    with CompilePool(MACHINE, 1) as pool:
        for n in range(10):
            pool.submit(f"k{n}", text(n, 3000))
        assert len(pool.finish()) == 10


@pytest.mark.usefixtures("eager")
def test_a_crash_of_llvm_names_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash = (
        "import hashlib, os, struct, sys\n"
        "digest = hashlib.blake2b(b'', digest_size=16).digest()\n"
        "sys.stdout.buffer.write(struct.pack('<?dQ16s', True, 0, 0, digest)); sys.stdout.buffer.flush()\n"
        "sys.stdin.buffer.read(1); os.kill(os.getpid(), 11)\n"
    )
    replace_process(monkeypatch, tmp_path, crash)
    with CompilePool(MACHINE, 2) as pool:
        pool.submit("softmax_3", text(1))
        wait_until_processes_took(pool)
        pool.submit("loop_4", text(2))
        with pytest.raises(ToolFailure, match=r"crashed on `softmax_3`.* signal 11"):
            pool.finish()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os.close(1); import time; time.sleep(0.2)"])
def test_a_process_that_does_not_start_leaves_the_work_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    replace_process(monkeypatch, tmp_path, code)
    with events.capture() as seen, CompilePool(MACHINE, 2) as pool:
        for n in range(4):
            pool.submit(f"k{n}", text(n))
        assert len(pool.finish()) == 4
    assert "compile.no_process" in [event["kind"] for event in seen]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("executable", ["", "/nowhere/python", sys.executable.replace("python", "application")])
def test_without_an_interpreter_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with CompilePool(MACHINE, 2) as pool:
        pool.submit("k", text(1))
        assert len(pool.finish()) == 1


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("threads", [1, 2])
def test_text_that_llvm_rejects_is_an_error(threads: int) -> None:
    with CompilePool(MACHINE, threads) as pool:
        pool.submit("k", "define i64 @f( {")
        if threads > 1:
            wait_until_processes_took(pool)
        with pytest.raises(ToolFailure, match="LLVM rejects"):
            pool.finish()


@pytest.mark.usefixtures("eager")
def test_an_error_elsewhere_leaves_no_process_behind() -> None:
    before = children()

    def fail() -> None:
        with CompilePool(MACHINE, 3) as pool:
            for n in range(5):
                pool.submit(f"k{n}", text(n))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert children() <= before


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
def test_without_a_thread_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with CompilePool(MACHINE, 3) as pool:
        for n in range(4):
            pool.submit(f"k{n}", text(n))
        compiled = pool.finish()
    assert [each.object_bytes for each in compiled] == [compile_object(text(n), MACHINE) for n in range(4)]


@pytest.mark.usefixtures("eager")
def test_a_thread_that_never_runs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that lacks the memory for its first frame."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 1)
    with CompilePool(MACHINE, 3) as pool:
        pool.submit("k", text(1))
        assert len(pool.finish()) == 1


@pytest.mark.usefixtures("eager")
def test_a_job_that_fails_for_lack_of_memory_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise MemoryError

    monkeypatch.setattr(compile_pool.ToolProcess, "ask", fail)
    with CompilePool(MACHINE, 3) as pool:
        for n in range(6):
            pool.submit(f"k{n}", text(n))
        assert failed.wait(30)
        compiled = pool.finish()
    assert [each.object_bytes for each in compiled] == [compile_object(text(n), MACHINE) for n in range(6)]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def program(x: Any, w: Any) -> Any:
    for n in range(3):
        x = tw.nn.softmax(x @ w) + tw.sort(x, axis=n % 2)
    return tw.cumulative_sum(x, axis=1), tw.argmax(x, axis=0)


@pytest.mark.usefixtures("eager")
def test_a_program_whose_kernels_come_from_processes() -> None:
    x = np.random.default_rng(0).standard_normal((48, 48), dtype=np.float32)
    with tw.options(cache=False, threads=2):
        many = tw.jit(program)(x, x)
    with tw.options(cache=False, threads=1):
        one = tw.jit(program)(x, x)
    for a, b in zip(many, one, strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_kernel_says_what_its_compilation_took() -> None:
    x = np.ones((24, 24), np.float32)
    with events.capture() as seen, tw.options(cache=False):
        compiled = tw.jit(program).lower(x, x).compile()
    times = {event["name"]: event for event in seen if event["kind"] == "compile.kernel"}
    assert set(times) == set(compiled.cost()["kernels"])
    steps = ("array_lower_to_tile_s", "tile_lower_to_vectors_s", "scheduled_pack_operands_s", "emission_s", "llvm_s")
    for event in times.values():
        assert all(0 < event[step] < 60 for step in steps), event
    (whole,) = [event["seconds"] for event in seen if event["kind"] == "compile"]
    assert sum(event[step] for event in times.values() for step in steps) < 2 * whole

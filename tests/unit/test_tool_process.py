"""Requests to tool processes: an answer belongs to its request, whatever interrupts, kills or forks in between."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets import tool_process
from tilewright.targets.cuda.toolchain import COMPILER
from tilewright.targets.tool_process import ToolPool, ToolProcess, ToolProcessEnded

ECHO = """
import os, time
def answer(document, text):
    if document == "refuse":
        raise RuntimeError("no " + text)
    if document == "die":
        os.kill(os.getpid(), 9)
    time.sleep(document if isinstance(document, float) else 0)
    return (text * 2).encode()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return str(path)


@pytest.fixture
def pool(script: str) -> Iterator[ToolPool]:
    made = ToolPool(script)
    yield made
    made.close()


def right(pool: ToolPool, text: str, seconds: float = 0.0) -> bool:
    return pool.ask(seconds, text.encode()).content == (text * 2).encode()


def test_answers_refusals_and_crashes(pool: ToolPool) -> None:
    assert right(pool, "a" * 100_000)
    assert pool.ask("refuse", b"thing")[::2] == (False, b"no thing")
    with pytest.raises(ToolProcessEnded, match="signal 9"):
        pool.ask("die", b"")
    assert right(pool, "b")


def interrupt_at(pool: ToolPool, stop: int) -> bool:
    """Ask, and raise KeyboardInterrupt at line event `stop` of the protocol's code; whether there were as many."""
    reached = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal reached
        if frame.f_code.co_filename != tool_process.__file__:
            return None
        reached += event == "line"
        if event == "line" and reached == stop + 1:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            pool.ask(0.0, b"interrupted")
    finally:
        sys.settrace(before)
    return reached > stop


def test_an_exception_at_any_line_leaves_no_answer_behind(pool: ToolPool) -> None:
    assert right(pool, "first")
    stop = 0
    while interrupt_at(pool, stop):
        assert all(right(pool, f"after {stop}, {n}") for n in range(3))
        stop += 1
    assert stop > 20


def test_signals_threads_and_killed_processes(pool: ToolPool) -> None:
    """Two threads ask while the main thread, which asks too, is interrupted and idle or busy processes are killed."""
    wrong: list[str] = []
    end = time.monotonic() + 2.0

    def asks(name: str) -> None:
        n = 0
        while time.monotonic() < end:
            n += 1
            with contextlib.suppress(ToolProcessEnded):
                if not right(pool, f"{name} {n}", 0.001):
                    wrong.append(f"{name} {n}")

    def kills() -> None:
        while time.monotonic() < end:
            time.sleep(0.05)
            for process in [*pool._idle]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.process_id, signal.SIGKILL)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupted)
    threads = [threading.Thread(target=asks, args=(f"thread {n}",)) for n in range(2)]
    threads.append(threading.Thread(target=kills))
    for thread in threads:
        thread.start()
    interruptions = 0
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0007 * (interruptions % 9))
                asks("main")
            except KeyboardInterrupt:
                interruptions += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        for thread in threads:
            thread.join()
    assert not wrong
    assert interruptions > 20
    assert right(pool, "at the end")


def test_a_signal_handler_asks_in_the_middle_of_a_request(pool: ToolPool) -> None:
    inner: list[bool] = []
    old = signal.signal(signal.SIGALRM, lambda *_: inner.append(right(pool, "handler")))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert right(pool, "main", 0.3)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert inner == [True]


def test_a_forked_child_asks_processes_of_its_own(pool: ToolPool) -> None:
    assert right(pool, "before")
    child = os.fork()
    if child == 0:
        os._exit(0 if all(right(pool, f"child {n}") for n in range(20)) else 1)
    assert all(right(pool, f"parent {n}") for n in range(20))
    assert os.waitpid(child, 0)[1] == 0


def test_ctrl_c_of_the_terminal_does_not_end_the_processes(script: str) -> None:
    with ToolProcess(script) as process:
        os.kill(process.process_id, signal.SIGINT)
        assert process.ask(0.0, b"x").content == b"xx"


def test_the_answer_to_another_request_is_refused(tmp_path: Path) -> None:
    ready = tool_process.ANSWER.pack(True, 0.0, 0, tool_process.request_digest(b""))
    other = tool_process.ANSWER.pack(True, 0.0, 1, tool_process.request_digest(b"other")) + b"?"
    path = tmp_path / "stale.py"
    path.write_text(f"import sys\nsys.stdout.buffer.write({ready + other!r}); sys.stdout.flush(); sys.stdin.read()\n")
    with ToolProcess(str(path)) as process, pytest.raises(ToolProcessEnded, match="another request"):
        process.ask(0.0, b"x")


def test_an_interrupted_compilation_gives_later_programs_their_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tw.ShapeDtype((64, 64), tw.f32)

    def has_factor(factor: float) -> bool:
        program = tw.jit(lambda a: tw.maximum(a * factor, 0.0), target="cuda:sm_90a").lower(x).compile()
        return struct.pack(">f", np.float32(factor)).hex() in program.ir("ptx").lower()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert has_factor(1.375)
    with monkeypatch.context() as patch:
        patch.setattr(tool_process, "read_answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            has_factor(2.625)
    assert has_factor(3.875)
    assert has_factor(2.625)
    COMPILER.close()

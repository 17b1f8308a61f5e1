"""Signals during native calls: Ctrl-C ends them, handlers may call programs, and all that follows is right."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.effort import is_within


def endless(x: Any) -> Any:
    return tw.while_loop(lambda s: tw.sum(s) >= 0, lambda s: s * 1.0, x)


def endless_in_a_loop(x: Any) -> Any:
    return tw.fori_loop(0, 3, lambda _, s: endless(s), x) if hasattr(tw, "fori_loop") else endless(x) + endless(x)


def square(x: Any) -> Any:
    for _ in range(40):
        x = x @ x
    return x


@pytest.fixture
def interrupts() -> Iterator[Callable[[float], None]]:
    """Send SIGINT to this process after some seconds."""
    timers: list[threading.Timer] = []

    def after(seconds: float) -> None:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield after
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, old)


def right_afterwards() -> None:
    x = np.arange(4096 * 64, dtype=np.float32).reshape(4096, 64)
    np.testing.assert_array_equal(tw.jit(lambda x: x * 2 + 1)(x), x * 2 + 1)
    small = tw.jit(lambda x: tw.while_loop(lambda s: tw.sum(s) < 100, lambda s: s * 2, x))
    np.testing.assert_array_equal(small(np.ones(4, np.float32)), np.full(4, 32, np.float32))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("function", "shape"),
    [(endless, (4,)), (endless, (700, 900)), (endless_in_a_loop, (3,)), (square, (2048, 2048))],
)
def test_ctrl_c_ends_a_native_call(
    function: Any, shape: tuple[int, ...], threads: int, interrupts: Callable[[float], None]
) -> None:
    x = np.ones(shape, np.float32)
    with tw.options(threads=threads):
        compiled = tw.jit(function).lower(x).compile()
        out = np.empty_like(x)
        for call in (lambda: compiled(x), lambda: compiled.executable(x, out=[out])):
            interrupts(0.06)
            begun = time.perf_counter()
            with pytest.raises(KeyboardInterrupt):
                call()
            # 0.2 s, and what a machine that does other things adds.
            assert time.perf_counter() - begun < 2.0
            right_afterwards()


def test_a_call_ends_within_a_fifth_of_a_second() -> None:
    x = np.ones((700, 900), np.float32)
    compiled = tw.jit(endless).lower(x).compile()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)

    def interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            compiled(x)

    try:
        assert is_within(0.25, interrupted, attempts=20)
    finally:
        signal.signal(signal.SIGALRM, old)


def test_handlers_may_call_programs_in_the_middle_of_a_call() -> None:
    x = np.ones((512, 512), np.float32) / 512
    slow = tw.jit(lambda x: tw.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] @ x), (0, x))[1])
    other = tw.jit(lambda x: tw.sum(x, axis=0))
    expected, sums = slow(x), other(x)
    seen: list[bool] = []

    def handler(*_: object) -> None:
        seen.append(bool((other(x) == sums).all() and (slow(x) == expected).all()))

    old = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            np.testing.assert_array_equal(slow(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert seen
    assert all(seen)


def test_an_exception_of_a_handler_comes_through_and_other_threads_go_on() -> None:
    x = np.ones((64, 64), np.float32)
    long = tw.jit(lambda x: tw.while_loop(lambda s: s[0] < 200_000, lambda s: (s[0] + 1, s[1] * 1.0), (0, x))[1])
    compiled = tw.jit(endless).lower(x).compile()
    long.lower(x).compile()(x)
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(long(x)))

    def handler(*_: object) -> None:
        raise ZeroDivisionError("from a handler")

    old = signal.signal(signal.SIGALRM, handler)
    thread.start()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(ZeroDivisionError, match="from a handler"):
            compiled(x)
    finally:
        signal.signal(signal.SIGALRM, old)
    thread.join()
    np.testing.assert_array_equal(results[0], x)


def test_a_handler_calls_the_program_that_is_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime import program

    x = np.ones((4, 4), np.float32)
    function = tw.jit(lambda x: x + 41)
    make = program.Program._make_binding
    results: list[np.ndarray] = []

    def slowly(self: Any, threads: int) -> Any:
        if not results:
            results.append(x)
            signal.raise_signal(signal.SIGUSR1)
        return make(self, threads)

    monkeypatch.setattr(program.Program, "_make_binding", slowly)
    old = signal.signal(signal.SIGUSR1, lambda *_: results.append(function(x)))
    try:
        np.testing.assert_array_equal(function(x), x + 41)
    finally:
        signal.signal(signal.SIGUSR1, old)
    np.testing.assert_array_equal(results[1], x + 41)


def test_a_child_that_is_forked_while_others_compile_can_compile() -> None:
    x = np.ones((16, 8), np.float32)
    stop = False

    def compile_on() -> None:
        number = 0
        while not stop:
            number += 1
            tw.jit(lambda x, n=number: tw.sum(x * float(n), axis=1) + n)(x)

    with tw.options(cache=False):
        threads = [threading.Thread(target=compile_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(6):
                time.sleep(0.02 + 0.017 * number)
                child = os.fork()
                if child == 0:
                    got = tw.jit(lambda x: tw.sum(x * 3, axis=1))(x)
                    os._exit(0 if got[0] == 24 else 7)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop = True
            for thread in threads:
                thread.join()

"""Processes that measure: their threads are limited before any library is loaded, and the process that started them
handles Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.cli.bench_worker import Request

# Ctrl-C at a terminal reaches the whole process group; the process that asks decides what it means.
_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from {module} import main
sys.exit(main())
"""
_STOP_S = 5.0
_AFTER_FINALIZER_S = 0.01
# Read by the libraries when they are loaded, which is why the measuring happens in a process of its own.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def command(module: str, request: Request) -> list[str]:
    """The command of a process that runs `main` of a module for a request, its first argument."""
    import msgspec

    return [sys.executable, "-c", _PROGRAM.format(module=module), msgspec.json.encode(request).decode()]


def environment(request: Request) -> Mapping[str, str]:
    """The variables of the process: the options of this one, and the threads of every library."""
    from tilewright.options import current, specs

    settings = {spec.variable: _variable_text(getattr(current(), spec.name)) for spec in specs()}
    return os.environ | settings | dict.fromkeys(_THREAD_VARIABLES, str(request.threads))


def take_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again in a process that measures, once it has imported what it needs. Python
    drops an exception in a finalizer: the interrupt is then raised again after it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _raise_after_finalizer


def _raise_after_finalizer(dropped: sys.UnraisableHookArgs) -> None:
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        # By another thread, a moment later: a signal that arrives here is dropped as well.
        threading.Timer(_AFTER_FINALIZER_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


@contextmanager
def interrupts_held() -> Generator[None]:
    """Let Ctrl-C wait, on the main thread, until what is done is done: a process that is being started is not known
    yet, so that nothing could end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if came:
        signal.raise_signal(signal.SIGINT)


def stop(worker: subprocess.Popen[bytes]) -> None:
    """End a process, which ends its own processes first if it can."""
    worker.send_signal(signal.SIGINT)
    try:
        worker.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()  # `Popen` as a context does not wait for long after a Ctrl-C


def _variable_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return "" if value is None else str(value)

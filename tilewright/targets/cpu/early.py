"""Work that a compilation needs whatever the program, done by a thread while the IR of the program is made: loading
LLVM, and compiling the support object."""

from __future__ import annotations

import _thread
import atexit
import contextlib

from tilewright.locks import Lock
from tilewright.machines.machine import Machine

_started: set[str] = set()  # architectures
_running = Lock()


def start(machine: Machine) -> None:
    """Start the work for a machine, once for each architecture. Without a thread it is done when it is needed.

    `threading.Thread.start` would wait forever for a thread that ends before it runs, for lack of memory.
    """
    if machine.architecture in _started:
        return
    _started.add(machine.architecture)
    with contextlib.suppress(RuntimeError, MemoryError):
        _thread.start_new_thread(_run, (machine,))


def _run(machine: Machine) -> None:
    # Whoever needs the object does the work again and gets the error.
    with _running, contextlib.suppress(Exception):
        # Imported by this thread: loading LLVM is part of the work.
        from tilewright.targets.cpu.codegen import triple_of
        from tilewright.targets.cpu.support import support_object

        support_object(triple_of(machine))


def _finish() -> None:
    """Wait for the thread: LLVM must not work while its library is unloaded."""
    with _running:
        pass


atexit.register(_finish)

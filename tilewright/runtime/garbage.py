"""When Python looks for garbage."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tilewright.locks import Lock

_lock = Lock()
# One entry for each time that a thread is within.
_within: list[int] = []
_was_enabled = False
_modules_before = 0
# Importing as many makes far more objects than the work that needs them.
_MANY_MODULES = 50


@contextmanager
def no_collections() -> Generator[None]:
    """Work that makes very many objects and drops them all at its end, and during which looking for garbage, in all
    that the process holds, would find none. Threads may be within at the same time: the first one in stops
    collections, the last one out lets them be as they were. Objects of modules that the work imported become old ones:
    they would be looked at for nothing."""
    global _was_enabled, _modules_before
    thread = threading.get_ident()
    with _lock:
        if not _within:
            _was_enabled, _modules_before = gc.isenabled(), len(sys.modules)
            gc.disable()
        _within.append(thread)
    try:
        yield
    finally:
        with _lock:
            _within.remove(thread)
            _resume()


def _resume() -> None:
    if _within or not _was_enabled:
        return
    if len(sys.modules) - _modules_before >= _MANY_MODULES and gc.get_freeze_count() == 0:
        # Frozen objects thaw as the oldest, in no time; they are left alone where the process has frozen some itself.
        gc.freeze()
        gc.unfreeze()
    gc.enable()


def _forget_other_threads() -> None:
    """A forked child has only the thread that forked."""
    others = [thread for thread in _within if thread != threading.get_ident()]
    if others:
        _within[:] = [thread for thread in _within if thread not in others]
        _resume()


os.register_at_fork(after_in_child=_forget_other_threads)

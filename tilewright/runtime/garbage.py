"""When Python looks for garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0
_was_enabled = False


@contextmanager
def no_collections() -> Generator[None]:
    """Work that makes very many objects and drops them all at its end, and during which looking for garbage, in all
    that the process holds, would find none. Threads may be within at the same time: the first one in stops
    collections, the last one out lets them be as they were."""
    global _within, _was_enabled
    with _lock:
        if _within == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and _was_enabled:
                gc.enable()

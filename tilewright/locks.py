"""Locks that survive what a plain lock does not: a signal handler that comes back to the same code, and a fork while
another thread holds them. A fork waits for modules that other threads are importing, too."""

from __future__ import annotations

import _imp
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

# A fork goes ahead after this time: what another thread imports may wait for the thread that forks.
_IMPORTS_PATIENCE_S = 5.0
# Of one attempt to get one barrier; then all are given back.
_BARRIER_TIMEOUT_S = 0.01


class Lock:
    """A re-entrant lock that is free in a forked child, unless the thread that forked holds it.

    The guarded state must be consistent whenever the thread that holds the lock may be interrupted: a signal handler,
    or a finaliser, may enter while the thread is within.
    """

    def __init__(self) -> None:
        self._inner = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        _locks.add(self)

    def __enter__(self) -> None:
        self._inner.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
        self._inner.release()

    def after_fork(self) -> None:
        """Free the lock in a child that lacks the thread which held it."""
        if self._owner != threading.get_ident():
            self._inner = threading.RLock()
            self._owner = None
            self._depth = 0


class ForkBarrier:
    """A re-entrant lock that a fork waits for: libraries that keep locks of their own must not be forked within."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _barriers.append(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


_barriers: list[ForkBarrier] = []
_held_over_fork: list[ForkBarrier] = []
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _locks:
        lock.after_fork()


os.register_at_fork(after_in_child=_free_all)


# ---- what a fork waits for ------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """Acquire all fork barriers and the import lock, once no other thread holds a barrier or imports a module.

    Python does not free the lock of a module in a child that lacks the thread which imports it: the child would wait
    for that module for ever. All barriers are released while one is contended: the thread that holds it may be
    about to acquire another, for example in a signal handler.
    """
    deadline = None
    while True:
        held = _acquired_barriers()
        if len(held) == len(_barriers):
            deadline = deadline or time.monotonic() + _IMPORTS_PATIENCE_S
            _imp.acquire_lock()
            if not _others_import() or time.monotonic() > deadline:
                _held_over_fork[:] = held
                return
            _imp.release_lock()
        _release(held)
        time.sleep(0.0005)


def _after_fork() -> None:
    _imp.release_lock()
    _release(_held_over_fork)


def _acquired_barriers() -> list[ForkBarrier]:
    """All barriers, or those before one that another thread keeps."""
    held: list[ForkBarrier] = []
    for barrier in _barriers:
        if not barrier.lock.acquire(timeout=_BARRIER_TIMEOUT_S):
            break
        held.append(barrier)
    return held


def _release(held: list[ForkBarrier]) -> None:
    for barrier in held:
        barrier.lock.release()


def _others_import() -> bool:
    """Whether another thread holds the import lock of a module; False if this version of Python hides it."""
    bootstrap: Any = importlib.import_module("importlib._bootstrap")
    locks: Mapping[str, Callable[[], Any]] = getattr(bootstrap, "_module_locks", {})
    owners = {getattr(reference(), "owner", None) for reference in [*locks.values()]}
    return bool(owners - {None, threading.get_ident()})


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

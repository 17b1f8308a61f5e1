"""Locks that survive what a plain lock does not: a signal handler that comes back to the same code, and a fork while
another thread holds them. A fork waits for modules that other threads are importing, too."""

from __future__ import annotations

import _imp
import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

Reentrant: TypeAlias = Any  # a `threading.RLock`, which is no class

# A fork goes ahead after this time: what another thread imports may wait for the thread that forks.
_IMPORTS_PATIENCE_S = 1.0
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
_held_over_fork: list[Reentrant] = []
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _locks:
        lock.after_fork()


os.register_at_fork(after_in_child=_free_all)


# ---- what a fork waits for ------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """Acquire all fork barriers and the import lock, once no other thread holds a barrier or imports a module.

    Python does not free the lock of a module in a child that lacks the thread which imports it: the child would wait
    for that module for ever. It imports one anew that is not ready after all. All barriers are released while one is
    contended: the thread that holds it may be about to acquire another, for example in a signal handler.
    """
    deadline = None
    owned = _give_back_logging()
    while True:
        held = _acquired_barriers()
        if held is not None:
            deadline = deadline or time.monotonic() + _IMPORTS_PATIENCE_S
            _imp.acquire_lock()
            if not _imported_by_others() or time.monotonic() > deadline:
                for _ in range(owned):
                    held[-1].acquire()
                _held_over_fork[:] = held
                return
            _imp.release_lock()
            _release(held)
        time.sleep(0.0005)


def _after_fork() -> None:
    _imp.release_lock()
    _release(_held_over_fork)


def _after_fork_in_child() -> None:
    _after_fork()
    bootstrap = _bootstrap()
    for name in _imported_by_others():
        getattr(bootstrap, "_module_locks", {}).pop(name, None)
        sys.modules.pop(name, None)
    waiting = getattr(bootstrap, "_blocking_on", {})
    for thread in waiting.keys() - {threading.get_ident()}:
        del waiting[thread]


def _logging_lock() -> Reentrant:
    """The lock of the module `logging`, which that holds over a fork, too, and which modules wait for that get a logger
    when they are imported; None where it is not loaded."""
    return getattr(sys.modules.get("logging"), "_lock", None)


def _give_back_logging() -> int:
    """Release the lock of `logging`, whose own function before a fork may have run already; gives how often."""
    lock, count = _logging_lock(), 0
    while lock is not None and lock._is_owned():
        lock.release()
        count += 1
    return count


def _acquired_barriers() -> list[Reentrant] | None:
    """The locks of all barriers and of `logging`; none of them where another thread keeps one."""
    held: list[Reentrant] = []
    logging_lock = _logging_lock()
    for lock in [*(barrier.lock for barrier in _barriers), *([] if logging_lock is None else [logging_lock])]:
        if not lock.acquire(timeout=_BARRIER_TIMEOUT_S):
            _release(held)
            return None
        held.append(lock)
    return held


def _release(held: list[Reentrant]) -> None:
    for lock in held:
        # In a child `logging` may have freed its lock already.
        if lock._is_owned():
            lock.release()


def _bootstrap() -> ModuleType:
    return importlib.import_module("importlib._bootstrap")


def _imported_by_others() -> list[str]:
    """The modules whose import locks other threads hold; none if this version of Python hides it."""
    locks: Mapping[str, Callable[[], Any]] = getattr(_bootstrap(), "_module_locks", {})
    owners = {name: getattr(reference(), "owner", None) for name, reference in [*locks.items()]}
    return [name for name, owner in owners.items() if owner not in (None, threading.get_ident())]


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)

"""Locks that survive what a plain lock does not: a signal handler that comes back to the same code, and a fork while
another thread holds them."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A re-entrant lock that is free in a forked child, unless the thread that forked holds it.

    What it guards must be right whenever the thread that holds it may be interrupted: a signal handler, or a finaliser,
    may enter while the thread is within.
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
        self._inner = threading.RLock()
        os.register_at_fork(
            before=self._inner.acquire, after_in_parent=self._inner.release, after_in_child=self._inner.release
        )

    def __enter__(self) -> None:
        self._inner.acquire()

    def __exit__(self, *_: object) -> None:
        self._inner.release()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _locks:
        lock.after_fork()


os.register_at_fork(after_in_child=_free_all)

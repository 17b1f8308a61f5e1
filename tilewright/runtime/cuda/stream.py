"""Which stream a call of a program for a GPU uses: the caller's, or one of our own.

with tw.stream(torch.cuda.current_stream()):
    y = f(x)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tilewright.errors import ArgumentError, user_location

if TYPE_CHECKING:
    from tilewright.runtime.cuda.driver import Driver

LEGACY_DEFAULT = 1
"""`CU_STREAM_LEGACY`, which DLPack calls it too. The handle 0 means it as well, or else the thread's default stream."""


class Stream(msgspec.Struct, frozen=True):
    """A stream's handle. `owner` keeps it alive; `is_own` if no other library knows it."""

    handle: int
    owner: object = None
    is_own: bool = False


def stream_of(given: object) -> Stream:
    """A stream of torch, CuPy or cuda.core, or the driver's handle of one as an integer.

    Raises:
        ArgumentError: it is none of these.
    """
    if isinstance(given, Stream):
        return given
    handle = _handle(given)
    if handle is None:
        message = f"{given!r} is not a CUDA stream"
        help = "pass a stream of torch, CuPy or cuda.core, or the driver's handle of one as an integer"
        raise ArgumentError(message, location=user_location(), help=help)
    return Stream(handle or LEGACY_DEFAULT, given)


def _handle(given: Any) -> int | None:
    if isinstance(given, int):
        return None if isinstance(given, bool) or given < 0 else given
    if hasattr(given, "__cuda_stream__"):
        return int(given.__cuda_stream__()[1])
    # torch, then CuPy.
    found = [getattr(given, name) for name in ("cuda_stream", "ptr") if isinstance(getattr(given, name, None), int)]
    return found[0] if found else None


_chosen: ContextVar[Stream | None] = ContextVar("tilewright_stream", default=None)


def chosen_stream() -> Stream | None:
    """That of the innermost `stream` block; None outside of all."""
    return _chosen.get()


@contextlib.contextmanager
def stream(chosen: object) -> Generator[None]:
    """Programs for GPUs are launched on this stream inside: they follow what is on it, and a call whose arrays are all
    on the device returns before it is done. `chosen` is a stream of torch, CuPy or cuda.core, or the driver's handle of
    one as an integer; with None, streams are chosen as outside of all such blocks.

    Raises:
        ArgumentError: it is no stream.
    """
    token = _chosen.set(None if chosen is None else stream_of(chosen))
    try:
        yield
    finally:
        _chosen.reset(token)


class _Borrowed:
    """The streams of our own that a thread uses. They go back when it ends, and are never closed: memory that was
    allocated on one is given back on it. `idle` are those of threads that have ended."""

    idle: ClassVar[dict[tuple[Driver, int], list[Stream]]] = {}

    def __init__(self) -> None:
        self.streams: dict[tuple[Driver, int], Stream] = {}

    def __del__(self) -> None:
        for key, each in self.streams.items():
            self.idle.setdefault(key, []).append(each)


_of_thread = threading.local()


def own_stream(driver: Driver, ordinal: int) -> Stream:
    """This thread's own stream on a device, whose context is current."""
    if not hasattr(_of_thread, "borrowed"):
        _of_thread.borrowed = _Borrowed()
    streams = _of_thread.borrowed.streams
    key = (driver, ordinal)
    if key not in streams:
        try:
            streams[key] = _Borrowed.idle.get(key, []).pop()
        except IndexError:
            streams[key] = Stream(driver.new_stream(), None, is_own=True)
    return streams[key]


_capture = threading.Lock()
_deferred: list[Callable[[], None]] = []


@contextlib.contextmanager
def capturing() -> Generator[None]:
    """A graph is captured inside: finalisers, which may run at any time and wait for a device, wait until it is."""
    with _capture:
        yield
    _do_deferred()


def when_not_capturing(action: Callable[[], None]) -> None:
    """Do something now, or when the capture that is under way is done."""
    if not _capture.acquire(blocking=False):
        _deferred.append(action)
        _do_deferred()  # the capture may have ended meanwhile
        return
    try:
        action()
    finally:
        _capture.release()
    if _deferred:  # by finalisers that ran inside
        _do_deferred()


def _do_deferred() -> None:
    while _deferred and _capture.acquire(blocking=False):
        try:
            with contextlib.suppress(IndexError):  # another thread was quicker
                _deferred.pop()()
        finally:
            _capture.release()

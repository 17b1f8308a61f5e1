"""Structured events: what the compiler and the runtime did, as records.

`emit("cache.hit", key=key)` reaches whoever listens: the file of the option `events_file` (one JSON object a line),
the captures of tests, and, when the option `debug` is at least the event's level, stderr. With no listener it costs one
look at the options.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import msgspec

from tilewright.errors import OptionError
from tilewright.locks import Lock
from tilewright.options import Options, current

_captures: list[list[dict[str, object]]] = []
_captures_lock = Lock()
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def listening(level: int = 1) -> bool:
    """Whether an event of this level would reach anyone: ask before building a costly record, such as printed IR."""
    return _has_listener(current(), level)


def capturing() -> bool:
    """Whether some block captures events."""
    return bool(_captures)


def _has_listener(options: Options, level: int) -> bool:
    return options.debug >= level or bool(_captures) or options.events_file is not None


def emit(kind: str, /, *, level: int = 1, **fields: object) -> None:
    """Record one event.

    `kind` is `area.what`; `level` is the rung of the `debug` ladder that prints it; a field called `text` is printed as
    a block under the line. Fields that JSON has no form for are written with `str`.

    Raises:
        OptionError: the file of the option `events_file` cannot be written.
    """
    options = current()
    if not _has_listener(options, level):
        return
    record: dict[str, object] = {"kind": kind, "time_s": time.time(), "pid": os.getpid(), **fields}
    for capture_list in list(_captures):
        capture_list.append(record)
    if options.events_file is not None:
        _append(options.events_file, record)
    # A process without a console may have no stderr.
    if options.debug >= level and sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(_line(kind, fields, _colored(options)))


@contextlib.contextmanager
def capture() -> Generator[list[dict[str, object]]]:
    """Collect every event that any thread emits inside the block; the list fills as they come."""
    records: list[dict[str, object]] = []
    with _captures_lock:
        _captures.append(records)
    try:
        yield records
    finally:
        with _captures_lock:
            _captures[:] = [other for other in _captures if other is not records]


def _append(path: Path, record: dict[str, object]) -> None:
    line = msgspec.json.encode(record, enc_hook=str) + b"\n"
    try:
        # One unbuffered write in append mode: lines of several processes do not mix.
        with open(path, "ab", buffering=0) as file:
            file.write(line)
    except OSError as error:
        raise OptionError(
            f"`events_file` is {str(path)!r}, which cannot be written: {error.strerror}",
            help="give a file in a directory that exists and is writable",
        ) from error


def _colored(options: Options) -> bool:
    if options.color == "auto":
        return sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return options.color == "always"


def _line(kind: str, fields: dict[str, object], colored: bool) -> str:
    bold, dim, plain = (_BOLD, _DIM, _PLAIN) if colored else ("", "", "")
    shown = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if name != "text")
    line = f"{dim}[tw]{plain} {bold}{kind}{plain}{' ' if shown else ''}{shown}\n"
    block = str(fields.get("text", "")).rstrip("\n")
    return f"{line}{block}\n" if block else line


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

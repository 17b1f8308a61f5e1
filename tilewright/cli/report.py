"""The result of a command: one document for machines and one way to show it to people."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

_FILE_WIDTH = 200

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Report:
    """`document` is printed with `--json`; otherwise `show` is called, if the verb has not shown all itself."""

    document: Mapping[str, Any]
    show: Callable[[Console], None] | None
    exit_code: int = 0


def encode(document: Mapping[str, object]) -> str:
    """The document as indented JSON text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2).decode()


def _plain(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON form for {type(value).__name__}")


def make_console(color: str, *, stderr: bool = False) -> Console:
    """A console on stdout or stderr that obeys the option `color`."""
    from rich.console import Console

    forced = {"always": True, "never": False}.get(color)
    plain = forced is False or (forced is None and "NO_COLOR" in os.environ)
    console = Console(stderr=stderr, force_terminal=True if forced else None, no_color=plain, highlight=False)
    # A file or a pipe has no width: tables must not be cut to that of a terminal.
    return console if console.is_terminal else Console(stderr=stderr, width=_FILE_WIDTH, highlight=False)


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is text and whose other columns are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    return table


def show_pairs(console: Console, pairs: Mapping[str, object]) -> None:
    """Aligned `name  value` lines, without markup and never wrapped."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        console.print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)


def seconds_text(seconds: float | None) -> str:
    """A duration in the unit that suits it; a dash for None."""
    if seconds is None:
        return "-"
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s"


def bytes_text(nbytes: float) -> str:
    """A size in the binary unit that suits it."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"

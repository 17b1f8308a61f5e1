"""Layouts that tiles can be pinned to: `tw.layout(x, tw.layouts.wgmma_accumulator((64, 64)))`.

The catalogue of what hardware fixes (`docs/reference/layouts.md`), and constructors of others. Names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The names for editors and type checkers.
    from tilewright.layout import Layout as Layout
    from tilewright.layout import blocked as blocked
    from tilewright.layout import column_major as column_major
    from tilewright.layout import distributed as distributed
    from tilewright.layout import panels as panels
    from tilewright.layout import row_major as row_major
    from tilewright.layout import strided as strided
    from tilewright.layout.catalogue import *  # noqa: F403

_GENERAL = ("Layout", "blocked", "column_major", "distributed", "panels", "row_major", "strided")


def __getattr__(name: str) -> Any:
    if name in _GENERAL:
        value = getattr(import_module("tilewright.layout"), name)
    elif not name.startswith("_") and name in _catalogue():
        value = getattr(import_module("tilewright.layout.catalogue"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _catalogue() -> list[str]:
    return import_module("tilewright.layout.catalogue").__all__


def __dir__() -> list[str]:
    return sorted((*_GENERAL, *_catalogue()))

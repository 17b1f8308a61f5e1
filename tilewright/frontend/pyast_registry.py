"""Which public function means which handler inside kernels.

The layer above registers its functions (`tw.exp`, `tw.sum`, ...), so that kernels recognise them by identity however
they were imported.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tilewright.frontend.pyast_source import is_ours, plain_function
from tilewright.frontend.references import references

_BY_IDENTITY: dict[int, tuple[Any, str]] = {}


def register(function: object, name: str) -> None:
    """Make a public function mean the handler `name` of `pyast_functions`."""
    _BY_IDENTITY[id(function)] = (function, name)


def handler_of(value: object) -> str | None:
    """The handler that a value called in a kernel stands for."""
    found = _BY_IDENTITY.get(id(value))
    return None if found is None else found[1]


def registered_names() -> list[str]:
    """All handlers that a public function stands for."""
    return sorted({name for _, name in _BY_IDENTITY.values()})


def uses_tiles(helper: FunctionType, seen: frozenset[FunctionType] = frozenset()) -> bool:
    """Whether a helper calls functions of kernels, itself or through others; it must then be compiled, not run."""
    if helper in seen or is_ours(helper):
        return False
    for value in references(helper).values():
        if handler_of(value) is not None:
            return True
        inner = plain_function(value)
        if inner is not None and uses_tiles(inner, seen | {helper}):
            return True
    return False

"""Global and closure variables that a function's code reads, by its bytecode: a local variable is never mistaken for a
global of the same name."""

from __future__ import annotations

import dis
import functools
from types import CodeType, FunctionType, ModuleType
from typing import Any

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_IGNORED = frozenset({"EXTENDED_ARG", "CACHE", "PUSH_NULL"})
_MISSING = object()

Path = tuple[str, ...]


def references(function: FunctionType) -> dict[str, Any]:
    """The values of the free names that a function's code reads, code of functions inside it included. Attributes of
    modules, and of objects whose attribute is all that is read, are followed: `tw.f32`, `config.block`.

    A name that is not defined, and an attribute that is missing, are left out.
    """
    known = free_names(function)
    found: dict[str, Any] = {}
    for path in paths(function.__code__):
        if path[0].startswith("@"):
            # No source spells such a name: pytest adds it for the assertions that it rewrites.
            continue
        value, taken = known.get(path[0], _MISSING), 1
        while value is not _MISSING and taken < len(path):
            inner = getattr(value, path[taken], _MISSING)
            if inner is _MISSING:
                break
            value, taken = inner, taken + 1
        if value is not _MISSING:
            found[".".join(path[:taken])] = value
    return found


def free_names(function: FunctionType) -> dict[str, Any]:
    """Everything that a free name may mean: closure over globals over builtins."""
    builtins = function.__globals__.get("__builtins__", {})
    base = vars(builtins) if isinstance(builtins, ModuleType) else builtins
    return {**base, **function.__globals__, **closure(function)}


def closure(function: FunctionType) -> dict[str, Any]:
    """The enclosing functions' variables that are bound."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


@functools.lru_cache(maxsize=2048)
def paths(code: CodeType) -> frozenset[Path]:
    """The free names that code reads, with the attributes that are read of each at once."""
    found: set[Path] = set()
    path: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _IGNORED:
            continue
        if path and instruction.opname in _ATTRIBUTES:
            path.append(str(instruction.argval))
            continue
        if path:
            found.add(tuple(path))
        is_free = instruction.opname in _GLOBALS or (
            instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and instruction.argval in code.co_freevars
        )
        path = [str(instruction.argval)] if is_free else []
    if path:
        found.add(tuple(path))
    own = frozenset((*code.co_cellvars, *code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # What an inner function takes from this one's variables is no free name here.
            found |= {p for p in paths(constant) if p[0] not in constant.co_freevars or p[0] not in own}
    return frozenset(found)

"""The source of a kernel: its syntax tree with locations, what its free names mean, and a digest of both.

The digest stands for everything that the kernel's IR depends on, so that a cached program is found without building IR.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from tilewright.errors import KernelSignatureError, SourceLocation

_MISSING = object()
_PROCESS = os.urandom(8).hex()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """One Python function: its tree, whose line numbers count from `first_line`, and the text that it was read from."""

    function: Any  # a FunctionType, which a type checker would take for a method here
    node: ast.FunctionDef
    file: str
    first_line: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.function.__name__

    def location(self, node: ast.AST) -> SourceLocation:
        """Where a node of the tree is in the user's file."""
        line, column = getattr(node, "lineno", self.node.lineno), getattr(node, "col_offset", self.node.col_offset)
        end_line, end_column = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", 0)
        end = self._characters(line, end_column) + 1 if end_line == line else 0
        return SourceLocation(self.file, self.first_line + line - 1, self._characters(line, column) + 1, end)

    def _characters(self, line: int, byte_column: int) -> int:
        """The tree counts bytes of UTF-8; a caret counts characters."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="replace"))

    def closure(self) -> dict[str, Any]:
        """The enclosing functions' variables that are bound."""
        found: dict[str, Any] = {}
        names = self.function.__code__.co_freevars
        for name, cell in zip(names, self.function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return found

    def free_names(self) -> dict[str, Any]:
        """Everything that a free name may mean: closure over globals over builtins."""
        builtins = self.function.__globals__.get("__builtins__", {})
        base = vars(builtins) if isinstance(builtins, ModuleType) else builtins
        return {**base, **self.function.__globals__, **self.closure()}


@functools.lru_cache(maxsize=512)
def source_of(function: FunctionType) -> FunctionSource:
    """Read the source of a function.

    Raises:
        KernelSignatureError: it has none (typed at a bare prompt), or it is a lambda.
    """
    if function.__name__ == "<lambda>":
        raise KernelSignatureError("a lambda cannot be compiled", help="write the function with `def`")
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        message = f"the source of `{function.__name__}` cannot be read"
        raise KernelSignatureError(message, help="define the function in a file or in a notebook cell") from None
    text = "".join(lines)
    if text[:1].isspace():
        # A nested function: one line above keeps its columns what they are in the file.
        text, first_line = "if True:\n" + text, first_line - 1
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == function.__name__]
    if not nodes:
        message = f"`{function.__name__}` is not written as a plain `def`"
        raise KernelSignatureError(message, help="write the function with `def`, without `async`")
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    return FunctionSource(function, nodes[0], file, first_line, tuple(text.splitlines()))


# ---- digest ---------------------------------------------------------------------------------------------------------


def source_digest(function: FunctionType) -> str:
    """A digest of a function's text and of all that its free names mean, helper functions included."""
    hasher = hashlib.blake2b(digest_size=16)
    for line in _described(function, set()):
        hasher.update(line.encode() + b"\n")
    return hasher.hexdigest()


def value_digest(value: Any) -> str:
    """A digest of a compile-time value; functions count by their text."""
    hasher = hashlib.blake2b(_description(value).encode(), digest_size=16)
    if (helper := plain_function(value)) is not None and not is_ours(helper):
        hasher.update(source_digest(helper).encode())
    return hasher.hexdigest()


def _described(function: FunctionType, seen: set[FunctionType]) -> Iterator[str]:
    if function in seen:
        return
    seen.add(function)
    source = source_of(function)
    yield ast.dump(source.node)
    yield repr(function.__defaults__)
    yield repr(function.__kwdefaults__)
    for path, value in sorted(free_values(source).items()):
        yield f"{path} = {_description(value)}"
        if (helper := plain_function(value)) is not None and not is_ours(helper):
            yield from _described(helper, seen)


def free_values(source: FunctionSource) -> dict[str, Any]:
    """Values of the free names and attribute chains in a function's body, as `tw.f32` or `BLOCK`."""
    known = source.free_names()
    found: dict[str, Any] = {}
    for statement in source.node.body:
        for node in ast.walk(statement):
            path = _path(node)
            if path is None or (value := _resolve(known, path)) is _MISSING:
                continue
            found[".".join(path)] = value
    return found


def _path(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (base := _path(node.value)) is not None:
        return (*base, node.attr)
    return None


def _resolve(known: dict[str, Any], path: tuple[str, ...]) -> Any:
    value = known.get(path[0], _MISSING)
    for name in path[1:]:
        value = getattr(value, name, _MISSING)
    return value


def plain_function(value: Any) -> FunctionType | None:
    """The Python function behind a value that a kernel may call: itself, or what a wrapper of ours holds."""
    inner = getattr(value, "__wrapped__", value)
    return inner if isinstance(inner, FunctionType) else None


def is_ours(function: FunctionType) -> bool:
    """Whether a function is of this package."""
    # What is made by `exec` may be of no module.
    return (function.__module__ or "").split(".")[0] == "tilewright"


def _description(value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    function = plain_function(value)
    if function is not None or isinstance(value, BuiltinFunctionType):
        named = function or value
        return f"function {named.__module__}.{named.__qualname__}"
    name = type(value).__name__
    if isinstance(value, tuple | list):
        parts: list[Any] = [*value]
        return f"{name}({', '.join(map(_description, parts))})"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    text = repr(value)
    if " at 0x" in text:
        # An address says nothing in another process.
        text = f"{_PROCESS} {id(value)}"
    return text if isinstance(value, _PLAIN) else f"{kind} {text}"

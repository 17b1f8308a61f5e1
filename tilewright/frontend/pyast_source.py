"""The source of a kernel: its syntax tree with locations, proven to be the source of the code that Python runs."""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from tilewright.errors import KernelSignatureError, SourceLocation
from tilewright.frontend.identity import static_key
from tilewright.frontend.references import free_names

_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0
)
# What a code object does; where it was read from is left out.
_CODE_FIELDS = (
    "co_code",
    "co_exceptiontable",
    "co_flags",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
)


class FunctionSource(msgspec.Struct, frozen=True, eq=False):
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
        """The location of a syntax node in the user's file."""
        line, column = getattr(node, "lineno", self.node.lineno), getattr(node, "col_offset", self.node.col_offset)
        end_line, end_column = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", 0)
        end = self._characters(line, end_column) + 1 if end_line == line else 0
        return SourceLocation(self.file, self.first_line + line - 1, self._characters(line, column) + 1, end)

    def _characters(self, line: int, byte_column: int) -> int:
        """The tree counts bytes of UTF-8; a caret counts characters."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="replace"))

    def free_names(self) -> dict[str, Any]:
        """Everything that a free name may mean: closure over globals over builtins."""
        return free_names(self.function)


@functools.lru_cache(maxsize=512)
def source_of(function: FunctionType) -> FunctionSource:
    """Read the source of a function, and compare it with the code that Python runs.

    Raises:
        KernelSignatureError: it has none (typed at a bare prompt), it is a lambda, a decorator has wrapped it, or its
            file has changed since it was imported.
    """
    name = function.__name__
    if name == "<lambda>":
        raise KernelSignatureError("a lambda cannot be compiled", help="write the function with `def`")
    if "__wrapped__" in vars(function):
        message = f"a decorator has wrapped `{name}` in `{function.__code__.co_qualname}`, which would be left out"
        raise KernelSignatureError(message, help="remove the decorator, or put it above `@tw.kernel`")
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError):
        message = f"the source of `{name}` cannot be read"
        raise KernelSignatureError(message, help="define the function in a file or in a notebook cell") from None
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    code = function.__code__
    texts = ("".join(lines), *_alone(lines, function))
    node = next((found for text in texts if (found := _definition(code, text, file)) is not None), None)
    if node is None:
        message = f"the source of `{name}` in `{file}` is not the code that Python runs: the file has changed"
        raise KernelSignatureError(message, help="import the module again, in a new process")
    if not isinstance(node, ast.FunctionDef):
        message = f"`{name}` is not written as a plain `def`"
        raise KernelSignatureError(message, help="write the function with `def`, without `async`")
    return FunctionSource(function, node, file, 1, tuple(line.rstrip("\r\n") for line in lines))


class _Parsed(msgspec.Struct, frozen=True, eq=False):
    """The functions of a file: their definitions by name and first line, their code by name."""

    definitions: dict[tuple[str, int], ast.AST]
    codes: dict[str, list[CodeType]]


@functools.lru_cache(maxsize=32)
def _parsed(text: str, file: str, flags: int) -> _Parsed | None:
    """The functions of a file, found once for all of them; None where it cannot be compiled."""
    try:
        flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(text, file, "exec", flags=flags, dont_inherit=True)
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError):
        return None
    definitions: dict[tuple[str, int], ast.AST] = {
        (node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    codes: dict[str, list[CodeType]] = {}
    for inner in _codes(code):
        codes.setdefault(inner.co_name, []).append(inner)
    return _Parsed(definitions, codes)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _alone(lines: list[str], function: FunctionType) -> Iterator[str]:
    """Texts that hold a function alone, at its lines, for files that are not Python as a whole, such as a page of
    documentation. The line above makes it a nested function where it is one; the first line imports modules, since
    Python compiles a call of an imported module's function in another way."""
    code = function.__code__
    first = code.co_firstlineno - 1
    if first >= len(lines):
        return
    above = [""] * first
    if lines[first][:1].isspace() and first > 0:
        above[-1] = f"def around({', '.join(code.co_freevars)}):" if code.co_flags & inspect.CO_NESTED else "if True:"
    block = "".join(inspect.getblock(lines[first:]))
    modules = [name for name in code.co_names if isinstance(function.__globals__.get(name), ModuleType)]
    if modules and above and not above[0]:
        yield "\n".join([f"import {', '.join(modules)}", *above[1:], block])
    yield "\n".join([*above, block])


def _definition(code: CodeType, text: str, file: str) -> ast.AST | None:
    """The definition in a text that compiles to code; the nearest, where several do. None where none does."""
    parsed = _parsed(text, file, code.co_flags & _FUTURES)
    if parsed is None:
        return None
    # Of equal functions it does not matter which one is read, but for what errors show.
    named = parsed.codes.get(code.co_name, [])
    distance = {other: abs(other.co_firstlineno - code.co_firstlineno) for other in named}
    for other in sorted(named, key=lambda other: (other.co_qualname != code.co_qualname, distance[other])):
        node = parsed.definitions.get((other.co_name, other.co_firstlineno))
        if node is not None and (is_same_code(other, code) or _has_rewritten_assertions(node, other, code)):
            return node
    return None


def is_same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, wherever they were read from."""
    if any(getattr(one, name) != getattr(other, name) for name in _CODE_FIELDS):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        both = isinstance(a, CodeType) and isinstance(b, CodeType)
        if not (is_same_code(a, b) if both else static_key(a) == static_key(b)):
            return False
    return True


def _has_rewritten_assertions(node: ast.AST, read: CodeType, code: CodeType) -> bool:
    """Whether code differs because pytest has rewritten the `assert` statements of its module when it was imported."""
    return (
        "@py_assert1" in code.co_varnames
        and any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
        and read.co_firstlineno == code.co_firstlineno
        and set(read.co_varnames) <= set(code.co_varnames)
        and set(read.co_names) <= set(code.co_names)
    )


def plain_function(value: object) -> FunctionType | None:
    """The Python function of a value that a kernel may call: itself, or what a function object of ours holds."""
    inner = value if isinstance(value, FunctionType) else getattr(value, "__wrapped__", value)
    return inner if isinstance(inner, FunctionType) else None


def is_ours(function: FunctionType) -> bool:
    """Whether a function is of this package."""
    # What is made by `exec` may be of no module.
    return (function.__module__ or "").split(".")[0] == "tilewright"

"""Finding what a command line names: `FILE::NAME`, the arguments to compile it for, and inputs to run it on."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.errors import ArgumentError, TilewrightError, UnknownNameError
from tilewright.records import dataclass

if TYPE_CHECKING:
    import numpy as np

    from tilewright.api.stages import ShapeDtype

_ARRAY = re.compile(r"\(([\d\s,_]*)\)\s*:\s*(\w+)")
_ARGUMENTS_HELP = "write it like '(128, 64):f32, (64,):i64, name=4'"


@dataclass(frozen=True)
class Target:
    """A function of a file with the arguments to compile it for."""

    file: Path
    name: str
    function: Any
    positional: tuple[Any, ...]
    named: dict[str, Any]

    def lower(self) -> Any:
        """The function, traced for the arguments.

        Raises:
            TilewrightError: it does not take them, or has a mistake.
        """
        from tilewright.api.jit import JitFunction

        # A kernel checks its arguments by itself: arrays that it writes may be left out.
        if isinstance(self.function, JitFunction):
            _check_call(self.name, self.function, self.positional, self.named)
        return self.function.lower(*self.positional, **self.named)


def _check_call(
    name: str, function: Callable[..., object], positional: Sequence[object], named: Mapping[str, object]
) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        message = f"`{name}{signature}` does not take the arguments: {error}"
        raise ArgumentError(message, help=f"give --args for it; {_ARGUMENTS_HELP}") from None


def find_file(path: Path) -> Path:
    """The path, when it is a file.

    Raises:
        ArgumentError: it is not.
    """
    if path.is_dir():
        raise ArgumentError(f"{str(path)!r} is a directory, not a file", help="give a file in it")
    if path.is_symlink() and not path.exists():
        raise ArgumentError(f"{str(path)!r} is a symbolic link that leads to no file", help="check where it leads")
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{str(path)!r} is a pipe or a device, not a file", help="write it to a file first")
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
        raise ArgumentError(f"there is no file {str(path)!r}", help=hint)
    return path


def _names_in(folder: Path) -> list[str]:
    return [child.name for child in folder.iterdir()] if folder.is_dir() else []


def load_module(path: Path) -> ModuleType:
    """Import a Python file by its path; its folder is importable while it loads.

    Raises:
        ArgumentError: it is no Python file, or importing it fails.
    """
    find_file(path)
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{str(path)!r} is not a Python file", help="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except TilewrightError:
        raise
    except Exception as error:
        message = f"importing {str(path)!r} fails with {type(error).__name__}: {error}"
        raise ArgumentError(message, help="run the file with `python` to see where") from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _module_name(path: Path) -> str:
    return f"tilewright_file_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{zlib.crc32(str(path.resolve()).encode()):08x}"


def find_target(text: str, arguments: str | None) -> Target:
    """The function that `FILE::NAME` names, and the arguments to compile it for: by default the file's
    `EXAMPLE_ARGUMENTS`.

    Raises:
        ArgumentError: the text has another form, the file cannot be imported, or there are no arguments.
        UnknownNameError: the file has no such function.
    """
    file, separator, name = text.rpartition("::")
    if not separator or not file or not name:
        raise ArgumentError(f"{text!r} names no function", help="write it as FILE::NAME")
    module = load_module(Path(file))
    function = _find_function(module, name, file)
    if arguments is not None:
        positional, named = parse_arguments(arguments)
        return Target(Path(file), name, function, positional, named)
    examples = getattr(module, "EXAMPLE_ARGUMENTS", {})
    if name not in examples:
        raise ArgumentError(
            f"{file!r} has no example arguments to compile `{name}` for",
            help="give --args '(128, 64):f32, ...', or define EXAMPLE_ARGUMENTS = {\""
            + name
            + '": (tw.ShapeDtype((128, 64), tw.f32), ...)}',
        )
    return Target(Path(file), name, function, tuple(examples[name]), {})


def _find_function(module: ModuleType, name: str, file: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if hasattr(found, "lower") and callable(found):
        return found
    compilable = [key for key, value in vars(module).items() if hasattr(value, "lower") and callable(value)]
    if found is None:
        near = difflib.get_close_matches(name, compilable, n=1, cutoff=0.5)
        listed = (
            f"it has {', '.join(compilable)}" if compilable else "it has no function with `@tw.jit` or `@tw.kernel`"
        )
        hint = f"did you mean `{near[0]}`?" if near else listed
        raise UnknownNameError(f"{file!r} has nothing called `{name}`", help=hint)
    message = f"`{name}` in {file!r} is a {type(found).__name__}, which cannot be compiled"
    raise ArgumentError(message, help="decorate it with `@tw.jit` or `@tw.kernel`")


def parse_arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments from text such as `(128, 64):f32, [(4,):i64], causal=True`.

    `(SIZES):TYPE` is an array; lists, tuples and dicts hold arrays; all else is a Python literal.

    Raises:
        ArgumentError: the text has another form, or a type does not exist.
    """
    replaced = _ARRAY.sub(lambda found: f'_array(({found[1]}{"," if found[1].strip() else ""}), "{found[2]}")', text)
    replaced = replaced.replace(",,", ",")
    try:
        call = ast.parse(f"_call({replaced})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "they are nested too deep"
        raise ArgumentError(f"the arguments {text!r} cannot be read: {reason}", help=_ARGUMENTS_HELP) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "_call":
        raise ArgumentError(f"the arguments {text!r} cannot be read", help=_ARGUMENTS_HELP)
    positional = tuple(_evaluate(node, text) for node in call.args)
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _unreadable(f"**{ast.unparse(keyword.value)}", text)
        named[keyword.arg] = _evaluate(keyword.value, text)
    return positional, named


def _evaluate(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_array":
        if len(node.args) != 2:
            raise _unreadable(ast.unparse(node), text)
        shape, dtype = (_literal(part, text) for part in node.args)
        return _shape_dtype(shape, dtype)
    if isinstance(node, ast.List):
        return [_evaluate(part, text) for part in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(part, text) for part in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        return {_key(key, text): _evaluate(value, text) for key, value in pairs if key is not None}
    return _literal(node, text)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        raise _unreadable(ast.unparse(node), text) from None


def _key(node: ast.expr, text: str) -> object:
    key = _literal(node, text)
    try:
        hash(key)
    except TypeError:
        raise _unreadable(ast.unparse(node), text) from None
    return key


def _unreadable(part: str, text: str) -> ArgumentError:
    return ArgumentError(f"`{part}` in the arguments {text!r} is no array or literal", help=_ARGUMENTS_HELP)


def _shape_dtype(shape: tuple[int, ...], dtype: str) -> ShapeDtype:
    from tilewright import dtypes
    from tilewright.api.stages import ShapeDtype

    known = {each.name: each for each in dtypes.ALL}
    if dtype not in known:
        raise ArgumentError(f"there is no element type `{dtype}`", help=f"use one of {', '.join(known)}")
    return ShapeDtype(shape, known[dtype])


def random_array(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Reproducible contents: floats from the standard normal distribution, integers and bools 0 or 1."""
    import numpy as np

    from tilewright.dtypes import by_name

    generator = np.random.default_rng(seed)
    kind = by_name(dtype)
    if kind.is_float:
        return generator.standard_normal(shape).astype(kind.numpy)
    return generator.integers(0, 2, shape).astype(kind.numpy)

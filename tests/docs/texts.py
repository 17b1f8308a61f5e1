"""Collects the prose of the project by area: comments of the pipelines, messages, remarks, the command line, pages."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tilewright"
# Pages that are records of findings and measurements rather than documentation.
_RECORDS = {f"docs/internals/{name}.md" for name in ("status", "measured", "notes")}
# Modules whose strings are Python code.
_GENERATORS = {"tilewright/semantics/cores/agent_code.py"}
_ERROR_NAME = re.compile(r"(Error_?|Exception|Bug|Failure|Exhausted|Unavailable)$")
_REMARK_NAMES = {"Remark", "_remark", "remark", "Refused"}
_PRINTING_NAMES = {"print", "out", "make_table", "show_pairs", "rule", "status"}


@dataclass(frozen=True)
class Text:
    """A piece of prose, such as a docstring, with the file and the line where it begins."""

    path: str
    line: int
    text: str


def _source_files(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(folder.rglob("*.py")):
        yield str(file.relative_to(ROOT)), _parsed(file)


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


# ---- docstrings and comments -----------------------------------------------------------------------------------------


def docstrings_of(path: str, tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (docstring := ast.get_docstring(node)) is not None:
            yield Text(path, node.body[0].lineno, docstring)


def comments_of(path: str, source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], token.string.lstrip("# "))


# ---- strings given to calls ------------------------------------------------------------------------------------------


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def strings_in(node: ast.expr, names: Mapping[str, Sequence[ast.expr]]) -> Iterator[tuple[int, str]]:
    """The strings that an expression may evaluate to, with `{}` for the values of an f-string. Names stand for the
    expressions that are assigned to them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from strings_in(node.body, names)
        yield from strings_in(node.orelse, names)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from strings_in(node.left, names)
        yield from strings_in(node.right, names)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from strings_in(value, names)
    elif isinstance(node, ast.Call) and called_name(node) == "str" and node.args:
        yield from strings_in(node.args[0], names)
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from strings_in(element, names)
    elif isinstance(node, ast.Name):
        for value in names.get(node.id, ()):
            yield from strings_in(value, {})


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _assign(names, target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            _assign(names, node.target, node.value)
    return names


def _assign(names: dict[str, list[ast.expr]], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        names.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, part_value in zip(target.elts, value.elts, strict=False):
            _assign(names, part, part_value)


def strings_given(path: str, tree: ast.Module, wanted: Callable[[ast.Call], Sequence[ast.expr]]) -> Iterator[Text]:
    """The strings among the arguments that `wanted` picks of each call; a name is looked up in the outermost function
    or class around the call, and then in the module."""
    constants = _assigned(ast.Module([node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)], []))
    seen: set[tuple[int, str]] = set()
    for scope in tree.body:
        names = constants | _assigned(scope)
        for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
            for argument in wanted(call):
                for found in strings_in(argument, names):
                    if found not in seen:
                        seen.add(found)
                        yield Text(path, *found)


def phrases_in(path: str, tree: ast.Module) -> Iterator[Text]:
    """All strings of a module that have several words and are no docstrings."""
    docstrings = {text.line for text in docstrings_of(path, tree)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts and node.lineno not in docstrings:
            for line, text in strings_in(node, {}):
                if " " in text.strip():
                    yield Text(path, line, text)


def error_arguments(call: ast.Call) -> Sequence[ast.expr]:
    helps = [keyword.value for keyword in call.keywords if keyword.arg == "help"]
    if _ERROR_NAME.search(called_name(call)):
        return [*call.args, *helps]
    return helps


def remark_arguments(call: ast.Call) -> Sequence[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)] if called_name(call) in _REMARK_NAMES else []


def printed_arguments(call: ast.Call) -> Sequence[ast.expr]:
    return call.args if called_name(call) in _PRINTING_NAMES else []


# ---- pages -----------------------------------------------------------------------------------------------------------


def paragraphs_of(path: str, page: str) -> Iterator[Text]:
    """Paragraphs, list items, headings and table cells of a page, without its code blocks."""
    begun, lines, in_code = 0, list[str](), False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        if lines and (fence or not line.strip() or item or line.startswith(("#", "|"))):
            yield Text(path, begun, " ".join(lines))
            lines = []
        in_code ^= fence
        if in_code or fence or not line.strip():
            continue
        if line.startswith("|"):
            yield from (Text(path, number, cell.strip()) for cell in line.strip("| ").split("|"))
            continue
        begun = begun if lines else number
        lines.append(line[item.end() :] if item else line.strip("# "))


# ---- areas -----------------------------------------------------------------------------------------------------------


def _pipelines() -> Iterator[Text]:
    file = PACKAGE / "pipelines.py"
    path = str(file.relative_to(ROOT))
    yield from docstrings_of(path, _parsed(file))
    yield from comments_of(path, file.read_text())


def _errors() -> Iterator[Text]:
    for path, tree in _source_files(PACKAGE):
        yield from strings_given(path, tree, error_arguments)
    # Descriptions of hazards are put together of parts.
    for path, tree in _source_files(PACKAGE / "semantics"):
        if path not in _GENERATORS:
            yield from phrases_in(path, tree)


def _remarks() -> Iterator[Text]:
    for path, tree in _source_files(PACKAGE):
        yield from strings_given(path, tree, remark_arguments)
    # Reasons are also returned by functions, kept in constants and put together of parts.
    for path, tree in _source_files(PACKAGE / "passes"):
        yield from phrases_in(path, tree)


def _cli() -> Iterator[Text]:
    for path, tree in _source_files(PACKAGE / "cli"):
        yield from docstrings_of(path, tree)
        yield from strings_given(path, tree, printed_arguments)


def _docs() -> Iterator[Text]:
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if (path := str(file.relative_to(ROOT))) not in _RECORDS:
            yield from paragraphs_of(path, file.read_text())


def _docstrings() -> Iterator[Text]:
    for path, tree in _source_files(PACKAGE):
        yield from docstrings_of(path, tree)


AREAS: Mapping[str, Callable[[], Iterator[Text]]] = {
    "pipelines": _pipelines,
    "errors": _errors,
    "remarks": _remarks,
    "cli": _cli,
    "docs": _docs,
    "docstrings": _docstrings,
}

"""Names of tiles: ids of the printed IR, and variable names of the user's source.

The source is read where it is: the tile that an assignment computes has the name that is assigned to. A tile that a
loop carries has the name of what it begins with.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import tile
from tilewright.errors import SourceLocation
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.records import dataclass


@dataclass(frozen=True)
class TileNames:
    """Names of a kernel's values.

    Attributes:
        labels: `%7` for each value, as in the kernel's text.
        names: the user's name of those that have one.
    """

    labels: Mapping[SSAValue, str]
    names: Mapping[SSAValue, str]


def names_of(kernel: tile.KernelOp) -> TileNames:
    """Labels and names of all values of a kernel."""
    values = list(_numbered(kernel.body.block))
    labels = {value: f"%{number}" for number, value in enumerate(values)}
    names: dict[SSAValue, str] = {}
    for op in kernel.walk():
        if isinstance(op, tile.ForOp):
            names |= _carried(op, names)
        elif len(op.results) == 1 and (name := _assigned(op)) is not None:
            names[op.results[0]] = name
    return TileNames(labels, names)


def _numbered(block: Block) -> Iterator[SSAValue]:
    """The values in the order in which they are printed."""
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from _numbered(region.block)


def _carried(op: tile.ForOp, known: Mapping[SSAValue, str]) -> dict[SSAValue, str]:
    """Names of the tiles that a loop carries. Tiles with one initial value cannot be distinguished and stay
    nameless."""
    times = Counter(op.initial)
    found: dict[SSAValue, str] = {}
    for initial, argument, result in zip(op.initial, op.body.block.args[1:], op.results, strict=True):
        if initial in known and times[initial] == 1:
            found[argument] = found[result] = known[initial]
    return found


def _assigned(op: Operation) -> str | None:
    """The name that the operation's line assigns its result to: that of the outermost operation of the expression."""
    location = location_of(op)
    if location is None or any(location_of(use.operation) == location for use in op.results[0].uses):
        return None
    return _assignments(location.file, tuple(linecache.getlines(location.file))).get((location.line, location.column))


@lru_cache(maxsize=64)
def _assignments(file: str, lines: tuple[str, ...]) -> dict[tuple[int, int], str]:
    """Names by the line and column, both from 1, at which what is assigned to them begins."""
    try:
        tree = ast.parse("".join(lines), file)
    except SyntaxError:
        return {}
    found: dict[tuple[int, int], str] = {}
    for node in ast.walk(tree):
        for target, value in _pairs(node):
            if isinstance(target, ast.Name):
                text = lines[value.lineno - 1].encode()[: value.col_offset]
                found[value.lineno, len(text.decode(errors="replace")) + 1] = target.id
    return found


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
    """Pairs of target and assigned expression of a statement; the operation of `x += y` is at the statement itself."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _matched(target, node.value)


def _matched(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for own, part in zip(target.elts, value.elts, strict=False):
            yield from _matched(own, part)
    else:
        yield target, value


def source_line(location: SourceLocation | None) -> str:
    """The user's line, stripped; empty where the file cannot be read."""
    return "" if location is None else linecache.getline(location.file, location.line).strip()

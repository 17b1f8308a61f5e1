"""Kernels of cores as IR text, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from tilewright.dialects import tile
from tilewright.dialects.cores import Cores

_QUOTE = re.compile(r'(?<!\\)"')


def printed(kernels: Iterable[tile.KernelOp]) -> str:
    """The text of a module of some kernels."""
    return "\n".join(["builtin.module {", *map(str, kernels), "}"])


def parsed(text: str) -> ModuleOp:
    """A verified module of the kernels in a text.

    Raises:
        ValueError: it is no IR, or no valid one.
    """
    # The parser takes for ever to find the end of a string that has none.
    if any(len(_QUOTE.findall(line)) % 2 for line in text.splitlines()):
        raise ValueError("a string has no end")
    context = Context()
    for dialect in (Builtin, tile.Tile, Cores):
        context.load_dialect(dialect)
    try:
        module = Parser(context, text).parse_module()
        module.verify()
    except Exception as error:  # for text that is no IR, the parser and types raise errors of many classes
        raise ValueError(_reason_of(error)) from error
    return module


def _reason_of(error: Exception) -> str:
    """The sentence of an error; a parser's comes after the position and the line that it is about."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if isinstance(error, ParseError) else 0]

"""Kernels of cores as IR text, and back."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser

from tilewright.dialects import tile
from tilewright.dialects.cores import Cores


def printed(kernels: Iterable[tile.KernelOp]) -> str:
    """The text of a module of some kernels."""
    return "\n".join(["builtin.module {", *map(str, kernels), "}"])


def parsed(text: str) -> ModuleOp:
    """A verified module of the kernels in a text.

    Raises:
        ParseError, VerifyException: it is no IR, or no valid one.
    """
    context = Context()
    for dialect in (Builtin, tile.Tile, Cores):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module

"""The import of xDSL, and imports of a process that has imported it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from tilewright import records

if TYPE_CHECKING:
    from xdsl.utils.dialect_loader import IRDLDialectFinder


class _AskedLast(importlib.abc.MetaPathFinder):
    """xDSL's finder of IRDL dialect files, which finds nothing if the working directory was removed."""

    def __init__(self, theirs: IRDLDialectFinder) -> None:
        self._theirs = theirs

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        try:
            return self._theirs.find_spec(fullname, path, target)
        except FileNotFoundError:
            return None


def import_xdsl() -> None:
    """Import what every dialect needs of xDSL, with `records.dataclass` in place of `dataclasses.dataclass`: defining
    its 170 dataclasses takes half of the time otherwise. A module that another thread imports meanwhile may define its
    dataclasses so, too, and notices no difference.
    """
    if "xdsl.dialects.builtin" not in sys.modules:
        standard = dataclasses.dataclass
        dataclasses.dataclass = records.dataclass
        try:
            importlib.import_module("xdsl.dialects.builtin")
        finally:
            dataclasses.dataclass = standard
    _ask_for_dialects_last()


def _ask_for_dialects_last() -> None:
    """Move xDSL's finder of IRDL dialect files to the end of `sys.meta_path`.

    xDSL inserts it first, where every import of the process searches the file system for such a file, and fails if the
    working directory was removed.
    """
    from xdsl.utils.dialect_loader import IRDLDialectFinder  # now that xDSL is imported as above

    theirs = [finder for finder in sys.meta_path if isinstance(finder, IRDLDialectFinder)]
    others = [finder for finder in sys.meta_path if finder not in theirs]
    sys.meta_path[:] = [*others, *map(_AskedLast, theirs)]

"""Imports of a process that has imported xDSL."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

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


def ask_for_dialects_last() -> None:
    """Move xDSL's finder of IRDL dialect files to the end of `sys.meta_path`.

    xDSL inserts it first, where every import of the process searches the file system for such a file, and fails if the
    working directory was removed.
    """
    theirs = [finder for finder in sys.meta_path if isinstance(finder, IRDLDialectFinder)]
    others = [finder for finder in sys.meta_path if finder not in theirs]
    sys.meta_path[:] = [*others, *map(_AskedLast, theirs)]

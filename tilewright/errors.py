"""Error classes: one per kind of mistake, each with a code, the user's line with a caret, and one concrete edit.

error[TW0201]: operands of `add` have shapes (3, 4) and (5,), which do not broadcast
  --> model.py:12:9
   |
12 |     return x + bias
   |            ^^^^^^^^
   = help: reshape or slice one operand so that trailing sizes are equal or 1
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_PACKAGE_ROOT = str(Path(__file__).parent) + os.sep
_COMMAND_LINE = _PACKAGE_ROOT + "cli" + os.sep


@dataclass(frozen=True)
class SourceLocation:
    """A span in the user's source. Lines and columns count from 1; 0 means unknown."""

    file: str
    line: int
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")

    def snippet(self) -> str:
        """The source line with a caret under the span, or an empty string when the file cannot be read."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        gutter = " " * len(str(self.line))
        start = (self.column or len(text) - len(text.lstrip()) + 1) - 1
        end = self.end_column - 1 if self.end_column > self.column else len(text)
        caret = " " * start + "^" * max(1, min(end, len(text)) - start)
        return f"{gutter} |\n{self.line} | {text}\n{gutter} | {caret}"


class TilewrightError(Exception):
    """Base of all errors that Tilewright raises. `code` is stable and indexed in the documentation."""

    code = "TW0000"

    def __init__(self, message: str, *, location: SourceLocation | None = None, help: str | None = None) -> None:
        self.message = message
        self.location = location
        self.help = help
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.location is not None:
            lines.append(f"  --> {self.location}")
            if snippet := self.location.snippet():
                lines.append(snippet)
        if self.help:
            lines.append(f"  = help: {self.help}")
        return "\n".join(lines)


class UnsupportedSyntaxError(TilewrightError):
    """A Python construct that cannot be traced or compiled."""

    code = "TW0101"


class UnknownNameError(TilewrightError):
    """A name that is not bound where a kernel uses it."""

    code = "TW0102"


class KernelSignatureError(TilewrightError):
    """A tile kernel's parameters or annotations are not of the form that `tw.kernel` takes."""

    code = "TW0103"


class ModelFileError(TilewrightError):
    """A model of another framework that is malformed, or that this version does not read."""

    code = "TW0104"


class UnsupportedOperatorError(TilewrightError):
    """A model uses an operator, or a form of one, that has no counterpart here."""

    code = "TW0105"


class ShapeError(TilewrightError, ValueError):
    """Shapes that do not fit together."""

    code = "TW0201"


class DTypeError(TilewrightError):
    """Element types that do not fit together or that an operation does not take."""

    code = "TW0202"


class DataDependentShapeError(TilewrightError):
    """A Python value or a shape would depend on the contents of a traced array."""

    code = "TW0203"


class IndexError_(TilewrightError, IndexError):
    """An index that is out of bounds or of a form that cannot be traced."""

    code = "TW0204"


class ArgumentError(TilewrightError, ValueError):
    """An argument outside the values that a function takes."""

    code = "TW0205"


class LayoutError(TilewrightError):
    """A layout or an operation on layouts that is not well formed."""

    code = "TW0301"


class LayoutConflictError(LayoutError):
    """Layouts that the program asks for contradict each other."""

    code = "TW0303"


class LayoutBudgetError(LayoutError):
    """The search for layouts exceeded its budget; a solution may exist."""

    code = "TW0304"


class LayoutRuleError(LayoutError):
    """An operation for which layout inference has no rule."""

    code = "TW0305"


class ScheduleError(TilewrightError):
    """A schedule that the kernel or the machine does not admit."""

    code = "TW0302"


class OutOfBoundsError(TilewrightError):
    """A tile access outside its array, found by the interpreter or a bounds check."""

    code = "TW0401"


class OverlapError(TilewrightError):
    """Buffers of one call overlap although no aliasing was declared."""

    code = "TW0402"


class RaceError(TilewrightError):
    """Points of a kernel's grid, which run in any order, store to one element, or one reads what another stores."""

    code = "TW0405"


class ResourceExhausted(TilewrightError):
    """The memory plan does not fit the limit; carries the table of largest live buffers."""

    code = "TW0403"


class MeshError(TilewrightError):
    """Deadlock of a mesh: not all devices of a group reach the same collective."""

    code = "TW0404"


class TargetError(TilewrightError):
    """A target string that names no target or machine."""

    code = "TW0501"


class UnsupportedOnTargetError(TilewrightError):
    """An operation or element type that this target does not support."""

    code = "TW0502"


class CpuFeatureError(TilewrightError):
    """A saved program needs CPU features that this machine lacks."""

    code = "TW0503"


class ResourceUnavailable(TilewrightError):
    """No driver or device that can run a program is available."""

    code = "TW0504"


class CacheEntryError(TilewrightError):
    """A compile-cache entry is damaged."""

    code = "TW0601"


class ProgramFileError(TilewrightError):
    """A `.twp` file is damaged, truncated, from another version, or no regular file."""

    code = "TW0602"


class OptionError(TilewrightError):
    """An option, or its `TW_*` variable, has a value outside its type."""

    code = "TW0701"


class VerificationError(TilewrightError):
    """The IR broke an invariant of its phase: a compiler bug, never the user's mistake."""

    code = "TW0901"


class CompilerBug(TilewrightError):
    """Something that must not happen inside the compiler."""

    code = "TW0902"


class ToolFailure(TilewrightError):
    """A tool below us (LLVM, an assembler) failed."""

    code = "TW0903"


class DeviceError(TilewrightError):
    """A device or its driver failed while a program was loaded or run."""

    code = "TW0904"


def user_location(skip_root: str = _PACKAGE_ROOT) -> SourceLocation | None:
    """The innermost frame outside the package, and outside `contextlib`, which enters our context managers: the user's
    line. None when every frame is ours, or is of what calls our command line."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  documented, despite its name
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_skipped(name, skip_root):
            return _instruction_location(frame.f_code, name, frame.f_lasti // 2, frame.f_lineno)
        if _is_command_line(name):
            return None
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _is_skipped(file: str, skip_root: str) -> bool:
    return file.startswith((skip_root, "<")) or file == contextlib.__file__


@functools.lru_cache(maxsize=4096)
def _is_command_line(file: str) -> bool:
    return file.startswith(_COMMAND_LINE)


@functools.lru_cache(maxsize=4096)
def _instruction_location(code: CodeType, file: str, instruction: int, fallback_line: int) -> SourceLocation:
    # `file` is an argument because code objects of two files may compare equal.
    positions = next(itertools.islice(code.co_positions(), max(instruction, 0), None), None)
    if positions is not None:
        line, end_line, column, end_column = positions
        if line is not None and column is not None:
            same_line = end_line == line and end_column is not None
            return SourceLocation(file, line, column + 1, (end_column or 0) + 1 if same_line else 0)
    return SourceLocation(file, fallback_line)


# ---- an error of NumPy's kind, which is there when it is asked for: the command line starts without NumPy ------------


def _define_linear_algebra_error() -> type[TilewrightError]:
    import numpy as np

    class LinearAlgebraError(TilewrightError, np.linalg.LinAlgError):
        """A matrix for which a routine of linear algebra has no result, such as the inverse of a singular one."""

        code = "TW0406"
        __qualname__ = "LinearAlgebraError"

    return LinearAlgebraError


def __getattr__(name: str) -> type[TilewrightError]:
    if name != "LinearAlgebraError":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return globals().setdefault(name, _define_linear_algebra_error())


if TYPE_CHECKING:

    class LinearAlgebraError(TilewrightError, np.linalg.LinAlgError):
        code: str

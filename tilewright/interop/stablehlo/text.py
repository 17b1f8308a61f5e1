"""A position in a text that is read from front to back."""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Generator

from tilewright.api.array import located
from tilewright.errors import ModelFileError, TilewrightError

_BLANK = re.compile(r"(?:\s+|//[^\n]*)*+")
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-9a-fA-F]{2}|.)", re.DOTALL)
_QUOTED = {b"n": b"\n", b"t": b"\t"}
_MAX_DEPTH = 64
_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_BRACKET = re.compile(r'->|[^()\[\]{}<>"-]+|.', re.DOTALL)


class Cursor:
    """Reads `text` from `at` on. Blanks and comments before a token are skipped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._depth = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def skip_blanks(self) -> int:
        """Go to the next token; gives its position."""
        match = _BLANK.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return self.at

    def sees(self, literal: str) -> bool:
        """Whether the next characters are `literal`."""
        return self.text.startswith(literal, self.skip_blanks())

    def accept(self, literal: str) -> bool:
        """Step over `literal` if it comes next."""
        if not self.sees(literal):
            return False
        self.at += len(literal)
        return True

    def expect(self, literal: str) -> None:
        """Step over `literal`.

        Raises:
            ModelFileError: something else comes next.
        """
        if not self.accept(literal):
            raise self.error(f"expected `{literal}`")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Step over what the pattern matches here, if it does."""
        found = pattern.match(self.text, self.skip_blanks())
        if found is not None:
            self.at = found.end()
        return found

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Step over what the pattern matches.

        Raises:
            ModelFileError: it does not match here.
        """
        found = self.match(pattern)
        if found is None:
            raise self.error(f"expected {what}")
        return found

    def string(self) -> str:
        """A string in quotation marks.

        Raises:
            ModelFileError: there is none.
        """
        inner = self.take(_STRING, "a string").group(1)
        if "\\" not in inner:
            return inner
        replaced = _ESCAPE.sub(lambda m: _unescaped(m.group(1)), inner.encode(errors="replace"))
        return replaced.decode(errors="replace")

    def skip_balanced(self) -> str:
        """Step over a bracket and all up to the one that closes it; gives the text between them.

        Raises:
            ModelFileError: it is not closed, or there is none.
        """
        start = self.skip_blanks()
        closing: list[str] = []
        while True:
            if self.text.startswith('"', self.at):
                self.string()
                continue
            token = _BRACKET.match(self.text, self.at)
            if token is None:
                raise self.error("a bracket is not closed", start)
            self.at = token.end()
            character = token.group()
            if character in _OPENING:
                closing.append(_OPENING[character])
            elif closing and character == closing[-1]:
                closing.pop()
            if not closing:
                return self.text[start + 1 : self.at - 1]

    # ---- places and errors ------------------------------------------------------------------------------------------

    def line(self, at: int | None = None) -> int:
        """The line of a position, from 1."""
        return bisect.bisect_left(self._ends, self.at if at is None else at) + 1

    def error(self, message: str, at: int | None = None, help: str = "") -> ModelFileError:
        """An error of the text at a position, here by default."""
        place = min(self.at if at is None else at, len(self.text))
        line = self.line(place)
        column = place - (self._ends[line - 2] if line > 1 else -1)
        found = self.text[place : place + 24].split("\n")[0]
        shown = f" before `{found}`" if found else " at the end"
        error = ModelFileError(f"line {line}, column {column}: {message}{shown}", help=help or "export it again")
        located(error)
        return error

    @contextlib.contextmanager
    def nested(self) -> Generator[None]:
        """Count one level of nesting while the context is open.

        Raises:
            ModelFileError: it is too deep.
        """
        if self._depth >= _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of nesting")
        self._depth += 1
        yield
        self._depth -= 1

    def placed(self, error: TilewrightError, at: int) -> TilewrightError:
        """An error with the line added to its message."""
        error.message = f"line {self.line(at)}: {error.message}"
        error.args = (error.message,)
        return located(error)


def _unescaped(escape: bytes) -> bytes:
    if len(escape) == 2:
        return bytes([int(escape, 16)])
    return _QUOTED.get(escape, escape)

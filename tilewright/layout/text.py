"""The text form of layouts. `parse_layout(format_layout(layout)) == layout` for every layout.

    (M, 64) : [((M+127)//128)@warp 128@mem*64 | 64@mem] + replica[2@lane*4] + partial[add 4@core.y] + offset[mem=16]
        + swizzle[mem{3:6}^{6:9}] where M in 1..1024 step 16

Grammar (spaces and line breaks do not matter):

    layout   = "(" [size {"," size}] [","] ")" ":" "[" [digits {"|" digits}] "]" {"+" clause} ["where" facts]
    digits   = "1" | iter {iter}                          outermost first; "1" is a dim without digits
    iter     = extent "@" axis ["*" stride]               stride 1 when left out; axis "_" with stride 0
    extent   = integer | name | "(" size ")"
    clause   = "replica" "[" iter {iter} "]"
             | "partial" "[" op iter {op iter} "]"
             | "offset" "[" axis "=" size {"," axis "=" size} "]"
             | "swizzle" "[" xor {xor} "]"
    xor      = axis "{" bit ":" bit "}" "^" "{" bit ":" bit "}"   target bits, then source bits, ends excluded
    size     = sums, integer multiples, "//" and "%" of integers and names, as in Python
    facts    = name "in" integer ".." integer ["step" integer] {"," ...}
    name     = an identifier, or "?" and a number for a Dim without a name
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from tilewright.errors import LayoutError
from tilewright.layout.dims import Dim, Size, format_size, is_integer
from tilewright.layout.iters import AxisIter, Digits, Iter, Partial, Replica, XorTerm
from tilewright.layout.layout import Layout

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)|(\?\d+)|(//|\.\.|[-()\[\]{}|@*+%,:=^]))")
_WHERE = re.compile(r"\swhere\s")
_Item = TypeVar("_Item")


def format_layout(layout: Layout) -> str:
    """The text form of a layout, on one line."""
    nameless = (symbol for symbol in layout.symbols if not symbol.name)
    names = {symbol: f"?{number}" for number, symbol in enumerate(nameless)}
    sizes = ", ".join(format_size(size, names) for size in layout.shape)
    digits = " | ".join(" ".join(_format_iter(digit, names) for digit in own) or "1" for own in layout.shard)
    text = f"({sizes}) : [{digits}]"
    if layout.replica:
        text += f" + replica[{' '.join(_format_iter(copy, names) for copy in layout.replica)}]"
    if layout.partial:
        text += f" + partial[{' '.join(f'{copy.op} {_format_iter(copy, names)}' for copy in layout.partial)}]"
    if layout.offset:
        text += f" + offset[{', '.join(f'{axis}={format_size(value, names)}' for axis, value in layout.offset)}]"
    if layout.swizzle:
        text += f" + swizzle[{' '.join(map(_format_xor, layout.swizzle))}]"
    if layout.symbols:
        text += " where " + ", ".join(_format_facts(symbol, names) for symbol in layout.symbols)
    return text


@lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout:
    """The layout written in `text`.

    Raises:
        LayoutError: the text does not follow the grammar, or names a layout that is not well formed.
    """
    pieces = _WHERE.split(text, maxsplit=1)
    facts = _Parser(pieces[1], {}).read_facts() if len(pieces) == 2 else {}
    return _Parser(pieces[0], facts).read_layout()


def _format_iter(part: AxisIter, names: Mapping[Dim, str]) -> str:
    extent = format_size(part.extent, names)
    if not isinstance(part.extent, int | Dim):
        extent = f"({extent})"
    return f"{extent}@{part.axis}" + (f"*{part.stride}" if part.stride != 1 else "")


def _format_xor(term: XorTerm) -> str:
    target, source, bits = term.target, term.source, term.bits
    return f"{term.axis}{{{target}:{target + bits}}}^{{{source}:{source + bits}}}"


def _format_facts(symbol: Dim, names: Mapping[Dim, str]) -> str:
    step = f" step {symbol.multiple_of}" if symbol.multiple_of != 1 else ""
    return f"{format_size(symbol, names)} in {symbol.min}..{symbol.max}{step}"


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, facts: Mapping[str, Dim]) -> None:
        self.text = text
        self.facts = facts
        self.tokens: list[tuple[str, int]] = []
        self.at = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                raise self._error(f"`{text[position]}` has no meaning here", position)
            self.tokens.append(
                (match.group().strip(), match.start() + len(match.group()) - len(match.group().lstrip()))
            )
            position = match.end()

    def read_layout(self) -> Layout:
        self._expect("(")
        shape = self._separated(self._size, ",", ")")
        self._expect(":")
        self._expect("[")
        shard = self._separated(self._digits, "|", "]")
        clauses: dict[str, tuple[Any, ...]] = {}
        readers: dict[str, Callable[[], tuple[Any, ...]]] = {
            "replica": lambda: self._until("]", self._replica),
            "partial": lambda: self._until("]", self._partial),
            "offset": lambda: self._separated(self._axis_offset, ",", "]"),
            "swizzle": lambda: self._until("]", self._xor),
        }
        while self._accept("+"):
            name = self._peek()
            if name not in readers or name in clauses:
                raise self._wanted(f"one of {', '.join(sorted(readers))}, each once,")
            self.at += 1
            self._expect("[")
            clauses[name] = readers[name]()
        self._expect_end()
        return Layout(shape, shard, **clauses)

    def read_facts(self) -> dict[str, Dim]:
        facts: dict[str, Dim] = {}
        while True:
            name = self._name("a name")
            self._expect("in")
            low = self._integer()
            self._expect("..")
            high = self._integer()
            step = self._integer() if self._accept("step") else 1
            facts[name] = Dim(low, high, step, "" if name.startswith("?") else name)
            if not self._accept(","):
                self._expect_end()
                return facts

    def _digits(self) -> Digits:
        following = self.tokens[self.at + 1][0] if self.at + 1 < len(self.tokens) else ""
        if self._peek() == "1" and following in ("|", "]"):
            self.at += 1
            return ()
        digits = [self._iter()]
        while self._peek() not in ("|", "]"):
            digits.append(self._iter())
        return tuple(digits)

    def _iter(self) -> Iter:
        if self._accept("("):
            extent = self._size()
            self._expect(")")
        else:
            extent = self._atom()
        self._expect("@")
        axis = self._name("an axis")
        stride = self._integer() if self._accept("*") else 1
        return Iter(extent, stride, axis)

    def _replica(self) -> Replica:
        part = self._iter()
        return Replica(part.extent, part.stride, part.axis)

    def _partial(self) -> Partial:
        op = self._name("the name of an operation")
        part = self._iter()
        return Partial(part.extent, part.stride, part.axis, op)

    def _axis_offset(self) -> tuple[str, Size]:
        axis = self._name("an axis")
        self._expect("=")
        return axis, self._size()

    def _xor(self) -> XorTerm:
        axis = self._name("an axis")
        target, target_end = self._bits()
        self._expect("^")
        source, source_end = self._bits()
        if target_end - target != source_end - source:
            raise self._wanted("as many source bits as target bits")
        return XorTerm(axis, target, source, target_end - target)

    def _bits(self) -> tuple[int, int]:
        self._expect("{")
        first = self._integer()
        self._expect(":")
        end = self._integer()
        self._expect("}")
        return first, end

    def _size(self) -> Size:
        total = self._product()
        while self._peek() in ("+", "-"):
            sign = 1 if self._accept("+") else -1
            self.at += sign < 0
            total = total + self._product() * sign
        return total

    def _product(self) -> Size:
        value = self._factor()
        while self._peek() in ("*", "//", "%"):
            operator = self._peek()
            self.at += 1
            other = self._factor()
            if operator == "*" and is_integer(value):
                value = value * other
            elif not is_integer(other) or (operator != "*" and other < 1):
                raise self._wanted("a positive integer before this, as the divisor or factor,")
            else:
                value = value * other if operator == "*" else value // other if operator == "//" else value % other
        return value

    def _factor(self) -> Size:
        if self._accept("-"):
            return -self._factor()
        if self._accept("("):
            value = self._size()
            self._expect(")")
            return value
        return self._atom()

    def _atom(self) -> Size:
        token = self._peek()
        if token.isdigit():
            return self._integer()
        if token not in self.facts:
            raise self._wanted("an integer or a name given after `where`")
        self.at += 1
        return self.facts[token]

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        token = self._peek()
        if not token.isdigit():
            raise self._wanted("an integer")
        self.at += 1
        return sign * int(token)

    def _separated(self, read: Callable[[], _Item], separator: str, end: str) -> tuple[_Item, ...]:
        items: list[_Item] = []
        while not self._accept(end):
            items.append(read())
            if not self._accept(separator):
                self._expect(end)
                break
        return tuple(items)

    def _until(self, end: str, read: Callable[[], _Item]) -> tuple[_Item, ...]:
        items: list[_Item] = []
        while not self._accept(end):
            items.append(read())
        return tuple(items)

    def _peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def _accept(self, token: str) -> bool:
        found = self._peek() == token
        self.at += found
        return found

    def _name(self, what: str) -> str:
        token = self._peek()
        if not (token[:1].isalpha() or token[:1] in ("_", "?")):
            raise self._wanted(what)
        self.at += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._wanted(f"`{token}`")

    def _expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise self._wanted("the end")

    def _wanted(self, what: str) -> LayoutError:
        position = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return self._error(f"expected {what} here", position)

    def _error(self, message: str, position: int) -> LayoutError:
        return LayoutError(
            f"invalid text of a layout: {message}\n    {self.text}\n    {' ' * position}^",
            help="write it as in `(128, 64) : [8@warp 16@mem*64 | 64@mem] + offset[mem=4]`",
        )

"""Make a failing tile kernel small: blocks become straight lines, lines go, results are replaced by operands."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tests.fuzz.tile_steps import Kernel

_LOOP = re.compile(r"\s*(?:(%v\d+(?:, %v\d+)*) = )?tile\.for\(([^)]*)\)")
_CHOICE = re.compile(r"\s*(%v\d+(?:, %v\d+)*) = tile\.if\(")
_PLAIN = re.compile(r"\s*(%v\d+) = tile\.\w+\(([^)]*)\)")
_YIELD = re.compile(r"\s*tile\.yield\(([^)]*)\)")

Fails = Callable[[Kernel], bool]
Lines = Sequence[str]


def shrink(kernel: Kernel, fails: Fails, seconds: float) -> Kernel:
    """The shortest kernel found within a time that still fails."""
    deadline = time.monotonic() + seconds
    lines = kernel.text.split("\n")
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for candidates in (_without_dead_lines, _straightened, _with_fewer_lines, _with_plainer_values):
            position = 0
            while (found := _first_failing(kernel, fails, candidates(lines, position), deadline)) is not None:
                position, lines = found
                progress = True
    return replace(kernel, text="\n".join(lines))


def _first_failing(
    kernel: Kernel, fails: Fails, candidates: Iterator[tuple[int, Lines]], deadline: float
) -> tuple[int, Lines] | None:
    """The first candidate that fails too, with its number, from which to go on."""
    for number, lines in candidates:
        if time.monotonic() > deadline:
            return None
        try:
            if fails(replace(kernel, text="\n".join(lines))):
                return number, lines
        except Exception:  # a line that others need is gone: whatever the parser, the verifier, the semantics raise
            continue
    return None


# ---- candidates: each has a number, and those before `first` have been tried ----------------------------------------


def _without_dead_lines(lines: Lines, first: int) -> Iterator[tuple[int, Lines]]:
    """Without the plain operations whose results nothing uses."""
    kept, before = list(lines), 0
    while len(kept) != before:
        before = len(kept)
        used = [name for line in kept for name in set(re.findall(r"%v\d+", line))]
        kept = [line for line in kept if not ((plain := _PLAIN.match(line)) and used.count(plain[1]) == 1)]
    if first == 0 and len(kept) < len(lines):
        yield 1, kept


def _straightened(lines: Lines, first: int) -> Iterator[tuple[int, Lines]]:
    """A loop replaced by its initial values or by its body once, a choice by one of its branches."""
    for number in range(first, len(lines)):
        header = lines[number]
        indent = header[: len(header) - len(header.lstrip())]
        ends = (n for n in range(number + 1, len(lines)) if lines[n].startswith(indent + "}"))
        if loop := _LOOP.match(header):
            end = next(ends)
            results, initial = _names(loop[1]), _names(loop[2])
            arguments = re.findall(r"(%v\d+):", lines[number + 1])
            body = _renamed(lines[number + 2 : end], dict(zip(arguments, ["%p", *initial], strict=True)))
            for inside, values in (([], initial), (body[:-1], _yielded(body))):
                after = _renamed(lines[end + 1 :], dict(zip(results, values, strict=True)))
                yield number, [*lines[:number], *inside, *after]
        elif choice := _CHOICE.match(header):
            middle = next(ends)
            end = next(ends)
            for inside in (lines[number + 1 : middle], lines[middle + 1 : end]):
                after = _renamed(lines[end + 1 :], dict(zip(_names(choice[1]), _yielded(inside), strict=True)))
                yield number, [*lines[:number], *inside[:-1], *after]


def _with_fewer_lines(lines: Lines, first: int) -> Iterator[tuple[int, Lines]]:
    """Without some neighbouring lines, many at a time before few."""
    sizes = [len(lines) >> n for n in range(1, len(lines).bit_length())]
    ranges = [(start, size) for size in sizes for start in range(0, len(lines), size)]
    for number, (start, size) in enumerate(ranges[first:], first):
        yield number, [*lines[:start], *lines[start + size :]]


def _with_plainer_values(lines: Lines, first: int) -> Iterator[tuple[int, Lines]]:
    """With the result of an operation replaced by one of its operands."""
    for number in range(first, len(lines)):
        plain = _PLAIN.match(lines[number])
        for operand in _names(plain[2]) if plain else ():
            if plain and operand.startswith("%v"):
                yield number, [*lines[:number], *_renamed(lines[number + 1 :], {plain[1]: operand})]


def _names(text: str | None) -> list[str]:
    return text.split(", ") if text else []


def _yielded(block: Lines) -> list[str]:
    last = _YIELD.match(block[-1])
    return _names(last[1]) if last else []


def _renamed(lines: Lines, names: Mapping[str, str]) -> list[str]:
    return [re.sub(r"%v\d+", lambda name: names.get(name[0], name[0]), line) for line in lines]

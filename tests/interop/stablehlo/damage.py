"""Programs with parts changed at random, which must give an error or a program, never a crash.

    python -m tests.interop.stablehlo.damage --count 1000 --seed 0

Texts of the table of cases, and of those on a mesh, are changed by tokens, numbers, types, lines and bytes. Each is
read, traced and compiled in a process of its own, with limits of time and memory; programs without loops run too, those
for several devices on the interpreter.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import re
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_SECONDS = 10.0
# On a machine that does other things too.
_LONGEST_SECONDS = 150.0
_WARM_UP = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.add %x, %x : tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""
_MEMORY_BYTES = 2 << 30
_MAX_TEXT = 6000
# Larger programs are read and traced, but neither compiled nor run.
_MAX_BYTES_TO_RUN = 1 << 26
_MAX_DEVICES_TO_RUN = 64
_TOKEN = re.compile(r'\s+|"[^"\n]*"|%[\w#]+|[#@^!]?[\w.]+|.', re.DOTALL)
_NUMBER = re.compile(r"-?\d+")
_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "7",
    "63",
    "64",
    "65",
    "127",
    "4096",
    "99999999999",
    "-99999999999",
    "9" * 30,
    "1.5",
    "?",
)
_TYPES = (
    "f32",
    "f64",
    "i1",
    "i32",
    "ui8",
    "bf16",
    "i4",
    "f8E4M3FN",
    "complex<f32>",
    "f33",
    "index",
    "!stablehlo.token",
)
_TENSOR = re.compile(r"tensor<[^>]*>")
_TENSORS = (
    "tensor<f32>",
    "tensor<0xf32>",
    "tensor<2x3xi32>",
    "tensor<99999999999x99999999999xf32>",
    "tensor<1000000x100000xf32>",
    "tensor<?xf32>",
)
_OPERATIONS = tuple(
    f"stablehlo.{name}" for name in ("add", "reduce", "gather", "scatter", "nothing", "while", "convolution", "return")
)
_NESTED = ("(", "[", "{", "<", "({", '"', "dense<[", "tuple<", "loc(", "array<i64: ")


def damaged(text: str, source: random.Random) -> str | bytes:
    """The text with one to three changes, or with one in a number that is no name and no size."""
    if source.random() < 0.4:
        return _attribute(text, source)
    for _ in range(source.randint(1, 3)):
        text = source.choice(_CHANGES)(text, source)
    if source.random() < 0.1:
        data = bytearray(text.encode())
        for _ in range(source.randint(1, 6)):
            if data:
                data[source.randrange(len(data))] = source.randrange(256)
        return bytes(data)
    return text


def _tokens(text: str, source: random.Random) -> str:
    tokens = _TOKEN.findall(text)
    if len(tokens) < 3:
        return text
    at, other = source.randrange(len(tokens)), source.randrange(len(tokens))
    choice = source.randrange(4)
    if choice == 0:
        del tokens[at]
    elif choice == 1:
        tokens[at], tokens[other] = tokens[other], tokens[at]
    elif choice == 2:
        tokens.insert(at, tokens[other])
    else:
        tokens[at] = tokens[other]
    return "".join(tokens)


def _replaced(pattern: re.Pattern[str], choices: Sequence[str]) -> Callable[[str, random.Random], str]:
    def change(text: str, source: random.Random) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        place = source.choice(found)
        return text[: place.start()] + source.choice(choices) + text[place.end() :]

    return change


_attribute = _replaced(re.compile(r"(?<![\w%#.-])-?\d+(?![\w.])"), tuple(map(str, range(-3, 12))))


def _lines(text: str, source: random.Random) -> str:
    lines = text.split("\n")
    at, other = source.randrange(len(lines)), source.randrange(len(lines))
    choice = source.randrange(3)
    if choice == 0:
        del lines[at]
    elif choice == 1:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines.insert(at, lines[other])
    return "\n".join(lines)


def _cut(text: str, source: random.Random) -> str:
    return text[: source.randrange(len(text) + 1)]


def _deep(text: str, source: random.Random) -> str:
    at = source.randrange(len(text) + 1)
    return text[:at] + source.choice(_NESTED) * source.choice([3, 100, 20000]) + text[at:]


def _splat(text: str, source: random.Random) -> str:
    size = source.choice(["1000000000", "99999999999x99999999999", "65536x65536", "0", "1x" * 70 + "1"])
    return re.sub(r"dense<([^\[\]\"<>]*)> : tensor<(\w+)>", rf"dense<\1> : tensor<{size}x\2>", text, count=1)


_CHANGES = (
    _tokens,
    _tokens,
    _replaced(_NUMBER, _NUMBERS),
    _replaced(_NUMBER, _NUMBERS),
    _replaced(re.compile(r"\b(?:f32|i32|i1|i64|f16|bf16|ui8|ui32)\b"), _TYPES),
    _replaced(_TENSOR, _TENSORS),
    _replaced(re.compile(r"(?:stablehlo|chlo)\.\w+"), _OPERATIONS),
    _lines,
    _cut,
    _deep,
    _splat,
)


def outcome(text: str | bytes) -> str:
    """The class of the error, or how far the program got."""
    import numpy as np

    import tilewright as tw
    from tilewright.errors import CompilerBug, TilewrightError, VerificationError
    from tilewright.primitives import ArrayType

    try:
        model = tw.from_stablehlo(text, target="cpu")
        for spec in model.inputs:
            if not isinstance(spec.dtype, tw.DType):
                return "narrow"
        types = [ArrayType(spec.shape, spec.dtype) for spec in model.inputs]
        lowered = model.lower(*(tw.ShapeDtype(t.shape, t.dtype) for t in types))
        nodes = list(lowered.graph.walk())
        size = sum(value.type.nbytes for node in nodes for value in node.results) + sum(t.nbytes for t in types)
        if size * model.devices > _MAX_BYTES_TO_RUN:
            return "traced"
        compiled = lowered.compile("interp" if 1 < model.devices <= _MAX_DEVICES_TO_RUN else None)
        if any(node.op == "while" for node in nodes):
            return "compiled"
        compiled(*(np.ones(t.shape, t.dtype.numpy) for t in types))
        return "ran"
    except (CompilerBug, VerificationError) as error:
        return f"escaped: {type(error).__name__}: {error.message[:300]}"
    except TilewrightError as error:
        return type(error).__name__
    except Exception as error:
        return f"escaped: {type(error).__name__}: {str(error)[:300]}"


def subjects() -> list[tuple[str, str]]:
    """Small programs of the table, and those on a mesh, in both forms."""
    from tests.interop.stablehlo import mesh_cases
    from tests.interop.stablehlo.cases import texts
    from tests.interop.stablehlo.table import all_cases

    found = [(name, text) for name, text in mesh_cases.texts() if len(text) < _MAX_TEXT]
    for case in all_cases()[::9]:
        generic, pretty, _ = texts(case)
        found += [(case.name, text) for text in (generic, pretty) if len(text) < _MAX_TEXT]
    return found


def _work(connection: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    outcome(_WARM_UP)  # pays for the imports
    while True:
        text = connection.recv()
        # Of the processor, not of the clock: the machine may be busy. The signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        result = outcome(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(result)


class Fence:
    """A process that mutants are tried in; it is started again where one kills it or takes too long."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._connection: Any = None

    def ask(self, text: str | bytes) -> str:
        """What became of a text."""
        if self._process is None:
            self._connection, there = self._context.Pipe()
            self._process = self._context.Process(target=_work, args=(there,), daemon=True)
            self._process.start()
            there.close()
        found = "hung"
        try:
            self._connection.send(text)
            if self._connection.poll(_LONGEST_SECONDS):
                return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            found = "hung" if self._process.exitcode == -signal.SIGPROF else "killed"
        self.close()
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def run(count: int, seed: int) -> Iterator[tuple[int, str, str | bytes, str]]:
    """Number, subject, text and outcome of each mutant."""
    programs = subjects()
    fence = Fence()
    for n in range(seed, seed + count):
        source = random.Random(n)
        name, text = source.choice(programs)
        mutant = damaged(text, source)
        yield n, name, mutant, fence.ask(mutant)
    fence.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the texts that fail")
    given = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for n, name, text, result in run(given.count, given.seed):
        counts[result.split(":")[0]] += 1
        if is_failure(result):
            print(f"seed {n}, {name}: {result}", flush=True)
            if given.show:
                print(text, flush=True)
    print(dict(counts))


def is_failure(result: str) -> bool:
    """Whether a mutant did what none may do."""
    return result.startswith(("escaped", "hung", "killed"))


if __name__ == "__main__":
    main()

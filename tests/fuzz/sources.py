"""The fuzzer of the kernel language: `python -m tests.fuzz.sources --kernels 2000 --seed 1 --jobs 2`.

A random kernel is source text: branches chosen at run time that assign names, loops, windows that stick out of their
arrays, every way in which a tile changes its shape. Python runs the text on a reference that poisons what is outside
(`source_reference.py`); the interpreter and native code must agree with it wherever it is defined. Now and then a name
is read that only some paths assign: that must be refused, with the name and its line.
"""

from __future__ import annotations

import argparse
import itertools
import linecache
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.check import Outcome
from tests.fuzz.source_reference import Language, Reference, Undecided
from tilewright.cli.check import runnable
from tilewright.errors import ShapeError, TilewrightError, UnknownNameError

_numbers = itertools.count()

SHAPES = {"a": (8,), "m": (4, 8), "s": (), "r": (1, 8), "c": (4,), "t": (8, 4)}
# Expressions by the kind of their result; a letter in braces is a name of that kind.
EXPRESSIONS: dict[str, Sequence[str]] = {
    "a": (
        *("tw.sum({m}, axis=0)", "tw.max({m}, axis=0)", "{m}[2]", "{r}[0]", "{r}.reshape((8,))", "{r}.squeeze(0)"),
        *("{t}[:, 1]", "tw.cumsum({a}, axis=0)", "tw.cumsum({a}, axis=0, reverse=True)", "tw.broadcast_to({s}, (8,))"),
        *(
            "tw.max({t}, axis=1)",
            "tw.dot({r}, {m}.T)[0, 0] + {a}",
            "tw.sort({a})",
            "tw.sort(x[p * 4 : p * 4 + 8] + {s})",
            "{a} * {s}",
            "{r}.T[:, 0]",
        ),
        "tw.where({a} > {s}, {a}, {s} + 1)",
        "tw.dot({t}, {c}[:, None])[:, 0]",
    ),
    "m": (
        *("tw.broadcast_to({a}, (4, 8))", "{a} + {c}[:, None]", "{t}.T", "{m} * {r}", "tw.dot({c}[:, None], {r})"),
        *("tw.broadcast_to({r}, (4, 8))", "tw.dot({m}, tw.dot({t}, {m}))", "tw.cumsum({m}, axis=1)"),
        *(
            "tw.transpose({t})",
            "{m} - tw.max({m}, axis=1, keepdims=True)",
            "tw.dot({t}.T, {m}.T, {m}[:, 0:4])[:, 0:1] + {m}",
        ),
        "tw.concat([{m}[:, 4:8], {m}[:, 0:4]], axis=1)",
        "tw.concat([{r}, {r}, {r}, {r}], axis=0)",
        "tw.where({m} > 0, {r}, {m})",
    ),
    "s": (
        *("tw.sum({a})", "tw.max({a})", "tw.min({m})", "{a}[3]", "{r}[0, 2]", "tw.max({m})", "tw.sum({c})"),
        *("tw.dot({r}, {a}[:, None])[0, 0]", "{c}[1]", "tw.sum({t} + 1)", "tw.min({r} + {s})", "tw.sum({a}[0:8:2])"),
        "tw.max(tw.sum({m}, axis=1))",
        "tw.sum(tw.broadcast_to({s}, (8,)) + 1)",
        "tw.dot(tw.full((1, 8), 1.0, tw.f32), {a}[:, None] + 1)[0, 0]",
        "tw.dot({r} + 1, tw.full((8, 1), 1.0, tw.f32))[0, 0]",
    ),
    "r": (
        *("{a}[None]", "{m}[1:2]", "tw.expand_dims({a}, 0)", "tw.max({m}, axis=0, keepdims=True)"),
        *("{a}.reshape((1, 8))", "tw.sum({t}, axis=1)[None]", "{a}[:, None].T", "{r} + {a}"),
    ),
    "c": (
        *("tw.sum({m}, axis=1)", "tw.min({m}, axis=1)", "{m}[:, 3]", "{a}[2:6]", "{a}[0:8:2]"),
        *("tw.broadcast_to({s}, (4,))", "{t}[5]", "tw.max({t}, axis=0)", "{c} + {s}"),
    ),
    "t": ("{m}.T", "tw.transpose({m})", "{a}[:, None] + {c}", "tw.broadcast_to({c}, (8, 4))", "{t} - {a}[:, None]"),
}
LOADS: dict[str, Sequence[str]] = {
    "a": (
        *(
            "x[{p} * 4 + {d} : {p} * 4 + {d} + 8]",
            "x[{p} * 4 + {d} : {p} * 4 + {d} + 16 : 2]",
            "w[{p} + {d}, {g} : {g} + 8]",
        ),
        *("w[{p} + {d} : {p} + {d} + 1, {p} + {e} : {p} + {e} + 8][0]", "x[tw.arange(8) + ({p} * 3 + {d})]"),
        *("tw.load(x, slice({p} * 4 + {d}, {p} * 4 + {d} + 8), fill={f})", "w[{p} + {d}, {g} : {g} + 16 : 2]"),
    ),
    "m": (
        *(
            "w[{p} + {d} : {p} + {d} + 4, {e} + {p} : {e} + {p} + 8]",
            "w[{p} * 2 + {d} : {p} * 2 + {d} + 4, {g} : {g} + 8]",
        ),
        "w[{p} + {d} : {p} + {d} + 8 : 2, {p} + {e} : {p} + {e} + 8]",
    ),
    "s": ("x[{p} + {d}]", "w[{p} + {d}, {p} + {e}]", "x[{p} * 4 + {d} : {p} * 4 + {d} + 1][0]"),
    "r": ("w[{p} + {d} : {p} + {d} + 1, {g} : {g} + 8]",),
    "c": ("w[{p} + {d} : {p} + {d} + 4, {p} + {e}]", "x[{p} * 4 + {d} : {p} * 4 + {d} + 4]"),
    "t": ("w[{p} + {d} : {p} + {d} + 4, {e} + {p} : {e} + {p} + 8].T",),
}
NAMES_OF_A_KIND = 3
DEEPEST = 2
OBSERVED = 8
SEQUENTIAL = (9, 10)
CASE_S = 20.0


@dataclass(frozen=True)
class Source:
    """A kernel as text, the sizes of its arrays, and the name that it must be refused for, if any."""

    seed: int
    text: str
    points: int
    rows: int
    columns: int
    refused: str


class SourceMaker:
    """Writes statements one after the other. `known` are the names that every path so far assigns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.points = self.random.choice((2, 3))
        self.rows = self.random.choice((3, 4, 5, 6))
        self.columns = self.random.choice((6, 8, 9, 12))
        self.known: set[str] = set()
        self.assigned: set[str] = set()
        self.lines: list[str] = []
        self.depth = 2
        self.trip = ""
        self.in_loop = False

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, kind: str) -> str:
        """A name of a kind that every path has assigned."""
        return self.pick([n for n in sorted(self.known) if n[0] == kind])

    def filled(self, template: str, nested: int = 0) -> str:
        """An expression whose operands are names or, up to a depth, expressions themselves."""
        for kind in SHAPES:
            while "{" + kind + "}" in template:
                deeper = nested and self.random.random() < 0.5
                operand = self.operand(kind, nested - 1) if deeper else self.name(kind)
                template = template.replace("{" + kind + "}", operand, 1)
        return template

    def operand(self, kind: str, nested: int) -> str:
        if self.random.random() < 0.4:
            return self.loaded(kind)
        return f"({self.filled(self.expression(kind), nested)})"

    def expression(self, kind: str) -> str:
        """A template, seldom one that may be refused."""
        template = self.pick(EXPRESSIONS[kind])
        rare = "concat" in template or "sort({" in template
        return self.pick(EXPRESSIONS[kind]) if rare and self.random.random() < 0.8 else template

    def loaded(self, kind: str) -> str:
        template = self.pick(LOADS[kind])
        numbers = {
            "p": "p",
            "d": self.pick((-5, -3, -1, 0, 1, 2)),
            "e": self.pick((-3, 0, 0, 2)),
            "f": self.pick((-7, 5)),
            "g": self.pick((0, 2)),
        }
        if "{p}]" in template or "x[{p} + {d}]" in template or "w[{p} + {d}," in template or ", {p} + {e}]" in template:
            numbers["d"], numbers["e"] = (
                self.pick((-1, 0, 1)),
                self.pick((-1, 0, 1)) if ", {p} + {e}]" in template else numbers["e"],
            )
        for key, value in numbers.items():
            template = template.replace("{" + key + "}", str(value))
        return template.replace("+ -", "- ")

    def value(self, kind: str) -> str:
        chance = self.random.random()
        if chance < 0.25:
            return self.loaded(kind)
        if chance < 0.33:
            return f"tw.full({SHAPES[kind]}, {float(self.pick((-2, 1, 3)))}, tw.f32)"
        if chance < 0.55:
            pair = [self.name(kind), self.pick((self.name(kind), str(self.pick((-1, 2))), self.name("s")))]
            return self.pick(
                ("{0} + {1}", "{0} - {1}", "{0} * {1} + 1", "tw.maximum({0}, {1})", "tw.minimum({0}, {1})")
            ).format(*pair)
        return self.filled(self.expression(kind), nested=1)

    def assign(self) -> None:
        kind = self.pick("aaammsssrct")
        value = self.value(kind)
        name = f"{kind}{self.random.randrange(NAMES_OF_A_KIND)}"
        self.line(f"{name} = tw.clip({value}, -9, 9)")
        self.known.add(name)
        self.assigned.add(name)

    def condition(self) -> str:
        choices = ["n[{i}] > {k}", "p > 0", "tw.max({a}) > {k}", "tw.sum({r}) > {k}", "not n[{i}] > {k}"]
        choices += ["n[{i}] > 0 and tw.min({m}) < {k}", "tw.sum({t} * 0) == 0 and not p > 0"]
        choices += ["{trip} == n[{i}]", "{trip} > n[{i}]"] * 3 if self.trip else []
        text = self.pick(choices).replace("{i}", str(self.random.randrange(4))).replace("{trip}", self.trip)
        return self.filled(text.replace("{k}", str(self.pick((-2, 0, 1, 4)))))

    def block(self, count: int) -> set[str]:
        """Statements of a block of their own; gives the names that are assigned behind it."""
        before, self.depth = set(self.known), self.depth + 1
        for _ in range(count):
            self.statement()
        after, self.known, self.depth = self.known, before, self.depth - 1
        return after

    def choice(self) -> None:
        self.line(f"if {self.condition()}:")
        ends = [self.block(self.random.randint(1, 3))]
        if self.random.random() < 0.3:
            self.line(f"elif {self.condition()}:")
            ends.append(self.block(self.random.randint(1, 2)))
        if self.random.random() < 0.5:
            self.line("else:")
            ends.append(self.block(self.random.randint(1, 3)))
        else:
            ends.append(self.known)
        self.known = set.intersection(*ends)

    def loop(self) -> None:
        """Of few trips, which are unrolled, or run in order: those carry what they assign."""
        in_order = not self.in_loop and self.random.random() < 0.6
        outer, was = self.trip, self.in_loop
        self.trip, self.in_loop = f"q{self.depth}", self.in_loop or in_order
        self.line(f"for {self.trip} in range({self.pick(SEQUENTIAL) if in_order else 3}):")
        after = self.block(self.random.randint(1, 4))
        self.trip, self.in_loop = outer, was
        self.known = self.known if in_order else after

    def statement(self) -> None:
        kinds = [self.assign] * 6 + ([self.choice] * 3 + [self.loop] if self.depth < 2 + DEEPEST else [])
        self.pick(kinds)()


def generate(seed: int) -> Source:
    """The kernel of a seed."""
    m = SourceMaker(seed)
    for kind in SHAPES:
        m.line(f"{kind}0 = {m.loaded(kind)}")
        m.known.add(f"{kind}0")
    for _ in range(m.random.randint(2, 5)):
        m.statement()
    lost = sorted(m.assigned - m.known)
    refused = m.pick(lost) if lost and m.random.random() < 0.2 else ""
    last = {kind: refused if refused[:1] == kind else m.name(kind) for kind in SHAPES}
    if refused[:1] in ("r", "c", "t"):
        m.line(f"r0 = tw.sum({refused}) + r0")
    m.line(f"ya[p] = {last['a']} + tw.sum({m.name('r')} + 1)")
    m.line(f"ym[p] = {last['m']}")
    m.line(f"ys[p] = {last['s']} + tw.max({m.name('c')}) * tw.sum({m.name('t')} * 0 + 1)")
    m.line(f"yw[p * 8 - 3 : p * 8 + 5] = {m.name('a')}")
    for place in range(OBSERVED):
        reduction = m.pick(("tw.sum({} * 0 + 1)", "tw.sum({} + 1)", "tw.max({} - 9)", "tw.min({} + 9)", "{}"))
        kind = "s" if reduction == "{}" else m.pick("aamrct")
        m.line(f"yq[p, {place}] = tw.clip({reduction.format(m.operand(kind, 2))}, -99, 99)")
    header = [
        "import tilewright as tw",
        "",
        "@tw.kernel",
        'def k(x: tw.In["N"], w: tw.In["R C"], n: tw.In["4", tw.i32], ya: tw.Out["G 8"], ym: tw.Out["G 4 8"], '
        'ys: tw.Out["G"], yw: tw.Out["L"], yq: tw.Out["G Q"]):',
        "    for p in tw.grid(ys, None):",
    ]
    return Source(seed, "\n".join([*header, *m.lines]) + "\n", m.points, m.rows, m.columns, refused)


# ---- checking -------------------------------------------------------------------------------------------------------


def arrays_of(source: Source) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Whole numbers, none of them 0, and outputs."""
    numbers = np.random.default_rng(source.seed)
    sizes = ((source.points * 4 + 3,), (source.rows, source.columns))
    inputs = [numbers.integers(1, 5, size) * numbers.choice((-1, 1, 1), size) for size in sizes]
    inputs = [*(x.astype(np.float32) for x in inputs), numbers.integers(-1, 4, 4).astype(np.int32)]
    g = source.points
    return inputs, [
        np.full(shape, np.nan, np.float32) for shape in ((g, 8), (g, 4, 8), (g,), (8 * g - 4,), (g, OBSERVED))
    ]


def expected_of(source: Source) -> list[np.ndarray] | None:
    """The outputs as Python computes them; None where a branch depends on something undefined."""
    inputs, outputs = arrays_of(source)
    names: dict[str, Any] = {}
    exec(source.text.replace("import tilewright as tw", ""), {"tw": Language}, names)
    wide = [x.astype(np.float64) for x in (*inputs, *outputs)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names["k"](*map(Reference, wide))
    except Undecided:
        return None
    return wide[3:]


def kernel_of(source: Source) -> Any:
    file = f"<fuzzed kernel {next(_numbers)}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(source.text, file, "exec"), names)
    return names["k"]


def check(source: Source, targets: Sequence[str] = ("interp", "cpu")) -> Outcome:
    """Run one kernel; whatever the compiler raises is a failure of its own kind, but for what it may refuse."""
    inputs, outputs = arrays_of(source)
    kernel = kernel_of(source)
    if source.refused:
        return _refusal(source, kernel, [*inputs, *outputs])
    expected = expected_of(source)
    if expected is None:
        return Outcome()
    elements, unknown = sum(e.size for e in expected), sum(int(np.isnan(e).sum()) for e in expected)
    try:
        for target in targets:
            got = [o.copy() for o in outputs]
            with tw.options(cache=False, verify=1):
                runnable(kernel.lower(*inputs, *got).compile(target), source.seed)(*inputs, *got)
            for name, found, wanted in zip(("ya", "ym", "ys", "yw", "yq"), got, expected, strict=True):
                wrong = ~np.isnan(wanted) & (found != wanted)
                if wrong.any():
                    at = tuple(int(i) for i in np.argwhere(wrong)[0])
                    message = f"{target}: {name}{list(at)} is {found[at]}, expected {wanted[at]}"
                    return Outcome("wrong", message, elements, unknown)
    except ShapeError as error:  # tiles whose edges one operation would mix
        mixes = "would mix" in error.message or "concatenated" in error.message or "reach beyond" in error.message
        may = mixes or "may begin before" in error.message
        return Outcome("" if may else "raised ShapeError", "refused: " + error.message, 0, 0)
    except Exception as error:  # the compiler's own bugs come in any class
        return Outcome("raised " + type(error).__name__, str(error)[:600], elements, unknown)
    return Outcome("", "", elements, unknown)


def _refusal(source: Source, kernel: Any, arrays: Sequence[Any]) -> Outcome:
    try:
        kernel.lower(*arrays).ir()
    except UnknownNameError as error:
        named = f"`{source.refused}`" in error.message and error.location is not None
        return Outcome("" if named else "wrong name", error.message)
    except ShapeError as error:
        return Outcome("", "refused: " + error.message)
    except TilewrightError as error:
        return Outcome("raised " + type(error).__name__, str(error)[:600])
    return Outcome("leak", f"`{source.refused}` is read where only some paths assign it")


def shrunk(source: Source, seconds: float) -> Source:
    """The kernel without statements that its failure does not need."""
    outcome, end = check(source), time.monotonic() + seconds
    targets = ("interp",) if "interp" in outcome.message else ("interp", "cpu")
    before = ""
    while source.text != before and time.monotonic() < end:
        before = source.text
        first = 6
        while first < source.text.count("\n") and time.monotonic() < end:
            lines = source.text.splitlines()
            smaller = (replace(source, text="\n".join(rest) + "\n") for rest in _without(lines, first))
            found = next((s for s in smaller if _fails(s, outcome.kind, targets)), None)
            source, first = (source, first + 1) if found is None else (found, first)
    return source


def _without(lines: list[str], first: int) -> list[list[str]]:
    """A kernel without a statement, which is many lines if it has a body, or with its body in its place."""
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and len(lines[last]) - len(lines[last].lstrip()) > indent:
        last += 1
    body = [line[4:] for line in lines[first + 1 : last]]
    return [[*lines[:first], *rest, *lines[last:]] for rest in ([], body) if rest == [] or body]


def _fails(source: Source, kind: str, targets: Sequence[str]) -> bool:
    try:
        compile(source.text, "kernel", "exec")
        return check(source, targets).kind == kind
    except Exception:
        return False


# ---- running --------------------------------------------------------------------------------------------------------


def examine(seed: int, targets: Sequence[str]) -> tuple[int, Outcome]:
    """Try the kernel of a seed."""
    warnings.simplefilter("ignore")
    return seed, check(generate(seed), targets)


def _accepted(outcome: Outcome) -> str:
    if not outcome.message:
        return "agrees"
    return "refused" if outcome.message.startswith("refused") else "name refused"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sources", description=__doc__)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--targets", default="interp,cpu", help="with commas between, such as interp,cuda:sm_90a")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.kernels)
    counts: Counter[str] = Counter()
    elements = unknown = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for seed, outcome in pool.map(examine, seeds, itertools.repeat(arguments.targets.split(",")), chunksize=8):
            counts[outcome.kind or _accepted(outcome)] += 1
            elements, unknown = elements + outcome.elements, unknown + outcome.unknown
            if outcome.kind:
                print(f"seed {seed}: {outcome.kind}: {outcome.message}\n{generate(seed).text}", flush=True)
    print(f"{dict(counts)}; {elements} elements, {unknown} of them undefined")
    return 0 if set(counts) <= {"agrees", "refused", "name refused"} else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a user sees for mistakes in tile kernels: the class, the sentence, the line with a caret, one edit."""

from __future__ import annotations

import itertools
import linecache
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    IndexError_,
    KernelSignatureError,
    OutOfBoundsError,
    RaceError,
    ShapeError,
    TargetError,
    TilewrightError,
    UnknownNameError,
    UnsupportedSyntaxError,
)

_numbers = itertools.count()

HEADER = """import math
import numpy as np
import tilewright as tw

def recursive(x):
    return recursive(x)

def quadratic(x):
    while True:
        x = x * x

@tw.kernel
def other(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 4):
        y[i] = x[i]

"""


def module_of(source: str) -> dict[str, Any]:
    """Run source as a notebook cell does: its text is known to `linecache` only."""
    file = f"<kernel error {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "cell"}
    exec(compile(source, file, "exec"), names)
    return names


def kernel_of(body: str, signature: str) -> tw.Kernel:
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return module_of(f"{HEADER}@tw.kernel\ndef k({signature}):\n{indented}")["k"]


TYPES = (tw.ShapeDtype((8, 16), tw.f32), tw.ShapeDtype((8,), tw.i32), tw.ShapeDtype((8, 16), tw.f32))
SIGNATURE = 'x: tw.In["M N"], n: tw.In["M"], y: tw.Out["M N"], *, b: int = 4'


def error_of(body: str) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        kernel_of(body, SIGNATURE).lower(*TYPES).ir()
    return caught.value


def in_grid(*lines: str) -> str:
    return "for i in tw.grid(x, b):\n" + "".join(f"    {line}\n" for line in lines)


# The body's lines in a grid loop over `i`, the error, a part of its sentence, the text above the caret, a part of the
# help. A body that begins with `for` stands on its own.
CASES = [
    # syntax
    ("while True: pass", UnsupportedSyntaxError, "`while`", "while True: pass", "range"),
    ("try: pass\nexcept ValueError: pass", UnsupportedSyntaxError, "`try`", "try: pass", "tw.assert_"),
    ("with open('f'): pass", UnsupportedSyntaxError, "`with` for anything but", "open('f')", "leave it out"),
    ("with tw.zone('a') as b: pass", UnsupportedSyntaxError, "`as` after a zone", "b", "leave it out"),
    ("with tw.zone(n): pass", ArgumentError, "a text that is written out", "n", 'tw.zone("load")'),
    ("with tw.zone(' '): pass", ArgumentError, "a text that is written out", "' '", 'tw.zone("load")'),
    ("with tw.zone(): pass", ArgumentError, "a text that is written out", "tw.zone()", 'tw.zone("load")'),
    ("with tw.zone('a'), tw.zone(3): pass", ArgumentError, "a text that is written out", "3", 'tw.zone("load")'),
    ("tw.zone('a')", UnsupportedSyntaxError, "`tw.zone` without `with`", "tw.zone('a')", "around statements"),
    ("with tw.zone('a'): return", UnsupportedSyntaxError, "`return` inside a zone", "return", "after the `with`"),
    (
        *("with tw.zone('a'):\n for i in tw.grid(x, 4): y[i] = x[i]", UnsupportedSyntaxError),
        *("a zone outside its `tw.grid` loop", None, "into the loop"),
    ),
    ("f = lambda v: v", UnsupportedSyntaxError, "a lambda", "lambda v: v", "`def`"),
    ("global z", UnsupportedSyntaxError, "`global`", "global z", "keyword parameters"),
    ("yield x[i]", UnsupportedSyntaxError, "`yield`", "yield x[i]", "Out"),
    ("import os", UnsupportedSyntaxError, "an import", "import os", "top of the file"),
    ("def f(): pass", UnsupportedSyntaxError, "a nested function", "def f(): pass", "outside"),
    ("class C: pass", UnsupportedSyntaxError, "a class", "class C: pass", "outside"),
    ("raise ValueError", UnsupportedSyntaxError, "`raise`", "raise ValueError", "tw.assert_"),
    ("del b", UnsupportedSyntaxError, "`del`", "del b", "leave it out"),
    ("match b:\n    case 4: pass", UnsupportedSyntaxError, "`match`", "match b:", "`if`"),
    ("for t in range(3): break", UnsupportedSyntaxError, "`break`", "break", "tw.where"),
    ("for t in range(3): continue", UnsupportedSyntaxError, "`continue`", "continue", "`if`"),
    ("for t in range(3): pass\nelse: pass", UnsupportedSyntaxError, "`else`", "for t in range(3): pass", "after"),
    ("z = {v for v in (1, 2)}", UnsupportedSyntaxError, "a set comprehension", "{v for v in (1, 2)}", "loop"),
    ("z = [v for v in x[i]]", UnsupportedSyntaxError, "a loop over a tile", "x[i]", "tw.steps"),
    ("for v in x: pass", UnsupportedSyntaxError, "a loop over a tile or an array", "x", "tw.steps"),
    ("z = (w := 3)", UnsupportedSyntaxError, "`:=`", "w := 3", "line of its own"),
    ("z = 3j * x[i]", UnsupportedSyntaxError, "a complex number", "3j", "real"),
    ("return x[i]", UnsupportedSyntaxError, "a returned value", "return x[i]", "Out array"),
    ("for t in range(20): return", UnsupportedSyntaxError, "`return` inside a loop", "return", "end"),
    ("x[i].real = 3", UnsupportedSyntaxError, "an assignment to an attribute", "x[i].real", "name"),
    ("t = x[i]\nt[0] = 1", UnsupportedSyntaxError, "a store into a tile", "t[0]", "tw.where"),
    ("z = np.exp(x[i])", UnsupportedSyntaxError, "a call of `exp` with tiles", "np.exp(x[i])", "tw.exp"),
    ("z = max(x[i], 0)", UnsupportedSyntaxError, "a call of `max`", "max(x[i], 0)", "tw.maximum"),
    ("z = other(x, y)", UnsupportedSyntaxError, "a call of another kernel", "other(x, y)", "`def`"),
    ("z = recursive(x[i])", UnsupportedSyntaxError, "calls nested 32 deep", "recursive(x)", "loop"),
    ("z = quadratic(x[i])", UnsupportedSyntaxError, "`while`", "while True:", "range"),
    ("for j in tw.grid(x, 4): pass", UnsupportedSyntaxError, "more than one `tw.grid`", None, "tw.steps"),
    ("for i in tw.grid(x, 4):\n    pass\nz = 3", UnsupportedSyntaxError, "statements after", "z = 3", "into the loop"),
    (
        "for t in tw.steps(x, size=4):\n    for i in tw.grid(x, 4): pass",
        UnsupportedSyntaxError,
        "top level",
        None,
        "steps",
    ),
    (
        "z = list(tw.steps(x, size=4))\nfor v in [w for w in tw.steps(x, size=4)]: pass",
        ArgumentError,
        "TypeError",
        None,
        "",
    ),
    ("z = tw.nn.softmax(x[i])", UnsupportedSyntaxError, "`tw.nn.softmax`", "tw.nn.softmax(x[i])", "tw.exp"),
    ("z = tw.std(x[i], axis=1)", UnsupportedSyntaxError, "a call of `tw.std`", "tw.std(x[i], axis=1)", "tw.var"),
    ("z = tw.roll(x[i], 1)", UnsupportedSyntaxError, "a call of `tw.roll`", "tw.roll(x[i], 1)", "outside the kernel"),
    ("z = tw.linspace(0, 1, 4)", UnsupportedSyntaxError, "`tw.linspace`", "tw.linspace(0, 1, 4)", "tw.arange(n)"),
    ("z = tw.random.key(0)\nz = tw.random.uniform(z, (4,))", UnsupportedSyntaxError, "random.uniform", None, "hash"),
    # names
    ("z = qqqqqq", UnknownNameError, "`qqqqqq` is not defined", "qqqqqq", "assign it"),
    ("block = 3\nz = blok", UnknownNameError, "`blok` is not defined", "blok", "did you mean `block`?"),
    ("z = tw.program_id(0)", UnknownNameError, "no attribute `program_id`", "tw.program_id", "`for i in tw.grid("),
    ("tw.atomic_add(y, i, x[i])", UnknownNameError, "`atomic_add`", "tw.atomic_add", "one sum for each grid point"),
    ("z = tw.exq(x[i])", UnknownNameError, "has no attribute `exq`", "tw.exq", "did you mean `exp`?"),
    (
        *("for i in tw.grid((8,), (4,)):\n    if i.index == 1: y[i] = x[i]", UnknownNameError),
        *("`i` is a tuple of indices, which has no `.index`", "i.index", "`for i, in tw.grid(...)`"),
    ),
    ("z = x[i].astpye(tw.f32)", UnknownNameError, "a tile has no attribute `astpye`", "x[i].astpye", "`astype`"),
    ("z = x.sum()", UnknownNameError, "the array `x` has no attribute", "x.sum", "x[...].sum"),
    ("z = i.begin", UnknownNameError, "an index has no attribute", "i.begin", ".start"),
    (
        "for t in tw.steps(x, size=4):\n    w = x[t]\ny[i] = w",
        UnknownNameError,
        "only inside the loop over `t`",
        "w",
        "before",
    ),
    ("if i == 1:\n    w = 1\ny[i] = w", UnknownNameError, "only inside one branch", "w", "before"),
    # shapes
    ("z = x[i] + x[:, 0:3]", ShapeError, "(4, 16) and (8, 3)", "x[i] + x[:, 0:3]", "x[:, None]"),
    ("z = tw.dot(x[i], x[i])", ShapeError, "the inner sizes 16 and 4 differ", "tw.dot(x[i], x[i])", ".T"),
    ("z = tw.dot(x[i], n[i])", ShapeError, "tiles with two axes", "tw.dot(x[i], n[i])", "reshape"),
    ("z = tw.dot(x[i], x[i].T, tw.zeros((4, 5)))", ShapeError, "the accumulator is (4, 5)", None, "tw.zeros((4, 4)"),
    ("y[i] = x[:, 0:4]", ShapeError, "shape (8, 4) is stored where `y[...]` has shape (4, 16)", "y[i]", "broadcasts"),
    ("z = x[i].reshape(5, 5)", ShapeError, "cannot reshape (4, 16)", "x[i].reshape(5, 5)", "equal size"),
    ("z = tw.zeros((-1,))", ShapeError, "no compile-time size", "tw.zeros((-1,))", "integers"),
    (
        "for t in tw.steps(6, size=4): z = x[i, t]",
        ShapeError,
        "`t` runs over 6 positions, but axis 1",
        "x[i, t]",
        "window",
    ),
    (
        "for j in tw.grid(x, (4, 4, 4)): pass",
        ShapeError,
        "3 block sizes for 2 axes",
        "tw.grid(x, (4, 4, 4))",
        "one block",
    ),
    (
        "for j, k in tw.grid((8, 16), 4): pass",
        ShapeError,
        "the block sizes (4,) for the sizes (8, 16)",
        None,
        "per size",
    ),
    ("z = tw.arange(i, 8)", ShapeError, "no compile-time size", "tw.arange(i, 8)", "`i + tw.arange(8)`"),
    ("z = tw.arange(4, 2)", ShapeError, "from 4 to 2", "tw.arange(4, 2)", "rising order"),
    ("w = x[i]\nfor t in range(20): w = w[:, 0:8]", ShapeError, "`w` has shape (4, 16) before the loop", None, "keeps"),
    ("z = tw.squeeze(x[i], axis=0)", ShapeError, "not of size 1", "tw.squeeze(x[i], axis=0)", "size 1"),
    # element types
    ("z = x[i] & 1.5", DTypeError, "`bitwise_and` does not take", "x[i] & 1.5", ""),
    (
        "y[i] = n[i][:, None] + tw.zeros((4, 16), tw.i64)\nz = n[x[i, 0]]",
        DTypeError,
        "indexed with f32",
        "n[x[i, 0]]",
        "astype",
    ),
    ("z = tw.zeros((4,), 'f33')", DTypeError, "'f33' is not an element type", None, "f32"),
    ("z = n[i] + 2**40", DTypeError, "does not fit i32", "n[i] + 2**40", "wider"),
    ("z = tw.dot(x[i], x[i].T, tw.zeros((4, 4), tw.f16))", DTypeError, "cannot add up in f16", None, "tw.f32"),
    ("z = tw.where(x[i], 1, 0)", DTypeError, "condition of `where` is f32", "tw.where(x[i], 1, 0)", "compare"),
    ("w = n[i]\nfor t in range(20): w = w + x[i, 0]", DTypeError, "`w` is i32 before the loop and f32", None, "astype"),
    # what is known at run time only
    ("if x[i] > 0: pass", DataDependentShapeError, "a tile of shape (4, 16)", "x[i] > 0", "tw.where"),
    ("z = 1 if tw.sum(x[i]) > 0 else 2", DataDependentShapeError, "truth of a tile", "tw.sum(x[i]) > 0", "tw.where"),
    ("z = x[i] > 0 and x[i] < 1", DataDependentShapeError, "`and`", "x[i] > 0", "&"),
    ("z = x[i] in (1.0, 2.0)", DataDependentShapeError, "`in` needs", "x[i] in (1.0, 2.0)", "(x == a) | (x == b)"),
    ("z = i not in (1, 2)", DataDependentShapeError, "`not in` needs", "i not in (1, 2)", "(x == a)"),
    ("z = 1 in [x[i], 2]", DataDependentShapeError, "`in` needs", "1 in [x[i], 2]", "(x == a)"),
    ("z = not x[i]", DataDependentShapeError, "`not`", "not x[i]", "~mask"),
    ("z = int(n[0])", DataDependentShapeError, "`int()` of a tile", "int(n[0])", "astype"),
    ("for t in range(n[0]): pass", DataDependentShapeError, "`range`", "range(n[0])", "compile-time"),
    ("z = x[i, 0:n[0]]", DataDependentShapeError, "a bound of the slice", "x[i, 0:n[0]]", "tw.arange"),
    ("z = x[0 : i.start]", DataDependentShapeError, "no fixed size", "x[0 : i.start]", "compile-time size"),
    ("z = x[x[i] > 0]", DataDependentShapeError, "indexed with a mask", "x[x[i] > 0]", "tw.where"),
    ("z = tw.zeros((4, 4)).reshape(i, 4)", DataDependentShapeError, "a shape depends", None, "compile-time"),
    ("z = tw.zeros((x[i], 16), tw.f32)", DataDependentShapeError, "a shape depends on data", None, "compile-time"),
    ("z = tw.zeros((x, 16), tw.f32)", ShapeError, "a Ref in a shape", "tw.zeros((x, 16), tw.f32)", "integers"),
    ("z = tw.zeros((1,) * 65)", ShapeError, "65 axes", "tw.zeros((1,) * 65)", "64"),
    ("z = tw.zeros(2**70)", ShapeError, "too large", "tw.zeros(2**70)", "smaller"),
    ("z = (1, 2)[i]", DataDependentShapeError, "a tuple is indexed", "(1, 2)[i]", "unrolled"),
    ("z = f'{x[i]}'", DataDependentShapeError, "a tile's contents", None, "tw.print"),
    # indices
    ("z = x[i, 16]", OutOfBoundsError, "index 16 is outside axis 1 of `x`, which has size 16", "x[i, 16]", "0 to 15"),
    ("z = x[i, -17]", OutOfBoundsError, "index -17 is outside axis 1", "x[i, -17]", "0 to 15"),
    ("z = x[20:24, 0]", OutOfBoundsError, "is out of bounds", "x[20:24, 0]", "move"),
    ("z = x[i][9]", OutOfBoundsError, "index 9 is outside axis 0 of a tile", "x[i][9]", "0 to 3"),
    ("z = x[i][:, 3:20]", OutOfBoundsError, "does not fit axis 1 of a tile", "x[i][:, 3:20]", "inside"),
    ("z = x[i, 0, 0]", IndexError_, "`x` has 2 axes, but the index has 3", "x[i, 0, 0]", "extra"),
    ("z = x[..., 0, ...]", IndexError_, "more than one `...`", "x[..., 0, ...]", "once"),
    ("z = tw.sum(x[i], axis=2)", IndexError_, "no axis 2", "tw.sum(x[i], axis=2)", "0 to 1"),
    ("z = x[i, 8:2]", IndexError_, "ends before it starts", "x[i, 8:2]", "swap"),
    # arguments
    ("z = x[i, 'a']", ArgumentError, "indexed with a str", "x[i, 'a']", "integers"),
    ("z = y[i]", ArgumentError, "`y` is Out, so it holds nothing to read", "y[i]", "InOut"),
    ("y[i] += 1", ArgumentError, "`y` is Out", "y[i]", "InOut"),
    ("x[i] = 1", ArgumentError, "`x` is In, so it cannot be written", "x[i]", "InOut"),
    ("z = x + 1", ArgumentError, "`x` is an array of shape (8, 16), not a tile", "x + 1", "x[i]"),
    ("z = tw.exp(x[i], 3)", ArgumentError, "too many positional arguments", "tw.exp(x[i], 3)", "exp(x"),
    ("z = x[i] + 'a'", ArgumentError, "a tile and a str", "x[i] + 'a'", "numbers"),
    ("a, c = 1, 2, 3", ArgumentError, "2 names for 3 values", "a, c", "match"),
    ("z = (1, 2)[5]", ArgumentError, "IndexError", "(1, 2)[5]", "compile time"),
    ("z = 1 // 0", ArgumentError, "ZeroDivisionError", "1 // 0", "compile time"),
    ("z = i // 0", ArgumentError, "divided by 0", "i // 0", "positive"),
    ("z = tw.concat(x[i])", ArgumentError, "takes a list of tiles", "tw.concat(x[i])", "axis=0"),
    ("for j in tw.steps(x, size=0): pass", ArgumentError, "a block size is 0", "tw.steps(x, size=0)", "positive"),
    ("tw.assert_(b == 5, 'five')", ArgumentError, "does not hold at compile time: five", None, "sizes"),
    ("z = (1, 2)\nfor t in range(20): z = (t, 2)", UnsupportedSyntaxError, "`z` is a tuple", None, "name of its own"),
    ("z = tw.load(x, i, fill='a')", ArgumentError, "`fill` is 'a'", None, "number"),
    ("z = abs(x[i], 3)", ArgumentError, "abs() takes exactly one argument", "abs(x[i], 3)", "compile time"),
    ("z = len(x, 3)", ArgumentError, "len() takes exactly one argument", "len(x, 3)", "compile time"),
    ("print(x[i], sep='')", ArgumentError, "`print` has no keyword `sep`", "print(x[i], sep='')", "print(*values)"),
    ("tw.store(y, i)", ArgumentError, "missing a required argument", "tw.store(y, i)", "store(array, index, value)"),
    ("tw.store(y, i, x[i], 4)", ArgumentError, "too many positional", "tw.store(y, i, x[i], 4)", "store(array,"),
    (
        *("tw.store(y, i, x[i], mask=x[i] > 0)", ArgumentError, "`store` has no keyword `mask`"),
        *("tw.store(y, i, x[i], mask=x[i] > 0)", "`y[i] = tw.where(mask, value, y[i])`"),
    ),
    (
        *("z = tw.load(x, i, mask=x[i] > 0)", ArgumentError, "`load` has no keyword `mask`"),
        *("tw.load(x, i, mask=x[i] > 0)", "tw.where(mask, x[i], other)"),
    ),
    # names that only some paths assign
    *(
        (body, UnknownNameError, "`z` is assigned only inside one branch of an `if`", "z", "before it")
        for body in (
            "if n[0] > 0:\n    z = x[i]\ny[i] = z",
            "if n[0] > 0: z = x[i]\nif n[0] > 1: z = x[i]\ny[i] = z",
            "for t in range(3):\n    if n[0] > t: z = x[i]\ny[i] = z",
            "if n[0] > 0:\n    if n[1] > 0: z = x[i]\n    else: z = x[i] * 2\ny[i] = z",
            "if n[0] > 0: z = x[i]\nelse:\n    if n[1] > 0: z = x[i] * 2\ny[i] = z",
            "if n[0] > 0: z = x[i]\nfor t in range(20):\n    if n[1] > t: z = x[i]\ny[i] = z",
            "for t in range(20):\n    if n[0] > t: z = x[i]\n    y[i] = z",
            "if n[0] > 0: z = 3\nif n[0] > 1: z = 3\ny[i] = x[i] + z",
            "if n[0] > 0: z, w = x[i], 1\nif n[0] > 1: w, z = 2, x[i]\ny[i] = z",
        )
    ),
    *(
        (body, UnknownNameError, "`t` has no value after the loop over `t`, which runs in order", "t", "before it")
        for body in (
            "for t in range(20): z = x[i]\ny[i] = x[i] + t",
            "t = 3\nfor t in range(20): z = x[i]\ny[i] = x[i] + t",
            "t = x[i]\nfor t in range(20): z = x[i]\ny[i] = t",
            "t = 3\nfor k in range(20):\n    y[i] = x[i] + t\n    for t in range(20): z = x[i]",
        )
    ),
    (
        *("z = [x[i]]\nif n[0] > 0: w = z.insert(0, x[i] * 2)\ny[i] = z[0]", UnsupportedSyntaxError),
        *("a call of `insert` with tiles", "z.insert(0, x[i] * 2)", "use `tw.assert_`"),
    ),
    (
        *("z = []\nif n[0] > 0: z.append(1)\ny[i] = x[i] * len(z)", UnsupportedSyntaxError),
        *("`.append` inside a loop or a choice", "z.append(1)", "a new value"),
    ),
    # points that store to the same elements
    *(
        (f"for i, j in tw.grid(x, (b, 4)): {body}", RaceError, f"differ only in `{name}`", marked, help)
        for body, name, marked, help in (
            ("y[i, 0:4] = x[i, j]", "j", "y[i, 0:4]", "index `y` with `j`"),
            ("y[0] = 1.0", "i", "y[0]", "walk it with `tw.steps`"),
            ("y[i, j.index : j.index + 4] = x[i, j]", "j", "y[i, j.index : j.index + 4]", "`tw.steps`"),
            ("y[i, j.index // 2] = 1.0", "j", "y[i, j.index // 2]", "`tw.steps`"),
        )
    ),
]


@pytest.mark.parametrize(
    ("body", "kind", "sentence", "marked", "help"), CASES, ids=[case[0].splitlines()[0][:40] for case in CASES]
)
def test_mistakes_in_the_body(
    body: str, kind: type[TilewrightError], sentence: str, marked: str | None, help: str
) -> None:
    text = (
        body
        if body.startswith("for i in") or ("tw.grid" in body and "more" not in sentence)
        else in_grid(*body.splitlines())
    )
    error = error_of(text)
    assert type(error) is kind
    assert sentence in error.message
    assert help in (error.help or "")
    assert error.location is not None
    line, caret = error.location.snippet().splitlines()[1:]
    start = caret.index("^")
    if marked is not None:
        under = line[start : caret.rindex("^") + 1]
        assert under == marked
    assert f"error[{kind.code}]" in str(error)


ATOMS = [
    "x",
    "y",
    "n",
    "x[i]",
    "n[i]",
    "n[0]",
    "i",
    "i.start",
    "i*2",
    "3",
    "2.5",
    "True",
    "None",
    "'s'",
    "(1,2)",
    "[x[i]]",
    "tw",
    "tw.exp",
    "tw.f32",
    "x.shape",
    "tw.zeros",
    "x[i]>0",
    "math.nan",
    "range(3)",
    "tw.steps(x,size=4)",
    "x[0:0]",
    "tw.arange(0)",
    "...",
    "slice(0,3)",
    "np.float32(2)",
    "np.zeros(3)",
    "int",
]
FORMS = [
    "z = tw.exp({0})",
    "z = {0} + {1}",
    "z = {0} @ {1}",
    "z = {0}[{1}]",
    "z = tw.dot({0}, {1})",
    "z = tw.sum({0}, axis={1})",
    "z = -{0}",
    "z = tw.where({0}, {1}, 1)",
    "z = {0} < {1}",
    "z = {0} ** {1}",
    "z = ~{0}",
    "z = not {0}",
    "z = tw.load({0}, {1})",
    "z = {0}({1})",
    "tw.store({0}, {1}, 0)",
    "z = tw.zeros({0}, {1})",
    "z = tw.reshape({0}, {1})",
    "z = tw.concat([{0}, {1}])",
    "z = len({0})",
    "z = tw.transpose({0}, {1})",
    "z = ({0}).astype({1})",
    "z = tw.full({0}, {1})",
    "z = tw.arange({0})",
    "z = tw.sort({0})",
    "z = tw.argmax({0}, {1})",
    "z = tw.cumsum({0}, axis={1})",
    "z = tw.broadcast_to({0}, {1})",
    "z = tw.clip({0}, {1}, 3)",
    "z = tw.num_tiles({0}, 0, {1})",
    "tw.assert_({0}, {1})",
    "z = {0} if {1} else 2",
    "z = {0} in {1}",
    "z = {0} // {1}",
    "z = tw.mean({0}, {1})",
    "z = tw.bitcast({0}, {1})",
    "z = tw.squeeze({0}, {1})",
    "y[i] = {0}",
    "y[{0}] = {1}",
    "y[{0}] += {1}",
    "a, c = {0}",
    "for q in {0}: z = {1}",
    "for q in range(20): b = {0}",
    "if {0}: b = {1}",
    "z = x[{0} : {1}]",
    "z = x[{0}, {1}]",
    "z = x[i, {0} : {1}]",
    "z = max({0}, {1})",
    "z = float({0})",
    "z = {0} and {1}",
    "z = tw.grid({0}, {1})",
]


@settings(max_examples=250, deadline=None)
@given(form=st.sampled_from(FORMS), first=st.sampled_from(ATOMS), second=st.sampled_from(ATOMS))
def test_whatever_is_written_gives_a_kernel_or_a_located_error(form: str, first: str, second: str) -> None:
    found: TilewrightError | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about some of these programs too
        try:
            text = kernel_of(in_grid(form.format(first, second), "y[i] = x[i]"), SIGNATURE).lower(*TYPES).ir()
        except TilewrightError as error:
            found, text = error, "tile.store"
    assert "tile.store" in text
    assert found is None or (found.location is not None and not found.code.startswith("TW09"))


def test_a_kernel_needs_a_grid() -> None:
    error = error_of("z = 1")
    assert isinstance(error, UnsupportedSyntaxError)
    assert "has no `tw.grid` loop" in error.message


def test_an_out_array_must_be_stored() -> None:
    error = error_of("for i in tw.grid(x, 4): z = x[i]")
    assert isinstance(error, KernelSignatureError)
    assert "never stores" in error.message


def test_stores_belong_into_the_grid() -> None:
    error = error_of("y[0] = 1\nfor i in tw.grid(x, 4): pass")
    assert isinstance(error, UnsupportedSyntaxError)
    assert "a store outside" in error.message


SIGNATURES = [
    ("x, y: tw.Out['N']", "`x` of `k` is not annotated"),
    ("x: int, y: tw.Out['N']", "`x` of `k` is not annotated"),
    ("x: tw.In, y: tw.Out['N']", "names no sizes"),
    ("x: tw.In['N'], *rest", "takes `*rest`"),
    ("x: tw.In['N'] = 3", "has a default"),
    ("x: tw.In['N+1'], y: tw.Out['N']", "`N+1` is neither"),
    ("x: tw.In[3], y: tw.Out['N']", "sizes in a string"),
    ("x: tw.In['N', 'f33'], y: tw.Out['N']", "'f33' is not an element type"),
    ("x: tw.In['N']", "no Out or InOut"),
]


@pytest.mark.parametrize(("signature", "sentence"), SIGNATURES)
def test_mistakes_in_the_signature(signature: str, sentence: str) -> None:
    with pytest.raises(KernelSignatureError, match="TW0103") as caught:
        kernel_of("pass", signature)
    assert sentence in caught.value.message
    assert caught.value.help


def test_the_help_for_a_number_as_a_parameter_is_an_array_without_axes() -> None:
    with pytest.raises(KernelSignatureError) as caught:
        kernel_of("pass", "x: float, y: tw.Out['N']")
    assert '`x: tw.In[""]`' in (caught.value.help or "")


def test_annotations_are_located() -> None:
    for mistake in (lambda: tw.In["2M"], lambda: tw.Out[3], lambda: tw.InOut["M", "f33"]):
        with pytest.raises(KernelSignatureError) as caught:
            mistake()
        assert caught.value.location is not None
        assert caught.value.location.file == __file__
        assert caught.value.location.line == mistake.__code__.co_firstlineno


def test_targets_of_kernels() -> None:
    specialised = other_than_add.lower(tw.ShapeDtype((8,), tw.f32))
    for target in (3, "abacus"):
        with pytest.raises(TargetError) as caught:
            specialised.compile(target)  # pyright: ignore[reportArgumentType]
        assert caught.value.location is not None
        assert caught.value.location.file == __file__
    with pytest.raises(TargetError, match="not a string"):
        tw.kernel(target=3)(other_than_add.__wrapped__)  # pyright: ignore


@tw.kernel
def other_than_add(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 4):
        y[i] = x[i]


def test_annotations_kept_as_text_are_located() -> None:
    source = 'from __future__ import annotations\nimport tilewright as tw\n@tw.kernel\ndef k(x: tw.In["N+1"]): pass\n'
    with pytest.raises(KernelSignatureError) as caught:
        module_of(source)
    assert caught.value.location is not None
    assert caught.value.location.line == 4
    with pytest.raises(KernelSignatureError, match="cannot be read"):
        module_of(source.replace('tw.In["N+1"]', 'missing["N"]'))


def test_what_cannot_be_a_kernel() -> None:
    with pytest.raises(KernelSignatureError, match="lambda"):
        tw.kernel(lambda x: x)
    with pytest.raises(KernelSignatureError, match="takes a Python function"):
        tw.kernel(print)  # pyright: ignore[reportArgumentType]
    names: dict[str, Any] = {"tw": tw}
    with pytest.raises(KernelSignatureError, match="source of `k` cannot be read"):
        exec('@tw.kernel\ndef k(x: tw.Out["N"]): pass', names)

"""Identity of kernels and compile-time values: programs that differ in one reachable thing have other keys, whatever
the way to it; what cannot be reached changes no key."""

from __future__ import annotations

import itertools
import linecache
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, KernelSignatureError
from tilewright.frontend.identity import StaticValue, content_digest, static_key
from tilewright.frontend.pyast import Specialisation

X = tw.ShapeDtype((8,), tw.f32)

# How a kernel reaches VALUE: statements before it, and the expression in it.
ROUTES = {
    "global": ("G = VALUE", "G"),
    "tuple": ("G = (1, VALUE)", "G[1]"),
    "list": ("G = [VALUE, 1]", "G[0]"),
    "dict": ("G = {'a': 1, 'b': VALUE}", "G['b']"),
    "nested containers": ("G = [{'a': ({'b': [VALUE]},)}]", "G[0]['a'][0]['b'][0]"),
    "list that holds itself": ("G = [VALUE]; G.append(G)", "G[1][0]"),
    "namespace": ("G = types.SimpleNamespace(v=VALUE)", "G.v"),
    "object by item": (
        "class T:\n  def __init__(s, v): s.v = v\n  def __getitem__(s, i): return s.v\nG = T(VALUE)",
        "G[0]",
    ),
    "slots": ("class T:\n  __slots__ = ('v', '__w')\n  def __init__(s, v): s.__w = v\nG = T(VALUE)", "use(G)"),
    "dataclass": ("@dataclasses.dataclass(repr=False)\nclass T:\n  v: object\nG = T(VALUE)", "G.v"),
    "dataclass without comparison": (
        "@dataclasses.dataclass(frozen=True)\nclass T:\n  v: object = dataclasses.field(compare=False)\nG = T(VALUE)",
        "use(G)",
    ),
    "object with a repr": ("class T:\n  def __repr__(s): return 'T'\nG = T(); G.v = VALUE", "use(G)"),
    "class attribute": ("class T:\n  v = VALUE\nG = T()", "use(G)"),
    "base class": ("class S:\n  v = VALUE\nclass T(S): pass\nG = T()", "use(G)"),
    "property": ("H = VALUE\nclass T:\n  @property\n  def v(s): return H\nG = T()", "use(G)"),
    "list of a class of its own": ("class T(list): pass\nG = T([VALUE])", "G[0]"),
    "enumeration": ("class T(enum.Enum):\n  A = ('a', VALUE)\nG = T.A", "G.value[1]"),
    "default of a helper": ("def helper(x, v=VALUE): return x", "helper(x[i])"),
    "keyword of a helper": ("def helper(x, *, v=VALUE): return x", "helper(x[i])"),
    "helper": ("H = VALUE\ndef helper(x):\n  H\n  return x", "helper(x[i])"),
    "helper of a helper": ("H = VALUE\ndef inner(): return H\ndef helper(x):\n  inner()\n  return x", "helper(x[i])"),
    "helper in a list": ("H = VALUE\ndef helper(x):\n  H\n  return x\nG = [helper]", "G[0](x[i])"),
    "helper in a dict": ("H = VALUE\ndef helper(x):\n  H\n  return x\nG = {'h': (helper,)}", "G['h'][0](x[i])"),
    "helpers that call each other": (
        "H = VALUE\ndef even(x, n=4):\n  return odd(x, n - 1) if n else x\n"
        "def odd(x, n):\n  H\n  return even(x, n - 1)",
        "even(x[i])",
    ),
    "closure": ("def make(v):\n  def helper(x):\n    v\n    return x\n  return helper\nG = make(VALUE)", "G(x[i])"),
    "closure of an inner function": (
        "def make(v):\n  def helper(x):\n    def inner(): return v\n    return x\n  return helper\nG = make(VALUE)",
        "G(x[i])",
    ),
    "partial": ("def helper(v, x): return x\nG = functools.partial(helper, VALUE)", "G(x[i])"),
    "bound method": ("class T:\n  def m(s, x): return x\nG = T(); G.v = VALUE", "G.m(x[i])"),
    "attribute of a function": ("def helper(x): return x\nhelper.v = VALUE", "helper(x[i])"),
    "attribute of a module": ("M = types.ModuleType('settings'); M.v = VALUE", "M.v"),
}

PAIRS: list[tuple[Any, Any]] = [
    (4, 5),
    (4, 4.0),
    (1, True),
    (0.0, -0.0),
    (0.1, 0.1 + 2**-56),
    (float("nan"), 1.0),
    (None, False),
    ("a", b"a"),
    ("ab", "ba"),
    ((1,), (1.0,)),
    ((1, 2), [1, 2]),
    (("a", "bc"), ("ab", "c")),
    ({1: 2}, {1.0: 2}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (np.float32(1), np.float64(1)),
    (np.zeros(2000, np.float32), np.eye(1, 2000, 700, dtype=np.float32)[0]),
    (np.zeros(6, np.int32), np.zeros((2, 3), np.int32)),
    (np.zeros(4, np.int32), np.zeros(4, np.uint32)),
    (np.arange(3, dtype="<f4"), np.arange(3, dtype=">f4")),
    (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    (np.array([1, None], object), np.array([1, 0], object)),
    (tw.f32, tw.f16),
    (np.dtype("f4"), np.dtype(">f4")),
    (len, abs),
    (slice(0, 1), slice(0, 2)),
    (range(3), range(4)),
]

KERNEL = """
{before}
def use(x): return 1
@tw.kernel
def scale(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 4):
        y[i] = x[i] * {expression}
"""
_numbers = itertools.count()


def module(text: str, **values: Any) -> dict[str, Any]:
    """Run a text as a module of its own, whose source can be found."""
    file = f"<identity {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    # Dataclasses look their module up.
    sys.modules["identity"] = types.ModuleType("identity")
    names: dict[str, Any] = {"__name__": "identity", **values}
    for name in ("dataclasses", "enum", "functools", "types"):
        names[name] = __import__(name)
    names["tw"] = tw
    exec(compile(text, file, "exec"), names)
    return names


def digest(kernel: tw.Kernel, **static: Any) -> str:
    specialisation = kernel.lower(X, **static).specialisation
    assert isinstance(specialisation, Specialisation)
    return specialisation.digest


def reached(route: str, value: Any) -> str:
    before, expression = ROUTES[route]
    return digest(module(KERNEL.format(before=before, expression=expression), VALUE=value)["scale"])


def content(value: Any) -> Any:
    """An equal value that shares nothing with another."""
    return value.copy() if isinstance(value, np.ndarray | list | dict) else value


@pytest.mark.parametrize("route", ROUTES)
def test_one_difference_gives_another_digest(route: str) -> None:
    for one, other in PAIRS:
        first = reached(route, one)
        assert first == reached(route, content(one)), (one, other)
        assert first != reached(route, other), (one, other)


def test_there_are_500_pairs() -> None:
    assert len(ROUTES) * len(PAIRS) >= 500


CLASS = "class T:\n  {decorator}\n  def {name}: return {value}\nhelper = {made}"
ITEM = {"decorator": "", "name": "__getitem__(s, i)", "made": "T()"}
STATIC = {"decorator": "@staticmethod", "name": "f(x)", "made": "T"}
CODE_PAIRS = [
    ("def helper(x): return x * 2", "def helper(x): return x * 3"),
    ("def helper(x): return x + 1", "def helper(x): return x - 1"),
    ("def helper(x, a=1): return x", "def helper(x, *, a=1): return x"),
    ("def helper(x): return tw.exp(x)", "def helper(x): return tw.log(x)"),
    ("helper = lambda x: x", "helper = lambda x: -x"),
    (CLASS.format(value=1, **ITEM), CLASS.format(value=2, **ITEM)),
    (CLASS.format(value=1, **STATIC), CLASS.format(value=2, **STATIC)),
]


@pytest.mark.parametrize(("one", "other"), CODE_PAIRS)
def test_other_code_gives_another_digest(one: str, other: str) -> None:
    def of(before: str) -> str:
        return digest(module(KERNEL.format(before=before, expression="(helper, 1)[1]"))["scale"])

    assert of(one) == of(f"\n# a comment\n\n{one}")
    assert of(one) != of(other)


UNREACHABLE = {
    "a global with the name of a loop variable": "i = VALUE",
    "a global with the name of a parameter": "x = VALUE",
    "a global that nothing reads": "other = VALUE",
    "another function": "H = VALUE\ndef other(): return H",
    "an attribute of a module that is not read": "tw_other = types.ModuleType('m'); tw_other.v = VALUE",
    "a global with the name of a local variable of a helper": "part = VALUE",
    "an attribute of an object of which another is read": "G = types.SimpleNamespace(a=1, other=VALUE)",
    "a global with the name of a variable of a comprehension": "item = VALUE",
    "a keyword's name": "axis = VALUE",
}


@pytest.mark.parametrize("case", UNREACHABLE)
def test_what_is_not_read_changes_no_digest(case: str) -> None:
    text = (
        f"G = types.SimpleNamespace(a=1)\n{UNREACHABLE[case]}\n"
        "def helper(tile):\n  part = tw.sum(tile, axis=0)\n  return [item for item in (part, 1)][0]\n"
        '@tw.kernel\ndef scale(x: tw.In["N"], y: tw.Out["N"]):\n'
        "    for i in tw.grid(x, 4):\n        y[i] = x[i] * helper(x[i]) * G.a\n"
    )

    class Failing:
        def __repr__(self) -> str:
            raise RuntimeError("repr must not be called")

    digests = {digest(module(text, VALUE=v)["scale"]) for v in (1, 2.0, Failing(), (n for n in ()))}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: (n for n in ()), "`G` is an object of type `generator`"),
        (lambda: [{"a": open(os.devnull)}], r"`G\[0\]\['a'\]` is an object of type `TextIOWrapper`"),  # noqa: SIM115
        (lambda: types.SimpleNamespace(lock=__import__("threading").Lock()), "`G.lock` is an object of type `lock`"),
    ],
)
def test_what_has_no_readable_content_is_refused_by_name(make: Callable[[], Any], what: str) -> None:
    kernel = module(KERNEL.format(before="", expression="(G, 1)[1]"), G=make())["scale"]
    with pytest.raises(ArgumentError, match=what):
        kernel(np.ones(4, np.float32))


def test_digests_are_the_same_in_another_process(tmp_path: Path) -> None:
    text = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_identity import PAIRS, ROUTES, reached\n"
        "print(*[reached(route, PAIRS[n % len(PAIRS)][0]) for n, route in enumerate(ROUTES)])"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", text, str(Path(__file__).parent)]
    run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [reached(route, PAIRS[n % len(PAIRS)][0]) for n, route in enumerate(ROUTES)]


@dataclass(frozen=True)
class Config:
    scale: Any
    cache: Any = field(default=None, compare=False)


class Setting(msgspec.Struct, frozen=True):
    scale: Any


@pytest.mark.parametrize(("one", "other"), PAIRS[:15])
def test_static_values_are_keyed_by_type_and_structure(one: Any, other: Any) -> None:
    for wrap in (lambda v: v, lambda v: (v, 1), lambda v: Config(v), lambda v: Config(1, v), Setting):
        try:
            assert StaticValue(wrap(one)) == StaticValue(wrap(one))
            assert StaticValue(wrap(one)) != StaticValue(wrap(other))
        except TypeError:  # lists and dicts
            assert isinstance(one, dict) or isinstance(other, list)


def test_nan_is_itself_and_sets_have_no_order() -> None:
    assert static_key(float("nan")) == static_key(float("nan"))
    assert static_key(frozenset({1, 2})) == static_key(frozenset({2, 1}))
    assert static_key(frozenset({1})) != static_key(frozenset({1.0}))
    assert content_digest({"a", "b", "c"}, "s") == content_digest({"c", "b", "a"}, "s")


def test_functions_of_jit_are_traced_for_each_static_value() -> None:
    @tw.jit(static_argnames="p")
    def scaled(x: Any, p: Any) -> Any:
        return x * p[0]

    @tw.jit(static_argnames="z")
    def divided(x: Any, z: float) -> Any:
        return x / (x * z)

    @tw.jit
    def keyed(named: dict[Any, Any]) -> Any:
        return named[1] * (2 if isinstance(next(iter(named)), bool) else 3)

    x = np.full(3, 2**30, np.int32)
    assert scaled(x, p=(4,)).dtype == np.int32
    assert scaled(x, p=(4.0,)).dtype == np.float32
    ones = np.ones(2, np.float32)
    with np.errstate(divide="ignore"):
        for z in (0.0, -0.0, 2.0):
            np.testing.assert_array_equal(divided(ones, z=z), ones / (ones * np.float32(z)))
    assert keyed({1: ones})[0] == 3
    assert keyed({True: ones})[0] == 2


def test_a_static_value_of_a_kernel_is_keyed_too() -> None:
    @tw.kernel
    def divide(x: tw.In["N"], y: tw.Out["N"], *, z: float = 0.0):
        for b in tw.grid(y, 16):
            y[b] = x[b] / (x[b] * z)

    x = np.ones(2, np.float32)
    with np.errstate(divide="ignore"):
        for z in (0.0, -0.0):
            np.testing.assert_array_equal(divide(x, z=z), x / (x * np.float32(z)))


def test_a_value_that_changes_between_lowering_and_compiling_is_an_error() -> None:
    table = [2.0]

    @tw.kernel
    def scale(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, 4):
            y[i] = x[i] * table[0]

    lowered = scale.lower(X)
    table[0] = 3.0
    lowered_again = scale.lower(X)
    with tw.options(cache=False), pytest.raises(ArgumentError, match="changed since the kernel was lowered"):
        _ = lowered.specialisation.digest, table.__setitem__(0, 4.0), lowered.compile("cpu")
    table[0] = 3.0
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    lowered_again.compile("cpu")(x, y)
    assert y[0] == 3


# ---- source ---------------------------------------------------------------------------------------------------------


def test_a_decorator_below_is_an_error() -> None:
    text = (
        "def negated(f):\n    @functools.wraps(f)\n    def inner(*a): return -f(*a)\n    return inner\n{above}"
        "@tw.kernel\n{below}def k(x: tw.In['N'], y: tw.Out['N']):\n    for i in tw.grid(x, 4): y[i] = helper(x[i])\n"
    )
    with pytest.raises(KernelSignatureError, match=r"a decorator has wrapped `k` in `negated\.<locals>\.inner`"):
        module(text.format(above="def helper(v): return v\n", below="@negated\n"))
    kernel = module(text.format(above="@negated\ndef helper(v): return v\n", below=""))["k"]
    with pytest.raises(KernelSignatureError, match="a decorator has wrapped `helper`"):
        kernel(np.ones(4, np.float32))


@pytest.mark.parametrize("edit", ["helper", "kernel", "shifted", "unparsable"])
def test_a_file_edited_after_its_import_is_an_error_or_changes_nothing(tmp_path: Path, edit: str) -> None:
    text = (
        'import tilewright as tw\ndef helper(v): return v * 2\n@tw.kernel\ndef k(x: tw.In["N"], z: tw.Out["N"]):\n'
        "    for b in tw.grid(z, 16): z[b] = helper(x[b])\n"
    )
    edited = {
        "helper": text.replace("v * 2", "v * 777"),
        "kernel": text.replace("helper(x[b])", "helper(x[b]) + 1"),
        "shifted": "# a line more\ndef other(): pass\n" + text,
        "unparsable": text + "def (",
    }
    name = f"edited_{edit}"
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    sys.path.insert(0, str(tmp_path))
    try:
        kernel = __import__(name).k
    finally:
        sys.path.remove(str(tmp_path))
    file.write_text(edited[edit])
    x = np.ones(3, np.float32)
    # The kernel itself was read when it was decorated; `helper` is found alone where the whole cannot be compiled.
    if edit != "helper":
        np.testing.assert_array_equal(kernel(x), [2, 2, 2])
        return
    with pytest.raises(KernelSignatureError, match=r"`helper` in .* is not the code that Python runs"):
        kernel(x)


def test_a_kernel_in_a_file_that_is_not_python_as_a_whole() -> None:
    text = """# A page

```python
import tilewright as tw
FACTOR = 3
@tw.kernel
def scale(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 4):
        y[i] = x[i] * FACTOR
def make(factor):
    @tw.kernel
    def nested(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, 4):
            y[i] = x[i] * factor
    return nested
```
"""
    file, lines = "<a page>", text.splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n" * 3 + "".join(lines[3:-1]), file, "exec"), names)
    x = np.ones(6, np.float32)
    np.testing.assert_array_equal(names["scale"](x), x * 3)
    np.testing.assert_array_equal(names["make"](5)(x), x * 5)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_elements_of_captured_arrays_are_numbers(library: str) -> None:
    """Arrays without axes, of any library."""

    def made(table: Any) -> Any:
        @tw.kernel
        def scaled(x: tw.In["N"], z: tw.Out["N"]):
            for i in tw.grid(z, 16):
                z[i] = x[i] * table[0]

        return scaled

    array = pytest.importorskip(library).ones
    x = np.ones(3, np.float32)
    assert made(array(1) * 0.12345)(x)[0] == np.float32(0.12345)
    assert made(array(1) * 0.12349)(x)[0] == np.float32(0.12349)
    assert made([np.array(3.0)])(x)[0] == 3

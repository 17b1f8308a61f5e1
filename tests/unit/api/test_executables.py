"""Every target's executable has all members of the protocol `Executable`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError, ShapeError, UnsupportedOnTargetError
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.program_file import ProgramFile
from tilewright.runtime.shared_constants import keep_in_memory
from tilewright.targets.base import Executable, built_in

PACKAGE = Path(tw.__file__).parent
CHIPS = {"cuda": "cuda:sm_90a"}
X = np.arange(8, dtype=np.float32)


def executable(target: str) -> Executable:
    with tw.options(cache=False):
        return tw.jit(lambda x: x + 1).lower(X).compile(CHIPS.get(target, target)).executable


@pytest.mark.parametrize("target", built_in())
def test_members_of_the_protocol(target: str) -> None:
    found = executable(target)
    wanted = {name for name in vars(Executable) if not name.startswith("_")}
    assert wanted >= {"program", "link", "settled", "cache_state", "unit", "cost", "profile", "explain", "save"}
    assert wanted <= set(dir(found))
    assert found.cache_state == "off"
    assert found.unit.main.sym_name.data == "main"


@pytest.mark.parametrize("target", ["cpu", "null", "cuda", "grid"])
def test_programs_are_linked(target: str) -> None:
    found = executable(target)
    assert isinstance(found.program, ProgramFile)
    assert isinstance(found.link(keep_in_memory), ProgramFile)


@pytest.mark.parametrize("target", ["interp"])
def test_targets_without_program_files_refuse(target: str) -> None:
    found = executable(target)
    with pytest.raises(UnsupportedOnTargetError, match="no program files"):
        _ = found.program
    with pytest.raises(UnsupportedOnTargetError, match="no program files"):
        found.link(keep_in_memory)


@pytest.mark.parametrize("target", built_in())
def test_only_native_calls_are_settled(target: str) -> None:
    found = executable(target)
    options, function = found.settled
    assert options is None
    assert function(X) is MISMATCH
    if target == "cpu":
        found(X)
        np.testing.assert_array_equal(found.settled[1](X), X + 1)


Y = X[::-1].copy()
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "an array": (lambda x, y: x * y, (X, Y), {}),
    "a tuple": (lambda x, y: (x * y, x + y), (X, Y), {}),
    "a list of one": (lambda x, y: [x * y], (X, Y), {}),
    "a dict": (lambda x, y: {"sum": x + y, "x": x}, (X, Y), {}),
    "arguments in a dict": (lambda both: both["x"] - both["y"], ({"x": X, "y": Y},), {}),
    "a number": (lambda x, scale: x * scale, (X, 2.5), {}),
    "keywords": (lambda x, y: x - y, (X,), {"y": Y}),
    "complex numbers": (lambda x: x * x, (X.astype(np.complex64),), {}),
    "an array that is not contiguous": (lambda x: x * 2, (X[::2],), {}),
}


@pytest.mark.parametrize("form", CALLS)
def test_each_call_of_a_compiled_program_gives_what_the_function_gives(form: str) -> None:
    function, args, kwargs = CALLS[form]
    compiled = tw.jit(function).lower(*args, **kwargs).compile("cpu")
    expected = function(*args, **kwargs)
    for threads in (0, 0, 1, 0):
        with tw.options(threads=threads):
            found = compiled(*args, **kwargs)
        assert type(found) is type(expected)
        for each, wanted in zip(_leaves(found), _leaves(expected), strict=True):
            assert each.dtype == wanted.dtype
            np.testing.assert_array_equal(each, wanted)


def _leaves(result: Any) -> list[Any]:
    return (
        [*result.values()] if isinstance(result, dict) else [*result] if isinstance(result, tuple | list) else [result]
    )


def test_a_compiled_program_refuses_other_arguments_after_a_call_too() -> None:
    compiled = tw.jit(lambda x, y: x * y).lower(X, Y).compile("cpu")
    for _ in range(2):
        np.testing.assert_array_equal(compiled(X, Y), X * Y)
        for args, error in [((X[:4], Y), ShapeError), ((X, Y.astype(np.float64)), DTypeError), ((X,), ArgumentError)]:
            with pytest.raises(error):
                compiled(*args)
        out = np.zeros_like(X)
        with pytest.raises(ArgumentError):
            compiled(X, Y, out)
        assert not out.any()


def test_static_and_donated_arguments_of_a_compiled_program() -> None:
    jitted = tw.jit(lambda x, n, y: (x + y) * n, static_argnames="n", donate="y")
    compiled = jitted.lower(X, 3, Y).compile("cpu")
    for _ in range(3):
        np.testing.assert_array_equal(compiled(X, 3, Y.copy()), (X + Y) * 3)
        with pytest.raises(ArgumentError, match="static"):
            compiled(X, 4, Y.copy())


@pytest.mark.parametrize("folder", ["api", "cli", "driver"])
def test_members_are_not_looked_up_by_strings(folder: str) -> None:
    """Only names that Python or the user defines: `__name__`, `EXAMPLE_ARGUMENTS`."""
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                name = node.args[1].value if isinstance(node.args[1], ast.Constant) else "__variable__"
                assert name.startswith("__") or name.isupper(), f"{path}:{node.lineno}: {name}"

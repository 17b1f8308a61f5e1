"""Each mistake in an array program is reported at the user's expression, with its code and one edit."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    IndexError_,
    ShapeError,
    TargetError,
    TilewrightError,
    UnsupportedOnTargetError,
    UnsupportedSyntaxError,
)

X = np.zeros((3, 4), np.float32)
N = np.arange(4)


def fail(function, *arguments, target: str = "interp") -> TilewrightError:
    """The error of tracing a function."""
    with pytest.raises(TilewrightError) as caught:
        tw.jit(function, target=target)(*arguments)
    return caught.value


# function, arguments, class, code, what the caret underlines, words of the message, words of the help
CASES = [
    # shapes
    (lambda x: x + x[:, :3], (X,), ShapeError, "TW0201", "x + x[:, :3]", "(3, 4) and (3, 3)", "equal or 1"),
    (lambda x: x @ x, (X,), ShapeError, "TW0201", "x @ x", "inner sizes are 4 and 3", ".mT"),
    (lambda x: x.reshape(5, -1), (X,), ShapeError, "TW0201", "x.reshape(5, -1)", "(3, 4)", "divide"),
    (lambda x: tw.concat([x, x.T]), (X,), ShapeError, "TW0201", "tw.concat([x, x.T])", "(3, 4) and (4, 3)", None),
    (lambda x: tw.einsum("ij,ij", x, x.T), (X,), ShapeError, "TW0201", 'tw.einsum("ij,ij", x, x.T)', "size 4", "equal"),
    (
        lambda x: tw.nn.attention(x, x, x),
        (X,),
        ShapeError,
        "TW0201",
        "tw.nn.attention(x, x, x)",
        "(3, 4)",
        "expand_dims",
    ),
    (lambda x: x[:0].max(0), (X,), ShapeError, "TW0201", "x[:0].max(0)", "no elements", "not empty"),
    # types
    (lambda x: x & 1, (X,), DTypeError, "TW0202", "x & 1", "bitwise_and", None),
    (lambda x: tw.where(x, x, 0), (X,), DTypeError, "TW0202", "tw.where(x, x, 0)", "f32, not bool", "x != 0"),
    (lambda n: n.astype("complex64"), (N,), DTypeError, "TW0202", 'n.astype("complex64")', "complex64", "f32"),
    (lambda n: n.astype(tw.u8) + 300, (N,), DTypeError, "TW0202", "n.astype(tw.u8) + 300", "300", "wider"),
    (
        lambda n: n.at[0].set(0.5),
        (N,),
        DTypeError,
        "TW0202",
        "n.at[0].set(0.5)",
        "float into an array of i64",
        "astype",
    ),
    (lambda x: x[x], (X,), DTypeError, "TW0202", "x[x]", "takes integers, got f32", "astype"),
    # what is not known while tracing
    (lambda x: 1 if x[0, 0] > 0 else 2, (X,), DataDependentShapeError, "TW0203", "x[0, 0] > 0", "truth", "tw.cond"),
    (lambda x: bool(x[0, 0]), (X,), DataDependentShapeError, "TW0203", "bool(x[0, 0])", "truth", "tw.where"),
    (lambda n: int(n[0]), (N,), DataDependentShapeError, "TW0203", "int(n[0])", "integer value", "static_argnames"),
    (lambda n: range(n[0]), (N,), DataDependentShapeError, "TW0203", "range(n[0])", "integer value", "fori_loop"),
    (lambda x: float(x[0, 0]), (X,), DataDependentShapeError, "TW0203", "float(x[0, 0])", "number", "static_argnames"),
    (lambda x: complex(x[0, 0]), (X,), DataDependentShapeError, "TW0203", "complex(x[0, 0])", "number", "array"),
    (lambda x: len(x), (X,), DataDependentShapeError, "TW0203", "len(x)", "length", "x.shape[0]"),
    (lambda x: [r for r in x], (X,), DataDependentShapeError, "TW0203", None, "iteration", "tw.unstack"),
    (lambda x: 1.0 in x, (X,), DataDependentShapeError, "TW0203", "1.0 in x", "membership", "tw.any"),
    (lambda x: x.item(), (X,), DataDependentShapeError, "TW0203", "x.item()", "number", "return the array"),
    (lambda x: x.tolist(), (X,), DataDependentShapeError, "TW0203", "x.tolist()", "contents", "return the array"),
    (lambda x: np.asarray(x), (X,), DataDependentShapeError, "TW0203", "np.asarray(x)", "contents", "in `tw`"),
    (lambda x: x[x > 0], (X,), DataDependentShapeError, "TW0203", "x[x > 0]", "mask", "tw.where"),
    (lambda x, n: x[: n[0]], (X, N), DataDependentShapeError, "TW0203", "x[: n[0]]", "slice", "tw.dynamic_slice"),
    (lambda n: tw.zeros(n[0]), (N,), DataDependentShapeError, "TW0203", "tw.zeros(n[0])", "integer value", "fori_loop"),
    (
        lambda n: tw.nonzero(n),
        (N,),
        DataDependentShapeError,
        "TW0203",
        "tw.nonzero(n)",
        "depends on the contents",
        "where",
    ),
    (
        lambda n: tw.repeat(n, n),
        (N,),
        DataDependentShapeError,
        "TW0203",
        "tw.repeat(n, n)",
        "traced",
        "Python integers",
    ),
    # indices and axes
    (lambda x: x[3], (X,), IndexError_, "TW0204", "x[3]", "index 3 is out of bounds for axis 0 of size 3", "inside"),
    (lambda x: x[0, 0, 0], (X,), IndexError_, "TW0204", "x[0, 0, 0]", "3 indices", "at most 2"),
    (lambda x: x[0.5], (X,), IndexError_, "TW0204", "x[0.5]", "float", "integers"),
    (lambda x: x.sum(2), (X,), IndexError_, "TW0204", "x.sum(2)", "no axis 2", None),
    # arguments
    (lambda x: x.sum((0, 0)), (X,), ArgumentError, "TW0205", "x.sum((0, 0))", "twice", "once"),
    (lambda x: tw.nn.gelu(x, "erf"), (X,), ArgumentError, "TW0205", 'tw.nn.gelu(x, "erf")', "'erf'", "tanh"),
    (lambda x: tw.einsum("ij->k", x), (X,), ArgumentError, "TW0205", 'tw.einsum("ij->k", x)', "`k`", "ij,jk->ik"),
    (lambda x: tw.exp([1.0]), (X,), ArgumentError, "TW0205", "tw.exp([1.0])", "list", "tw.asarray"),
    (lambda x: tw.exp("a"), (X,), ArgumentError, "TW0205", 'tw.exp("a")', "str", "Python numbers"),
    (lambda x: np.frexp(x), (X,), ArgumentError, "TW0205", "np.frexp(x)", "np.frexp", "`tw`"),
    (lambda x: np.sum(x), (X,), ArgumentError, "TW0205", "np.sum(x)", "numpy.sum", "tw.sum"),
    (lambda x: np.linalg.norm(x), (X,), ArgumentError, "TW0205", "np.linalg.norm(x)", "numpy.linalg.norm", "`tw`"),
    (lambda x: np.add.reduce(x), (X,), ArgumentError, "TW0205", "np.add.reduce(x)", "np.add", "`tw`"),
    (lambda x: x.to_device("cuda"), (X,), ArgumentError, "TW0205", 'x.to_device("cuda")', "device", "target"),
    # control flow
    (lambda x: tw.while_loop(lambda c: True, lambda c: c[0], x), (X,), ShapeError, "TW0201", None, "`carry`", "(3, 4)"),
    (lambda x: tw.fori_loop(0, 2, lambda i, c: c.astype(tw.f64), x), (X,), DTypeError, "TW0202", None, "f64", "astype"),
    (lambda x: tw.cond(x, lambda: 1, lambda: 2), (X,), ArgumentError, "TW0205", None, "not one bool", "tw.where"),
    (lambda x: tw.scan(lambda c, r: (c, r), 0), (X,), ArgumentError, "TW0205", None, "length", "`length`"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[3]}-{case[5]}")
def test_mistakes(case):
    function, arguments, kind, code, underlined, words, help = case
    error = fail(function, *arguments)
    assert type(error) is kind
    assert error.code == code
    assert words in error.message
    assert error.location is not None
    assert error.location.file == __file__
    line = linecache.getline(__file__, error.location.line)
    spanned = line[error.location.column - 1 : error.location.end_column - 1]
    assert spanned == underlined if underlined else error.location.line == function.__code__.co_firstlineno
    text = str(error)
    assert text.startswith(f"error[{code}]: ")
    assert f"--> {__file__}:{error.location.line}:{error.location.column}" in text
    caret = text.splitlines()[text.splitlines().index(next(t for t in text.splitlines() if line.rstrip() in t)) + 1]
    assert caret.count("^") == len(spanned)
    assert error.help
    assert (help or "") in error.help


def test_assignment_to_elements():
    def function(x):
        x[0] = 1.0
        return x

    error = fail(function, X)
    assert type(error) is UnsupportedSyntaxError
    assert error.code == "TW0101"
    assert error.location is not None
    assert linecache.getline(__file__, error.location.line).strip() == "x[0] = 1.0"
    assert "x.at[...].set(value)" in (error.help or "")


def test_mistakes_in_called_functions_are_reported_where_they_are():
    def helper(x):
        return x.T @ x.T

    error = fail(lambda x: helper(x) + 1, X)
    assert error.location is not None
    assert linecache.getline(__file__, error.location.line).strip() == "return x.T @ x.T"


def test_errors_of_the_caller_are_reported_at_the_call():
    error = fail(lambda x: x, 1j)
    assert error.location is not None
    assert "tw.jit(function" in linecache.getline(__file__, error.location.line)
    assert "argument `x`" in error.message


def test_a_target_that_does_not_exist():
    error = fail(lambda x: x, X, target="abacus")
    assert (type(error), error.code) == (TargetError, "TW0501")
    assert "interp" in (error.help or "")


def test_what_interp_does_not_have():
    compiled = tw.jit(lambda x: x, target="interp").lower(X).compile()
    with pytest.raises(UnsupportedOnTargetError) as caught:
        compiled.asm()
    assert caught.value.code == "TW0502"
    assert caught.value.help

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
    ResourceExhausted,
    ShapeError,
    TargetError,
    TilewrightError,
    UnsupportedOnTargetError,
    UnsupportedSyntaxError,
)

X = np.zeros((3, 4), np.float32)
N = np.arange(4)


def source_line(error: TilewrightError) -> str:
    """The user's line that an error points at."""
    assert error.location is not None
    assert error.location.file == __file__
    return linecache.getline(__file__, error.location.line).strip()


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
    (lambda x: tw.zeros(2**70), (X,), ShapeError, "TW0201", "tw.zeros(2**70)", "too large", "2**63 - 1"),
    (lambda x: tw.zeros((2**62, 0)), (X,), ShapeError, "TW0201", "tw.zeros((2**62, 0))", "too large", "smaller"),
    (lambda x: tw.iota(2**60), (X,), ShapeError, "TW0201", "tw.iota(2**60)", "too large", "smaller"),
    (
        lambda x: tw.broadcast_to(x, (2**61, 3, 4)),
        (X,),
        ShapeError,
        "TW0201",
        "tw.broadcast_to(x, (2**61, 3, 4))",
        "too large",
        "smaller",
    ),
    (lambda x: x[0, 0].reshape((1,) * 65), (X,), ShapeError, "TW0201", None, "65 axes", "64"),
    # types
    (lambda x: x & 1, (X,), DTypeError, "TW0202", "x & 1", "bitwise_and", None),
    (lambda x: tw.where(x, x, 0), (X,), DTypeError, "TW0202", "tw.where(x, x, 0)", "f32, not bool", "x != 0"),
    (lambda n: n.astype("complex256"), (N,), DTypeError, "TW0202", 'n.astype("complex256")', "complex256", "f32"),
    (
        lambda n: (n * 1j).astype("f32"),
        (N,),
        DTypeError,
        "TW0202",
        '(n * 1j).astype("f32")',
        "imaginary part",
        "tw.real",
    ),
    (lambda n: n * 1j < 2, (N,), DTypeError, "TW0202", "n * 1j < 2", "`less` does not take complex", "tw.abs"),
    (lambda n: tw.sort(n * 1j), (N,), DTypeError, "TW0202", "tw.sort(n * 1j)", "complex numbers", "tw.abs"),
    (lambda n: n.at[0].set(1j), (N,), DTypeError, "TW0202", "n.at[0].set(1j)", "complex", "astype"),
    (lambda n: tw.fft.rfft(n * 1j), (N,), DTypeError, "TW0202", "tw.fft.rfft(n * 1j)", "real numbers", "tw.fft.fft"),
    (lambda n: tw.fft.fft(n, norm="up"), (N,), ArgumentError, "TW0205", None, "norm 'up'", "ortho"),
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
    (
        lambda x: float(x[0, 0]),
        (X,),
        DataDependentShapeError,
        "TW0203",
        "float(x[0, 0])",
        "value of",
        "static_argnames",
    ),
    (lambda x: complex(x[0, 0]), (X,), DataDependentShapeError, "TW0203", "complex(x[0, 0])", "value of", "array"),
    (lambda x: len(x[0, 0]), (X,), ShapeError, "TW0201", "len(x[0, 0])", "length of an array without axes", "x[None]"),
    (lambda x: [r for r in x], (X,), DataDependentShapeError, "TW0203", None, "loop over the rows", "tw.unstack"),
    (
        lambda x: tw.argmin(x[:0], axis=0),
        (X,),
        ShapeError,
        "TW0201",
        None,
        "`argmin` over an axis of size 0",
        "non-empty",
    ),
    (lambda x: 1.0 in x, (X,), DataDependentShapeError, "TW0203", "1.0 in x", "membership", "tw.any"),
    (lambda x: x.item(), (X,), DataDependentShapeError, "TW0203", "x.item()", "value of", "return the array"),
    (lambda x: x.tolist(), (X,), DataDependentShapeError, "TW0203", "x.tolist()", "content", "return the array"),
    (lambda x: np.asarray(x), (X,), DataDependentShapeError, "TW0203", "np.asarray(x)", "content", "in `tw`"),
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
    (lambda x: tw.einsum(x, x), (X,), ArgumentError, "TW0205", "tw.einsum(x, x)", "Array, not a string", "ij,jk->ik"),
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


@pytest.mark.parametrize("padding", [None, 1.5, (1.5,), (None,), ((1.5, 1),), ((1, "1"),), True])
def test_padding_that_is_no_integer(padding):
    image = np.zeros((1, 1, 4), np.float32)
    convolved = fail(lambda x: tw.nn.conv(x, x, padding=padding), image)
    pooled = fail(lambda x: tw.nn.max_pool(x, 2, padding=padding), image)
    for error, call in ((convolved, "tw.nn.conv(x"), (pooled, "tw.nn.max_pool(x")):
        assert type(error) is ArgumentError
        assert "the padding is" in error.message
        assert error.help
        assert call in source_line(error)


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
    error = fail(lambda x: x, "text")
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


def test_the_largest_shapes_are_traced():
    graph = tw.jit(lambda: (tw.zeros(2**61 - 1), tw.zeros((1,) * 64))).lower().graph
    assert [value.shape for value in graph.outputs] == [(2**61 - 1,), (1,) * 64]


def test_arguments_too_large_for_any_memory():
    for shape in ((2**70,), (1,) * 65):
        with pytest.raises(ShapeError) as caught:
            tw.ShapeDtype(shape, tw.f32)
        assert source_line(caught.value) == "tw.ShapeDtype(shape, tw.f32)"


def test_targets_that_are_no_strings():
    for make in (
        lambda: tw.jit(lambda x: x, target=3),
        lambda: tw.jit(lambda x: x, target=["cpu"]),
        lambda: tw.jit(lambda x: x).lower(X).compile(3),
    ):
        with pytest.raises(TargetError, match="not a string") as caught:
            make()
        assert caught.value.help
        assert source_line(caught.value).startswith("lambda: tw.jit(")


def nested(depth: int):
    tree = X
    for _ in range(depth):
        tree = (tree,)
    return tree


def test_containers_that_are_nested_too_deeply():
    identity = tw.jit(lambda t: t, target="interp")
    for _ in range(2):  # the second call compares structures
        result = identity(nested(200))
        for _ in range(200):
            (result,) = result
        np.testing.assert_array_equal(result, X)
    itself = []
    itself.append(itself)
    for tree in (nested(201), nested(900), itself):
        with pytest.raises(ArgumentError, match="nested more than 200 deep") as caught:
            identity(tree)
        assert caught.value.help
        assert source_line(caught.value) == "identity(tree)"
    assert "nested more than 200 deep" in fail(lambda x: nested(900), X).message


def test_lists_that_are_nested_too_deeply():
    deep = 1.0
    for _ in range(65):
        deep = [deep]
    assert tw.jit(lambda: tw.asarray(deep[0])).lower().graph.outputs[0].shape == (1,) * 64
    for lists in (deep, [[[deep]]], list(nested(900))):
        error = fail(lambda lists=lists: tw.asarray(lists))
        assert type(error) is ShapeError
        assert "nested more than 64 deep" in error.message
        assert "tw.asarray(lists)" in source_line(error)


def test_a_shape_dtype_cannot_be_run_on():
    double = tw.jit(lambda x, y: x + y)
    compiled = double.lower(X, X).compile("interp")
    for call in (double, compiled):
        with pytest.raises(ArgumentError, match="no contents") as caught:
            call(X, tw.ShapeDtype((3, 4), tw.f32))
        assert ".lower(" in (caught.value.help or "")
        assert source_line(caught.value) == "call(X, tw.ShapeDtype((3, 4), tw.f32))"


# What goes wrong below the interface, each as one expression.
LATE = [
    (lambda path: tw.jit(lambda x: x, target="abacus")(X), TargetError),
    (lambda path: tw.jit(lambda x: x).lower(X).compile("abacus"), TargetError),
    (lambda path: tw.jit(lambda x: x).lower(X).compile("cpu:abacus"), TargetError),
    (lambda path: tw.jit(lambda x: x).lower(X).compile("cpu").ir("end"), UnsupportedOnTargetError),
    (lambda path: tw.jit(lambda x: x).lower(X).compile("interp").asm(), UnsupportedOnTargetError),
    (lambda path: tw.jit(lambda x: x).lower(X).compile("interp").save("x.twp"), UnsupportedOnTargetError),
    (lambda path: tw.jit(lambda: tw.zeros(2**50), target="cpu")(), ResourceExhausted),
    (lambda path: tw.load(path)(), ArgumentError),
    (lambda path: tw.load(path)(X.T), ShapeError),
    (lambda path: tw.load(path)(X, threads=0), ArgumentError),
]


@pytest.mark.parametrize(("function", "kind"), LATE)
def test_errors_of_lower_layers_have_the_users_line(function, kind, tmp_path):
    path = str(tmp_path / "double.twp")
    tw.jit(lambda x: x + x, target="cpu").lower(X).compile().save(path)
    with pytest.raises(kind) as caught:
        function(path)
    assert source_line(caught.value).startswith("(lambda path: ")
    assert caught.value.help

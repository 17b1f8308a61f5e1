"""`tw.from_stablehlo`: stored programs, arguments and results, forms of the text, and errors. Needs no JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.interop.stablehlo import stored
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    ModelFileError,
    ShapeError,
    TilewrightError,
    UnsupportedOperatorError,
)

_GENERIC = """
"builtin.module"() <{sym_name = "m"}> ({
  "func.func"() <{function_type = (tensor<2x3xf32>) -> tensor<2x3xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<2x3xf32>):
    %0 = "stablehlo.constant"() <{value = dense<2.0> : tensor<f32>}> : () -> tensor<f32>
    %1 = "stablehlo.broadcast_in_dim"(%0) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32>
    %2 = "stablehlo.multiply"(%arg0, %1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    "func.return"(%2) : (tensor<2x3xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""
_X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _main(body: str, arguments: str = "%x: tensor<2x3xf32>", results: str = "tensor<2x3xf32>") -> str:
    """A module around lines of a function."""
    return f"func.func @main({arguments}) -> {results} {{\n{body}\n}}\n"


@pytest.mark.parametrize("name", stored.NAMES)
def test_stored_programs_give_what_jax_gave(name: str) -> None:
    text, inputs, expected = stored.read(name)
    results = tw.from_stablehlo(text)(*inputs)
    assert len(results) == len(expected)
    for found, wanted in zip(results, expected, strict=True):
        if found.dtype.name != "bfloat16":
            assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.astype(wanted.dtype), wanted, rtol=5e-5, atol=1e-5)


def test_both_forms_are_read() -> None:
    pretty = _main(
        """  %cst = stablehlo.constant dense<2.0> : tensor<f32> loc("here")
  %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x3xf32> loc(#loc1)
  %1 = stablehlo.multiply %x, %0 : tensor<2x3xf32>
  return %1 : tensor<2x3xf32>"""
    )
    for text in (_GENERIC, "#loc1 = loc(unknown)\n" + pretty, "module @m attributes {a.b = 1 : i32} {" + pretty + "}"):
        np.testing.assert_array_equal(tw.from_stablehlo(text)(_X), 2 * _X)


def test_a_program_may_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(_GENERIC)
    np.testing.assert_array_equal(tw.from_stablehlo(path)(_X), 2 * _X)
    np.testing.assert_array_equal(tw.from_stablehlo(str(path))(_X), 2 * _X)
    with pytest.raises(ModelFileError, match="cannot be read"):
        tw.from_stablehlo(tmp_path / "missing.mlir")


def test_a_program_is_traced_into_another() -> None:
    model = tw.from_stablehlo(_GENERIC)
    np.testing.assert_array_equal(tw.jit(lambda x: model(x) + 1.0)(_X), 2 * _X + 1)
    assert model.lower(_X).compile().ir("array")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((), ArgumentError), ((_X, _X), ArgumentError), ((_X.astype(np.float64),), DTypeError), ((_X.T,), ShapeError)],
)
def test_arguments_are_checked(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        tw.from_stablehlo(_GENERIC)(*arguments)


def test_calls_are_traced_in_place() -> None:
    text = """
func.func @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %0:2 = call @both(%x) : (tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  %1 = call @both_again(%0#1) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0#0, %1 : tensor<2x3xf32>, tensor<2x3xf32>
}
func.func private @both(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %0 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %0, %x : tensor<2x3xf32>, tensor<2x3xf32>
}
func.func private @both_again(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0:2 = call @both(%x) : (tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
  return %0#0 : tensor<2x3xf32>
}
"""
    first, second = tw.from_stablehlo(text)(_X)
    np.testing.assert_array_equal(first, 2 * _X)
    np.testing.assert_array_equal(second, 2 * _X)


def test_constants_are_read_in_all_their_forms() -> None:
    body = """  %0 = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
  %1 = stablehlo.constant dense<"0x0000803F00000040"> : tensor<2xf32>
  %2 = stablehlo.constant dense<0x7F800000> : tensor<2xf32>
  %3 = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %4 = stablehlo.constant dense<"0x0000C03F"> : tensor<2xf32>
  %5 = stablehlo.constant dense<> : tensor<0x2xf32>
  %6 = stablehlo.constant dense<[-1, 0xFF]> : tensor<2xui8>
  return %0, %1, %2, %3, %4, %5, %6 : tensor<2x3xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi1>, tensor<2xf32>, \
tensor<0x2xf32>, tensor<2xui8>"""
    types = (
        "(tensor<2x3xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi1>, tensor<2xf32>, tensor<0x2xf32>, tensor<2xui8>)"
    )
    found = tw.from_stablehlo(_main(body, "", types))()
    expected = [
        [[1, 2, 3], [4, 5, 6]],
        [1, 2],
        [np.inf, np.inf],
        [True, False],
        [1.5, 1.5],
        np.zeros((0, 2)),
        [255, 255],
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_operations_that_exporters_other_than_jax_write() -> None:
    body = """
  %0 = "stablehlo.batch_norm_inference"(%x, %s, %s, %s, %v) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : \
(tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %1:3 = "stablehlo.batch_norm_training"(%x, %s, %v) {epsilon = 0.5 : f32, feature_index = 1 : i64} : \
(tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)
  %2 = stablehlo.dot %x, %v : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
  %3 = stablehlo.composite "my.double" %x {decomposition = @double} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{replicated}"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %5 = chlo.broadcast_add %x, %v : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %6 = "stablehlo.map"(%x, %x) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %7 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1#0, %1#1, %1#2, %2, %4, %5, %6, %7 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, \
tensor<2xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>"""
    text = _main(
        body,
        "%x: tensor<2x3xf32>, %s: tensor<3xf32>, %v: tensor<3xf32>",
        "(tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<2xf32>, tensor<2x3xf32>, "
        "tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)",
    )
    text += """
func.func private @double(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""
    s, v = np.array([1.0, -2.0, 0.5], np.float32), np.array([1.0, 2.0, 3.0], np.float32)
    found = tw.from_stablehlo(text)(_X, s, v)
    mean, variance = _X.mean(0), _X.var(0)
    expected = [
        (_X - s) / np.sqrt(v + 0.5) * s + s,
        (_X - mean) / np.sqrt(variance + 0.5) * s + v,
        mean,
        variance,
        _X @ v,
        2 * _X,
        _X + v,
        _X * _X,
        _X,
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_gradient_of_batch_normalisation_is_that_of_differences() -> None:
    text = """
func.func @main(%x: tensor<5x3xf64>, %s: tensor<3xf64>, %m: tensor<3xf64>, %v: tensor<3xf64>, %g: tensor<5x3xf64>) \
-> (tensor<5x3xf64>, tensor<3xf64>, tensor<3xf64>) {
  %0:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) <{epsilon = 0.1 : f32, feature_index = 1 : i64}> : \
(tensor<5x3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<3xf64>, tensor<5x3xf64>) -> \
(tensor<5x3xf64>, tensor<3xf64>, tensor<3xf64>)
  return %0#0, %0#1, %0#2 : tensor<5x3xf64>, tensor<3xf64>, tensor<3xf64>
}
"""
    random = np.random.default_rng(0)
    x, g, s = random.standard_normal((5, 3)), random.standard_normal((5, 3)), random.standard_normal(3)

    def loss(x: Any, s: Any) -> Any:
        return (((x - x.mean(0)) / np.sqrt(x.var(0) + 0.1) * s) * g).sum()

    def slope(function: Any, at: Any) -> Any:
        steps = np.eye(at.size).reshape(at.size, *at.shape) * 1e-6
        return np.array([(function(at + d) - function(at - d)) / 2e-6 for d in steps]).reshape(at.shape)

    found = tw.from_stablehlo(text)(x, s, x.mean(0), x.var(0), g)
    expected = slope(lambda x: loss(x, s), x), slope(lambda s: loss(x, s), s), g.sum(0)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def _sorted_by(comparator: str, x: Any) -> Any:
    text = f"""
func.func @main(%x: tensor<7xf32>) -> tensor<7xf32> {{
  %0 = "stablehlo.sort"(%x) <{{dimension = 0 : i64, is_stable = true}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
{comparator}
    stablehlo.return %r : tensor<i1>
  }}) : (tensor<7xf32>) -> tensor<7xf32>
  return %0 : tensor<7xf32>
}}
"""
    return tw.from_stablehlo(text)(x)


def test_sorts_by_regions_of_other_kinds() -> None:
    x = np.array([3, -1, 2, -2, 1, -3, 0.5], np.float32)
    compare = "stablehlo.compare {}, {}, {} : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    # No comparison of keys: not (a >= b).
    inverted = f"    %g = {compare.format('GE', '%a', '%b')}\n    %r = stablehlo.not %g : tensor<i1>"
    np.testing.assert_array_equal(_sorted_by(inverted, x), np.sort(x))
    magnitudes = "    %m = stablehlo.abs %a : tensor<f32>\n    %n = stablehlo.abs %b : tensor<f32>\n"
    by_magnitude = magnitudes + f"    %r = {compare.format('LT', '%m', '%n')}"
    np.testing.assert_array_equal(_sorted_by(by_magnitude, x), x[np.argsort(np.abs(x), kind="stable")])
    swapped = magnitudes + f"    %r = {compare.format('LT', '%n', '%m')}"
    np.testing.assert_array_equal(_sorted_by(swapped, x), x[np.argsort(-np.abs(x), kind="stable")])


@pytest.mark.parametrize("unique", [True, False])
def test_scatters_of_several_arrays_by_one_region(unique: bool) -> None:
    text = f"""
func.func @main(%x: tensor<6xf32>, %y: tensor<6xf32>, %i: tensor<4x1xi32>, %u: tensor<4xf32>, %v: tensor<4xf32>) \
-> (tensor<6xf32>, tensor<6xf32>) {{
  %0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %v) <{{scatter_dimension_numbers = #stablehlo.scatter<
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      unique_indices = {str(unique).lower()}}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
    %p = stablehlo.multiply %a, %d : tensor<f32>
    %q = stablehlo.add %b, %c : tensor<f32>
    stablehlo.return %p, %q : tensor<f32>, tensor<f32>
  }}) : (tensor<6xf32>, tensor<6xf32>, tensor<4x1xi32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<6xf32>, tensor<6xf32>)
  return %0#0, %0#1 : tensor<6xf32>, tensor<6xf32>
}}
"""
    random = np.random.default_rng(3)
    x, y, u, v = (random.standard_normal(n).astype(np.float32) for n in (6, 6, 4, 4))
    places = [1, 4, 9, 0] if unique else [1, 1, 9, -1]
    found = tw.from_stablehlo(text)(x, y, np.array(places, np.int32)[:, None], u, v)
    expected = x.copy(), y.copy()
    for n, place in enumerate(places):
        if 0 <= place < 6:
            expected[0][place], expected[1][place] = expected[0][place] * v[n], expected[1][place] + u[n]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_operations_that_take_shapes_as_values_have_them_in_their_types() -> None:
    body = """
  %s = stablehlo.constant dense<[3, 2]> : tensor<2xi32>
  %0 = stablehlo.dynamic_reshape %x, %s : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<3x2xf32>
  %t = stablehlo.constant dense<[4, 2, 3]> : tensor<3xi32>
  %1 = stablehlo.dynamic_broadcast_in_dim %x, %t, dims = [1, 2] : (tensor<2x3xf32>, tensor<3xi32>) -> tensor<4x2x3xf32>
  %2 = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi32>) -> tensor<3x2xi32>
  %3 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
  %4:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 2 : i64, largest = true}} : \
(tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x2xi32>)
  return %0, %1, %2, %3, %4#0, %4#1 : tensor<3x2xf32>, tensor<4x2x3xf32>, tensor<3x2xi32>, tensor<i32>, \
tensor<2x2xf32>, tensor<2x2xi32>"""
    types = ("3x2xf32", "4x2x3xf32", "3x2xi32", "i32", "2x2xf32", "2x2xi32")
    found = tw.from_stablehlo(_main(body, results=f"({', '.join(f'tensor<{t}>' for t in types)})"))(_X)
    iota = np.broadcast_to(np.arange(2), (3, 2))
    expected = [_X.reshape(3, 2), np.broadcast_to(_X, (4, 2, 3)), iota, 3, _X[:, :0:-1], [[2, 1], [2, 1]]]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  return %y : tensor<2x3xf32>", r"line 2, column 10: nothing before this is called `%y`"),
        ("  return %x : tensor<3x2xf32>", r"line 2.*f32\[3, 2\] are expected, but they are f32\[2, 3\]"),
        ("  %0 = stablehlo.add %x, %x tensor<2x3xf32>", r"line 2.*expected `:`"),
        ("  %0 = stablehlo.abs %x : tensor<2x3xf32>", r"line 3.*expected an operation|does not end with a `return`"),
        ("  %x = stablehlo.abs %x : tensor<2x3xf32>", r"`%x` is defined twice"),
        ("  %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<3xf32>", r"2 elements for the shape \(3,\)"),
        ("  %0 = stablehlo.constant dense<[[1.0], 2.0]> : tensor<2xf32>", r"not of the shape"),
        ("  %0 = stablehlo.constant dense<300> : tensor<i8>", r"300 does not fit int8"),
        ('  %0 = stablehlo.constant dense<"0x00"> : tensor<3xf32>', r"1 bytes for 3 elements"),
        ("  %0 = stablehlo.constant dense<1> : tensor<9999999999x9999999999xi8>", r"too large for any memory"),
        ("  %0:2 = stablehlo.abs %x : tensor<2x3xf32>", r"gives 1 values, not 2"),
        ("  return %x : tensor<2x3xf32>\n}\nfunc.func @main() {\n  return", r"two functions called `main`"),
        ("(" * 500, r"expected an operation"),
        ("  %0 = stablehlo.custom_call @f(%x) {a = " + "[" * 500, r"more than 64 levels of nesting"),
    ],
)
def test_malformed_texts_say_where(body: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        tw.from_stablehlo(_main(body))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("tensor<2x3xi8>", r"result 0 of `main` is f32\[2, 3\], but the text declares i8\[2, 3\]"),
        ("tensor<7xf32>", r"result 0 of `main` is f32\[2, 3\], but the text declares f32\[7\]"),
        ("tensor<2x3xf32>, tensor<f32>", r"`main` returns 1 values, and declares 2"),
    ],
)
def test_results_that_are_not_as_declared(declared: str, message: str) -> None:
    text = f"func.func @main(%x: tensor<2x3xf32>) -> ({declared}) {{\n  return %x : tensor<2x3xf32>\n}}"
    with pytest.raises(tw.TilewrightError, match=message):
        tw.from_stablehlo(text)(_X)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "%0 = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<7xf32>",
            r"line 2 \(stablehlo.reshape of f32\[2, 3\]\)",
        ),
        ("%0 = stablehlo.slice %x [0:9, 0:1] : (tensor<2x3xf32>) -> tensor<7xf32>", r"slice 0:9"),
        (
            "%0 = stablehlo.transpose %x, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<7xf32>",
            r"the text declares f32\[7\]",
        ),
        ('%0 = "stablehlo.transpose"(%x) : (tensor<2x3xf32>) -> tensor<7xf32>', r"`permutation` is missing"),
        ("%0 = stablehlo.convert %x : (tensor<2x3xf32>) -> tensor<7xf32>", r"the result is f32\[2, 3\]"),
    ],
)
def test_operations_that_do_not_fit_say_where(line: str, message: str) -> None:
    text = _main(f"{line}\n  return %0 : tensor<7xf32>".replace("return %0", "return %0"), results="tensor<7xf32>")
    if "xi32" in line:
        text = text.replace("return %0 : tensor<7xf32>", "return %0 : tensor<7xi32>").replace(
            "-> tensor<7xf32>", "-> tensor<7xi32>"
        )
    with pytest.raises(TilewrightError, match=message):
        tw.from_stablehlo(text)(_X)


def test_unknown_operations_are_listed_with_counts() -> None:
    body = """  %0 = "stablehlo.nothing"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = "stablehlo.nothing"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = "my.own"(%1) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %2 : tensor<2x3xf32>"""
    with pytest.raises(UnsupportedOperatorError, match=r"my.own \(1\), stablehlo.nothing \(2\)"):
        tw.from_stablehlo(_main(body))
    pretty = "  %0 = stablehlo.nothing %x, 1 : tensor<2x3xf32>\n  %1 = stablehlo.nothing %0, 2 : tensor<2x3xf32>"
    with pytest.raises(UnsupportedOperatorError, match=r"stablehlo.nothing \(2\)"):
        tw.from_stablehlo(_main(pretty))


@pytest.mark.parametrize(
    ("type", "message"),
    [
        ("tensor<2xcomplex<i32>>", r"line 1: complex numbers other than of f32 and f64 are not supported"),
        ("tensor<?x3xf32>", r"line 1: a size that is not known"),
        ("tensor<2x!quant.uniform<i8:f32, 0.1>>", r"line 1: quantised types are not supported"),
        ("!stablehlo.token", r"line 1: tokens are not supported"),
        ("tensor<2xf6E2M3FN>", r"line 1: elements of type `f6E2M3FN` are not supported"),
    ],
)
def test_types_that_no_array_has_are_refused(type: str, message: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=message):
        tw.from_stablehlo(_main("  return", f"%x: {type}", "tensor<f32>"))


def test_recursion_and_missing_functions_are_refused() -> None:
    call = "  %0 = call @{} (%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>\n  return %0 : tensor<2x3xf32>"
    with pytest.raises(UnsupportedOperatorError, match="`main` calls itself"):
        tw.from_stablehlo(_main(call.format("main")))
    with pytest.raises(ModelFileError, match="no function `other`"):
        tw.from_stablehlo(_main(call.format("other")))


def test_calls_that_multiply_are_refused_before_they_are_traced() -> None:
    levels = [
        f"func.func private @f{n}(%x: tensor<f32>) -> tensor<f32> {{\n"
        f"  %0 = call @f{n + 1}(%x) : (tensor<f32>) -> tensor<f32>\n"
        f"  %1 = call @f{n + 1}(%0) : (tensor<f32>) -> tensor<f32>\n  return %1 : tensor<f32>\n}}\n"
        for n in range(40)
    ]
    last = "func.func private @f40(%x: tensor<f32>) -> tensor<f32> {\n  return %x : tensor<f32>\n}\n"
    main = "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n  %0 = call @f0(%x) : (tensor<f32>) -> tensor<f32>\n"
    with pytest.raises(UnsupportedOperatorError, match="more than 500000 operations"):
        tw.from_stablehlo(main + "  return %0 : tensor<f32>\n}\n" + "".join(levels) + last)


def test_bytecode_is_told_from_text() -> None:
    with pytest.raises(ModelFileError, match="bytecode"):
        tw.from_stablehlo(b"ML\xefR\x0dStableHLO")


def test_custom_calls_are_refused_by_name() -> None:
    call = "  %0 = stablehlo.custom_call @cusolver(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>"
    body = f"{call}\n  return %0 : tensor<2x3xf32>"
    with pytest.raises(UnsupportedOperatorError, match=r"custom call `cusolver` \(1\)"):
        tw.from_stablehlo(_main(body))


def test_programs_are_read_without_jax() -> None:
    code = f"import sys, tilewright as tw; tw.from_stablehlo({_GENERIC!r}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Element-by-element functions and operators against NumPy in f64, and promotion against its own table."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from api_support import FLOAT_DTYPES, INTEGER_DTYPES, SHAPES, close, numbers, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import dtypes

# name, reference in f64, range of operands
UNARY_MATH = [
    ("exp", np.exp, -4, 4),
    ("exp2", np.exp2, -4, 4),
    ("expm1", np.expm1, -4, 4),
    ("log", np.log, 0, 4),
    ("log2", np.log2, 0, 4),
    ("log10", np.log10, 0, 4),
    ("log1p", np.log1p, -1, 4),
    ("sqrt", np.sqrt, 0, 9),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 0.1, 9),
    ("cbrt", np.cbrt, -9, 9),
    ("sin", np.sin, -9, 9),
    ("cos", np.cos, -9, 9),
    ("tan", np.tan, -1, 1),
    ("asin", np.arcsin, -1, 1),
    ("acos", np.arccos, -1, 1),
    ("atan", np.arctan, -9, 9),
    ("sinh", np.sinh, -4, 4),
    ("cosh", np.cosh, -4, 4),
    ("tanh", np.tanh, -4, 4),
    ("asinh", np.arcsinh, -4, 4),
    ("acosh", np.arccosh, 1, 9),
    ("atanh", np.arctanh, -1, 1),
    ("erf", np.vectorize(math.erf, otypes=[np.float64]), -3, 3),
    ("erfc", np.vectorize(math.erfc, otypes=[np.float64]), -3, 3),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -9, 9),
    ("reciprocal", lambda x: 1 / x, 0.1, 4),
    ("square", np.square, -4, 4),
    ("abs", np.abs, -4, 4),
    ("negative", np.negative, -4, 4),
    ("positive", np.positive, -4, 4),
    ("sign", np.sign, -4, 4),
    ("floor", np.floor, -4, 4),
    ("ceil", np.ceil, -4, 4),
    ("trunc", np.trunc, -4, 4),
    ("round", np.rint, -4, 4),
]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("name", "reference", "low", "high"), UNARY_MATH, ids=[row[0] for row in UNARY_MATH])
def test_unary_functions_of_floats(name, reference, low, high, dtype):
    x = numbers((3, 5), dtype, low=low, high=high)
    with np.errstate(all="ignore"):
        close(run(getattr(tw, name), x), reference(x.astype(np.float64)), dtype)


@pytest.mark.parametrize("name", ["exp", "log1p", "sqrt", "sigmoid", "reciprocal", "tanh"])
def test_functions_of_floats_take_integers_as_f32(name):
    x = np.arange(1, 6, dtype=np.int32)
    expected = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "reciprocal": lambda v: 1 / v}.get(name) or getattr(np, name)
    close(run(getattr(tw, name), x), expected(x.astype(np.float64)), "f32")


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "abs", "positive", "square", "sign"])
def test_rounding_and_signs_of_integers(name, dtype):
    x = numbers((4, 3), dtype)
    same(run(getattr(tw, name), x), getattr(np, name)(x).astype(x.dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_odd_and_empty_shapes(shape):
    x = numbers(shape, "f32")
    same(run(lambda a: a + a * 2 - 1, x), np.asarray(x + x * 2 - 1, np.float32))


BINARY = [
    ("add", np.add),
    ("subtract", np.subtract),
    ("multiply", np.multiply),
    ("divide", np.divide),
    ("floor_divide", np.floor_divide),
    ("remainder", np.remainder),
    ("maximum", np.maximum),
    ("minimum", np.minimum),
    ("copysign", np.copysign),
    ("atan2", np.arctan2),
    ("hypot", np.hypot),
    ("logaddexp", np.logaddexp),
]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("name", "reference"), BINARY, ids=[row[0] for row in BINARY])
def test_binary_functions_of_floats(name, reference, dtype):
    x, y = numbers((4, 1), dtype, 1), numbers((3,), dtype, 2)
    units = 16 if name == "logaddexp" else 4
    close(run(getattr(tw, name), x, y), reference(x.astype(np.float64), y.astype(np.float64)), dtype, units)


def test_logaddexp_of_infinities():
    inf = math.inf
    x, y = np.array([inf, -inf, inf, -inf, math.nan]), np.array([inf, -inf, -inf, 3.0, 1.0])
    with np.errstate(invalid="ignore"):
        close(run(tw.logaddexp, x, y), np.logaddexp(x, y), "f64")


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum"])
def test_binary_functions_of_integers(name, dtype):
    x, y = numbers((5, 4), dtype, 1), numbers((4,), dtype, 2) + 5
    same(run(getattr(tw, name), x, y), getattr(np, name)(x, y.astype(x.dtype)))


@pytest.mark.parametrize("dtype", [*INTEGER_DTYPES, "bool"])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise_functions(name, dtype):
    x, y = numbers((5, 4), dtype, 1), numbers((4,), dtype, 2)
    same(run(getattr(tw, name), x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_shifts_and_inversion(dtype):
    x, places = numbers((6,), dtype), np.arange(6).astype(dtypes.by_name(dtype).numpy)
    same(run(tw.bitwise_left_shift, x, places), np.left_shift(x, places))
    same(run(tw.bitwise_right_shift, x, places), np.right_shift(x, places))
    same(run(tw.bitwise_invert, x), np.invert(x))


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "u64", "bool"])
def test_comparisons(name, dtype):
    x, y = numbers((6, 1), dtype, 1), numbers((5,), dtype, 2)
    same(run(getattr(tw, name), x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_of_numbers(name):
    x, y = numbers((6, 1), "i32", 1), np.array([0.0, 1.5, -0.0, math.nan], np.float32)
    same(run(getattr(tw, name), x, y), getattr(np, name)(x, y))
    same(run(tw.logical_not, y), np.logical_not(y))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "signbit"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_classification(name, dtype):
    x = np.array([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan]).astype(dtypes.by_name(dtype).numpy)
    same(run(getattr(tw, name), x), getattr(np, name)(x.astype(np.float64)))


def test_classification_of_integers():
    x = np.arange(3)
    same(run(lambda a: (tw.isnan(a), tw.isfinite(a)), x)[0], np.zeros(3, bool))
    same(run(tw.isfinite, x), np.ones(3, bool))


@pytest.mark.parametrize("exponent", [0.5, -1, 1, 2, 3, 4, 2.0, 2.5, -2, 0, True])
def test_powers_of_python_numbers(exponent):
    x = numbers((9,), "f64", low=0.1)
    close(run(lambda a: a**exponent, x), x ** float(exponent), "f64")


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 7])
def test_integer_powers_stay_integers(exponent):
    x = np.arange(-4, 5, dtype=np.int32)
    same(run(lambda a: a**exponent, x), x**exponent)


def test_inverse_square_root_power():
    x = numbers((9,), "f32", low=0.1)
    close(run(lambda a: a**-0.5, x), x.astype(np.float64) ** -0.5, "f32")


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_nextafter_walks_the_floats(dtype):
    kind = dtypes.by_name(dtype).numpy
    values = np.array([0.0, -0.0, 1.0, -1.0, 3.25, math.inf, -math.inf, math.nan]).astype(kind)
    x, y = (v.reshape(-1) for v in np.meshgrid(values, values))
    # The second operand where both are equal, which matters for zeros and is not what NumPy does in f16.
    expected = np.where(x == y, y, np.nextafter(x, y))
    actual = run(tw.nextafter, x, y)
    same(actual, expected)
    moved = ~np.isnan(expected.astype(np.float64))
    same(np.signbit(actual[moved]), np.signbit(expected[moved]))


OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


@pytest.mark.parametrize("apply", OPERATORS, ids=lambda o: o.__name__)
def test_operators_on_all_sides(apply):
    x = np.array([1.0, 2.0, 4.0], np.float32)
    other = np.array([2.0, 2.0, 2.0], np.float32)
    expected = apply(x, other)
    same(run(apply, x, other), expected)
    same(run(lambda a: apply(a, 2), x), apply(x, np.float32(2)))
    same(run(lambda a: apply(2, a), x), apply(np.float32(2), x))
    same(run(lambda a: apply(other, a), x), apply(other, x))
    same(run(lambda a: apply(np.float32(2), a), x), apply(np.float32(2), x))


@pytest.mark.parametrize("apply", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_integer_operators_on_both_sides(apply):
    x = np.array([1, 2, 5], np.int32)
    same(run(lambda a: apply(a, 3), x), apply(x, np.int32(3)))
    same(run(lambda a: apply(3, a), x), apply(np.int32(3), x))


def test_unary_operators_and_divmod():
    x = np.array([-3, 2, 5], np.int32)
    results = run(lambda a: (-a, +a, abs(a), ~a, *divmod(a, 2), *divmod(7, a)), x)
    for actual, expected in zip(results, (-x, x, abs(x), ~x, *divmod(x, 2), *divmod(np.int32(7), x)), strict=True):
        same(actual, expected.astype(np.int32))


def test_numpy_functions_dispatch():
    x = np.array([0.5, 0.25], np.float32)
    close(run(lambda a: np.arcsin(np.add(a, np.float32(0.25))), x), np.arcsin(x + 0.25), "f32")
    same(run(lambda a: np.ones(2, np.float32) + a, x), x + 1)


def test_where_and_select():
    x, mask = numbers((4, 3), "f32"), numbers((3,), "bool", 3)
    same(run(lambda c, a: tw.where(c, a, 0), mask, x), np.where(mask, x, np.float32(0)))
    same(
        run(lambda a: tw.select([a > 2, a > 0], [a, -a], 9.0), x),
        np.select([x > 2, x > 0], [x, -x], np.float32(9)),
    )


def test_clip_keeps_nan():
    x = np.array([-5.0, 0.5, 7.0, math.nan], np.float32)
    same(run(lambda a: tw.clip(a, -1, 1), x), np.clip(x, -1, 1))
    same(run(lambda a: a.clip(max=1), x), np.minimum(x, np.float32(1)))


# ---- promotion ------------------------------------------------------------------------------------------------------

# The Array API's table of the types that two arrays promote to, kinds that it joins.
_SIGNED_WITH_UNSIGNED = {
    ("i8", "u8"): "i16",
    ("i8", "u16"): "i32",
    ("i8", "u32"): "i64",
    ("i16", "u8"): "i16",
    ("i16", "u16"): "i32",
    ("i16", "u32"): "i64",
    ("i32", "u8"): "i32",
    ("i32", "u16"): "i32",
    ("i32", "u32"): "i64",
    ("i64", "u8"): "i64",
    ("i64", "u16"): "i64",
    ("i64", "u32"): "i64",
}


@pytest.mark.parametrize(("pair", "expected"), _SIGNED_WITH_UNSIGNED.items(), ids=str)
def test_mixed_integers_promote_as_the_standard_says(pair, expected):
    left, right = (np.ones(2, dtypes.by_name(name).numpy) for name in pair)
    assert run(operator.add, left, right).dtype == dtypes.by_name(expected).numpy
    assert run(operator.add, right, left).dtype == dtypes.by_name(expected).numpy


@pytest.mark.parametrize(
    ("array", "scalar", "expected"),
    [
        ("f16", 1.5, "f16"),
        ("bf16", 2, "bf16"),
        ("f64", 1.5, "f64"),
        ("i8", 3, "i8"),
        ("u8", 3, "u8"),
        ("i8", 1.5, "f32"),
        ("i64", 1.5, "f32"),
        ("bool", 3, "i64"),
        ("bool", 1.5, "f32"),
        ("f32", True, "f32"),
    ],
)
def test_python_numbers_are_weak(array, scalar, expected):
    x = np.ones(2, dtypes.by_name(array).numpy)
    assert run(lambda a: a * scalar, x).dtype == dtypes.by_name(expected).numpy
    assert run(lambda a, s: a * s, x, scalar).dtype == dtypes.by_name(expected).numpy
    assert run(lambda a, s: a * (s * s if not isinstance(scalar, bool) else s), x, scalar).dtype == (
        dtypes.by_name(expected).numpy
    )


def test_weak_numbers_stay_weak_through_where():
    x = np.ones(2, np.float16)
    assert run(lambda a, c: a + tw.where(c, 1.0, 2.0), x, True).dtype == np.float16


def test_numpy_scalars_are_strong():
    x = np.ones(2, np.float32)
    assert run(lambda a: a * np.float64(2), x).dtype == np.float64
    assert run(lambda a: np.float64(2) * a, x).dtype == np.float64


def test_python_float_keeps_its_precision_with_f64():
    x = np.zeros(1, np.float64)
    same(run(lambda a: a + 0.1, x), np.array([0.1]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_broadcasting_is_that_of_numpy(data):
    shape = data.draw(st.lists(st.integers(0, 3), max_size=4))
    shapes = []
    for _ in range(2):
        cut = data.draw(st.integers(0, len(shape)))
        shapes.append(tuple(1 if data.draw(st.booleans()) else n for n in shape[cut:]))
    x, y = (numbers(s, "f32", n) for n, s in enumerate(shapes))
    same(run(operator.sub, x, y), np.asarray(x - y))

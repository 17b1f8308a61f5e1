"""The Python Array API 2025.12, with `array_api_strict` as the oracle of names, signatures and results."""

from __future__ import annotations

import warnings

import array_api_strict as strict
import numpy as np
import pytest
from array_api_table import (
    ABSENT,
    ABSENT_LINALG,
    ABSENT_METHODS,
    PAGE,
    REFUSED,
    REFUSED_METHODS,
    linalg_names,
    linalg_rows,
    method_rows,
    page,
    rows,
    signature_gaps,
    standard_names,
)

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import TilewrightError


@pytest.fixture(autouse=True)
def _latest_standard():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strict.set_array_api_strict_flags(api_version="2025.12")
        yield
        strict.reset_array_api_strict_flags()


def test_every_name_is_there_or_a_published_gap():
    assert {row.name for row in rows() if row.status == "absent"} == set(ABSENT)
    assert {row.name for row in method_rows() if row.status == "absent"} == set(ABSENT_METHODS)
    assert {row.name for row in linalg_rows() if row.status == "absent"} == set(ABSENT_LINALG)
    for name in (*REFUSED, *REFUSED_METHODS):
        assert hasattr(tw, name) or hasattr(tw.Array, name)


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `python tests/conformance/array_api_table.py`"


@pytest.mark.parametrize("name", [n for n in standard_names() if n not in ABSENT])
def test_signatures_take_what_the_standard_says(name):
    assert signature_gaps(name) == []


@pytest.mark.parametrize("name", [n for n in linalg_names() if n not in ABSENT_LINALG])
def test_signatures_of_linear_algebra_take_what_the_standard_says(name):
    assert signature_gaps(name, strict.linalg, tw.linalg) == []


def test_defaults_are_those_of_the_standard():
    import inspect

    names = [(strict, tw, name) for name in standard_names() if name not in ABSENT]
    names += [(strict.linalg, tw.linalg, name) for name in linalg_names() if name not in ABSENT_LINALG]
    for standard, namespace, name in names:
        if not inspect.isfunction(getattr(standard, name)):
            continue
        ours = inspect.signature(getattr(namespace, name)).parameters
        for parameter in inspect.signature(getattr(standard, name)).parameters.values():
            if parameter.kind == parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
                default = ours[parameter.name].default
                undefined = type(parameter.default).__name__ == "Undef"
                assert default == (None if undefined else parameter.default), f"{name}: {parameter.name}"


def test_refused_names_refuse():
    for name in REFUSED:
        with pytest.raises(TilewrightError):
            tw.jit(getattr(tw, name), target="interp")(np.arange(3))
    assert REFUSED_METHODS.keys() <= set(dir(tw.Array))


def test_namespace_of_a_traced_array():
    found = []
    tw.jit(lambda x: found.append((x.__array_namespace__(), x.device, x.to_device(None) is x)), target="interp")(
        np.ones(2)
    )
    assert found == [(tw, None, True)]
    assert tw.__array_api_version__ == strict.__array_api_version__
    info, expected = tw.__array_namespace_info__(), strict.__array_namespace_info__()
    ours, theirs = info.dtypes(), expected.dtypes()
    assert set(theirs) == set(ours)
    for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating"):
        assert set(expected.dtypes(kind=kind)) <= set(info.dtypes(kind=kind))
        assert {d.numpy.name for d in info.dtypes(kind=kind).values()} == set(info.dtypes(kind=kind))
    assert info.capabilities()["data-dependent shapes"] is False
    assert set(info.default_dtypes()) == set(expected.default_dtypes())
    assert info.devices() == (info.default_device(),)
    for name in ("e", "inf", "pi"):
        assert getattr(tw, name) == getattr(strict, name)
    assert np.isnan(tw.nan)
    assert tw.newaxis is None


@pytest.mark.parametrize("left", [d.name for d in dtypes.ALL if not d.is_narrow_float])
@pytest.mark.parametrize("right", [d.name for d in dtypes.ALL if not d.is_narrow_float])
def test_promotion_where_the_standard_defines_it(left, right):
    ours = [dtypes.by_name(name) for name in (left, right)]
    theirs = [getattr(strict, d.numpy.name) for d in ours]
    try:
        expected = strict.result_type(*theirs)
    except TypeError:
        return
    assert tw.result_type(*ours).numpy.name == np.dtype(expected._np_dtype).name
    assert tw.can_cast(*ours) == strict.can_cast(*theirs)


# Names and their operands: results of both libraries must agree in shape, type and value.
F, G = np.array([[-1.5, 0.25, 2.0], [0.5, -0.0, 3.5]]), np.array([2.0, -0.75, 1.25])
K, J = np.array([[-7, 0, 4], [3, 9, -2]], np.int32), np.array([2, 5, 3], np.int32)
P, B = np.abs(F) + 0.5, np.array([[True, False, True], [False, False, True]])


def _each(names: str, arguments: tuple, keywords: dict | None = None) -> list[tuple]:
    return [(name, arguments, keywords or {}) for name in names.split()]


CALLS = [
    *_each("abs atan ceil cos exp expm1 floor isfinite isinf isnan negative positive", (F,)),
    *_each("reciprocal round sign signbit sin sinh square tanh trunc asinh", (F,)),
    *_each("log log10 log1p log2 sqrt tan cosh", (P,)),
    *_each("acos asin atanh", (F / 8,)),
    ("acosh", (P + 1,), {}),
    *_each("add subtract multiply divide floor_divide remainder maximum minimum", (F, G)),
    *_each("atan2 copysign hypot logaddexp nextafter equal not_equal less greater", (F, G)),
    *_each("less_equal greater_equal matmul vecdot", (F, G)),
    ("pow", (P, G), {}),
    *_each("add multiply floor_divide remainder bitwise_and bitwise_or bitwise_xor", (K, J)),
    *_each("bitwise_left_shift bitwise_right_shift less", (K, J)),
    *_each("logical_and logical_or logical_xor bitwise_and equal", (B, ~B)),
    ("logical_not", (B,), {}),
    ("bitwise_invert", (K,), {}),
    *_each("sum prod max min mean std var argmax argmin", (F,)),
    *_each("sum prod max min mean std var argmax argmin", (F,), {"axis": 0, "keepdims": True}),
    *_each("sum prod max min argmax argmin count_nonzero", (K,), {"axis": 1}),
    *_each("all any count_nonzero", (B,), {"axis": 0}),
    *_each("cumulative_sum cumulative_prod sort argsort diff flip", (K,), {"axis": 1}),
    ("cumulative_sum", (K,), {"axis": 0, "include_initial": True}),
    ("sort", (F,), {"axis": 0, "descending": True}),
    ("std", (F,), {"correction": 1.0}),
    ("clip", (F, -1.0, 1.0), {}),
    ("where", (B, F, G), {}),
    ("isin", (K, J), {}),
    ("searchsorted", (np.sort(G), F), {"side": "right"}),
    ("take", (F, np.array([2, 0])), {"axis": 1}),
    ("take_along_axis", (K, np.array([[2, 0], [1, 1]])), {}),
    ("broadcast_to", (G, (4, 3)), {}),
    ("expand_dims", (F,), {"axis": 1}),
    ("squeeze", (F[:1], 0), {}),
    ("permute_dims", (F, (1, 0)), {}),
    ("matrix_transpose", (F,), {}),
    ("moveaxis", (F, 0, -1), {}),
    ("reshape", (F, (3, -1)), {}),
    ("roll", (F, 1), {"axis": 1}),
    ("repeat", (F, 2), {"axis": 0}),
    ("tile", (F, (2, 1)), {}),
    ("tril", (F,), {"k": 1}),
    ("triu", (F,), {}),
    ("tensordot", (F, F), {"axes": ((0, 1), (0, 1))}),
    ("zeros", ((2, 3),), {"dtype": "float32"}),
    ("ones", ((2,),), {"dtype": "int16"}),
    ("full", ((2,), 7), {}),
    ("eye", (2, 3), {"k": 1, "dtype": "float64"}),
    ("arange", (2, 9, 3), {}),
    ("linspace", (0.0, 1.0, 5), {"dtype": "float64"}),
    ("zeros_like", (K,), {}),
    ("full_like", (F, 2.0), {}),
    ("astype", (K, "float32"), {}),
]


def _with_types(keywords: dict, arguments: tuple, namespace) -> tuple[tuple, dict]:
    keywords = {k: getattr(namespace, v) if k == "dtype" else v for k, v in keywords.items()}
    return tuple(getattr(namespace, a) if isinstance(a, str) else a for a in arguments), keywords


@pytest.mark.parametrize(("name", "arguments", "keywords"), CALLS, ids=lambda v: v if isinstance(v, str) else "")
def test_results_agree(name, arguments, keywords):
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]

    def call(namespace, given):
        values = iter(given)
        filled = tuple(next(values) if isinstance(a, np.ndarray) else a for a in arguments)
        filled, options = _with_types(keywords, filled, namespace)
        return getattr(namespace, name)(*filled, **options)

    with np.errstate(all="ignore"):
        expected = np.from_dlpack(call(strict, [strict.asarray(a) for a in arrays]))
    actual = tw.jit(lambda *given: call(tw, given), target="interp")(*arrays)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=1e-14)


# Of the extension: matrices that have a result, products of factors where the factors' signs are free.
M = np.array([[4.0, 1.0, -2.0], [1.0, 3.0, 0.5], [-2.0, 0.5, 5.0]])
STACK = np.stack([M, M @ M, M + 2 * np.eye(3)])
LINALG_CALLS = [
    *_each("cholesky det inv eigvalsh svdvals slogdet matrix_rank pinv trace matrix_norm vector_norm", (STACK,)),
    *_each("pinv matrix_rank svdvals vector_norm diagonal", (F,)),
    ("cholesky", (STACK,), {"upper": True}),
    ("solve", (STACK, np.repeat(M[None, :, :2], 3, 0)), {}),
    ("solve", (M, G), {}),
    ("cross", (F, G[None]), {}),
    ("cross", (F.T, F[:1].T), {"axis": -2}),
    ("outer", (G, J.astype(np.float64)), {}),
    ("matrix_power", (STACK, 5), {}),
    ("matrix_power", (STACK, -2), {}),
    ("matrix_power", (STACK, 0), {}),
    *(
        ("matrix_norm", (STACK,), {"ord": ord, "keepdims": True})
        for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    ),
    *(("vector_norm", (F,), {"ord": ord, "axis": 1}) for ord in (np.inf, -np.inf, 0, 1, 3, -2)),
    ("vector_norm", (STACK,), {"axis": (0, 2), "keepdims": True}),
    ("trace", (K.astype(np.float64),), {"offset": 1}),
]


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_results_of_linear_algebra_agree(target):
    """All calls as one program."""

    def calls(namespace, given):
        arrays, results = iter(given), []
        for name, arguments, keywords in LINALG_CALLS:
            filled = [next(arrays) if isinstance(a, np.ndarray) else a for a in arguments]
            results.append(getattr(namespace, name)(*filled, **keywords))
        return results

    arrays = [a for _, arguments, _ in LINALG_CALLS for a in arguments if isinstance(a, np.ndarray)]
    expected = calls(strict.linalg, list(map(strict.asarray, arrays)))
    actual = tw.jit(lambda *given: calls(tw.linalg, given), target=target)(*arrays)
    for (name, *_), ours, theirs in zip(LINALG_CALLS, actual, expected, strict=True):
        for x, y in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, theirs)), strict=True):
            wanted = np.from_dlpack(y)
            assert (x.shape, x.dtype) == (wanted.shape, wanted.dtype), name
            np.testing.assert_allclose(x, wanted, rtol=1e-12, err_msg=name)
        if isinstance(theirs, tuple):
            assert type(ours)._fields == type(theirs)._fields


def test_one_function_for_both_namespaces():
    def standardise(x):
        namespace = x.__array_namespace__()
        centred = x - namespace.mean(x, axis=0, keepdims=True)
        return centred / namespace.sqrt(namespace.mean(centred * centred, axis=0, keepdims=True) + 1e-9)

    expected = np.from_dlpack(standardise(strict.asarray(F)))
    np.testing.assert_allclose(tw.jit(standardise, target="interp")(F), expected)

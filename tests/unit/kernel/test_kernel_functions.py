"""Functions and element types of tile kernels against NumPy and mpmath-grade references in float64."""

from __future__ import annotations

import linecache
import math
from typing import Any

import numpy as np
import pytest
from kernel_support import check, numbers, run

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.frontend import pyast_functions, pyast_registry
from tilewright.frontend.pyast_expressions import METHODS

# Public function, NumPy's, and the range of arguments.
UNARY = {
    "exp": (tw.exp, np.exp, -3, 3),
    "exp2": (tw.exp2, np.exp2, -3, 3),
    "expm1": (tw.expm1, np.expm1, -1, 1),
    "log": (tw.log, np.log, 0.1, 5),
    "log2": (tw.log2, np.log2, 0.1, 5),
    "log10": (tw.log10, np.log10, 0.1, 5),
    "log1p": (tw.log1p, np.log1p, -0.5, 2),
    "sqrt": (tw.sqrt, np.sqrt, 0, 9),
    "rsqrt": (tw.rsqrt, lambda x: 1 / np.sqrt(x), 0.1, 9),
    "cbrt": (tw.cbrt, np.cbrt, -8, 8),
    "sin": (tw.sin, np.sin, -6, 6),
    "cos": (tw.cos, np.cos, -6, 6),
    "tan": (tw.tan, np.tan, -1, 1),
    "asin": (tw.asin, np.arcsin, -1, 1),
    "acos": (tw.acos, np.arccos, -1, 1),
    "atan": (tw.atan, np.arctan, -5, 5),
    "sinh": (tw.sinh, np.sinh, -3, 3),
    "cosh": (tw.cosh, np.cosh, -3, 3),
    "tanh": (tw.tanh, np.tanh, -3, 3),
    "asinh": (tw.asinh, np.arcsinh, -3, 3),
    "acosh": (tw.acosh, np.arccosh, 1, 5),
    "atanh": (tw.atanh, np.arctanh, -0.9, 0.9),
    "erf": (tw.erf, np.vectorize(math.erf), -3, 3),
    "erfc": (tw.erfc, np.vectorize(math.erfc), -2, 2),
    "sigmoid": (tw.sigmoid, lambda x: 1 / (1 + np.exp(-x)), -5, 5),
    "abs": (tw.abs, np.abs, -3, 3),
    "negative": (tw.negative, np.negative, -3, 3),
    "sign": (tw.sign, np.sign, -3, 3),
    "square": (tw.square, np.square, -3, 3),
    "reciprocal": (tw.reciprocal, np.reciprocal, 0.2, 3),
    "floor": (tw.floor, np.floor, -3, 3),
    "ceil": (tw.ceil, np.ceil, -3, 3),
    "trunc": (tw.trunc, np.trunc, -3, 3),
    "round": (tw.round, np.rint, -3, 3),
}


def test_elementwise_functions() -> None:
    # One kernel for all of them: compiling 34 kernels would take longer than it proves.
    functions = tuple(f for f, _, _, _ in UNARY.values())

    @tw.kernel
    def apply(x: tw.In["F N"], y: tw.Out["F N"], *, block: int):
        for i in tw.grid(x.shape[1], block):
            for n, f in enumerate(functions):
                y[n, i] = f(x[n, i])

    unit = np.linspace(0, 1, 37)
    x = np.stack([low + (high - low) * unit for _, _, low, high in UNARY.values()]).astype(np.float32)

    def reference(x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        return np.stack([f(row) for (_, f, _, _), row in zip(UNARY.values(), wide, strict=True)])

    expected = reference(x)
    for target in ("interp", "cpu"):
        actual = run(apply, x, block=16, target=target)
        for name, got, wanted in zip(UNARY, actual, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-7, err_msg=f"{name} on {target}")


def test_operators_of_floats_and_integers() -> None:
    @tw.kernel
    def floats(x: tw.In["N"], y: tw.In["N"], z: tw.Out["12 N"]):
        for i in tw.grid(x, 8):
            a, b = x[i], y[i]
            z[0, i] = a + b * 2 - 1
            z[1, i] = a / b
            z[2, i] = 1 / b
            z[3, i] = a // b
            z[4, i] = a % b
            z[5, i] = a**2 + b**3
            z[6, i] = -a + +b
            z[7, i] = tw.where(a < b, a, b) + tw.where((a >= 0) & (b != 0) | (a == b), 1, 0)
            z[8, i] = tw.maximum(a, b) - tw.minimum(a, 0.5)
            z[9, i] = abs(a) + tw.clip(b, -1, 1)
            z[10, i] = tw.hypot(a, b) + tw.atan2(a, b) + tw.copysign(a, b)
            z[11, i] = tw.where(tw.isfinite(a) & ~tw.isnan(a), a.astype(tw.i32), 7)

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = x.astype(np.float64), y.astype(np.float64)
        return np.stack(
            [
                a + b * 2 - 1,
                a / b,
                1 / b,
                a // b,
                a % b,
                a**2 + b**3,
                -a + b,
                np.where(a < b, a, b) + ((a >= 0) & (b != 0) | (a == b)),
                np.maximum(a, b) - np.minimum(a, 0.5),
                np.abs(a) + np.clip(b, -1, 1),
                np.hypot(a, b) + np.arctan2(a, b) + np.copysign(a, b),
                np.trunc(a),
            ]
        )

    x, y = numbers(13), numbers(13, seed=1)
    y = np.where(np.abs(y) < 0.1, 0.5, y).astype(np.float32)
    check(floats, reference, x, y, tolerance=1e-5)

    @tw.kernel
    def integers(x: tw.In["N"], y: tw.In["N"], z: tw.Out["9 N"]):
        for i in tw.grid(x, 8):
            a, b = x[i], y[i]
            z[0, i] = a * b - 3
            z[1, i] = a // b
            z[2, i] = a % b
            z[3, i] = (a & b) | (a ^ 5)
            z[4, i] = ~a
            z[5, i] = a << 2
            z[6, i] = a >> 1
            z[7, i] = tw.maximum(a, b)
            z[8, i] = tw.where(a > b, a, -1)

    def integer_reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        rows = [
            a * b - 3,
            a // b,
            a % b,
            (a & b) | (a ^ 5),
            ~a,
            a << 2,
            a >> 1,
            np.maximum(a, b),
            np.where(a > b, a, -1),
        ]
        return np.stack(rows)

    a, b = numbers(13, dtype=np.int32), numbers(13, dtype=np.int32, seed=1)
    check(integers, integer_reference, a, np.where(b == 0, 4, b).astype(np.int32))


@pytest.mark.parametrize("name", [d.name for d in dtypes.ALL])
def test_every_element_type_is_loaded_cast_and_stored(name: str) -> None:
    dtype = dtypes.by_name(name)

    @tw.kernel
    def cast(x: tw.In["N", tw.f32], y: tw.Out["N", dtype], z: tw.Out["N", tw.f64]):
        for i in tw.grid(x, 8):
            narrow = x[i].astype(dtype)
            y[i] = narrow
            z[i] = tw.maximum(narrow, narrow).astype(tw.f64)

    x = np.arange(13, dtype=np.float32)
    expected = x.astype(bool) if dtype.is_bool else x.astype(dtype.numpy)
    for target in ("interp", "cpu"):
        y, z = run(cast, x, target=target)
        assert y.dtype == dtype.numpy
        np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))
        np.testing.assert_array_equal(z, expected.astype(np.float64))


@pytest.mark.parametrize(
    ("name", "result"),
    [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f64", "f64"), ("i8", "i32"), ("u8", "i32"), ("i32", "i32")],
)
def test_products_add_up_in_a_wide_type(name: str, result: str) -> None:
    dtype, out = dtypes.by_name(name), dtypes.by_name(result)

    @tw.kernel
    def product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N", out]):
        for i, j in tw.grid(c, (8, 16)):
            c[i, j] = a[i] @ b[:, j]

    a, b = (np.round(numbers(*shape, seed=k) * 8) for k, shape in enumerate(((9, 70), (70, 17))))
    if name == "u8":
        a, b = np.abs(a), np.abs(b)
    a, b = a.astype(dtype.numpy), b.astype(dtype.numpy)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Small integers: sums are exact in f32, and round once to the result's type.
    check(product, lambda a, b: exact.astype(out.numpy), a, b)


def test_reduced_precision_reduces_in_f32() -> None:
    @tw.kernel
    def total(x: tw.In["N"], y: tw.Out["1"]):
        for _ in tw.grid((1,), (1,)):
            y[0] = tw.sum(x[0:4096])

    x = np.ones(4096, np.float16)
    x[0] = 0.125
    check(total, lambda x: np.asarray([x.astype(np.float64).sum()], np.float16), x)


def test_numbers_take_the_type_of_tiles() -> None:
    @tw.kernel
    def types(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, 8):
            value = 0.5 * x[i] + 1
            assert value.dtype == x.dtype
            assert (x[i] * np.float64(2)).dtype == tw.f64
            assert tw.arange(4).dtype == tw.i64
            assert (tw.arange(4) * 0.5).dtype == tw.f32
            assert (i.start + tw.arange(4, dtype=tw.i32)).dtype == tw.i32
            assert tw.sum(tw.ones((4,), tw.i8)).dtype == tw.i64
            assert tw.sum(value).dtype == x.dtype
            y[i] = value

    check(types, lambda x: 0.5 * x + 1, numbers(8, dtype=np.float16))


def test_what_is_public_has_a_meaning_in_kernels() -> None:
    names = pyast_registry.registered_names()
    assert len(names) > 80
    assert [name for name in names if name not in pyast_functions.HANDLERS] == []


def test_what_is_known_at_compile_time() -> None:
    @tw.kernel
    def known(x: tw.In["N"], y: tw.Out["3 N"]):
        tiles = {"x": 0}
        for i in tw.grid(x, 4):
            tiles = {"x": x[i]}
            y[0, i] = tw.nn.relu(x[i])
            y[1, i] = tiles["x"] + float(tw.finfo(tw.f16).max)
            y[2, i] = x[i] if "x" in tiles and "y" not in tiles and 3 in (1, 3) else 0.0

    def reference(x: np.ndarray) -> np.ndarray:
        return np.stack([np.maximum(x, 0), x + np.float32(65504), x])

    check(known, reference, numbers(10))


def test_positions_masks_and_shapes() -> None:
    @tw.kernel
    def causal(x: tw.In["M N"], y: tw.Out["M N"]):
        for i, j in tw.grid(x, (4, 4)):
            row, column = i.start + tw.arange(4), j.start + tw.arange(4)
            mask = row[:, None] >= column
            block = tw.expand_dims(x[i, j], 0)
            block = tw.squeeze(block.mT, axis=0)
            y[i, j] = tw.where(mask, block.T, -1)

    check(causal, lambda x: np.where(np.tri(*x.shape, dtype=bool), x, -1), numbers(7, 6))


def _calls() -> list[str]:
    """The functions of the kernel language, those of Python and helpers that it takes, and the methods of tiles."""
    handlers = {f"tw.{name}": pyast_registry.handler_of(getattr(tw, name)) for name in dir(tw)}
    handlers |= {f"tw.nn.{name}": pyast_registry.handler_of(getattr(tw.nn, name)) for name in dir(tw.nn)}
    functions = [name for name, handler in handlers.items() if handler is not None]
    assert {*pyast_registry.registered_names()} <= {*handlers.values()}
    return sorted([*functions, *(f"x[i].{name}" for name in METHODS), "abs", "len", "print", "helper"])


def test_every_function_refuses_unknown_keywords_and_too_many_arguments() -> None:
    calls = _calls()
    lines = ["import tilewright as tw", "def helper(x):", "    return tw.exp(x)"]
    for number, call in enumerate(calls):
        for kind, arguments in (("keyword", "x[i], nonsense=3"), ("many", ", ".join(["x[i]"] * 20))):
            lines += ["@tw.kernel", f'def {kind}_{number}(x: tw.In["N"], y: tw.Out["N"]):']
            lines += ["    for i in tw.grid(x, 4):", f"        z = {call}({arguments})", "        y[i] = x[i]"]
    file = "<functions of kernels>"
    linecache.cache[file] = (0, None, [line + "\n" for line in lines], file)
    names: dict[str, Any] = {"__name__": "cell"}
    exec(compile("\n".join(lines), file, "exec"), names)
    x = tw.ShapeDtype((8,), tw.f32)
    variadic = {"tw.print", "print", "tw.reshape", "x[i].reshape"}
    for number, call in enumerate(calls):
        for kind in ("keyword", "many"):
            if kind == "many" and call in variadic:
                continue
            with pytest.raises(TilewrightError) as caught:
                names[f"{kind}_{number}"].lower(x, x).ir()
            assert type(caught.value) is ArgumentError, (call, kind, str(caught.value))
            assert caught.value.location is not None
            assert caught.value.help
            assert kind == "many" or "keyword" in caught.value.message or "nonsense" in caught.value.message

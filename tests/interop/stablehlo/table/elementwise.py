"""Operations on each element."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import F32, SHAPES, normal, special, whole

_UNARY: dict[str, Callable[[Any], Any]] = {
    name: getattr(lax, name)
    for name in [
        "abs",
        "neg",
        "sign",
        "floor",
        "ceil",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "cbrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "asin",
        "acos",
        "atan",
        "logistic",
        "erf",
        "erfc",
        "erf_inv",
        "is_finite",
        "square",
        "reciprocal",
        "lgamma",
        "digamma",
    ]
}
_LOOSE = {
    "lgamma": 256.0,
    "digamma": 512.0,
    "erf_inv": 128.0,
    "tan": 128.0,
    "erfc": 256.0,
    "acosh": 256.0,
    "atanh": 128.0,
}


def unary() -> Iterator[Case]:
    for name, function in _UNARY.items():
        for dtype in (F32, np.float64, np.float16, ml_dtypes.bfloat16):
            yield Case(f"{name}-{np.dtype(dtype).name}", function, (special(dtype),), _LOOSE.get(name, 32.0))
    for name in ("exp", "neg", "floor"):
        for shape in SHAPES:
            yield Case(f"{name}-{shape}", _UNARY[name], (normal(*shape),))
    for method in lax.RoundingMethod:
        yield Case(f"round-{method.name}", functools.partial(lax.round, rounding_method=method), (special(),))
    halves = np.array([0.49999997, -0.49999997, 0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5], F32)
    yield Case("round-halves", lambda x: (lax.round(x), jnp.round(x)), (halves,))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(lax, name) for name in ["add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "nextafter"]
}


def binary() -> Iterator[Case]:
    grid = np.array(list(itertools.product(special()[:15], repeat=2)), F32)
    for name, function in _BINARY.items():
        steps = 256.0 if name == "pow" else 32.0
        yield Case(f"{name}-edges", function, (grid[:, 0], grid[:, 1]), steps)
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
            if name != "nextafter" or dtype == np.float64:
                pair = normal(7, 3, dtype=dtype), normal(7, 3, dtype=dtype)
                yield Case(f"{name}-{np.dtype(dtype).name}", function, pair, steps)
    for shape in SHAPES:
        yield Case(f"add-{shape}", lax.add, (normal(*shape), normal(*shape)))
    for dtype in (np.int8, np.int32, np.int64, np.uint8, np.uint32):
        info = np.iinfo(dtype)
        edges = np.array([0, 1, 2, 7, info.max, info.max - 1, info.min, info.min // 2, 100], dtype)
        edges = np.append(edges, np.array([-1, -2, -7], np.int64).astype(dtype))
        a, b = (part.copy() for part in np.array(list(itertools.product(edges, repeat=2)), dtype).T)
        for name in ("add", "sub", "mul", "div", "rem", "max", "min"):
            yield Case(f"{name}-{np.dtype(dtype).name}", _BINARY[name], (a, b))
        yield Case(f"pow-{np.dtype(dtype).name}", lambda x, y: jnp.power(x, abs(y) % 5), (a, b))
    yield Case("integer_pow", lambda x: (x**3, x**-2, x**0), (normal(6),))


def integers() -> Iterator[Case]:
    for dtype in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        x = np.append(np.array([0, 1, 5, info.max, info.min], dtype), whole(9, low=0, high=100, dtype=dtype))
        by = np.array([0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 5, 6, 4, 1]).astype(dtype)
        name = np.dtype(dtype).name
        shifts = (lax.shift_left, lax.shift_right_arithmetic, lax.shift_right_logical)
        yield Case(f"shifts-{name}", lambda x, by, shifts=shifts: [s(x, by) for s in shifts], (x, by))
        yield Case(f"bits-{name}", lambda x: (lax.population_count(x), lax.clz(x), ~x), (x,))
        yield Case(f"logic-{name}", lambda x, y: (x & y, x | y, x ^ y), (x, by))
        yield Case(
            f"sign-{name}",
            lambda x: (lax.sign(x), lax.abs(x), lax.neg(x)) if x.dtype.kind == "i" else lax.sign(x),
            (x,),
        )
    truth = np.array([True, False, True, False]), np.array([True, True, False, False])
    yield Case("logic-bool", lambda x, y: (x & y, x | y, x ^ y, ~x, lax.max(x, y), lax.min(x, y)), truth)


PARTS = (
    unary,
    binary,
    integers,
)

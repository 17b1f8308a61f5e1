"""The table of cases: every operation in several forms, types and edge shapes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case

_RANDOM = np.random.default_rng(7)
F32 = np.float32
_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (5,), (2, 3), (3, 1, 4), (2, 0, 3))


def normal(*shape: int, dtype: Any = F32, scale: float = 1.0) -> Any:
    """Normal numbers."""
    return (_RANDOM.standard_normal(shape) * scale).astype(dtype)


def whole(*shape: int, low: int = -9, high: int = 10, dtype: Any = np.int32) -> Any:
    """Integers."""
    return _RANDOM.integers(low, high, shape).astype(dtype)


def special(dtype: Any = F32) -> Any:
    """Floats at which functions have their edges."""
    tiny = float(ml_dtypes.finfo(np.dtype(dtype)).smallest_normal)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.5, 1e3, -1e3, math.inf, -math.inf, math.nan, tiny]
    return np.array([*edges, *_RANDOM.standard_normal(16) * 4]).astype(dtype)


def all_cases() -> list[Case]:
    """The whole table."""
    parts = (
        _unary, _binary, _integers, _shapes, _conversions, _comparisons, _reductions, _products, _convolutions, _windows,
        _indexing, _scatters, _orders, _control, _random, _various,
    )  # fmt: skip
    return [case for part in parts for case in part()]


# ---- elementwise ----------------------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[Any], Any]] = {
    name: getattr(lax, name)
    for name in (
        "abs neg sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan tanh sinh cosh asinh acosh atanh asin"
        " acos atan logistic erf erfc erf_inv is_finite square reciprocal lgamma digamma"
    ).split()
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


def _unary() -> Iterator[Case]:
    for name, function in _UNARY.items():
        for dtype in (F32, np.float64, np.float16, ml_dtypes.bfloat16):
            yield Case(f"{name}-{np.dtype(dtype).name}", function, (special(dtype),), _LOOSE.get(name, 32.0))
    for name in ("exp", "neg", "floor"):
        for shape in _SHAPES:
            yield Case(f"{name}-{shape}", _UNARY[name], (normal(*shape),))
    for method in lax.RoundingMethod:
        yield Case(f"round-{method.name}", functools.partial(lax.round, rounding_method=method), (special(),))
    halves = np.array([0.49999997, -0.49999997, 0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5], F32)
    yield Case("round-halves", lambda x: (lax.round(x), jnp.round(x)), (halves,))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(lax, name) for name in "add sub mul div rem max min pow atan2 nextafter".split()
}


def _binary() -> Iterator[Case]:
    grid = np.array(list(itertools.product(special()[:15], repeat=2)), F32)
    for name, function in _BINARY.items():
        steps = 256.0 if name == "pow" else 32.0
        yield Case(f"{name}-edges", function, (grid[:, 0], grid[:, 1]), steps)
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
            if name != "nextafter" or dtype == np.float64:
                pair = normal(7, 3, dtype=dtype), normal(7, 3, dtype=dtype)
                yield Case(f"{name}-{np.dtype(dtype).name}", function, pair, steps)
    for shape in _SHAPES:
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


def _integers() -> Iterator[Case]:
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


# ---- shapes ---------------------------------------------------------------------------------------------------------


def _shapes() -> Iterator[Case]:
    x = normal(2, 3, 4)
    yield Case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (5, 2, 3, 4), (1, 2, 3)), (x,))
    yield Case("broadcast_in_dim-ones", lambda x: lax.broadcast_in_dim(x, (2, 5, 3), (0, 1)), (normal(2, 1),))
    yield Case("broadcast-scalar", lambda x: jnp.broadcast_to(x, (3, 0)), (normal(),))
    yield Case("reshape", lambda x: (x.reshape(6, 4), x.reshape(-1), x.reshape(24, 1, 1)), (x,))
    yield Case("reshape-empty", lambda x: x.reshape(0, 7), (normal(3, 0),))
    for order in itertools.permutations(range(3)):
        yield Case(f"transpose-{order}", lambda x, order=order: jnp.transpose(x, order), (x,))
    yield Case("transpose-bool", lambda x: x.T, (whole(3, 2, dtype=bool),))
    yield Case(
        "slice", lambda x: (x[1:, ::2], x[:, :, 3:], x[0:0], lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 2, 3))), (x,)
    )
    yield Case("reverse", lambda x: (x[::-1], jnp.flip(x), x[:, ::-2]), (x,))
    yield Case("concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), (x, normal(2, 0, 4)))
    yield Case("concatenate-one", lambda x: lax.concatenate([x], 0), (x,))
    yield Case("pad", lambda x: lax.pad(x, F32(2), ((1, 0, 0), (0, 2, 1), (3, 1, 2))), (x,))
    yield Case("pad-negative", lambda x: lax.pad(x, F32(2), ((-1, 0, 0), (0, -2, 1), (-3, 5, 2))), (x,))
    yield Case("pad-empty", lambda x: lax.pad(x, F32(2), ((1, 2, 3),)), (normal(0),))
    yield Case("pad-ints", lambda x: jnp.pad(x, 2, mode="wrap"), (whole(3, 4),))
    yield Case("iota", lambda: (lax.iota(np.int32, 5), lax.broadcasted_iota(F32, (2, 3, 4), 1)), ())
    yield Case("iota-types", lambda: [lax.iota(d, 4) for d in (np.uint8, np.float16, np.int8)], ())
    yield Case("tile", lambda x: jnp.tile(x, (2, 1, 3)), (x,))
    yield Case("roll", lambda x: jnp.roll(x, 2, 1), (x,))
    yield Case("tri", lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.eye(4, 3)), (normal(4, 4),))
    yield Case(
        "constants", lambda: (np.arange(6, dtype=F32).reshape(2, 3) / 3, np.array([True, False]), np.zeros((0, 2))), ()
    )
    big = np.random.default_rng(1).standard_normal(300).astype(F32)
    yield Case("constants-large", lambda x: x + big, (normal(300),))
    flags = np.random.default_rng(1).random(300) > 0.5
    yield Case("constants-bools", lambda x: x & flags, (flags[::-1].copy(),))
    yield Case("constants-special", lambda: np.array([np.nan, np.inf, -np.inf, -0.0], F32), ())
    for dtype in (ml_dtypes.bfloat16, np.float16, np.int8, np.uint64, np.float64, ml_dtypes.float8_e4m3fn):
        numbers = np.arange(5).astype(dtype)
        yield Case(f"constants-{np.dtype(dtype).name}", lambda numbers=numbers: jnp.asarray(numbers), ())


_TYPES = (np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.float16, ml_dtypes.bfloat16, F32)
_WIDE = (np.int64, np.uint64, np.float64)


def _conversions() -> Iterator[Case]:
    for source in (*_TYPES, *_WIDE):
        x = np.array([0, 1, 2, 3, 100, 0, 1]).astype(source)
        if np.dtype(source).kind != "b":
            x = np.append(
                x,
                np.array([-1.5, -100.25, 77.5])
                .astype(np.int64 if np.dtype(source).kind in "iu" else source)
                .astype(source),
            )
        targets = (*_TYPES, *_WIDE) if source in _WIDE else _TYPES
        yield Case(
            f"convert-{np.dtype(source).name}", lambda x, t=targets: [lax.convert_element_type(x, d) for d in t], (x,)
        )
    large = np.array([3e9, -3e9, 1e20, math.nan, math.inf, -math.inf, 2147483520.0], F32)
    yield Case("convert-saturates", lambda x: [x.astype(d) for d in (np.int32, np.uint32, np.int8, np.uint8)], (large,))
    eights = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    yield Case("convert-eights", lambda x: [x.astype(d).astype(F32) for d in eights], (special(),))
    narrow = (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4, ml_dtypes.uint4)
    for dtype in narrow:
        x = np.array([0.0, 1.0, 2.0, 3.0, 5.0, 7.0], F32)
        yield Case(f"convert-{np.dtype(dtype).name}", lambda x, d=dtype: (x.astype(d), x.astype(d).astype(F32)), (x,))
        moved = x.astype(dtype)
        yield Case(
            f"move-{np.dtype(dtype).name}",
            lambda x: (x.reshape(2, 3).T[::-1], jnp.where(np.arange(6) < 2, x, x[::-1]), jnp.concatenate([x, x])),
            (moved,),
        )
    for source, target in (
        (F32, np.int32),
        (np.int32, F32),
        (np.uint32, np.int32),
        (np.float16, np.int16),
        (F32, np.int8),
        (np.uint16, ml_dtypes.bfloat16),
    ):
        x = np.array([1, 2, 300, 4]).astype(source)
        yield Case(
            f"bitcast-{np.dtype(source).name}-{np.dtype(target).name}",
            lambda x, t=target: lax.bitcast_convert_type(x, t),
            (x,),
        )
    yield Case(
        "bitcast-wider",
        lambda x: lax.bitcast_convert_type(x, np.uint32),
        (whole(3, 4, low=0, high=255, dtype=np.uint8),),
    )
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (8, 23), (5, 2)):
        yield Case(
            f"reduce_precision-{exponent}-{mantissa}",
            lambda x, e=exponent, m=mantissa: lax.reduce_precision(x, e, m),
            (np.append(special(), normal(20, scale=1e-5)).astype(F32),),
        )


def _comparisons() -> Iterator[Case]:
    a, b = (p.copy() for p in np.array(list(itertools.product(special()[:15], repeat=2)), F32).T)
    directions = (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)
    yield Case("compare", lambda a, b: [d(a, b) for d in directions], (a, b))
    yield Case(
        "compare-total", lambda a, b: (lax.eq_to_p.bind(a, b), lax.lt_to_p.bind(a, b), lax.le_to_p.bind(a, b)), (a, b)
    )
    for dtype in (np.int32, np.uint8, np.bool_, np.int64):
        pair = whole(9, low=0, high=3, dtype=dtype), whole(9, low=0, high=3, dtype=dtype)
        yield Case(f"compare-{np.dtype(dtype).name}", lambda a, b: [d(a, b) for d in directions], pair)
    yield Case(
        "select",
        lambda p, a, b: (lax.select(p, a, b), jnp.where(p[0], a, b)),
        (whole(6, low=0, high=2, dtype=bool), normal(6), normal(6)),
    )
    yield Case("select-scalar", lambda p, a, b: lax.select(p, a, b), (np.bool_(True), normal(2, 3), normal(2, 3)))
    yield Case(
        "select_n", lambda p, *x: lax.select_n(p, *x), (whole(6, low=0, high=3), normal(6), normal(6), normal(6))
    )
    yield Case("clamp", lambda x: (lax.clamp(F32(-1), x, F32(1)), jnp.clip(x, 0)), (special(),))
    yield Case("clamp-arrays", lambda a, x, b: lax.clamp(a, x, b), (whole(5), whole(5), whole(5)))


# ---- reductions, products -------------------------------------------------------------------------------------------


def _reductions() -> Iterator[Case]:
    x = normal(3, 4, 5)
    functions = (jnp.sum, jnp.prod, jnp.max, jnp.min)
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2), ()):
        yield Case(f"reduce-{axes}", lambda x, axes=axes: [f(x, axes) for f in functions], (x,))
    for dtype in (np.int32, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64, np.int64):
        yield Case(
            f"reduce-{np.dtype(dtype).name}",
            lambda x: [f(x, 1) for f in functions],
            (whole(3, 4, low=0, high=3, dtype=dtype),),
        )
    yield Case("reduce-empty", lambda x: (jnp.sum(x, 1), jnp.prod(x, 1), jnp.max(x, 1, initial=-3.0)), (normal(3, 0),))
    yield Case("reduce-bools", lambda x: (jnp.all(x, 0), jnp.any(x, 1)), (whole(3, 4, low=0, high=2, dtype=bool),))
    yield Case("reduce-xor", lambda x: lax.reduce(x, np.int32(5), lax.bitwise_xor, (1,)), (whole(3, 7),))
    yield Case(
        "reduce-or",
        lambda x: [lax.reduce(x, np.int32(0), f, (0,)) for f in (lax.bitwise_or, lax.bitwise_and)],
        (whole(3, 7),),
    )
    yield Case("reduce-start", lambda x: lax.reduce(x, F32(3), lax.add, (0, 1)), (normal(3, 7),))
    for name, function in (("argmax", jnp.argmax), ("argmin", jnp.argmin)):
        ties = whole(4, 9, low=0, high=3, dtype=F32)
        yield Case(name, lambda x, f=function: (f(x, 0), f(x, 1), f(x)), (ties,))
        yield Case(
            f"{name}-nan", lambda x, f=function: (f(x, 0), f(x)), (np.where(ties == 1, np.nan, ties).astype(F32),)
        )
        yield Case(f"{name}-ints", lambda x, f=function: f(x, 1), (whole(4, 9, low=0, high=3),))
        yield Case(f"{name}-low", lambda x, f=function: f(x, 1), (np.full((2, 3), -np.inf, F32),))

    def logsumexp(a: Any, b: Any) -> Any:
        return (jnp.logaddexp(a[0], b[0]),)

    yield Case("reduce-general", lambda x: lax.reduce((x,), (F32(-np.inf),), logsumexp, (1,)), (normal(3, 7),), 64.0)

    def pairs(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] * b[1]

    yield Case(
        "reduce-variadic",
        lambda x, y: lax.reduce((x, y), (F32(1), F32(2)), pairs, (0, 2)),
        (normal(3, 4, 5), normal(3, 4, 5)),
    )
    yield Case("mean-variance", lambda x: (x.mean(0), x.var(1), x.std()), (x,))
    yield Case("softmax", lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, 1), jax.nn.log_softmax(x, 0)), (x,))


def _products() -> Iterator[Case]:
    def general(a: tuple[int, ...], b: tuple[int, ...], numbers: Any, dtype: Any = F32, **options: Any) -> Case:
        function = lambda x, y: lax.dot_general(x, y, numbers, **options)  # noqa: E731
        kind = np.dtype(dtype)
        make = (lambda *s: whole(*s, dtype=dtype)) if kind.kind in "iu" else (lambda *s: normal(*s, dtype=dtype))
        return Case(f"dot_general-{a}-{b}-{numbers}-{kind.name}", function, (make(*a), make(*b)), 64.0)

    yield general((3, 4), (4, 5), (((1,), (0,)), ((), ())))
    yield general((3, 4), (3, 5), (((0,), (0,)), ((), ())))
    yield general((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,))))
    yield general((4, 2, 3), (5, 4, 2), (((0,), (1,)), ((1,), (2,))))
    yield general((2, 3, 4), (4, 3, 5), (((1, 2), (1, 0)), ((), ())))
    yield general((3,), (4,), (((), ()), ((), ())))
    yield general((3,), (3,), (((0,), (0,)), ((), ())))
    yield general((), (), (((), ()), ((), ())))
    yield general((3, 0), (0, 5), (((1,), (0,)), ((), ())))
    yield general((0, 4), (4, 5), (((1,), (0,)), ((), ())))
    yield general((2, 3, 2), (2, 2, 3), (((), ()), ((0, 2), (0, 1))))
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8):
        yield general((3, 4), (4, 5), (((1,), (0,)), ((), ())), dtype)
    yield general((3, 4), (4, 5), (((1,), (0,)), ((), ())), ml_dtypes.bfloat16, preferred_element_type=F32)
    yield general((3, 4), (4, 5), (((1,), (0,)), ((), ())), np.int8, preferred_element_type=np.int32)
    yield general((3, 4), (4, 5), (((1,), (0,)), ((), ())), F32, precision=lax.Precision.HIGHEST)
    yield Case(
        "dot-mixed",
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=F32),
        (normal(3, 4, dtype=ml_dtypes.bfloat16), normal(4, 2)),
        1e4,
    )
    yield Case(
        "einsum", lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), (normal(2, 3, 4, 5), normal(2, 3, 6, 5)), 64.0
    )
    yield Case("matvec", lambda x, y: (x @ y, y @ x.T, jnp.outer(y, y)), (normal(3, 4), normal(4)))


def _convolutions() -> Iterator[Case]:
    def conv(name: str, x: tuple[int, ...], w: tuple[int, ...], dtype: Any = F32, **options: Any) -> Case:
        options = {"window_strides": (1,) * (len(x) - 2), "padding": "SAME", **options}
        function = lambda x, w: lax.conv_general_dilated(x, w, **options)  # noqa: E731
        return Case(f"conv-{name}", function, (normal(*x, dtype=dtype), normal(*w, dtype=dtype)), 128.0)

    yield conv("plain", (2, 3, 8, 8), (4, 3, 3, 3))
    yield conv("1d", (2, 3, 9), (4, 3, 3), padding="VALID")
    yield conv("3d", (1, 2, 4, 5, 6), (3, 2, 2, 2, 2))
    yield conv("0d", (2, 3), (4, 3))
    yield conv("stride", (2, 3, 9, 8), (4, 3, 3, 2), window_strides=(2, 3), padding=((1, 0), (2, 1)))
    yield conv("negative-pad", (2, 3, 9, 8), (4, 3, 3, 2), padding=((-1, 0), (2, -2)))
    yield conv("rhs-dilation", (2, 3, 9, 8), (4, 3, 3, 2), rhs_dilation=(2, 3))
    yield conv("lhs-dilation", (2, 3, 5, 4), (4, 3, 3, 2), lhs_dilation=(2, 3), padding=((0, 0), (0, 0)))
    yield conv("groups", (2, 6, 5, 4), (9, 2, 3, 2), feature_group_count=3)
    yield conv("depthwise", (2, 4, 5, 4), (4, 1, 3, 2), feature_group_count=4)
    yield conv("batch-groups", (6, 3, 5, 4), (4, 3, 3, 2), batch_group_count=2)
    yield conv("nhwc", (2, 5, 4, 3), (3, 3, 3, 4), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    yield conv("chwn", (3, 5, 4, 2), (3, 3, 3, 4), dimension_numbers=("CHWN", "IHWO", "HWCN"))
    yield conv("one", (2, 3, 8, 8), (4, 3, 1, 1))
    yield conv("empty-batch", (0, 3, 8, 8), (4, 3, 3, 3))
    yield conv("bf16", (2, 3, 8, 8), (4, 3, 3, 3), dtype=ml_dtypes.bfloat16)
    yield conv("f64", (2, 3, 8, 8), (4, 3, 3, 3), dtype=np.float64)
    yield Case(
        "conv-transpose",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (normal(2, 4, 5, 3), normal(3, 3, 3, 4)),
        128.0,
    )

    def gradients(x: Any, w: Any, **options: Any) -> Any:
        return jax.grad(
            lambda x, w: jnp.square(lax.conv_general_dilated(x, w, (2, 1), "SAME", **options)).sum(), (0, 1)
        )(x, w)

    yield Case("conv-gradient", gradients, (normal(2, 3, 7, 6), normal(4, 3, 3, 2)), 512.0)
    yield Case(
        "conv-gradient-groups",
        functools.partial(gradients, feature_group_count=2),
        (normal(2, 4, 7, 6), normal(6, 2, 3, 2)),
        512.0,
    )
    yield Case(
        "conv-vmap",
        jax.vmap(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME")),
        (normal(2, 1, 3, 5, 4), normal(2, 4, 3, 3, 2)),
        128.0,
    )


def _windows() -> Iterator[Case]:
    x = normal(3, 6, 7)

    def window(name: str, start: float, function: Any, *geometry: Any, **options: Any) -> Case:
        return Case(
            f"reduce_window-{name}", lambda x: lax.reduce_window(x, F32(start), function, *geometry, **options), (x,)
        )

    yield window("sum", 0, lax.add, (1, 2, 3), (1, 1, 1), "SAME")
    yield window("max", -np.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID")
    yield window("min", np.inf, lax.min, (2, 2, 2), (1, 2, 1), ((0, 1), (1, 0), (2, 0)))
    yield window("mul", 1, lax.mul, (1, 3, 1), (1, 1, 1), "SAME")
    yield window("dilated", 0, lax.add, (1, 2, 3), (1, 1, 1), "VALID", window_dilation=(1, 3, 2))
    yield window("base", 0, lax.add, (1, 2, 3), (1, 1, 1), "SAME", base_dilation=(1, 2, 3))
    yield window("start", 2, lax.add, (1, 2, 3), (1, 1, 1), "SAME")
    yield window("negative", 0, lax.add, (1, 2, 2), (1, 1, 1), ((0, 0), (-1, 0), (0, -2)))
    yield window("general", 1, lambda a, b: a * b + a + b, (1, 2, 2), (1, 1, 2), "VALID")
    running = (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)
    for axis in (0, 1, 2):
        yield Case(f"cumulative-{axis}", lambda x, axis=axis: [f(x, axis) for f in running], (x,), 64.0)
    yield Case("cumulative-reverse", lambda x: (lax.cumsum(x, 1, reverse=True), lax.cummax(x, 2, reverse=True)), (x,))
    yield Case("cumulative-ints", lambda x: (jnp.cumsum(x, 0), lax.cummax(x)), (whole(9),))
    yield Case("cumulative-one", lambda x: (jnp.cumsum(x, 0), jnp.cumsum(x, 1)), (normal(1, 4),))

    def pooled(x: Any, window: Any, strides: Any, padding: Any) -> Any:
        y = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
        return (y * jnp.arange(y.size, dtype=x.dtype).reshape(y.shape)).sum()

    for name, geometry in {
        "plain": ((1, 2, 2), (1, 2, 2), "VALID"),
        "overlap": ((1, 3, 3), (1, 2, 2), "SAME"),
        "strided": ((1, 2, 2), (1, 3, 3), "VALID"),
        "whole": ((1, 6, 7), (1, 1, 1), "VALID"),
    }.items():
        yield Case(f"max-pool-gradient-{name}", lambda x, g=geometry: jax.grad(pooled)(x, *g), (x,))
        ties = whole(3, 6, 7, low=0, high=2, dtype=F32)
        yield Case(f"max-pool-gradient-ties-{name}", lambda x, g=geometry: jax.grad(pooled)(x, *g), (ties,))
    yield Case(
        "avg-pool-gradient",
        jax.grad(lambda x: jnp.square(lax.reduce_window(x, 0.0, lax.add, (1, 2, 3), (1, 2, 2), "SAME")).sum()),
        (x,),
        64.0,
    )


# ---- indexing -------------------------------------------------------------------------------------------------------


def _gather(name: str, x: Any, indices: Any, sizes: Any, mode: str = "clip", **numbers: Any) -> Case:
    dims = lax.GatherDimensionNumbers(**numbers)
    return Case(f"gather-{name}-{mode}", lambda x, i: lax.gather(x, i, dims, sizes, mode=mode), (x, indices))


def _indexing() -> Iterator[Case]:
    x = normal(5, 6, 7)
    outside = whole(4, 2, low=-3, high=9)
    for mode in ("clip", "fill", "promise_in_bounds"):
        i = outside if mode != "promise_in_bounds" else np.abs(outside) % 4
        yield _gather(
            "points", x, i, (1, 1, 7), mode, offset_dims=(1,), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)
        )
        yield _gather(
            "windows", x, i, (2, 3, 7), mode, offset_dims=(1, 2, 3), collapsed_slice_dims=(), start_index_map=(0, 1)
        )
        yield _gather(
            "swapped", x, i, (2, 1, 3), mode, offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(2, 1)
        )
    yield _gather(
        "inner",
        x,
        whole(3, 4, 1, low=0, high=5),
        (1, 6, 2),
        offset_dims=(0, 2),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    yield _gather(
        "scalar",
        x,
        whole(1, low=0, high=5),
        (1, 6, 7),
        offset_dims=(0, 1),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    yield _gather("none", x, whole(3, 0), (1, 6, 7), offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=())
    yield _gather(
        "empty", x, whole(0, 1), (1, 6, 7), offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    yield _gather(
        "batched",
        x,
        whole(5, 3, 1, low=0, high=6),
        (1, 1, 7),
        offset_dims=(2,),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    yield _gather(
        "batched-swapped",
        x,
        whole(3, 6, 1, low=-2, high=9),
        (2, 1, 7),
        offset_dims=(0, 3),
        collapsed_slice_dims=(),
        start_index_map=(0,),
        operand_batching_dims=(1,),
        start_indices_batching_dims=(1,),
    )
    for dtype in (np.uint8, np.int8, np.uint32, np.int64, np.uint64):
        yield Case(
            f"take-{np.dtype(dtype).name}",
            lambda x, i: jnp.take(x, i, axis=1, mode="clip"),
            (x, np.array([0, 5, 3, 100]).astype(dtype)),
        )
    yield Case("take-negative", lambda x, i: (x[i], x[:, i], x[i, i]), (x, whole(4, low=-4, high=4)))
    yield Case("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), (x, whole(5, 2, 7, low=0, high=6)))
    yield Case("take-mixed", lambda x, i: (x[1, i, 2:5], x[i, :, None, 3], x[..., i]), (x, whole(2, 3, low=0, high=5)))
    yield Case("take-bools", lambda x, i: x[i], (whole(6, low=0, high=2, dtype=bool), whole(3, low=0, high=6)))
    yield Case("take-vmap", jax.vmap(lambda x, i: x[i]), (x, whole(5, 2, low=0, high=6)))
    starts = [(np.int32(1), np.int32(2), np.int32(0)), (np.int32(-3), np.int32(100), np.int32(6))]
    for n, start in enumerate(starts):
        yield Case(f"dynamic_slice-{n}", lambda x, *s: lax.dynamic_slice(x, s, (2, 3, 4)), (x, *start))
        yield Case(
            f"dynamic_update_slice-{n}",
            lambda x, u, *s: lax.dynamic_update_slice(x, u, s),
            (x, normal(2, 3, 4), *start),
        )
    yield Case(
        "dynamic_slice-vmap", jax.vmap(lambda x, s: lax.dynamic_slice(x, (s, s), (2, 3))), (x, whole(5, low=-2, high=9))
    )
    yield Case(
        "dynamic_update_slice-vmap",
        jax.vmap(lambda x, u, s: lax.dynamic_update_slice(x, u, (s, s))),
        (x, normal(5, 2, 3), whole(5, low=-2, high=9)),
    )
    yield Case("dynamic_index", lambda x, i: lax.dynamic_index_in_dim(x, i, 1), (x, np.int32(3)))
    yield Case("dynamic_slice-unsigned", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (normal(5), np.uint8(200)))


def _scatter(
    name: str,
    function: Any,
    x: Any,
    indices: Any,
    updates: Any,
    mode: str = "fill",
    unique: bool = False,
    **numbers: Any,
) -> Case:
    dims = lax.ScatterDimensionNumbers(**numbers)
    return Case(
        f"scatter-{name}-{mode}",
        lambda x, i, u: function(x, i, u, dims, mode=mode, unique_indices=unique),
        (x, indices, updates),
    )


def _scatters() -> Iterator[Case]:
    x = normal(5, 6, 7)
    outside = whole(4, 2, low=-3, high=9)
    functions = {
        "add": lax.scatter_add,
        "mul": lax.scatter_mul,
        "min": lax.scatter_min,
        "max": lax.scatter_max,
        "set": lax.scatter,
    }
    rows = {"update_window_dims": (1,), "inserted_window_dims": (0, 1), "scatter_dims_to_operand_dims": (0, 1)}
    blocks = {"update_window_dims": (1, 2, 3), "inserted_window_dims": (), "scatter_dims_to_operand_dims": (0, 1)}
    swapped = {"update_window_dims": (0, 2), "inserted_window_dims": (1,), "scatter_dims_to_operand_dims": (2, 1)}
    for name, function in functions.items():
        for mode in ("fill", "clip"):
            yield _scatter(
                f"{name}-rows",
                function,
                x,
                outside if name != "set" else np.array([[1, 2], [-1, 3], [9, 0], [4, 5]], np.int32),
                normal(4, 7),
                mode,
                **rows,
            )
        yield _scatter(
            f"{name}-blocks",
            function,
            x,
            outside if name != "set" else np.array([[0, 0], [3, 3], [4, 4], [-1, 1]], np.int32),
            normal(4, 2, 3, 7),
            **blocks,
        )
    yield _scatter("swapped", lax.scatter_add, x, outside, normal(2, 4, 3), **swapped)
    yield _scatter(
        "narrow-window",
        lax.scatter_add,
        x,
        whole(4, 1, low=0, high=5),
        normal(4, 3, 2),
        update_window_dims=(1, 2),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    yield _scatter(
        "no-index",
        lax.scatter_add,
        x,
        whole(3, 0),
        normal(3, 5, 6, 7),
        update_window_dims=(1, 2, 3),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(),
    )
    yield _scatter(
        "empty",
        lax.scatter_add,
        x,
        whole(0, 1),
        normal(0, 6, 7),
        update_window_dims=(1, 2),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    yield _scatter(
        "batched",
        lax.scatter_add,
        x,
        whole(5, 3, 1, low=0, high=6),
        normal(5, 3, 7),
        update_window_dims=(2,),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    for dtype in (np.int32, ml_dtypes.bfloat16, np.float64):
        yield Case(
            f"at-add-{np.dtype(dtype).name}",
            lambda x, i, u: x.at[i].add(u),
            (whole(6, 3, dtype=dtype), whole(8, low=-6, high=6), whole(8, 3, low=0, high=3, dtype=dtype)),
        )
    i = np.array([4, 1, 3], np.int32)
    yield Case(
        "at-set",
        lambda x, i, u: (x.at[i].set(u), x.at[:, i].set(0), x.at[1, 2:4].set(5), x.at[::2].mul(2)),
        (x, i, normal(3, 6, 7)),
    )
    yield Case("at-apply", lambda x, i: x.at[i].apply(jnp.sin), (normal(9), i))
    yield Case(
        "at-apply-twice",
        lambda x, i: x.at[i].apply(lambda y: y * 2 + 1),
        (normal(9), np.array([1, 1, 2, 12], np.int32)),
    )
    yield Case("at-scalar", lambda x, i: x.at[i, 0].set(7), (normal(4, 3), np.int32(-1)))
    yield Case("at-bool", lambda x, i: x.at[i].set(True), (whole(6, low=0, high=2, dtype=bool), i))
    yield Case(
        "gather-gradient", lambda x, i: jax.grad(lambda x: jnp.square(x[i]).sum())(x), (x, whole(3, 2, low=0, high=5))
    )
    yield Case("one_hot", lambda i: jax.nn.one_hot(i, 7), (whole(3, 4, low=-1, high=9),))
    yield Case("segment_sum", lambda x, i: jax.ops.segment_sum(x, i, 4), (normal(9, 2), whole(9, low=0, high=5)))
    yield Case("bincount", lambda i: jnp.bincount(i, length=6), (whole(20, low=0, high=6),))


# ---- order ----------------------------------------------------------------------------------------------------------


def _orders() -> Iterator[Case]:
    ties = whole(4, 9, low=0, high=4, dtype=F32)
    edges = np.tile(special()[:15], (2, 1))
    for name, x in {
        "ties": ties,
        "edges": edges,
        "ints": whole(4, 9),
        "empty": normal(2, 0),
        "one": normal(3, 1),
        "bools": whole(4, 5, low=0, high=2, dtype=bool),
        "bytes": whole(4, 9, low=0, high=255, dtype=np.uint8),
    }.items():
        yield Case(f"sort-{name}", lambda x: (jnp.sort(x, -1), jnp.sort(x, 0)), (x,))
        yield Case(f"argsort-{name}", lambda x: (jnp.argsort(x, -1), jnp.argsort(x, 0, descending=True)), (x,))
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64, np.int64):
        yield Case(
            f"sort-{np.dtype(dtype).name}", lambda x: jnp.sort(x, -1), (whole(3, 8, low=-20, high=20, dtype=dtype),)
        )
    yield Case("sort-descending", lambda x: jnp.sort(x, descending=True), (edges,))
    yield Case("sort-pairs", lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), (ties, normal(4, 9)))
    yield Case("sort-two-keys", lambda x, y: lax.sort((x, y), dimension=1, num_keys=2), (ties, whole(4, 9)))
    yield Case(
        "sort-three-keys",
        lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=3),
        (whole(9, low=0, high=2), whole(9, low=0, high=2), normal(9)),
    )
    yield Case("lexsort", lambda x, y: jnp.lexsort((x, y)), (whole(9, low=0, high=3), whole(9, low=0, high=3)))
    yield Case("top_k", lambda x: lax.top_k(x, 3), (normal(4, 9),))
    yield Case("top_k-ties", lambda x: lax.top_k(x, 9), (ties,))
    yield Case("top_k-ints", lambda x: lax.top_k(x, 2), (whole(4, 9),))
    yield Case(
        "median", lambda x: (jnp.median(x), jnp.quantile(x, 0.3), jnp.percentile(x, 70, axis=0)), (normal(9, 4),)
    )
    yield Case(
        "searchsorted",
        lambda x, v: (jnp.searchsorted(x, v), jnp.searchsorted(x, v, side="right")),
        (np.sort(normal(9)), normal(5)),
    )
    yield Case("unique", lambda x: jnp.unique(x, size=5), (whole(9, low=0, high=4),))


# ---- control --------------------------------------------------------------------------------------------------------


def _control() -> Iterator[Case]:
    yield Case(
        "while",
        lambda n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5), (np.int32(0), F32(1))),
        (np.int32(5),),
    )
    yield Case("while-never", lambda x: lax.while_loop(lambda c: c.sum() > 1e9, lambda c: c * 2, x), (normal(3),))
    yield Case("fori", lambda x: lax.fori_loop(2, 7, lambda i, c: c + i * x, jnp.zeros_like(x)), (normal(3, 2),))
    yield Case("scan", lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs), (normal(3), normal(4, 3)))
    yield Case(
        "scan-reverse",
        lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs, reverse=True),
        (normal(3), normal(4, 3)),
    )
    yield Case("scan-empty", lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs), (normal(3), normal(0, 3)))
    yield Case(
        "scan-unroll", lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs, unroll=2)[0], (normal(3), normal(5, 3))
    )
    yield Case(
        "scan-gradient",
        jax.grad(lambda w, xs: lax.scan(lambda c, x: (jnp.tanh(w * c + x), c), jnp.zeros(3), xs)[0].sum()),
        (normal(3), normal(4, 3)),
    )
    yield Case(
        "scan-nested",
        lambda x: lax.scan(lambda c, r: (c + lax.scan(lambda d, e: (d * e, d), F32(1), r)[0], c), F32(0), x),
        (normal(3, 4),),
    )
    yield Case(
        "cond",
        lambda p, x: (lax.cond(p, jnp.sin, jnp.cos, x), lax.cond(~p, lambda: x * 2, lambda: x)),
        (np.bool_(True), normal(3)),
    )
    for n in (-1, 0, 1, 2, 7):
        yield Case(
            f"switch-{n}", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 3], x), (np.int32(n), normal(3))
        )
    yield Case(
        "cond-vmap", jax.vmap(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x)), (np.array([True, False]), normal(2, 3))
    )
    yield Case(
        "while-vmap",
        jax.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c * 2, F32(1))),
        (np.array([3.0, 100.0, 0.5], F32),),
    )
    yield Case("map", lambda x: lax.map(lambda r: r.sum() * r, x), (normal(4, 3),))
    yield Case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), (normal(9, 2),))
    yield Case("custom-jvp", jax.grad(lambda x: jax.nn.relu(x).sum()), (normal(5),))
    yield Case("remat", jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.exp(x)).sum())), (normal(5),))
    yield Case("jit-nested", lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) + y)(x), (normal(5),))


def _random() -> Iterator[Case]:
    key = np.array([1, 42], np.uint32)

    def draws(function: Any) -> Any:
        return lambda k: function(jax.random.wrap_key_data(k))

    yield Case("uniform", draws(lambda k: jax.random.uniform(k, (5, 3))), (key,))
    yield Case("normal", draws(lambda k: jax.random.normal(k, (7,))), (key,), 256.0)
    yield Case("bits", draws(lambda k: (jax.random.bits(k, (5,)), jax.random.bits(k, (6,), np.uint8))), (key,))
    yield Case("randint", draws(lambda k: jax.random.randint(k, (9,), -3, 50)), (key,))
    yield Case("bernoulli", draws(lambda k: jax.random.bernoulli(k, 0.3, (9,))), (key,))
    yield Case("permutation", draws(lambda k: jax.random.permutation(k, 9)), (key,))
    yield Case("categorical", draws(lambda k: jax.random.categorical(k, jnp.arange(5.0), shape=(6,))), (key,))
    yield Case("split", draws(lambda k: jax.random.key_data(jax.random.split(k, 3))), (key,))
    yield Case("gamma", draws(lambda k: jax.random.gamma(k, 2.0, (4,))), (key,), 512.0)
    yield Case("truncated", draws(lambda k: jax.random.truncated_normal(k, -1.0, 2.0, (9,))), (key,), 256.0)


def _various() -> Iterator[Case]:
    x = normal(3, 4)
    for name in ("relu gelu silu elu selu softplus log_sigmoid hard_tanh glu swish mish").split():
        yield Case(f"nn-{name}", getattr(jax.nn, name), (x,), 64.0)
        yield Case(f"nn-{name}-gradient", jax.grad(lambda x, f=getattr(jax.nn, name): f(x).sum()), (x,), 64.0)
    yield Case("gelu-exact", functools.partial(jax.nn.gelu, approximate=False), (x,), 64.0)
    yield Case(
        "gelu-exact-bf16", functools.partial(jax.nn.gelu, approximate=False), (normal(3, 4, dtype=ml_dtypes.bfloat16),)
    )
    yield Case(
        "attention",
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        (normal(2, 5, 3, 4), normal(2, 5, 3, 4), normal(2, 5, 3, 4)),
        64.0,
    )
    yield Case(
        "scaled-matmul", lambda x, y: (x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)).astype(F32), (x, normal(4, 5))
    )
    yield Case("standardize", jax.nn.standardize, (x,), 64.0)
    yield Case("polyval", lambda x: jnp.polyval(jnp.arange(5.0), x), (x,), 64.0)
    yield Case("interp", lambda x, y, z: jnp.interp(x, y, z), (normal(5), np.sort(normal(4)), normal(4)), 64.0)
    yield Case("unused", lambda x, y: x, (x, normal(3)))
    yield Case("same-twice", lambda x: (x, x), (x,))
    yield Case("no-arguments", lambda: jnp.ones((2, 3)), ())
    yield Case("hessian", jax.hessian(lambda x: jnp.sin(x).prod()), (normal(3),), 64.0)
    yield Case("jvp", lambda x, t: jax.jvp(lambda x: jnp.tanh(x @ x.T), (x,), (t,)), (x, normal(3, 4)), 64.0)
    yield Case(
        "ragged_dot",
        lambda x, w, s: lax.ragged_dot(x, w, s),
        (normal(6, 4), normal(2, 4, 3), np.array([2, 4], np.int32)),
        64.0,
    )

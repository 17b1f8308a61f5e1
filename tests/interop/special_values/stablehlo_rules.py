"""Elementwise, reduction and cast operations of StableHLO, by the functions of `jax.lax` that are lowered to them,
against JAX on the CPU, with f64 and 64-bit integers enabled. XLA flushes subnormal numbers to 0 there, which we do not:
operands have none, and results that are subnormal may be 0."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tilewright as tw
from tests.interop.special_values import values as special_values
from tests.interop.special_values.compare import Case
from tests.interop.special_values.values import is_float

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_NARROW = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"),
    *("int4", "uint4"),
)
_ANY = (*_FLOATS, *_INTEGERS, "bool")
Function = Callable[..., Any]

# Bit for bit: by name, with the types that they take.
_UNARY_EXACT: dict[str, tuple[Function, Sequence[str]]] = {
    "abs": (lax.abs, (*_FLOATS, "int8", "int16", "int32", "int64")),
    "ceil": (lax.ceil, _FLOATS),
    "clz": (lax.clz, _INTEGERS),
    "floor": (lax.floor, _FLOATS),
    "is_finite": (lax.is_finite, _FLOATS),
    "neg": (lax.neg, (*_FLOATS, *_INTEGERS)),
    "not": (lax.bitwise_not, (*_INTEGERS, "bool")),
    "population_count": (lax.population_count, _INTEGERS),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 3), _FLOATS),
    "round_away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), _FLOATS),
    "round_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), _FLOATS),
    "sign": (lax.sign, (*_FLOATS, *_INTEGERS)),
    "sqrt": (lax.sqrt, _FLOATS),
    "square": (lax.square, (*_FLOATS, *_INTEGERS)),
    "relu": (jax.nn.relu, _FLOATS),
}
_UNARY: dict[str, Function] = {
    **{name: getattr(lax, name) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh")},
    **{name: getattr(lax, name) for name in ("erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "log", "log1p")},
    **{name: getattr(lax, name) for name in ("logistic", "rsqrt", "sin", "sinh", "tan", "tanh", "digamma", "lgamma")},
    "integer_pow_3": lambda x: lax.integer_pow(x, 3),
    "reciprocal": lambda x: lax.integer_pow(x, -1),
}
_BINARY_EXACT: dict[str, tuple[Function, Sequence[str]]] = {
    "add": (lax.add, (*_FLOATS, *_INTEGERS)),
    "and": (lax.bitwise_and, (*_INTEGERS, "bool")),
    "div": (lax.div, (*_FLOATS, *_INTEGERS)),
    "eq": (lax.eq, _ANY),
    "ge": (lax.ge, _ANY),
    "gt": (lax.gt, _ANY),
    "le": (lax.le, _ANY),
    "lt": (lax.lt, _ANY),
    "max": (lax.max, _ANY),
    "min": (lax.min, _ANY),
    "max_0": (lambda x, y: lax.max(x, jnp.zeros_like(x)), _FLOATS),
    "min_0": (lambda x, y: lax.min(jnp.zeros_like(x), x), _FLOATS),
    "max_-0": (lambda x, y: lax.max(-jnp.zeros_like(x), x), _FLOATS),
    "mul": (lax.mul, (*_FLOATS, *_INTEGERS)),
    "ne": (lax.ne, _ANY),
    "nextafter": (lax.nextafter, _FLOATS),
    "or": (lax.bitwise_or, (*_INTEGERS, "bool")),
    "rem": (lax.rem, (*_FLOATS, *_INTEGERS)),
    "shift_left": (lax.shift_left, _INTEGERS),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, _INTEGERS),
    "shift_right_logical": (lax.shift_right_logical, _INTEGERS),
    "sub": (lax.sub, (*_FLOATS, *_INTEGERS)),
    "xor": (lax.bitwise_xor, (*_INTEGERS, "bool")),
    "clamp": (lambda x, y: lax.clamp(lax.min(x, y), y, lax.max(x, y)), (*_FLOATS, *_INTEGERS)),
    "clamp_0": (lambda x, y: lax.clamp(jnp.zeros((), x.dtype), x, jnp.ones((), x.dtype)), _FLOATS),
    "select": (lambda x, y: lax.select(x < y, x, y), _ANY),
}
_BINARY: dict[str, tuple[Function, Sequence[str]]] = {
    "atan2": (lax.atan2, _FLOATS),
    "pow": (lax.pow, _FLOATS),
    "logaddexp": (jnp.logaddexp, _FLOATS),
}
# Of rows: extremes may be zeros of either sign.
_EXTREMES: dict[str, tuple[Function, Sequence[str]]] = {
    "argmax": (lambda x: lax.argmax(x, 1, jnp.int32), (*_FLOATS, *_INTEGERS)),
    "argmin": (lambda x: lax.argmin(x, 1, jnp.int32), (*_FLOATS, *_INTEGERS)),
    "cummax": (lambda x: lax.cummax(x, 1), (*_FLOATS, *_INTEGERS)),
    "cummin": (lambda x: lax.cummin(x, 1), (*_FLOATS, *_INTEGERS)),
    "reduce_and": (lambda x: jnp.all(x, 1), ("bool",)),
    "reduce_max": (lambda x: jnp.max(x, 1), (*_FLOATS, *_INTEGERS)),
    "reduce_min": (lambda x: jnp.min(x, 1), (*_FLOATS, *_INTEGERS)),
    "reduce_or": (lambda x: jnp.any(x, 1), ("bool",)),
    "sort": (lambda x: lax.sort(x, dimension=1), (*_FLOATS, *_INTEGERS)),
    "top_k": (lambda x: lax.top_k(x, 2)[0], (*_FLOATS, *_INTEGERS)),
}
_SUMS: dict[str, Function] = {
    "cumprod": lambda x: lax.cumprod(x, 1),
    "cumsum": lambda x: lax.cumsum(x, 1),
    "reduce_prod": lambda x: jnp.prod(x, 1),
    "reduce_sum": lambda x: jnp.sum(x, 1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "softmax": lambda x: jax.nn.softmax(x, 1),
}
_WITH_NAN: dict[str, Function] = {"reduce_max": lambda x: x.max(1), "reduce_min": lambda x: x.min(1)}
_ULPS = 16.0


def _case(
    op: str,
    dtype: str,
    function: Function,
    arrays: Sequence[Any],
    ulps: float,
    any_zero: bool = False,
    scale: Any = None,
) -> Case:
    def theirs() -> list[Any]:
        with jax.enable_x64(True):
            every = [[np.asarray(jax.jit(function)(*arrays))]]
            if arrays[0].ndim == 1:
                # One element at a time, as what is left of vectors runs.
                some = [a[:7] for a in arrays]
                found = every[0][0].copy()
                found[:7] = np.asarray(jax.jit(function)(*some))
                every.append([found])
        return every

    def ours() -> list[Any]:
        with jax.enable_x64(True):
            return [np.asarray(tw.from_jax(function, *arrays)(*arrays))]

    def exact() -> list[Any]:
        with jax.enable_x64(True):
            return [np.asarray(jax.jit(function)(*(a.astype(np.float64) for a in arrays)))]

    wide = exact if ulps and scale is None and dtype in _FLOATS else None
    if op in _WITH_NAN:
        jaxs = theirs

        def theirs() -> list[Any]:
            # XLA drops NaN from long rows on the CPU, which StableHLO does not: both are accepted.
            plain = np.asarray(_WITH_NAN[op](arrays[0].astype(np.float64) if is_float(arrays[0].dtype) else arrays[0]))
            return [*jaxs(), [plain.astype(arrays[0].dtype)]]

    return Case(
        "stablehlo",
        op,
        dtype,
        ours,
        theirs,
        arrays,
        ulps,
        wide,
        any_zero=any_zero,
        scale=scale,
        flushes=dtype in _FLOATS,
    )


def _normal(*arrays: Any) -> list[Any]:
    """The elements, or rows, of which no operand is subnormal."""
    kept = np.ones(len(arrays[0]), bool)
    for array in arrays:
        if is_float(array.dtype) and array.dtype.itemsize > 1:
            with np.errstate(all="ignore"):
                size = np.abs(array.astype(np.float64))
            normal = (size == 0) | (size >= float(jnp.finfo(array.dtype).tiny)) | np.isnan(size)
            kept &= normal.reshape(len(array), -1).all(-1)
    return [array[kept] for array in arrays]


def special(dtype: Any) -> Any:
    """Special values without subnormal ones."""
    return _normal(special_values.special(dtype))[0]


def pairs(dtype: Any) -> Any:
    """Pairs of special values without subnormal ones."""
    return _normal(*special_values.pairs(dtype))


def rows(dtype: Any, width: int) -> Any:
    """Rows of special values without subnormal ones."""
    return _normal(special_values.rows(dtype, width))[0]


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(jnp, name) if name != "bool" else np.bool_)


def cases(match: str) -> Iterator[Case]:
    """All cases whose operation has `match` in its name."""
    for name, (function, types) in _UNARY_EXACT.items():
        for dtype in types if match in name else ():
            yield _case(name, dtype, function, [special(_dtype(dtype))], 0.0)
    for name, function in _UNARY.items():
        for dtype in _FLOATS if match in name else ():
            array = special(_dtype(dtype))
            # Its zeros are differences of terms of about 1.
            scale = np.ones(array.shape) if name == "lgamma" else None
            yield _case(name, dtype, function, [array], _ULPS, scale=scale)
    for table, ulps in ((_BINARY_EXACT, 0.0), (_BINARY, _ULPS)):
        for name, (function, types) in table.items():
            for dtype in types if match in name else ():
                yield _case(name, dtype, function, pairs(_dtype(dtype)), ulps)
    for name, (function, types) in _EXTREMES.items():
        for dtype in types if match in name else ():
            for width in (3, 64):
                yield _case(name, dtype, function, [rows(_dtype(dtype), width)], 0.0, True)
    for name, function in _SUMS.items():
        for dtype in (
            (*_FLOATS, *(_INTEGERS if name[-1] in "md" and "exp" not in name else ())) if match in name else ()
        ):
            yield from _sums(name, function, dtype)
    if match in "convert":
        yield from _casts()


def _sums(name: str, function: Function, dtype: str) -> Iterator[Case]:
    for width in (3, 64):
        array = rows(_dtype(dtype), width)
        if not is_float(array.dtype):
            yield _case(name, dtype, function, [array], 0.0)
            continue
        wide = np.abs(array.astype(np.float64))
        limit = {"float32": 2.0**40, "bfloat16": 2.0**40, "float16": 2.0**7, "float64": 2.0**300}[dtype]
        limit = limit ** (1 / 3) if "prod" in name else limit
        sizes = np.where(np.isfinite(wide) & (wide > 0), wide, 1.0)
        array = array[((sizes < limit) & (sizes > 1 / limit)).all(-1)]
        wide = np.abs(np.where(np.isfinite(array.astype(np.float64)), array.astype(np.float64), 0))
        scale = wide.sum(-1, keepdims=True)
        scale = np.broadcast_to(scale, array.shape) if name in ("cumsum", "cumprod") else scale
        yield _case(name, dtype, function, [array], _ULPS, False, scale if name in ("cumsum", "reduce_sum") else None)


def _casts() -> Iterator[Case]:
    every = (*_ANY, *_NARROW)
    for source in every:
        values = special(_dtype(source))
        values = np.tile(values, max(1, 64 // len(values)))
        for destination in every:
            function = functools.partial(lax.convert_element_type, new_dtype=_dtype(destination))
            yield _case("convert", f"{source} to {destination}", function, [values], 0.0)

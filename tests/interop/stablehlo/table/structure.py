"""Operations on shapes, conversions, comparisons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import F32, normal, special, whole


def shapes() -> Iterator[Case]:
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


def conversions() -> Iterator[Case]:
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
    eights = (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e5m2fnuz)
    narrow = (*eights, ml_dtypes.int4, ml_dtypes.uint4)
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


def comparisons() -> Iterator[Case]:
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


PARTS = (
    shapes,
    conversions,
    comparisons,
)

"""Reductions, products, convolutions and windows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import F32, normal, whole


def reductions() -> Iterator[Case]:
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


def products() -> Iterator[Case]:
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


def convolutions() -> Iterator[Case]:
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


def windows() -> Iterator[Case]:
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

    def pairs(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] * b[1]

    for padding in ("VALID", "SAME"):
        yield Case(
            f"reduce_window-variadic-{padding}",
            lambda x, y, p=padding: lax.reduce_window((x, y), (F32(0), F32(1)), pairs, (1, 2, 2), (1, 2, 1), p),
            (x, normal(3, 6, 7)),
        )
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


PARTS = (
    reductions,
    products,
    convolutions,
    windows,
)

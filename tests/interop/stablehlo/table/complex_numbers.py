"""Operations on complex numbers, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import normal, whole

_FUNCTIONS = (
    *("abs", "negative", "exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "expm1", "log1p", "sign"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "square", "reciprocal", "conj", "angle", "real"),
)


def _numbers(*shape: int, dtype: Any = np.complex64) -> Any:
    return (normal(*shape) + 1j * normal(*shape)[::-1]).astype(dtype)


def functions() -> Iterator[Case]:
    for dtype in (np.complex64, np.complex128):
        z, w = _numbers(3, 4, dtype=dtype), _numbers(3, 4, dtype=dtype).conj() * 2
        for name in _FUNCTIONS:
            yield Case(f"complex-{name}-{dtype.__name__}", getattr(jnp, name), (z,))
        yield Case(f"complex-arithmetic-{dtype.__name__}", lambda z, w: (z + w, z - w, z * w, z / w, z**w), (z, w))
        yield Case(f"complex-compare-{dtype.__name__}", lambda z, w: (z == w, z != w, jnp.isfinite(z)), (z, w))
        yield Case(f"complex-rsqrt-{dtype.__name__}", lambda z: (lax.rsqrt(z), lax.logistic(z), lax.cbrt(z.real)), (z,))
    yield Case("complex-parts", lambda x, y: (lax.complex(x, y), lax.real(x + 1j * y)), (normal(5), normal(5)))
    yield Case("complex-convert", lambda x, n: (x.astype(np.complex64), n * 1j, x * n), (normal(3), whole(3)))
    yield Case(
        "complex-constants", lambda: (np.array([1j, np.inf, 2 - 3j]), jnp.full((2, 2), 1j), jnp.arange(3) * 1j), ()
    )
    yield Case("complex-iota", lambda: lax.iota(np.complex64, 4), ())


def structure() -> Iterator[Case]:
    z, x = _numbers(3, 4), normal(3, 4)
    yield Case("complex-shapes", lambda z: (z.T, z[::-1, 1:], z.reshape(2, 6), jnp.tile(z, (2, 1)), z[:0]), (z,))
    yield Case("complex-join", lambda z: (jnp.concatenate([z, z]), jnp.pad(z, 1), jnp.stack([z, z * 2])), (z,))
    yield Case("complex-select", lambda z, x: (jnp.where(x > 0, z, 1j), lax.select(x > 0, z, z * 2)), (z, x))
    yield Case("complex-gather", lambda z: (z[np.array([2, 0])], z[:, np.array([[1], [3]])], jnp.take(z, 1, 1)), (z,))
    yield Case(
        "complex-scatter", lambda z: (z.at[0].set(1j), z.at[np.array([1, 1])].add(2j), z.at[1].multiply(1j)), (z,)
    )
    yield Case(
        "complex-slices", lambda z: lax.dynamic_update_slice(z, lax.dynamic_slice(z, (1, 1), (1, 2)), (0, 0)), (z,)
    )
    yield Case(
        "complex-reduce", lambda z: (z.sum(), z.sum(0), z.prod(1), z.mean(), jnp.cumsum(z, 1), jnp.cumprod(z, 0)), (z,)
    )
    window = {"window_dimensions": (2, 2), "window_strides": (1, 1), "padding": "VALID"}
    yield Case("complex-window", lambda z: lax.reduce_window(z, 0j, lax.add, **window), (z,))
    yield Case("complex-sort", lambda z: (jnp.sort(z, 1), jnp.argsort(z, 0), lax.sort((z.real, z), num_keys=1)), (z,))
    yield Case("complex-dot", lambda z, x: (z @ z.T, z @ x.T, x @ z.T, jnp.einsum("ij,ij->i", z, z.conj())), (z, x))
    yield Case("complex-convolve", lambda z: jnp.convolve(z[0], z[1]), (z,))
    yield Case("complex-while", lambda z: lax.fori_loop(0, 3, lambda i, c: c * z, z), (z * 0.5,))
    yield Case("complex-cond", lambda z: lax.cond(z[0, 0].real > 0, lambda: z, lambda: -z), (z,))
    yield Case("complex-scan", lambda z: lax.scan(lambda c, x: (c * x, c + x), jnp.ones(4, np.complex64), z), (z,))
    yield Case("complex-call", jax.jit(lambda z: jax.jit(lambda a: (a, a * 2))(z)), (z,))
    yield Case("complex-sort-real", lambda z: lax.sort((jnp.abs(z), z), num_keys=1, dimension=1), (z,))
    yield Case("complex-eig", lambda x: jnp.linalg.eigvals(x @ x.T + 1), (normal(3, 3),))


def transforms() -> Iterator[Case]:
    z, x = _numbers(4, 6), normal(4, 6)
    for rank in (1, 2):
        axes = tuple(range(-rank, 0))
        yield Case(f"fft-{rank}", lambda z, axes=axes: (jnp.fft.fftn(z, axes=axes), jnp.fft.ifftn(z, axes=axes)), (z,))
        yield Case(f"rfft-{rank}", lambda x, axes=axes: jnp.fft.rfftn(x, axes=axes), (x,))
        yield Case(f"irfft-{rank}", lambda z, axes=axes: jnp.fft.irfftn(z, axes=axes), (z,))
    yield Case("fft-3", lambda z: (jnp.fft.fftn(z), jnp.fft.irfftn(z), jnp.fft.rfftn(z.real)), (z.reshape(2, 3, 4),))
    yield Case("fft-lengths", lambda z: [jnp.fft.fft(z, n) for n in (1, 2, 5, 7, 16)], (z,))
    yield Case("irfft-lengths", lambda z: [jnp.fft.irfft(z, n) for n in (1, 2, 5, 9)], (z,))
    yield Case("fft-wide", lambda z: (jnp.fft.fft(z), jnp.fft.irfft(z)), (z.astype(np.complex128),))
    yield Case("fft-empty", lambda z: jnp.fft.fft(z), (z[:0],))


PARTS = (functions, structure, transforms)

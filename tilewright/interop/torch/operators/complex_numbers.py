"""Complex numbers from and to their parts, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray
from tilewright.api.complex_functions import polar
from tilewright.api.complex_primitives import from_pairs, to_pairs
from tilewright.api.fourier import complex_transform, inverse_real_transform, over_axes, real_transform
from tilewright.api.lifting import axes_of, broadcast, broadcast_shapes, is_scalar
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import as_floats, default_float, dtype_of


@operator("complex")
def complex_(real: Array, imag: Array) -> Array:
    """The numbers with these real and imaginary parts."""
    return ComplexArray(*_of_one_shape(real, imag))


@operator("polar")
def polar_(magnitude: Array, angle: Array) -> Array:
    """The numbers with these magnitudes and angles."""
    return polar(*_of_one_shape(magnitude, angle))


def _of_one_shape(a: Array, b: Array) -> tuple[Array, Array]:
    shape = broadcast_shapes(a.shape, b.shape)
    return broadcast(a, shape), broadcast(b, shape)


@operator("view_as_real")
def view_as_real(x: Array) -> Array:
    """The real and the imaginary part along a new last axis."""
    return to_pairs(x)


@operator("view_as_complex")
def view_as_complex(x: Array) -> Array:
    """The numbers whose parts the last axis holds."""
    return from_pairs(x)


@operator("real")
def real(x: Array) -> Array:
    """The real part."""
    return tw.real(x)


@operator("imag")
def imag(x: Array) -> Array:
    """The imaginary part."""
    return tw.imag(x)


@operator("_conj", "conj", "_conj_physical", "conj_physical")
def conjugate(x: Array) -> Array:
    """The conjugate, which torch may leave to be computed where it is read."""
    if is_scalar(x):  # torch has numbers as arrays of the widest type
        return tw.full((), x.conjugate(), dtype=tw.complex128 if isinstance(x, complex) else tw.f64)
    return tw.conj(x)


@operator("resolve_conj", "resolve_neg")
def resolved(x: Array) -> Array:
    """The numbers themselves: conjugates and negatives are computed at once here."""
    return x


@operator("_neg_view")
def negated(x: Array) -> Array:
    """The negative, which torch leaves to be computed where it is read."""
    return tw.negative(x)


@operator("angle")
def angle(x: Array) -> Array:
    """The angle to the positive real axis."""
    return tw.angle(as_floats(x))


@operator("linalg_eig")
def eigenvectors(a: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of real matrices."""
    return tuple(tw.linalg.eig(a))


@operator("linalg_eigvals", "_linalg_eigvals")
def eigenvalues(a: Array) -> Array:
    """Eigenvalues of real matrices."""
    return tw.linalg.eigvals(a)


# ---- Fourier transforms ---------------------------------------------------------------------------------------------


def _scale(normalization: int, sizes: Sequence[int]) -> float:
    """The factor of a transform: 1, or 1 over the number of elements or its root."""
    count = math.prod(sizes)
    return (1.0, 1.0 / math.sqrt(count), 1.0 / count)[normalization]


@operator("_fft_c2c")
def transform(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """The transform of complex numbers along axes."""
    axes = axes_of(tuple(dim), x.ndim)
    if not axes:
        return x
    scale = _scale(normalization, [x.shape[d] for d in axes])
    rest = over_axes(x, axes[:-1], inverse=not forward)
    return complex_transform(rest, axes[-1], inverse=not forward, scale=scale)


@operator("_fft_r2c")
def transform_of_real(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """The transform of real numbers along axes, the last of which keeps its first half, if `onesided`."""
    axes = axes_of(tuple(dim), x.ndim)
    if not onesided:
        return transform(tw.astype(x, tw.complex128 if x.dtype == tw.f64 else tw.complex64), dim, normalization, True)
    scale = _scale(normalization, [x.shape[d] for d in axes])
    return over_axes(real_transform(x, axes[-1], scale=scale), axes[:-1], inverse=False)


@operator("_fft_c2r")
def transform_to_real(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The real numbers of which this is the transform along axes, the last of which holds the first half."""
    axes = axes_of(tuple(dim), x.ndim)
    scale = _scale(normalization, [*(x.shape[d] for d in axes[:-1]), last_dim_size])
    return inverse_real_transform(over_axes(x, axes[:-1], inverse=True), axes[-1], last_dim_size, scale=scale)


@operator("fft_fftfreq")
def frequencies(n: int, d: float = 1.0, *, dtype: object = None, **where: object) -> Array:
    """The frequencies of a transform of `n` samples that are `d` apart."""
    return tw.fft.fftfreq(n, d=d, dtype=default_float() if dtype is None else dtype_of(dtype))


@operator("fft_rfftfreq")
def half_frequencies(n: int, d: float = 1.0, *, dtype: object = None, **where: object) -> Array:
    """The frequencies of a transform of real numbers."""
    return tw.fft.rfftfreq(n, d=d, dtype=default_float() if dtype is None else dtype_of(dtype))

"""Complex numbers from and to their parts, and Fourier transforms."""

from __future__ import annotations

import math

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray
from tilewright.api.fourier import complex_transform, inverse_real_transform, over_axes, real_transform
from tilewright.interop.stablehlo.registry import Node, operation


@operation("stablehlo.complex", elementwise=True)
def complex_(node: Node, real: Array, imag: Array) -> Array:
    """The numbers with these real and imaginary parts."""
    if real.dtype != imag.dtype or real.shape != imag.shape:
        raise node.malformed("the parts are of different types")
    return ComplexArray(real, imag)


@operation("stablehlo.real", elementwise=True)
def real_(node: Node, x: Array) -> Array:
    """The real part."""
    return tw.real(x)


@operation("stablehlo.imag", elementwise=True)
def imag_(node: Node, x: Array) -> Array:
    """The imaginary part; 0 of real numbers."""
    return tw.imag(x)


@operation("stablehlo.fft")
def fft(node: Node, x: Array) -> Array:
    """The Fourier transform over the last axes (FFT, IFFT, RFFT or IRFFT)."""
    kind, lengths = node.get("fft_type"), node.integers("fft_length")
    if kind not in ("FFT", "IFFT", "RFFT", "IRFFT") or not 1 <= len(lengths) <= x.ndim:
        raise node.malformed(f"a transform `{kind}` over {len(lengths)} of {x.ndim} axes")
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    found = tuple(x.shape[d] for d in axes)
    halved = (*lengths[:-1], lengths[-1] // 2 + 1)
    if found != (halved if kind == "IRFFT" else lengths) or (kind == "RFFT") == x.dtype.is_complex:
        raise node.malformed(f"a transform `{kind}` of lengths {lengths} of {x.dtype}{list(x.shape)}")
    if x.size == 0 or math.prod(lengths) == 0:
        return tw.zeros(node.type.shape, dtype=node.type.dtype)
    if kind == "RFFT":
        return over_axes(real_transform(x, axes[-1]), axes[:-1], inverse=False)
    if kind == "FFT":
        return over_axes(x, axes, inverse=False)
    scale = 1.0 / math.prod(lengths)
    first = over_axes(x, axes[:-1], inverse=True)
    if kind == "IFFT":
        return complex_transform(first, axes[-1], inverse=True, scale=scale)
    return inverse_real_transform(first, axes[-1], lengths[-1], scale=scale)

"""Fourier transforms.

In a program they are matmuls with the matrix of the transform, whose cost grows with the square of its length. Long
transforms run on the host instead, which has fast ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axis_of
from tilewright.interop.onnx.operators.elementwise import dtype_of, wide
from tilewright.interop.onnx.registry import Node, lifted, operator

Matrix = np.ndarray[Any, Any]

# From so many points on the host was faster for any batch: 1.1 to 7 times at 512 points, 1.7 to 10 at 1024.
_HOST_LENGTH = 512
# What a program holds at most.
_MAX_LENGTH = 4096


@operator("DFT", since=20)
def dft(node: Node, x: Array, length: Array | None = None, axis: Array | None = None) -> Array:
    """The discrete Fourier transform of (..., 1 or 2) along an axis."""
    along = -2 if axis is None else node.known_ints(axis, "axis")[0]
    return _transformed(node, x, length, along)


@operator("DFT", since=17)
def dft_along_attribute(node: Node, x: Array, length: Array | None = None) -> Array:
    """The discrete Fourier transform of (..., 1 or 2) along an axis."""
    return _transformed(node, x, length, node.get("axis", 1))


def _transformed(node: Node, x: Array, length: Array | None, axis: int) -> Array:
    at = axis_of(axis, x.ndim)
    count = x.shape[at] if length is None else node.known_ints(length, "dft_length")[0]
    if count >= _HOST_LENGTH and node.leave is not None:
        raise node.leave(f"it transforms {count} points")
    if count > _MAX_LENGTH:
        raise node.unsupported(f"`{node.op}` of {count} elements, more than {_MAX_LENGTH}")
    inverse, onesided = node.get("inverse", 0), node.get("onesided", 0)
    if inverse and onesided:
        return _real_inverse(x, at, 2 * (x.shape[at] - 1) if length is None else count)
    y = wide(x)[(*(slice(None),) * at, slice(0, count))]
    used = y.shape[at]
    frequencies = count // 2 + 1 if onesided else count
    real, imaginary = _waves(count, inverse=bool(inverse))
    cos, sin = (lifted(wave[:frequencies, :used].astype(y.dtype.numpy)).mT for wave in (real, imaginary))
    parts = tw.moveaxis(y, at, -1)
    re = parts[..., 0, :]
    a, b = tw.matmul(re, cos), tw.matmul(re, sin)
    if x.shape[-1] == 2:
        im = parts[..., 1, :]
        a, b = a - tw.matmul(im, sin), b + tw.matmul(im, cos)
    return tw.astype(tw.moveaxis(tw.stack([a, b], axis=-2), -1, at), x.dtype)


def _real_inverse(x: Array, axis: int, count: int) -> Array:
    """Real numbers from the frequencies of one side; those of the other side are their conjugates."""
    used = min(x.shape[axis], count // 2 + 1)
    y = tw.moveaxis(wide(x)[(*(slice(None),) * axis, slice(0, used))], axis, -1)
    frequencies = np.arange(used)
    both_sides = np.where((frequencies == 0) | (2 * frequencies == count), 1.0, 2.0)[:, None]
    real, imaginary = _waves(count, inverse=True)
    parts = [(wave[:used] * both_sides).astype(y.dtype.numpy) for wave in (real, imaginary)]
    result = tw.matmul(y[..., 0, :], lifted(parts[0])) - tw.matmul(y[..., 1, :], lifted(parts[1]))
    return tw.astype(tw.moveaxis(result[..., None, :], -1, axis), x.dtype)


def _waves(count: int, *, inverse: bool) -> tuple[Matrix, Matrix]:
    """The real and the imaginary part of the matrix of a transform."""
    turns = np.outer(np.arange(count), np.arange(count)) % count * (2 * np.pi / count)
    return (np.cos(turns) / count, np.sin(turns) / count) if inverse else (np.cos(turns), -np.sin(turns))


@operator("STFT", since=17)
def stft(node: Node, x: Array, step: Array, window: Array | None = None, length: Array | None = None) -> Array:
    """Fourier transforms of windows that are `step` apart along axis 1."""
    (hop,) = node.known_ints(step, "frame_step")
    if length is not None:
        (count,) = node.known_ints(length, "frame_length")
    elif window is not None:
        count = window.shape[0]
    else:
        raise node.unsupported("`STFT` without a window and a length")
    frames = (x.shape[1] - count) // hop + 1
    places = np.arange(frames)[:, None] * hop + np.arange(count)
    cut = tw.take(x, lifted(places), axis=1)
    if window is not None:
        cut = cut * tw.reshape(window, (-1, 1))
    node.attributes.setdefault("onesided", 1)
    return _transformed(node, cut, None, 2)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node, bins: Array, length: Array, rate: Array, lowest: Array, highest: Array) -> Array:
    """The share of each frequency in each band of the mel scale."""
    (n_bins,), (n_length,), (n_rate,) = (
        node.known_ints(v, what) for v, what in ((bins, "num_mel_bins"), (length, "dft_length"), (rate, "sample_rate"))
    )
    low, high = (float(node.known(v, "edge").reshape(-1)[0]) for v in (lowest, highest))
    spectrogram = n_length // 2 + 1
    first_mel, last_mel = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    mel = first_mel + np.arange(n_bins + 2) * ((last_mel - first_mel) / (n_bins + 2))
    edges = ((n_length + 1) * (700 * (10 ** (mel / 2595) - 1)) // n_rate).astype(np.int64)
    result = np.zeros((spectrogram, n_bins))
    for band in range(n_bins):
        first, middle, last = edges[band : band + 3]
        rising = middle - first
        if rising == 0:
            result[middle, band] = 1
        for place in range(first, middle + 1) if rising else ():
            result[place, band] = (place - first) / rising
        falling = last - middle
        for place in range(middle, last) if falling else ():
            result[place, band] = (last - place) / falling
    return lifted(result.astype(dtype_of(node, node.get("output_datatype", 1)).numpy))

"""Fourier transforms of NumPy arrays, as ONNX defines them. Complex numbers are pairs along the last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.interop.onnx.reference import check_elements

Tensor = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]


def transforms() -> dict[str, Callable[..., Tensor]]:
    """Functions of attributes, a version and arrays, by operator."""
    return {"DFT": _dft, "STFT": _stft}


def _dft(
    attributes: Attributes, version: int, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None
) -> Tensor:
    by_input = -2 if axis is None else int(axis.reshape(-1)[0])
    along = by_input if version >= 20 else attributes.get("axis", 1)
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    at = range(x.ndim)[along]
    count = None if length is None else int(length.reshape(-1)[0])
    check_elements("DFT", x.size // max(x.shape[at], 1) * max(count or 0, 0))
    if inverse and onesided:
        real = np.fft.irfft(_complex(x), 2 * (x.shape[at] - 1) if count is None else count, at)
        return real[..., None].astype(x.dtype)
    return _transformed(x, count, at, inverse=inverse, onesided=onesided)


def _stft(
    attributes: Attributes,
    version: int,
    x: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
) -> Tensor:
    hop = int(step.reshape(-1)[0])
    if length is None and window is None:
        raise NotImplementedError("neither a window nor a length")
    count = int(length.reshape(-1)[0]) if length is not None else len(window) if window is not None else 0
    frames = np.lib.stride_tricks.sliding_window_view(x, count, axis=1)[:, ::hop]  # (batch, frames, 1 or 2, count)
    check_elements("STFT", frames.size)
    cut = np.moveaxis(frames, -1, 2)
    if window is not None:
        cut = cut * window.reshape(-1, 1)
    return _transformed(cut, None, 2, inverse=False, onesided=bool(attributes.get("onesided", 1)))


def _transformed(x: Tensor, count: int | None, axis: int, *, inverse: bool, onesided: bool) -> Tensor:
    if onesided and x.shape[-1] == 1:
        found: Tensor = np.fft.rfft(_wide(x)[..., 0], count, axis)
    else:
        found = (np.fft.ifft if inverse else np.fft.fft)(_complex(x), count, axis)
        if onesided:
            found = found[(*(slice(None),) * axis, slice(0, found.shape[axis] // 2 + 1))]
    return np.stack([found.real, found.imag], axis=-1).astype(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """The elements in a type that NumPy transforms in: f32 and f64 as they are."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _complex(x: Tensor) -> Tensor:
    """Numbers of pairs, or of reals alone."""
    y = _wide(x)
    return y[..., 0] if x.shape[-1] == 1 else y[..., 0] + 1j * y[..., 1]

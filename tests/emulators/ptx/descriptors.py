"""Matrices in shared memory that wgmma and tcgen05.mma read through a 64-bit descriptor.

PTX ISA, 9.7.15.5.1.2 "Shared Memory Matrix Layout", its "Canonical Layouts" and "Matrix Descriptor Format", and
9.7.16.4.1 "Shared memory descriptor". That the base offset counts lines of 128 bytes before the swizzle's pattern
begins follows from its formula there; the text does not say how it is applied.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.emulators.ptx.tensor_maps import exchanged

_CHUNK_BYTES, _GROUP = 16, 8
_HOPPER_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_BLACKWELL_SWIZZLES = {0: 0, 2: 128, 4: 64, 6: 32}


@dataclass(frozen=True)
class Descriptor:
    """Byte offsets, and the lines of 128 bytes by which the swizzle's pattern begins late."""

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    def places(self, lines: int, depth: int, bytes_per_element: int, major: str) -> np.ndarray:
        """The bytes of shared memory of a matrix (lines along M or N, depth along K), as (line, depth, byte).

        `major`: "k" where neighbours along K lie together, "mn" where those along M or N do.
        """
        line, k = np.arange(lines)[:, None], np.arange(depth)[None, :]
        offsets = self._k_major(line, k * bytes_per_element) if major == "k" else None
        if offsets is None:
            offsets = self._mn_major(line * bytes_per_element, k)
        each = self.start + offsets[:, :, None] + np.arange(bytes_per_element)
        return exchanged(each, self.swizzle, self.base)

    def _k_major(self, line: np.ndarray, k_byte: np.ndarray) -> np.ndarray:
        """((8, m), (T, 2k)) : ((pitch, SBO), (1, LBO or T)) in units of elements; here in bytes."""
        outer = line // _GROUP * self.stride
        if not self.swizzle:
            return line % _GROUP * _CHUNK_BYTES + outer + k_byte % _CHUNK_BYTES + k_byte // _CHUNK_BYTES * self.leading
        return line % _GROUP * self.swizzle + outer + k_byte

    def _mn_major(self, byte: np.ndarray, k: np.ndarray) -> np.ndarray:
        """((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO)), and ((T, s, m), (8, k)) : ((1, T, LBO), (s T, SBO))."""
        if not self.swizzle:
            line = byte % _CHUNK_BYTES + byte // _CHUNK_BYTES * self.stride
            return line + k % _GROUP * _CHUNK_BYTES + k // _GROUP * self.leading
        line = byte % self.swizzle + byte // self.swizzle * self.leading
        return line + k % _GROUP * self.swizzle + k // _GROUP * self.stride


def _field(value: int, first: int, bits: int) -> int:
    return value >> first & ((1 << bits) - 1)


def _decoded(value: int, swizzle: int) -> Descriptor:
    start, leading, stride = (_field(value, first, 14) << 4 for first in (0, 16, 32))
    return Descriptor(start, leading, stride, _field(value, 49, 3) if swizzle else 0, swizzle)


def hopper(value: int) -> Descriptor:
    """A descriptor of wgmma. Raises ValueError where reserved bits are set."""
    if any(_field(value, first, bits) for first, bits in ((14, 2), (30, 2), (46, 3), (52, 10))):
        raise ValueError(f"reserved bits of a matrix descriptor are set: {value:#x}")
    return _decoded(value, _HOPPER_SWIZZLES[_field(value, 62, 2)])


def blackwell(value: int) -> Descriptor:
    """A descriptor of tcgen05. Raises ValueError for another version or form."""
    fixed = (_field(value, 14, 2), _field(value, 30, 2), _field(value, 46, 3), _field(value, 53, 8))
    if fixed != (0, 0, 1, 0):
        raise ValueError(f"fixed bits of a shared memory descriptor are not what they should be: {value:#x}")
    swizzle = _BLACKWELL_SWIZZLES.get(_field(value, 61, 3))
    if swizzle is None or _field(value, 52, 1):
        raise ValueError(f"the swizzle or leading dimension mode of {value:#x}")
    return _decoded(value, swizzle)


ELEMENTS: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}


def numbers(data: np.ndarray, name: str) -> np.ndarray:
    """Bytes, the last axis an element's, as numbers that products and sums of are exact: float64, int64 of integers."""
    dtype = ELEMENTS[name]
    if name == "tf32":
        # The last 13 bits of a tf32 operand are not looked at ("Alternate Floating-Point Data Formats").
        words = np.ascontiguousarray(data).view(np.uint32) & np.uint32(0xFFFFE000)
        return words.view(np.float32)[..., 0].astype(np.float64)
    values = np.ascontiguousarray(data).view(dtype)[..., 0]
    return values.astype(np.int64 if dtype.kind in "iu" else np.float64)

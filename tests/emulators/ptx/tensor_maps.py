"""Tensor maps: what a kernel is given for a 128-byte parameter, and where a box of it lies.

`TensorMap` stands for cuTensorMapEncodeTiled and checks what the CUDA Driver API, "Tensor Map Object Management", asks
of its arguments. Dims, strides, boxes and coordinates have the innermost dim first, as there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.formats import narrowed

_MOST_DIMS, _MOST_BOX, _MOST_ELEMENT_STRIDE = 5, 256, 8
_ALIGNMENT = 16
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """Boxes of `array`, from byte `start_bytes` on: `dims` elements along each dim, `strides` in bytes of all dims but
    the first. Without dims and strides: those of the array as it is. Elements out of bounds are zeros. With
    `rounds_to_tf32` numbers of f32 are rounded on their way to shared memory, as with CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    ties go away from zero, which is not documented."""

    array: np.ndarray
    box: Sequence[int]
    swizzle: int = 0
    dims: Sequence[int] = ()
    strides: Sequence[int] = ()
    element_strides: Sequence[int] = ()
    start_bytes: int = 0
    rounds_to_tf32: bool = False
    bytes_per_element: int = field(init=False)

    def __post_init__(self) -> None:
        array = self.array
        if not self.dims:
            object.__setattr__(self, "dims", array.shape[::-1])
            object.__setattr__(self, "strides", array.strides[-2::-1] if array.ndim > 1 else ())
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))
        object.__setattr__(self, "bytes_per_element", array.itemsize)
        self._check()

    def _check(self) -> None:
        rank = len(self.dims)
        sizes = {len(self.box), len(self.element_strides), len(self.strides) + 1}
        inner_bytes = self.box[0] * self.bytes_per_element
        rules = {
            "1 to 5 dims, and as many box sizes and element strides": 1 <= rank <= _MOST_DIMS and sizes == {rank},
            "the address is a multiple of 16": self.start_bytes % _ALIGNMENT == 0,
            "sizes are 1 to 2^32": all(0 < size <= 1 << 32 for size in self.dims),
            "strides are multiples of 16 below 2^40": all(0 <= s < 1 << 40 and s % 16 == 0 for s in self.strides),
            "box sizes are 1 to 256": all(0 < size <= _MOST_BOX for size in self.box),
            "element strides are 1 to 8": all(0 < step <= _MOST_ELEMENT_STRIDE for step in self.element_strides),
            "a line of the box is a multiple of 16 bytes": inner_bytes % 16 == 0,
            "the swizzle is 0, 32, 64 or 128": self.swizzle in SWIZZLES,
            "a line of the box is not longer than the swizzle": not self.swizzle or inner_bytes <= self.swizzle,
        }
        rules["the array is contiguous"] = self.array.flags.c_contiguous
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise ValueError(f"cuTensorMapEncodeTiled refuses: {'; '.join(broken)}")
        if self.swizzle and inner_bytes != self.swizzle:
            raise NotImplementedError("a swizzle that is longer than the box's line")

    @property
    def box_bytes(self) -> int:
        return int(np.prod(self._counts)) * self.bytes_per_element

    @property
    def _counts(self) -> list[int]:
        """Elements of a box along each dim; the first dim has no element stride (CUDA Driver API, elementStrides)."""
        return [-(-size // step) for size, step in zip(self.box, self._steps, strict=True)]

    @property
    def _steps(self) -> list[int]:
        return [1, *self.element_strides[1:]]

    def box_at(self, coordinates: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(first bytes in the array, whether they are inside) of a box's elements, the innermost dim fastest."""
        offsets, inside = np.zeros(1, np.int64), np.ones(1, bool)
        strides = [self.bytes_per_element, *self.strides]
        # The innermost dim comes last, so that it runs fastest.
        for dim in reversed(range(len(self.dims))):
            index = coordinates[dim] + self._steps[dim] * np.arange(self._counts[dim], dtype=np.int64)
            offsets = (offsets[:, None] + index * strides[dim]).reshape(-1)
            inside = (inside[:, None] & (index >= 0) & (index < self.dims[dim])).reshape(-1)
        return offsets + self.start_bytes, inside

    def brought(self, data: np.ndarray) -> np.ndarray:
        """The bytes that come to shared memory for those of the array."""
        if not self.rounds_to_tf32:
            return data
        return narrowed(data.view(np.float32).astype(np.float64), "tf32", "rna").astype(np.float32).view(np.uint8)


def exchanged(places: np.ndarray, swizzle: int, base: int = 0) -> np.ndarray:
    """Byte addresses of shared memory as a swizzle has them: the number of a 16-byte chunk is XORed with that of the
    128-byte line. PTX ISA, 5.5.7 "Swizzling Modes"; the base offset of a matrix descriptor is the number of the line
    where the pattern begins."""
    lines = (places >> 7) - base
    return places ^ ((lines & (swizzle // 16 - 1)) << 4) if swizzle else places

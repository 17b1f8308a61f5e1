"""The type of an array in a program file."""

from __future__ import annotations

import math

import msgspec

from tilewright.dtypes import by_name


class ArraySpec(msgspec.Struct, frozen=True):
    """One input or output: `dtype` is a name of `tilewright.dtypes`."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * by_name(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

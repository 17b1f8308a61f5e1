"""`ComplexArray`: an array of complex numbers of a traced program, as the pair of its real and imaginary parts.

The IR has no complex type. Primitives on such an array are primitives on its parts (`complex_primitives`), and the
functions of the table `ops` are formulas of them (`complex_functions`). In memory, as an argument or a result, it is an
array of floats with a last axis of 2, as which NumPy stores complex numbers.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.dtypes import DType
from tilewright.errors import DTypeError
from tilewright.primitives import ArrayType

Tensor = np.ndarray[Any, Any]


class ComplexArray(Array):
    """An array of complex numbers: two arrays of floats of one shape and type."""

    __slots__ = ("_imag", "_pairs", "_real")

    def __init__(self, real: Array, imag: Array, pairs: Array | None = None) -> None:
        """`pairs` is the array whose last axis holds both parts, where there is one."""
        self._real = real
        self._imag = imag
        self._pairs = pairs
        self._weak = real.weak and imag.weak

    @property
    def real(self) -> Array:
        return self._real

    @property
    def imag(self) -> Array:
        return self._imag

    @property
    def pairs(self) -> Array | None:
        """The array whose last axis holds both parts, where they came from one."""
        return self._pairs

    @property
    def shape(self) -> tuple[int, ...]:
        return self._real.shape

    @property
    def dtype(self) -> DType:
        return dtypes.complex_of(self._real.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return 2 * self._real.nbytes

    @property
    def value(self) -> NoReturn:
        """No single value: what asks for one has no form for complex numbers.

        Raises:
            DTypeError: always.
        """
        message = f"this function does not take complex numbers, but {self!r}"
        raise located(DTypeError(message, help="pass `tw.real(x)`, `tw.imag(x)` or `tw.abs(x)`"))

    def __repr__(self) -> str:
        return f"ComplexArray({ArrayType(self.shape, self.dtype)})"


def stored_type(type: ArrayType) -> ArrayType:
    """The type in memory: that of complex numbers is floats with a last axis of 2."""
    return ArrayType((*type.shape, 2), type.dtype.part) if type.dtype.is_complex else type


def as_stored(array: Tensor) -> Tensor:
    """A NumPy array as programs take it: complex numbers as a view of floats with a last axis of 2."""
    if array.dtype.kind != "c":
        return array
    if array.flags.c_contiguous:
        return array.reshape(*array.shape, 1).view(array.real.dtype)
    real = array.real
    return np.lib.stride_tricks.as_strided(real, (*array.shape, 2), (*array.strides, real.itemsize))


def from_stored(array: Tensor) -> Tensor:
    """The complex numbers of a contiguous array of floats whose last axis is 2, as a view."""
    return array.view(f"c{2 * array.itemsize}").reshape(array.shape[:-1])

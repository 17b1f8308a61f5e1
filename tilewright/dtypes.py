"""Element types: the one table that every layer reads.

A `DType` is a name, a kind and a width. NumPy is the storage form (`bf16` and the floats of 8 bits through
`ml_dtypes`); the IR form lives in `dialects`, the LLVM form in the cpu target.

The floats of 8 bits are those of the OCP 8-bit Floating Point Specification: `f8e5m2` has infinities, `f8e4m3fn` has
none and one NaN of each sign. Numbers are rounded to nearest even; what rounds beyond the largest becomes an infinity
in `f8e5m2` and NaN in `f8e4m3fn`, as infinities do there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


@dataclass(frozen=True, eq=False)  # there is one object for each: identity compares and hashes in no time
class DType:
    """One element type. `kind` is `f` (float), `i` (signed), `u` (unsigned), `b` (bool) or `c` (complex: the IR has the
    parts alone); `bits` the storage width."""

    name: str
    kind: str
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes in memory (a bool takes one)."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.kind in "if"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def part(self) -> DType:
        """The type of the real and of the imaginary part; a real type itself."""
        return _PARTS.get(self.name, self)

    @property
    def is_narrow_float(self) -> bool:
        """Whether it is a float of 16 or 8 bits."""
        return self.is_float and self.bits < 32

    @property
    def compute(self) -> DType:
        """The type that arithmetic runs in: narrow floats compute in `f32` and round after each operation."""
        return f32 if self.is_narrow_float else self

    @cached_property
    def numpy(self) -> np.dtype:
        if self.name in _ML_DTYPES_NAMES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[self.name]))
        if self.is_complex:
            return np.dtype(self.name)
        return np.dtype(np.float32) if self.name == "tf32" else np.dtype(_NUMPY_NAMES[self.name])

    @property
    def lowest(self) -> float | int | bool:
        """The identity of `max`: for floats -inf, or the lowest number of a type without infinities."""
        if self.is_float:
            return -float(self.highest)
        return False if self.is_bool else int(np.iinfo(self.numpy).min)

    @property
    def highest(self) -> float | int | bool:
        """The identity of `min`: for floats +inf, or the highest number of a type without infinities."""
        if self.is_float:
            return _WITHOUT_INFINITIES.get(self.name, math.inf)
        return True if self.is_bool else int(np.iinfo(self.numpy).max)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next float; 0 for exact types."""
        return _EPSILON.get(self.name, 0.0)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return _named, (self.name,)


f8e4m3fn = DType("f8e4m3fn", "f", 8)
f8e5m2 = DType("f8e5m2", "f", 8)
f16 = DType("f16", "f", 16)
bf16 = DType("bf16", "f", 16)
f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)
i8, i16, i32, i64 = (DType(f"i{bits}", "i", bits) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{bits}", "u", bits) for bits in (8, 16, 32, 64))
bool_ = DType("bool", "b", 8)

# Pairs of floats at the front ends, where an array of complex numbers is two arrays: no array of the IR has them.
complex64, complex128 = DType("complex64", "c", 64), DType("complex128", "c", 128)
COMPLEX = (complex64, complex128)
_PARTS = {"complex64": f32, "complex128": f64}

# f32 with 10 bits behind the leading one: what matrix units multiply where a product asks for it. No array has it.
tf32 = DType("tf32", "f", 32)

FLOATS = (f8e4m3fn, f8e5m2, f16, bf16, f32, f64)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
INTEGERS = SIGNED + UNSIGNED
ALL = (bool_, *INTEGERS, *FLOATS)

_ML_DTYPES_NAMES = {"f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "bf16": "bfloat16"}
# The largest number of such a type.
_WITHOUT_INFINITIES = {"f8e4m3fn": 448.0}
_NUMPY_NAMES = {"f16": "float16", "f32": "float32", "f64": "float64", "bool": "bool"} | {
    d.name: f"{'u' if d.kind == 'u' else ''}int{d.bits}" for d in INTEGERS
}
_COMPLEX_BY_NAME = {d.name: d for d in COMPLEX}
_BY_NAME = {d.name: d for d in (*ALL, tf32)}
# Types that NumPy stores by `ml_dtypes`, by the names that they have there, in torch and in JAX.
EXTENSIONS = {name: _BY_NAME[ours] for ours, name in _ML_DTYPES_NAMES.items()}
_EPSILON = {"f8e4m3fn": 2.0**-3, "f8e5m2": 2.0**-2, "f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
_BY_NUMPY_NAME = {name: _BY_NAME[ours] for ours, name in (_NUMPY_NAMES | _ML_DTYPES_NAMES).items()}


def _named(name: str) -> DType:
    """The one object of a type, for copies and pickles."""
    return _COMPLEX_BY_NAME.get(name) or _BY_NAME[name]


def by_name(name: str) -> DType:
    """The type called `name`; KeyError when there is none."""
    return _BY_NAME[name]


def from_numpy(dtype: npt.DTypeLike) -> DType:
    """The type that stores a NumPy dtype.

    Raises:
        KeyError: the dtype has no counterpart (complex, strings, objects, other floats of 8 bits and less).
    """
    return _BY_NUMPY_NAME[np.dtype(dtype).name]


DTypeLike: TypeAlias = DType | np.dtype | type | str
"""A `DType`, a Python type of numbers, a type of NumPy, or the name of one of these."""


def as_dtype(value: Any) -> DType:
    """Accept a `DType`, one of our names, a Python scalar type or anything NumPy takes as a dtype.

    Raises:
        KeyError, TypeError: it is none of them, or a complex type.
    """
    if isinstance(value, DType):
        if value.is_complex:
            raise KeyError(value.name)
        return value
    if isinstance(value, str) and value in _BY_NAME and value != "tf32":
        return _BY_NAME[value]
    if value is float:
        return f32
    if value is int:
        return i64
    return from_numpy(value)


def as_dtype_or_complex(value: Any) -> DType:
    """Accept a complex type too, and Python's `complex` for `complex64`.

    Raises:
        KeyError, TypeError: it is no type.
    """
    if isinstance(value, DType):
        return value
    if value is complex:
        return complex64
    if isinstance(value, str) and value in _BY_NAME:
        return as_dtype(value)
    return _COMPLEX_BY_NAME.get(np.dtype(value).name) or as_dtype(value)


def complex_of(dtype: DType) -> DType:
    """The complex type that holds the numbers of a real type: `complex128` of f64, else `complex64`."""
    if dtype.is_complex:
        return dtype
    return complex128 if dtype == f64 else complex64


def promote(a: DType, b: DType) -> DType:
    """Type promotion of two array operands, after the Array API tables extended to narrow floats and mixed kinds.

    Integers with floats give the float (the Array API leaves this open; ours never widens a float because of an
    integer); two floats of one width, such as `bf16` and `f16`, give `f32`; `u64` with a signed integer gives `i64`.
    """
    if a == b:
        return a
    if a.is_bool:
        return b
    if b.is_bool:
        return a
    if a.is_complex or b.is_complex:
        return complex128 if complex128 in (complex_of(a), complex_of(b)) else complex64
    if a.is_float or b.is_float:
        if not (a.is_float and b.is_float):
            return a if a.is_float else b
        if a.bits == b.bits:
            return f32
        return a if a.bits > b.bits else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return _BY_NAME[f"i{min(64, unsigned.bits * 2)}"]


def multiply_unconverted(a: DType, b: DType) -> bool:
    """Whether matmuls take operands of these types unconverted: one type, or two floats of 8 bits."""
    return a == b or (a.is_float and b.is_float and a.bits == b.bits == 8)

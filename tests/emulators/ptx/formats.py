"""The types of PTX as NumPy arrays, and floating-point results rounded once (PTX ISA, "Types").

Sums and products that float64 does not hold are first rounded to odd: towards zero, with the last bit set where
anything was lost. Rounding that to a format at least two bits narrower, in any direction, is rounding the exact value.
"""

from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Type:
    """`lanes` numbers of `dtype` side by side in `bits` bits."""

    name: str
    dtype: np.dtype
    bits: int
    lanes: int = 1

    @property
    def is_float(self) -> bool:
        return self.name[0] == "f" or self.name[:2] == "bf"

    @property
    def is_signed(self) -> bool:
        return self.name[0] == "s"


def _types() -> dict[str, Type]:
    types = {"pred": Type("pred", np.dtype(bool), 1), "bf16": Type("bf16", np.dtype(ml_dtypes.bfloat16), 16)}
    for bits in (8, 16, 32, 64):
        for kind, code in (("b", "uint"), ("u", "uint"), ("s", "int")):
            types[f"{kind}{bits}"] = Type(f"{kind}{bits}", np.dtype(f"{code}{bits}"), bits)
    for bits in (16, 32, 64):
        types[f"f{bits}"] = Type(f"f{bits}", np.dtype(f"float{bits}"), bits)
    for name in ("f16", "bf16", "u16", "s16", "f32"):
        single = types[name]
        types[f"{name}x2"] = Type(f"{name}x2", single.dtype, 2 * single.bits, 2)
    return types


TYPES = _types()
_BITS_OF = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# Digits of the significand with the leading one, and the least exponent of a normal number.
_FORMATS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "tf32": (11, -126)}
_LARGEST = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127"), "f32": float.fromhex("0x1.fffffep127")}
_LARGEST["tf32"] = float.fromhex("0x1.ffcp127")
# Arithmetic gives this NaN, whatever the NaN it was given ("Floating-Point Instructions"). float64 keeps its payload.
_CANONICAL_NAN = {2: 0x7FFF, 4: 0x7FFFFFFF}
_EXPONENT_MASK = {
    np.dtype(np.float16): 0x7C00,
    np.dtype(ml_dtypes.bfloat16): 0x7F80,
    np.dtype(np.float32): 0x7F800000,
}


def bits_of(values: np.ndarray) -> np.ndarray:
    """The same bytes as unsigned integers of the same width."""
    return values.view(_BITS_OF[values.dtype.itemsize])


def sign_bit(values: np.ndarray) -> np.ndarray:
    """The sign bit alone, as unsigned integers."""
    unsigned = bits_of(values)
    return unsigned & unsigned.dtype.type(1 << (8 * values.dtype.itemsize - 1))


def canonical(values: np.ndarray) -> np.ndarray:
    """`values` with each NaN replaced by the one that arithmetic gives."""
    pattern = _CANONICAL_NAN.get(values.dtype.itemsize)
    missing = np.isnan(values)
    if pattern is None or not missing.any():
        return values
    unsigned = bits_of(values)
    return np.where(missing, unsigned.dtype.type(pattern), unsigned).view(values.dtype)


def flushed(values: np.ndarray) -> np.ndarray:
    """Subnormal numbers become zeros of their sign (`.ftz`)."""
    unsigned = bits_of(values)
    exponent = unsigned.dtype.type(_EXPONENT_MASK[values.dtype])
    return np.where((unsigned & exponent) == 0, sign_bit(values), unsigned).view(values.dtype)


def saturated(values: np.ndarray) -> np.ndarray:
    """Clamped to 0..1, NaN becomes +0 (`.sat`)."""
    one, zero = values.dtype.type(1), values.dtype.type(0)
    return np.where(values > one, one, np.where(values > zero, values, zero)).astype(values.dtype)


def narrowed(values: np.ndarray, name: str, mode: str = "rn") -> np.ndarray:
    """float64 `values` in format `name`, rounded once; tf32 is returned as float32.

    `mode`: rn (ties to even), rna (ties away from zero), rz, rm (down) or rp (up).
    """
    if name == "f32" and mode == "rn":
        # NumPy's own conversion: rounded once, ties to even, subnormal numbers and overflow included.
        return canonical(values.astype(np.float32))
    digits, least = _FORMATS[name]
    _, exponent = np.frexp(values)
    quantum = np.maximum(exponent - digits, least - digits + 1)
    scaled = np.ldexp(values, -quantum)
    rounded = np.copysign(np.ldexp(_ROUND[mode](scaled), quantum), values)
    rounded = _overflowed(rounded, values, _LARGEST[name], mode)
    if name != "bf16":
        return canonical(rounded.astype(np.float16 if name == "f16" else np.float32))
    upper = (rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return canonical(upper.view(ml_dtypes.bfloat16))


_ROUND = {
    "rn": np.rint,
    "rna": lambda scaled: np.copysign(np.floor(np.abs(scaled) + 0.5), scaled),
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
}


def _overflowed(rounded: np.ndarray, values: np.ndarray, largest: float, mode: str) -> np.ndarray:
    over = (np.abs(rounded) > largest) & np.isfinite(values)
    if not over.any():
        return rounded
    positive = values > 0
    to_infinity = {"rn": True, "rna": True, "rz": False, "rm": ~positive, "rp": positive}[mode]
    limit = np.where(to_infinity, np.inf, largest)
    return np.where(over, np.copysign(limit, values), rounded)


def _made_odd(total: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The round-to-odd value of `total + error`, where `total` is that sum rounded to nearest."""
    lost = (error != 0) & np.isfinite(total) & np.isfinite(error)
    if not lost.any():
        return total
    pattern = total.view(np.int64)
    outward = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(lost & ((pattern & 1) == 0), pattern + outward, pattern).view(np.float64)


def sum_to_odd(a: np.ndarray, b: np.ndarray, mode: str) -> np.ndarray:
    """a + b of float64 numbers, rounded to odd (Knuth's TwoSum gives what the sum loses).

    Of `mode` only the sign of a zero depends: terms that cancel give -0 when rounding down.
    """
    total = a + b
    if mode == "rm":
        total = np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)
    from_b = total - a
    error = (a - (total - from_b)) + (b - from_b)
    return _made_odd(total, error)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, name: str, mode: str) -> np.ndarray:
    """a * b + c rounded once. Products of two f32 numbers are exact in float64."""
    if name == "f64":
        return _multiply_add_f64(a, b, c)
    exact = sum_to_odd(wide(a) * wide(b), wide(c), mode)
    if name == "f32" and mode == "rn":
        return canonical(exact.astype(np.float32))
    return narrowed(exact, name, mode)


def _multiply_add_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    a, b, c = np.broadcast_arrays(a, b, c)
    result = a * b + c
    for position in np.ndindex(a.shape):
        x, y, z = float(a[position]), float(b[position]), float(c[position])
        if np.isfinite((x, y, z)).all():
            result[position] = _exact_multiply_add(x, y, z)
    return result


def _exact_multiply_add(x: float, y: float, z: float) -> float:
    total = Fraction(x) * Fraction(y) + Fraction(z)
    if total == 0:
        # The product is zero with z, whose signs decide, or cancels it, which gives +0. A product that is not zero
        # but too small for float64 does not come here.
        return x * y + z if x == 0 or y == 0 else 0.0
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def integers_to_odd(values: np.ndarray) -> np.ndarray:
    """64-bit integers as float64, rounded to odd where 53 bits are too few."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    negative = values < 0
    magnitude = values.astype(np.uint64)
    magnitude = np.where(negative, np.uint64(0) - magnitude, magnitude)
    low = (magnitude & np.uint64(0x7FF)) != 0
    cut = np.ldexp(((magnitude >> np.uint64(11)) | low.astype(np.uint64)).astype(np.float64), 11)
    exact = np.where(magnitude < np.uint64(1 << 53), magnitude.astype(np.float64), cut)
    return np.where(negative, -exact, exact)

"""cvt between integers and floating-point types: PTX ISA, "Data Movement and Conversion Instructions: cvt"."""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.emulators.ptx.formats import TYPES, Type, canonical, flushed, integers_to_odd, narrowed, saturated, wide
from tests.emulators.ptx.words import Pure, Words

_INTEGERS = tuple(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_ROUNDINGS = ("rn", "rz", "rm", "rp")
# "Alternate Floating-Point Data Formats": the type and the largest number; both have NaN 0x7F.
_EIGHT_BITS = {
    "e4m3x2": (np.dtype(ml_dtypes.float8_e4m3fn), 448.0),
    "e5m2x2": (np.dtype(ml_dtypes.float8_e5m2), 57344.0),
}


def convert(words: Words) -> Pure:
    if words.left and words.left[-1] == "f32" and words.left[-2:-1] in (["f16x2"], ["bf16x2"]):
        return _packed(words)
    if words.left[-2:] == ["tf32", "f32"]:
        return _to_tf32(words)
    if words.left and words.left[-1] in _EIGHT_BITS:
        return _from_eight_bits(words)
    if words.left[-2:-1] and words.left[-2] in _EIGHT_BITS:
        return _to_eight_bits(words)
    source = words.take_type((*_INTEGERS, *_FLOATS))
    target = words.take_type((*_INTEGERS, *_FLOATS))
    if source in _INTEGERS and target in _INTEGERS:
        return _between_integers(words, TYPES[source], TYPES[target])
    if source in _INTEGERS:
        return _integer_to_float(words, TYPES[source], TYPES[target])
    if target in _INTEGERS:
        return _float_to_integer(words, TYPES[source], TYPES[target])
    return _between_floats(words, source, target)


def _between_integers(words: Words, source: Type, target: Type) -> Pure:
    if not words.take("sat"):
        return Pure((target.name,), (source.name,), lambda a: a.astype(target.dtype))
    limits = np.iinfo(target.dtype)
    inner = np.iinfo(source.dtype)
    low, high = max(limits.min, inner.min), min(limits.max, inner.max)
    return Pure((target.name,), (source.name,), lambda a: np.clip(a, low, high).astype(target.dtype))


def _integer_to_float(words: Words, source: Type, target: Type) -> Pure:
    mode = words.take_one(_ROUNDINGS, None)
    saturate = words.take("sat")
    if target.name == "f64" and (saturate or (mode != "rn" and source.bits == 64)):
        raise words.unknown()

    def compute(a: np.ndarray) -> np.ndarray:
        result = a.astype(np.float64) if target.name == "f64" else narrowed(integers_to_odd(a), target.name, mode)
        return saturated(result) if saturate else result

    return Pure((target.name,), (source.name,), compute)


def _float_to_integer(words: Words, source: Type, target: Type) -> Pure:
    rounding = _TO_INTEGER[words.take_one(tuple(_TO_INTEGER), None)]
    flush = words.take("ftz")
    # Floats are clamped to the integer's range with and without `.sat`.
    words.take("sat")
    if flush and source.name != "f32":
        raise words.unknown()
    limits = np.iinfo(target.dtype)
    # NaN becomes 0, but where one of the types has 64 bits the pattern 100...0, unsigned as well.
    missing = 1 << (target.bits - 1) if source.name == "f64" or target.bits == 64 else 0
    missing = np.array(missing, f"uint{target.bits}").view(target.dtype)
    above, below = float(limits.max) + (target.bits < 64), float(limits.min)

    def compute(a: np.ndarray) -> np.ndarray:
        exact = rounding(wide(flushed(a) if flush else a))
        high, low, nan = exact >= above, exact < below, np.isnan(exact)
        inside = np.where(high | low | nan, 0.0, exact).astype(target.dtype)
        result = np.where(high, target.dtype.type(limits.max), inside)
        return np.where(nan, missing, np.where(low, target.dtype.type(limits.min), result))

    return Pure((target.name,), (source.name,), compute)


def _between_floats(words: Words, source: str, target: str) -> Pure:
    to_integer = words.take_one(tuple(_TO_INTEGER), "none")
    narrowing = TYPES[target].bits < TYPES[source].bits or {source, target} == {"f16", "bf16"}
    mode = words.take_one(_ROUNDINGS, None if narrowing and to_integer == "none" else "exact")
    flush, saturate, relu = words.take("ftz"), words.take("sat"), words.take("relu")
    if (relu and not narrowing) or (flush and "f32" not in (source, target)):
        raise words.unknown()
    rounding = _TO_INTEGER.get(to_integer)

    def compute(a: np.ndarray) -> np.ndarray:
        exact = wide(flushed(a) if flush and source == "f32" else a)
        exact = rounding(exact) if rounding else exact
        exact = np.where(exact > 0, exact, np.where(np.isnan(exact), exact, 0.0)) if relu else exact
        result = exact if target == "f64" else narrowed(exact, target, "rn" if mode == "exact" else mode)
        result = flushed(result) if flush and target == "f32" else result
        return saturated(result) if saturate else canonical(result)

    return Pure((target,), (source,), compute)


def _packed(words: Words) -> Pure:
    """cvt.rn.f16x2.f32 d, a, b: a in the upper half of d, b in the lower."""
    words.take_type(("f32",))
    name = words.take_type(("f16x2", "bf16x2"))
    mode = words.take_one(("rn", "rz"), None)
    relu = words.take("relu")

    def compute(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        both = np.stack(np.broadcast_arrays(lower, upper), axis=-1).astype(np.float64)
        both = np.where(both > 0, both, np.where(np.isnan(both), both, 0.0)) if relu else both
        return narrowed(both, name.removesuffix("x2"), mode)

    return Pure((name,), ("f32", "f32"), compute)


def _to_tf32(words: Words) -> Pure:
    """tf32 numbers lie in 32-bit registers, as float32 whose last 13 bits are zero."""
    words.take_type(("f32",))
    words.take_type(("tf32",))
    mode = words.take_one(("rna", "rn", "rz"), None)
    return Pure(("b32",), ("f32",), lambda a: narrowed(wide(a), "tf32", mode).view(np.uint32))


def _to_eight_bits(words: Words) -> Pure:
    """cvt.rn.satfinite.e4m3x2.f32 d, a, b: a in the upper half of d; and of a pair .f16x2."""
    source = words.take_type(("f32", "f16x2"))
    dtype, largest = _EIGHT_BITS[words.take_type(tuple(_EIGHT_BITS))]
    relu = words.take("relu")
    if not words.take("rn") or not words.take("satfinite"):
        raise words.unknown()

    def compute(*operands: np.ndarray) -> np.ndarray:
        # Of a pair the lower half comes first.
        parts = np.broadcast_arrays(*operands[::-1])
        values = np.stack(parts, axis=-1).astype(np.float64) if source == "f32" else wide(operands[0])
        limited = np.clip(values, 0.0 if relu else -largest, largest)
        bits = limited.astype(np.float32).astype(dtype).view(np.uint8)
        return np.ascontiguousarray(np.where(np.isnan(values), np.uint8(0x7F), bits)).view(np.uint16)[..., 0]

    return Pure(("b16",), ("f32", "f32") if source == "f32" else ("f16x2",), compute)


def _from_eight_bits(words: Words) -> Pure:
    """cvt.rn.f16x2.e4m3x2 d, a: every number is one of f16."""
    dtype, _ = _EIGHT_BITS[words.take_type(tuple(_EIGHT_BITS))]
    words.take_type(("f16x2",))
    relu = words.take("relu")
    if not words.take("rn"):
        raise words.unknown()

    def compute(a: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(a)[:, None].view(np.uint8).view(dtype).astype(np.float64)
        values = np.where(values > 0, values, np.where(np.isnan(values), values, 0.0)) if relu else values
        return narrowed(values, "f16", "rn")

    return Pure(("f16x2",), ("b16",), compute)
